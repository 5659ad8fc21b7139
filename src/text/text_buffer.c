#include "src/text/text_buffer.h"
#include "runtime/files/input.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void text_reserve(struct text_buffer *buffer, size_t bytes) {
    memory_reserve((void **)&buffer->bytes, &buffer->capacity, buffer->size + bytes, 1);
}

void text_append(struct text_buffer *buffer, const void *data, size_t bytes) {
    if (bytes > 0) {
        text_reserve(buffer, bytes);
        memcpy(buffer->bytes + buffer->size, data, bytes);
        buffer->size += bytes;
    }
}

int text_read(struct text_buffer *buffer, struct input *input, size_t bytes, bool *at_end) {
    size_t got;
    text_reserve(buffer, bytes);
    if (input_read(input, buffer->bytes + buffer->size, bytes, &got)) {
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

void text_append_utf8(struct text_buffer *buffer, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        const size_t valid = utf8_prefix(text + at, bytes - at);
        text_append(buffer, text + at, valid);
        at += valid;
        if (at < bytes) {
            text_append(buffer, "\xef\xbf\xbd", 3);
            at += utf8_part(text + at, bytes - at);
        }
    }
}

uint64_t text_lines(const char *text, size_t bytes) {
    uint64_t lines = 0;
    for (const char *at = text, *end = text + bytes; at && (at = memchr(at, '\n', (size_t)(end - at))); at++) {
        lines++;
    }
    return lines;
}

int text_require_utf8(const char **text, size_t *bytes, const char *source, uint64_t line, bool replace,
                      struct text_buffer *buffer) {
    const size_t valid = utf8_prefix(*text, *bytes);
    if (valid == *bytes) {
        return 0;
    }
    if (!replace && memchr(*text, '\0', *bytes)) {
        return error_set("%s is no text: it has NUL bytes and is not UTF-8", source);
    }
    if (!replace) {
        return error_set("%s:%" PRIu64
                         ": not UTF-8 (byte 0x%02x): convert the file with iconv, or replace such bytes by "
                         "U+FFFD with --invalid replace",
                         source, line + text_lines(*text, valid), (unsigned char)(*text)[valid]);
    }
    buffer->size = 0;
    text_append_utf8(buffer, *text, *bytes);
    *text = buffer->bytes;
    *bytes = buffer->size;
    return 0;
}

/* ---- white space */

bool text_is_space(uint32_t character) {
    return utf8_is_space(character) || (character >= 0x1c && character <= 0x1f);
}

size_t text_rstrip(const char *text, size_t bytes) {
    uint32_t character;
    while (bytes > 0) {
        const size_t last = utf8_last(text, bytes);
        if (utf8_decode(text + last, bytes - last, &character) == 0 || !text_is_space(character)) {
            break;
        }
        bytes = last;
    }
    return bytes;
}
