/* Any bytes as a compiled program in the cache folder or PoCL's. */
#include "runtime/device/pocl_cache.h"
#include "runtime/device/programs.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define KEY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Where a user's cache is, by the environment; NULL: there is none. */
static void locate(const char *wanted, const char *cache_home, const char *home, const char *expected) {
    cache_home ? setenv("XDG_CACHE_HOME", cache_home, 1) : unsetenv("XDG_CACHE_HOME");
    home ? setenv("HOME", home, 1) : unsetenv("HOME");
    char *located = program_cache_locate(wanted);
    fuzz_require(located && expected ? strcmp(located, expected) == 0 : !located && !expected,
                 "the cache is elsewhere");
    free(located);
}

static void locate_all(const char *folder) {
    locate(folder, "/cache", "/home", folder);
    locate("", "/cache", "/home", NULL);
    locate(NULL, "/cache", "/home", "/cache/hctrain");
    locate(NULL, "cache", "/home", "/home/.cache/hctrain");
    locate(NULL, NULL, "home", NULL);
    locate(NULL, NULL, NULL, NULL);
}

/* What others may have written is not taken. */
static void refuse_shared(const char *folder) {
    unsigned char *program = NULL;
    size_t bytes = 0;
    char path[160];
    snprintf(path, sizeof path, "%s/%s.bin", folder, KEY);
    if (chmod(path, 0622) == 0) {
        fuzz_require(!program_cache_read(folder, KEY, &program, &bytes), "a program that others may write");
        chmod(path, 0600);
    }
}

/* A program that is taken is kept as it was, and stays where it cannot be written. */
static void read_program(const char *folder) {
    unsigned char *program = NULL, *again = NULL;
    size_t bytes = 0, bytes_again = 0;
    if (program_cache_read(folder, KEY, &program, &bytes)) {
        program_cache_write(folder, KEY, program, bytes);
        fuzz_fill_disk(true);
        program_cache_write(folder, KEY, program, bytes);
        fuzz_fill_disk(false);
        fuzz_require(program_cache_read(folder, KEY, &again, &bytes_again) && bytes == bytes_again &&
                         memcmp(program, again, bytes) == 0,
                     "another program came back");
        free(again);
        free(program);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {KEY ".bin", NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    error_clear();
    locate_all(folder);
    refuse_shared(folder);
    read_program(folder);
    pocl_cache_is_whole(data, bytes, "kernel.so");
    pocl_cache_is_whole(data, bytes, "program.bc");
    return 0;
}
