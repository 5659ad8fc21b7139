#include "runtime/error.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[4096];

/* message = format(arguments) + tail */
__attribute__((format(printf, 1, 0))) static void replace(const char *format, va_list arguments,
                                                          const char *separator, const char *tail) {
    char head[sizeof message], whole[2 * sizeof message];
    vsnprintf(head, sizeof head, format, arguments);
    snprintf(whole, sizeof whole, "%s%s%s", head, separator, tail);
    whole[sizeof message - 1] = '\0';
    memcpy(message, whole, sizeof message);
}

int error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    replace(format, arguments, "", "");
    va_end(arguments);
    return -1;
}

int error_prefix(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    replace(format, arguments, ": ", message);
    va_end(arguments);
    return -1;
}

int error_set_errno(const char *format, ...) {
    const int number = errno;
    va_list arguments;
    va_start(arguments, format);
    replace(format, arguments, ": ", strerror(number));
    va_end(arguments);
    return -1;
}

const char *error_text(void) {
    return message;
}

void error_clear(void) {
    message[0] = '\0';
}
