#include "tests/fuzz/fuzz_folder.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64];
static const char *const *all_names;

static void remove_files(void) {
    char path[160];
    for (const char *const *name = all_names; name && *name; name++) {
        snprintf(path, sizeof path, "%s/%s", folder, *name);
        remove(path);
    }
}

static void remove_folder(void) {
    remove_files();
    rmdir(folder);
}

static void begin(const char *const *names) {
    const char *temporary = getenv("TMPDIR");
    all_names = names;
    if (*folder) {
        remove_files();
        return;
    }
    snprintf(folder, sizeof folder, "%.40s/hc-fuzz-XXXXXX", temporary ? temporary : "/tmp");
    if (!mkdtemp(folder)) {
        perror("mkdtemp");
        abort();
    }
    atexit(remove_folder);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) {
        perror(path);
        abort();
    }
}

/* The name of the list that the text after a mark begins with and that ends its line; NULL: none does. */
static const char *name_at(const uint8_t *text, size_t bytes, const char *const *names) {
    for (; *names; names++) {
        const size_t length = strlen(*names);
        if (length < bytes && memcmp(text, *names, length) == 0 && text[length] == '\n') {
            return *names;
        }
    }
    return NULL;
}

const char *fuzz_folder(const uint8_t *data, size_t bytes, const char *const *names) {
    static const char mark[] = "==> ";
    const size_t length = sizeof mark - 1;
    const char *name = names[0];
    const uint8_t *const end = data + bytes, *content = data;
    begin(names);
    for (const uint8_t *at = data; at < end; at++) {
        const bool marks =
            (size_t)(end - at) > length && memcmp(at, mark, length) == 0 && (at == data || at[-1] == '\n');
        const char *next = marks ? name_at(at + length, (size_t)(end - at) - length, names) : NULL;
        if (next) {
            if (at > content) {
                write_file(name, content, (size_t)(at - content));
            }
            name = next;
            content = at + length + strlen(next) + 1;
        }
    }
    if (content <= end && (content < end || content > data)) {
        write_file(name, content, (size_t)(end - content));
    }
    return folder;
}
