/* Bytes that grow at their end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct input; /* runtime/files/input.h */

/* Initialise with zeros. */
struct text_buffer {
    char *bytes; /* owned; no final NUL */
    size_t size, capacity;
};

/* Makes sure that so many bytes fit after the end. */
void text_reserve(struct text_buffer *buffer, size_t bytes);
void text_append(struct text_buffer *buffer, const void *data, size_t bytes);

/* Appends up to so many bytes of an input; *at_end: there were fewer. 0, or -1 with an error text. */
int text_read(struct text_buffer *buffer, struct input *input, size_t bytes, bool *at_end);

/* Drops bytes from the beginning. */
void text_drop(struct text_buffer *buffer, size_t bytes);
void text_free(struct text_buffer *buffer);

/* Appends the text with U+FFFD in place of what is not UTF-8: one for each longest part that could begin a
 * character, as Unicode recommends and Python does. */
void text_append_utf8(struct text_buffer *buffer, const char *text, size_t bytes);

/* The number of line ends. */
uint64_t text_lines(const char *text, size_t bytes);

/* Makes sure that *text [*bytes] is UTF-8. If it is not, the function either fails with an error text that names
 * the source and the line (`line` is the number of the first line), or, with `replace`, puts a text with U+FFFD in
 * place of wrong bytes into the buffer and sets *text and *bytes to it. */
int text_require_utf8(const char **text, size_t *bytes, const char *source, uint64_t line, bool replace,
                      struct text_buffer *buffer);

/* Whether Python counts the character as white space: Unicode's, and the separators U+001C to U+001F. */
bool text_is_space(uint32_t character);

/* Where UTF-8 text [bytes] ends before its trailing white space. */
size_t text_rstrip(const char *text, size_t bytes);
