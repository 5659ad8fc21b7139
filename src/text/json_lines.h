/* JSON lines: a line of a file is an object, and one field of it the text of a document. */
#pragma once

#include "runtime/files/input.h"
#include "src/text/text_buffer.h"
#include <stdbool.h>

/* Lines of an input. Begin with all zero but for `input`, which stays the caller's; end with json_lines_free. */
struct json_lines {
    struct input *input;
    struct text_buffer held; /* read and not yet given, but for the part before `at` */
    size_t at;
    uint64_t line; /* number of the last line given, from 1 */
    bool at_end;   /* of the input */
};

/* The next line that is not blank, without its end; valid until the next call. 1: there is one, 0: the input has
 * ended, -1 with an error text: it cannot be read, or a line has more than 1 GiB. */
int json_lines_next(struct json_lines *lines, const char **line, size_t *bytes);
void json_lines_free(struct json_lines *lines);

/* Replaces `text` by the string in `field` of a line's object. Fails on what is no JSON, no object or has no such
 * string, and when memory runs out; the error text does not know file and line. */
int json_lines_text(const char *line, size_t bytes, const char *field, struct text_buffer *text);
