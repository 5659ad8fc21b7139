#include "tests/support/scratch.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { PATHS = 32, PATH_BYTES = 512, MOST_BYTES = 1 << 28 };

static char folder[64];
static char **texts; /* of scratch_text, owned */
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

const char *scratch_path(const char *name) {
    static char paths[PATHS][PATH_BYTES];
    static unsigned next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

const char *scratch_write(const char *name, const void *data, size_t bytes) {
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
    return path;
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
    texts = memory_resize(texts, text_count + 1, sizeof *texts);
    return texts[text_count++] = text;
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
