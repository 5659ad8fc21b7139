#include "src/sampling/sample_text.h"
#include "runtime/system/utf8.h"
#include <string.h>

/* Bytes at the end that a stop text may begin with. */
static size_t begun_stop(const char *bytes, size_t count, const char *stop) {
    const size_t length = stop ? strlen(stop) : 0;
    for (size_t begun = length <= count ? length : count + 1; begun-- > 1;) {
        if (memcmp(bytes + count - begun, stop, begun) == 0) {
            return begun;
        }
    }
    return 0;
}

/* Moves the first `count` held bytes to `ready`, but, unless it is the end, what may become a character. */
static int release(struct sample_text *text, size_t count, bool end) {
    const size_t done = text->utf8 && !end ? utf8_complete(text->held.bytes, count) : count;
    if (text->utf8) {
        text_append_utf8(&text->ready, text->held.bytes, done);
    } else {
        text_append(&text->ready, text->held.bytes, done);
    }
    text_drop(&text->held, done);
    return 0;
}

int sample_text_add(struct sample_text *text, const char *bytes, size_t count) {
    struct text_buffer *held = &text->held;
    const bool watch = text->stop && *text->stop;
    if (text->stopped) {
        return 0;
    }
    text_append(held, bytes, count);
    const char *found =
        watch && held->size ? memmem(held->bytes, held->size, text->stop, strlen(text->stop)) : NULL;
    if (found) {
        held->size = (size_t)(found - held->bytes);
        text->stopped = true;
        return release(text, held->size, true);
    }
    return release(text, held->size - begun_stop(held->bytes, held->size, watch ? text->stop : NULL), false);
}

int sample_text_end(struct sample_text *text) {
    return text->stopped ? 0 : release(text, text->held.size, true);
}

void sample_text_free(struct sample_text *text) {
    text_free(&text->held);
    text_free(&text->ready);
}
