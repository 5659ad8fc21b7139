/* JSON lines: each line of a file is a JSON object, and one field of it is the text of a document. And the other
 * kinds of documents. */
#pragma once

#include "runtime/files/input.h"
#include "src/text/text_buffer.h"

/* Reads the lines of an input. Initialise with zeros but for `input`, which the caller owns, and `whole`; end with
 * json_lines_free. */
struct json_lines {
    struct input *input;
    bool whole;              /* the input is one document of text, not lines */
    struct text_buffer held; /* bytes that were read; those before `at` were returned */
    size_t at;
    uint64_t line; /* number of the last line returned, from 1 */
    bool at_end;   /* of the input */
};

/* The next line that is not blank, without its line end, or the whole input; valid until the next call. 1: there is
 * one, 0: the input has ended, -1 with an error text: it cannot be read, or a line has more than 1 GiB. */
int json_lines_next(struct json_lines *lines, const char **line, size_t *bytes);
void json_lines_free(struct json_lines *lines);

/* Replaces *text [*bytes], a line, by the string in `field` of its object, which is in `buffer`. Fails if the line
 * is not JSON, not an object, or has no such string. The error text names the option that chooses the field
 * (NULL: none does), but not file and line. replace: half a surrogate pair becomes U+FFFD. */
int json_lines_field(const char **text, size_t *bytes, const char *field, const char *option, bool replace,
                     struct text_buffer *buffer);

/* What in files of text is a document. */
enum document_kind {
    DOCUMENT_CHUNKS, /* running text: chunks of it */
    DOCUMENT_FILES,  /* each file */
    DOCUMENT_JSONL,  /* each line of a file */
};

const char *document_kind_name(enum document_kind kind);

/* For --documents auto: JSON lines if all names end in .jsonl, .ndjson or .json (perhaps followed by .gz or .zst),
 * `otherwise` if none does; some but not all of them is an error. */
int document_kind_by_names(const char *const *names, size_t count, enum document_kind otherwise,
                           enum document_kind *kind);
