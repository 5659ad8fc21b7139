/* Documents out of files, one after the other: text files, each one document, or JSON lines, each line one; perhaps
 * compressed, see runtime/files/input.h. */
#pragma once

#include "src/settings/settings.h"
#include "src/text/json_lines.h"

/* --documents */
#define DOCUMENTS_WORDS "auto|files|jsonl"
enum documents_word { DOCUMENTS_BY_NAME, DOCUMENTS_FILES, DOCUMENTS_JSONL };

struct documents_settings {
    const char *const *names; /* [count] of files; "-" is standard input */
    size_t count;
    int word;          /* enum documents_word */
    char *field;       /* of JSON lines: the one that has the text; NULL: the line itself is the text */
    char *count_field; /* and the one whose words and bytes are counted; NULL: the text */
    int invalid;       /* enum invalid_word: text that is not UTF-8 is an error, or becomes U+FFFD */
    int64_t limit;     /* no more documents than these; 0: all */
};

struct document {
    const char *source; /* the name of its file */
    uint64_t line;      /* of JSON lines, from 1; 0 for a text file */
    const char *text;   /* UTF-8, without a final NUL */
    size_t bytes;
    const char *counted; /* whose words and bytes are counted */
    size_t counted_bytes;
};

struct documents;

/* Examines the files, so that a missing one is known at once. The settings must stay. Either way the caller closes
 * it. */
int documents_open(const struct documents_settings *settings, struct documents **opened);
void documents_close(struct documents *documents);

/* The next document, valid until the next call. 1: there is one, 0: there are no more, -1 with an error text that
 * begins with file and line: unreadable, not UTF-8, not JSON, without the field, or of more than 1 GiB. */
int documents_next(struct documents *documents, struct document *document);

/* How far reading is, and the end of it; 0: not known. Returns the unit: "documents" where their number is limited,
 * else "bytes", as stored. */
const char *documents_progress(const struct documents *documents, uint64_t *done, uint64_t *total);
