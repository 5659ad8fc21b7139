/* Text as UTF-8 (RFC 3629: no surrogates, nothing above U+10FFFF, shortest forms). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the character at the beginning of text [bytes > 0] and its number; 0: there is none, or it is not
 * whole. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *character);

/* The number of bytes before the first that is not part of a whole UTF-8 character; `bytes` if all of them are. */
size_t utf8_prefix(const char *text, size_t bytes);

/* For text [bytes > 0] that does not begin with a whole character: how many of its first bytes could begin one, at
 * least 1. */
size_t utf8_part(const char *text, size_t bytes);

/* The number of bytes without an incomplete character at the end. */
size_t utf8_complete(const char *text, size_t bytes);

/* The offset of the last character, whole or not, of text [bytes > 0] that is UTF-8 up to there. */
size_t utf8_last(const char *text, size_t bytes);

/* Whether Unicode calls the character white space. */
bool utf8_is_space(uint32_t character);

/* Whether the character controls how text is displayed: terminal controls, line ends, characters without width, and
 * marks that change the writing direction. */
bool utf8_is_control(uint32_t character);
