/* A file of the project as it was at build: cmake/embed_texts.cmake writes tables of them, which end with a NULL
 * name. */
#pragma once

struct embedded_text {
    const char *name, *text;
};
