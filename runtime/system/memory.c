#include "runtime/system/memory.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void (*_Atomic before_exit)(void);

void memory_before_exit(void (*end_job)(void)) {
    atomic_store(&before_exit, end_job);
}

void memory_refused(size_t bytes) {
    /* No stdio and no error text: both may need memory, or locks that another thread holds. */
    char line[256];
    int length = bytes > 0
                     ? snprintf(line, sizeof line, "%s: out of memory: the system refused %zu bytes (%.1f MiB)\n",
                                program_invocation_short_name, bytes, (double)bytes / (1 << 20))
                     : snprintf(line, sizeof line, "%s: out of memory\n", program_invocation_short_name);
    length = length < (int)sizeof line ? length : (int)sizeof line - 1;
    const ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written; /* there is nobody else to report to */
    void (*end_job)(void) = atomic_load(&before_exit);
    if (end_job != NULL) {
        end_job();
    }
    _exit(EXIT_FAILURE);
}

static void *check(void *memory, size_t count, size_t size) {
    if (memory == NULL) {
        memory_refused(size > 0 && count > SIZE_MAX / size ? SIZE_MAX : count * size);
    }
    return memory;
}

void *memory_allocate(size_t count, size_t size) {
    return memory_resize(NULL, count, size);
}

void *memory_zeroed(size_t count, size_t size) {
    const bool some = count > 0 && size > 0;
    return check(calloc(some ? count : 1, some ? size : 1), count, size);
}

void *memory_resize(void *old, size_t count, size_t size) {
    const bool some = count > 0 && size > 0;
    return check(reallocarray(old, some ? count : 1, some ? size : 1), count, size);
}

void memory_reserve(void **block, size_t *capacity, size_t wanted, size_t size) {
    if (wanted > *capacity) {
        *capacity = wanted > 2 * *capacity ? wanted + 64 : 2 * *capacity;
        *block = memory_resize(*block, *capacity, size);
    }
}

char *memory_string(const char *text) {
    return check(strdup(text), 1, strlen(text) + 1);
}

char *memory_string_part(const char *text, size_t length) {
    return check(strndup(text, length), 1, length);
}

char *memory_format(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    return check(length < 0 ? NULL : text, 0, 0);
}

FILE *memory_open_stream(char **text, size_t *bytes) {
    return check(open_memstream(text, bytes), 0, 0);
}

void memory_close_stream(FILE *stream) {
    const bool incomplete = ferror(stream) != 0;
    if (fclose(stream) != 0 || incomplete) {
        memory_refused(0);
    }
}
