#include "tests/support/scratch.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MOST_BYTES = 1 << 28 };

static char folder[64];
static char **texts; /* paths and contents, owned */
static size_t text_count;

int scratch_begin(void **state) {
    (void)state;
    strcpy(folder, "/tmp/hctrain-test-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

int scratch_end(void **state) {
    (void)state;
    while (text_count > 0) {
        free(texts[--text_count]);
    }
    free(texts);
    texts = NULL;
    return files_remove_folder(folder);
}

/* Takes a heap text, which stays until scratch_end. */
static char *keep(char *text) {
    texts = memory_resize(texts, text_count + 1, sizeof *texts);
    return texts[text_count++] = text;
}

char *scratch_format(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    return length < 0 ? NULL : keep(text);
}

const char *scratch_path(const char *name) {
    return scratch_format("%s/%s", folder, name);
}

const char *scratch_write(const char *name, const void *data, size_t bytes) {
    const char *path = scratch_path(name);
    const char *parent = scratch_format("%.*s", (int)(strrchr(path, '/') - path), path);
    FILE *file = files_make_folder(parent) == 0 ? fopen(path, "wb") : NULL;
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
    return path;
}

const char *scratch_put(const char *name, const char *text) {
    return scratch_write(name, text, strlen(text));
}

char *scratch_read(const char *path, size_t *bytes) {
    char *text = NULL;
    return files_read(path, MOST_BYTES, &text, bytes) == 0 ? text : NULL;
}

char *scratch_text(const char *path, size_t *bytes) {
    char *text = scratch_read(path, bytes != NULL ? bytes : &(size_t){0});
    if (text == NULL) {
        fprintf(stderr, "there is no %s\n", path);
        exit(1);
    }
    return keep(text);
}

int scratch_entries(const char *path) {
    DIR *opened = opendir(path);
    if (opened == NULL) {
        return -1;
    }
    int count = -2;
    while (readdir(opened) != NULL) {
        count++;
    }
    closedir(opened);
    return count;
}

void scratch_limit_file_size(uint64_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == UINT64_MAX ? limit.rlim_max : (rlim_t)bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
}
