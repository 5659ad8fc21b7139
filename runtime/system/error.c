#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fixed, so that reporting "out of memory" needs none; long enough for a compiler's log. Longer text is cut. */
#define TEXT_SIZE 16384

static _Thread_local char text[TEXT_SIZE];
/* New text is formatted here, since the arguments of a call may point into `text`. */
static _Thread_local char draft[TEXT_SIZE];

/* The message becomes the formatted text, followed by a colon and `behind` (NULL: by nothing). */
__attribute__((format(printf, 1, 0))) static void compose(const char *format, va_list arguments,
                                                          const char *behind) {
    const size_t length = message_format(draft, TEXT_SIZE, format, arguments);
    if (behind != NULL) {
        message_write(draft + length, TEXT_SIZE - length, ": %s", behind);
    }
    memcpy(text, draft, TEXT_SIZE);
}

int error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    compose(format, arguments, NULL);
    va_end(arguments);
    return -1;
}

int error_prefix(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    compose(format, arguments, text);
    va_end(arguments);
    return -1;
}

int error_set_errno(const char *format, ...) {
    char buffer[256];
    const char *reason = strerror_r(errno, buffer, sizeof buffer);
    va_list arguments;
    va_start(arguments, format);
    compose(format, arguments, reason);
    va_end(arguments);
    return -1;
}

int error_quote(const char *lines) {
    message_quote(text, TEXT_SIZE, lines);
    return -1;
}

int error_replace(const char *from, const char *to) {
    const size_t length = strlen(from);
    size_t used = 0;
    for (const char *at = text; *at != '\0' && used < TEXT_SIZE - 1;) {
        if (length > 0 && strncmp(at, from, length) == 0) {
            used += message_write(draft + used, TEXT_SIZE - used, "%s", to);
            at += length;
        } else {
            draft[used++] = *at++;
        }
    }
    draft[used] = '\0';
    memcpy(text, draft, TEXT_SIZE);
    return -1;
}

const char *error_text(void) {
    return text;
}

void error_clear(void) {
    text[0] = '\0';
}

char *error_keep(void) {
    return memory_string(text);
}

int error_restore(char *kept) {
    error_set("%s", kept);
    free(kept);
    return -1;
}
