/* Memory that grows: arrays, and bytes that grow at their end. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct input; /* runtime/files/input.h */

/* Room for `wanted` elements in heap memory that doubles; *block and *capacity, in elements, begin as 0. 0, or -1 with
 * an error text when memory runs out. */
int memory_reserve(void **block, size_t *capacity, size_t wanted, size_t element_bytes);

/* Begin with all zero. */
struct text_buffer {
    char *bytes; /* owned; no final NUL */
    size_t size, capacity;
};

/* Makes room for this many bytes after the end. 0, or -1 with an error text when memory runs out. */
int text_reserve(struct text_buffer *buffer, size_t bytes);
int text_append(struct text_buffer *buffer, const void *data, size_t bytes);

/* Appends up to so many bytes of an input; *at_end: there were fewer. */
int text_read(struct text_buffer *buffer, struct input *input, size_t bytes, bool *at_end);

/* Drops bytes from the beginning. */
void text_drop(struct text_buffer *buffer, size_t bytes);
void text_free(struct text_buffer *buffer);
