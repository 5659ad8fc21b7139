#include "src/text/text_buffer.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

int memory_reserve(void **block, size_t *capacity, size_t wanted, size_t element_bytes) {
    if (wanted <= *capacity) {
        return 0;
    }
    const size_t grown = wanted > 2 * *capacity ? wanted + 64 : 2 * *capacity;
    void *moved = grown <= SIZE_MAX / 2 / element_bytes ? realloc(*block, grown * element_bytes) : NULL;
    if (!moved) {
        return error_set("out of memory");
    }
    *block = moved;
    *capacity = grown;
    return 0;
}

int text_reserve(struct text_buffer *buffer, size_t bytes) {
    return memory_reserve((void **)&buffer->bytes, &buffer->capacity, buffer->size + bytes, 1);
}

int text_append(struct text_buffer *buffer, const void *data, size_t bytes) {
    if (bytes == 0) {
        return 0;
    }
    if (text_reserve(buffer, bytes) != 0) {
        return -1;
    }
    memcpy(buffer->bytes + buffer->size, data, bytes);
    buffer->size += bytes;
    return 0;
}

int text_read(struct text_buffer *buffer, struct input *input, size_t bytes, bool *at_end) {
    size_t got;
    if (text_reserve(buffer, bytes) || input_read(input, buffer->bytes + buffer->size, bytes, &got)) {
        return -1;
    }
    buffer->size += got;
    *at_end = got < bytes;
    return 0;
}

void text_drop(struct text_buffer *buffer, size_t bytes) {
    if (bytes > 0) {
        memmove(buffer->bytes, buffer->bytes + bytes, buffer->size - bytes);
        buffer->size -= bytes;
    }
}

void text_free(struct text_buffer *buffer) {
    free(buffer->bytes);
    *buffer = (struct text_buffer){0};
}
