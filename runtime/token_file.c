#include "runtime/token_file.h"
#include "runtime/error.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK  ((uint64_t)1 << 17) /* tokens examined in one go: 256 KiB */
#define BLOCKS 256

struct token_file {
    char *path;
    const unsigned char *bytes; /* the whole file, mapped */
    uint64_t count;             /* tokens */
};

/* Maps the open file and keeps its path. */
static int map_tokens(struct token_file *file, int descriptor, const char *path) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return error_set_errno("cannot read token file %s", path);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set("cannot read token file %s: %s", path,
                         S_ISDIR(status.st_mode) ? "it is a folder" : "it is not a regular file");
    }
    if (status.st_size == 0) {
        return error_set("token file %s is empty; prepare it again with hc_prepare", path);
    }
    if (status.st_size % 2 != 0) {
        return error_set("token file %s has an odd size (%" PRIu64
                         " bytes), but tokens are 16-bit numbers: it is cut "
                         "short or not a token file; prepare it again with hc_prepare",
                         path, (uint64_t)status.st_size);
    }
    if ((uint64_t)status.st_size > SIZE_MAX) {
        return error_set("token file %s is too large for this machine's address space", path);
    }
    void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (bytes == MAP_FAILED) {
        return error_set_errno("cannot map token file %s", path);
    }
    file->bytes = bytes;
    file->count = (uint64_t)status.st_size / 2;
    return 0;
}

int token_file_open(const char *path, struct token_file **opened) {
    *opened = NULL;
    /* O_NONBLOCK: a named pipe is refused, not waited for. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return error_set_errno("cannot open token file %s", path);
    }
    struct token_file *file = calloc(1, sizeof *file);
    if (file == NULL || (file->path = strdup(path)) == NULL) {
        error_set("out of memory opening token file %s", path);
    } else if (map_tokens(file, descriptor, path) == 0) {
        *opened = file;
    }
    close(descriptor);
    if (*opened == NULL) {
        token_file_close(file);
        return -1;
    }
    return 0;
}

void token_file_close(struct token_file *file) {
    if (file == NULL) {
        return;
    }
    if (file->bytes != NULL) {
        munmap((void *)(uintptr_t)file->bytes, (size_t)(file->count * 2));
    }
    free(file->path);
    free(file);
}

uint64_t token_file_count(const struct token_file *file) {
    return file->count;
}

/* -1 with the place of the first token of [first, first + count) that is not in the vocabulary. */
static int check_tokens(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size) {
    const unsigned char *at = file->bytes + 2 * first;
    for (uint64_t i = 0; i < count; i++, at += 2) {
        const uint32_t token = at[0] | (uint32_t)at[1] << 8;
        if (token >= vocab_size) {
            return error_set("%s: token %" PRIu32 " at position %" PRIu64 " does not fit a vocabulary of %" PRIu32
                             "; is vocab_size that of meta.json?",
                             file->path, token, first + i, vocab_size);
        }
    }
    return 0;
}

int token_file_examine(const struct token_file *file, uint32_t vocab_size, char digest[CHECKSUM_SIZE]) {
    char parts[BLOCKS + 1][CHECKSUM_SIZE];
    const uint64_t whole = (uint64_t)BLOCKS * BLOCK;
    const uint64_t blocks = file->count < whole ? (file->count + BLOCK - 1) / BLOCK : BLOCKS;
    memset(parts, 0, sizeof parts);
    snprintf(parts[BLOCKS], CHECKSUM_SIZE, "%" PRIu64, file->count);
    for (uint64_t i = 0; i < blocks; i++) {
        const uint64_t last = file->count - BLOCK; /* where the last block begins, if there are so many */
        const uint64_t first =
            file->count <= whole ? i * BLOCK : (uint64_t)((double)last * (double)i / (BLOCKS - 1));
        const uint64_t count = file->count - first < BLOCK ? file->count - first : BLOCK;
        if (check_tokens(file, first, count, vocab_size) ||
            checksum_memory(file->bytes + 2 * first, 2 * count, parts[i])) {
            return -1;
        }
    }
    return checksum_memory(parts, sizeof parts, digest);
}

int token_file_read(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                    int32_t *tokens) {
    if (first > file->count || count > file->count - first) {
        return error_set("%s: %" PRIu64 " tokens from position %" PRIu64
                         " on are wanted, but the file has only %" PRIu64,
                         file->path, count, first, file->count);
    }
    if (check_tokens(file, first, count, vocab_size)) {
        return -1;
    }
    const unsigned char *at = file->bytes + 2 * first;
    for (uint64_t i = 0; i < count; i++, at += 2) {
        tokens[i] = (int32_t)(at[0] | (uint32_t)at[1] << 8);
    }
    return 0;
}
