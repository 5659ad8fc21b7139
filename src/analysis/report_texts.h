/* The page's style and script, and the words of its plots, embedded at build. */
#pragma once

struct report_text {
    const char *name, *text;
};

/* Ends with a NULL name. */
extern const struct report_text report_texts[];
