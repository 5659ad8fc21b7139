#include "src/text/utf8.h"
#include "runtime/system/error.h"
#include <inttypes.h>

int utf8_replace(const char *text, size_t bytes, struct text_buffer *out) {
    for (size_t at = 0; at < bytes;) {
        const size_t valid = utf8_prefix(text + at, bytes - at), bad = at + valid;
        if (text_append(out, text + at, valid) || (bad < bytes && text_append(out, "\xef\xbf\xbd", 3))) {
            return -1;
        }
        at = bad < bytes ? bad + utf8_part(text + bad, bytes - bad) : bytes;
    }
    return 0;
}

int utf8_require(const char **text, size_t *bytes, const char *source, uint64_t line, bool replace,
                 struct text_buffer *buffer) {
    const size_t valid = utf8_prefix(*text, *bytes);
    if (valid == *bytes) {
        return 0;
    }
    if (!replace) {
        for (size_t i = 0; i < valid; i++) {
            line += (*text)[i] == '\n';
        }
        return error_set("%s:%" PRIu64
                         ": not UTF-8 (byte 0x%02x): convert it with iconv, or take U+FFFD for it with "
                         "--invalid replace",
                         source, line, (unsigned char)(*text)[valid]);
    }
    buffer->size = 0;
    if (utf8_replace(*text, *bytes, buffer)) {
        return -1;
    }
    *text = buffer->bytes;
    *bytes = buffer->size;
    return 0;
}
