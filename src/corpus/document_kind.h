/* What in a file of text is a document. */
#pragma once

#include <stddef.h>

enum document_kind {
    DOCUMENT_CHUNKS, /* running text without documents of its own: parts of it */
    DOCUMENT_FILES,  /* each file is one */
    DOCUMENT_JSONL,  /* each line of a file, a JSON object, has one in a field */
};

/* For --documents auto: JSON lines where all names end in .jsonl, .ndjson or .json (perhaps followed by .gz or
 * .zst), `otherwise` where none does; some but not all of them is an error. */
int document_kind_by_names(const char *const *names, size_t count, enum document_kind otherwise,
                           enum document_kind *kind);

const char *document_kind_name(enum document_kind kind);
