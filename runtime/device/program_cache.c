#include "runtime/device/programs.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       "HCPROG1"
#define ENTRY_LIMIT ((off_t)1 << 30)

#define DIGITS (CHECKSUM_SIZE - 1)

/* What an entry file begins with; the binary follows. */
struct header {
    char magic[8];
    char key[DIGITS];      /* of what was compiled */
    char checksum[DIGITS]; /* of the binary */
    uint64_t bytes;        /* of the binary */
};

char *program_cache_locate(const char *wanted) {
    const char *cache_home = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (wanted) {
        return *wanted ? memory_string(wanted) : NULL;
    }
    if (cache_home && *cache_home == '/') { /* XDG's specification: relative ones are ignored */
        return memory_format("%s/hctrain", cache_home);
    }
    return home && *home == '/' ? memory_format("%s/.cache/hctrain", home) : NULL;
}

/* An entry holds code that will run here: one that others could have written is not used. */
bool program_cache_read(const char *folder, const char key[CHECKSUM_SIZE], unsigned char **binary, size_t *bytes) {
    struct header header;
    struct stat status;
    char checksum[CHECKSUM_SIZE];
    bool found = false;
    const int file = open(path_of("%s/%s.bin", folder, key).text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) {
        return false;
    }
    if (!fstat(file, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
        !(status.st_mode & (S_IWGRP | S_IWOTH)) && status.st_size <= ENTRY_LIMIT &&
        status.st_size > (off_t)sizeof(header) &&
        files_read_all(file, &header, sizeof(header), -1) == (ssize_t)sizeof(header) &&
        header.bytes == (uint64_t)status.st_size - sizeof(header) &&
        !memcmp(header.magic, MAGIC, sizeof(header.magic)) && !memcmp(header.key, key, DIGITS)) {
        *bytes = header.bytes;
        *binary = memory_allocate(*bytes, 1);
        found = files_read_all(file, *binary, *bytes, -1) == (ssize_t)*bytes;
        checksum_memory(*binary, found ? *bytes : 0, checksum);
        found = found && !memcmp(header.checksum, checksum, DIGITS);
        if (!found) {
            free(*binary);
        }
    }
    close(file);
    return found;
}

bool program_cache_make(const char *folder) {
    struct stat status;
    for (const char *end = folder; *end;) {
        end += 1 + strcspn(end + 1, "/");
        mkdir(path_of("%.*s", (int)(end - folder), folder).text, 0700);
    }
    return !stat(folder, &status) && S_ISDIR(status.st_mode) && !access(folder, W_OK | X_OK);
}

void program_cache_write(const char *folder, const char key[CHECKSUM_SIZE], const unsigned char *binary,
                         size_t bytes) {
    struct header header = {.magic = MAGIC, .bytes = bytes};
    struct path temporary = path_of("%s/.tmp-XXXXXX", folder);
    char checksum[CHECKSUM_SIZE] = "";
    int file = program_cache_make(folder) ? mkostemp(temporary.text, O_CLOEXEC) : -1;
    if (file < 0) {
        return;
    }
    checksum_memory(binary, bytes, checksum);
    memcpy(header.key, key, DIGITS);
    memcpy(header.checksum, checksum, DIGITS);
    const bool whole =
        files_write_all(file, &header, sizeof(header)) == 0 && files_write_all(file, binary, bytes) == 0;
    if (close(file) || !whole || rename(temporary.text, path_of("%s/%s.bin", folder, key).text)) {
        unlink(temporary.text);
    }
}
