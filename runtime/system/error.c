#include "runtime/system/error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fixed, so that reporting "out of memory" needs none; long enough for a compiler's log. Longer text is cut. */
#define TEXT_SIZE 16384

static _Thread_local char text[TEXT_SIZE];
/* Where new text is formatted: the arguments of a call may point into `text`. */
static _Thread_local char draft[TEXT_SIZE];

static void draft_append(const char *more) {
    size_t used = strlen(draft);
    snprintf(draft + used, TEXT_SIZE - used, "%s", more);
}

__attribute__((format(printf, 1, 0))) static void draft_format(const char *format, va_list arguments) {
    draft[0] = '\0';
    if (vsnprintf(draft, TEXT_SIZE, format, arguments) < 0) {
        snprintf(draft, TEXT_SIZE, "%s", format);
    }
}

int error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    draft_format(format, arguments);
    va_end(arguments);
    memcpy(text, draft, TEXT_SIZE);
    return -1;
}

int error_prefix(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    draft_format(format, arguments);
    va_end(arguments);
    draft_append(": ");
    draft_append(text);
    memcpy(text, draft, TEXT_SIZE);
    return -1;
}

int error_set_errno(const char *format, ...) {
    int number = errno;
    char buffer[256];
    va_list arguments;
    va_start(arguments, format);
    draft_format(format, arguments);
    va_end(arguments);
    draft_append(": ");
    draft_append(strerror_r(number, buffer, sizeof(buffer)));
    memcpy(text, draft, TEXT_SIZE);
    return -1;
}

int error_replace(const char *from, const char *to) {
    const size_t length = strlen(from);
    draft[0] = '\0';
    for (char *at = text, *found; length > 0 && *at != '\0'; at = found + length) {
        found = strstr(at, from);
        if (found == NULL) {
            draft_append(at);
            break;
        }
        *found = '\0';
        draft_append(at);
        draft_append(to);
    }
    if (length > 0) {
        memcpy(text, draft, TEXT_SIZE);
    }
    return -1;
}

const char *error_text(void) {
    return text;
}

void error_clear(void) {
    text[0] = '\0';
}

char *error_keep(void) {
    return strdup(text);
}

int error_restore(char *kept) {
    error_set("%s", kept != NULL ? kept : "out of memory");
    free(kept);
    return -1;
}
