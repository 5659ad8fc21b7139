#include "src/text/text_buffer.h"
#include "runtime/system/error.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int text_reserve(struct text_buffer *buffer, size_t bytes) {
    if (buffer->capacity - buffer->size >= bytes) {
        return 0;
    }
    const size_t capacity = 2 * (buffer->size + bytes);
    char *grown = realloc(buffer->bytes, capacity);
    if (grown == NULL) {
        return error_set("out of memory");
    }
    buffer->bytes = grown;
    buffer->capacity = capacity;
    return 0;
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

int text_vprint(struct text_buffer *buffer, const char *format, va_list arguments) {
    char *text = NULL;
    const int length = vasprintf(&text, format, arguments);
    if (length < 0) {
        return error_set("out of memory");
    }
    const int result = text_append(buffer, text, (size_t)length);
    free(text);
    return result;
}

int text_print(struct text_buffer *buffer, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int result = text_vprint(buffer, format, arguments);
    va_end(arguments);
    return result;
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
