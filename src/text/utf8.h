/* Text as UTF-8 (RFC 3629: no surrogates, nothing above U+10FFFF, shortest forms). */
#pragma once

#include "src/text/text_buffer.h"
#include <stdbool.h>
#include <stdint.h>

/* The length of the character at the beginning of text [bytes > 0] and its number; 0: there is none, or it is not
 * whole. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *character);

/* How many of the bytes from the beginning are UTF-8: all of them, or up to the first character that is not, or not
 * whole. */
size_t utf8_prefix(const char *text, size_t bytes);

/* Appends the text with U+FFFD in place of what is not UTF-8: one for each longest part that could begin a
 * character, as Unicode recommends and Python does. 0, or -1 with an error when memory runs out. */
int utf8_replace(const char *text, size_t bytes, struct text_buffer *out);

/* Makes sure that *text [*bytes] is UTF-8: where it is not, an error that names source and line (that of its first
 * byte, from 1), or with `replace` it becomes utf8_replace's text in `buffer`. */
int utf8_require(const char **text, size_t *bytes, const char *source, uint64_t line, bool replace,
                 struct text_buffer *buffer);

/* All of the bytes, but for the beginning of a character at the end that is not whole. */
size_t utf8_complete(const char *text, size_t bytes);

/* Whether Unicode calls the character white space. */
bool utf8_is_space(uint32_t character);

/* Where the last character of text [bytes > 0], whole or not, begins, if it is UTF-8 that far. */
size_t utf8_last(const char *text, size_t bytes);
