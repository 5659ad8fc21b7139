/* Text as UTF-8 (RFC 3629: no surrogates, nothing above U+10FFFF, shortest forms). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the character at the beginning of text [bytes > 0] and its number; 0: there is none, or it is not
 * whole. */
size_t utf8_decode(const char *text, size_t bytes, uint32_t *character);

/* How many of the bytes from the beginning are UTF-8: all of them, or up to the first character that is not, or not
 * whole. */
size_t utf8_prefix(const char *text, size_t bytes);

/* Of text [bytes > 0] that begins with no whole character: how many bytes from the beginning could begin one, at least 1. */
size_t utf8_part(const char *text, size_t bytes);

/* All of the bytes, but for the beginning of a character at the end that is not whole. */
size_t utf8_complete(const char *text, size_t bytes);

/* Where the last character of text [bytes > 0], whole or not, begins, if it is UTF-8 that far. */
size_t utf8_last(const char *text, size_t bytes);

/* Whether Unicode calls the character white space. */
bool utf8_is_space(uint32_t character);

/* Whether the character controls how text is shown, rather than being shown: controls of terminals, ends of lines, what has no
 * width, and marks that change the direction of writing. */
bool utf8_is_control(uint32_t character);
