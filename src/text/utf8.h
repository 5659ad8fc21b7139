/* What is done with text that is not UTF-8. */
#pragma once

#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"

/* Appends the text with U+FFFD in place of what is not UTF-8: one for each longest part that could begin a
 * character, as Unicode recommends and Python does. 0, or -1 with an error when memory runs out. */
int utf8_replace(const char *text, size_t bytes, struct text_buffer *out);

/* Makes sure that *text [*bytes] is UTF-8: where it is not, an error that names source and line (that of its first
 * byte, from 1), or with `replace` it becomes utf8_replace's text in `buffer`. */
int utf8_require(const char **text, size_t *bytes, const char *source, uint64_t line, bool replace,
                 struct text_buffer *buffer);
