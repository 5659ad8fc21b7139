#include "runtime/files/token_file.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK  ((uint64_t)1 << 17) /* tokens examined in one go: 256 KiB */
#define BLOCKS 256
#define WHOLE  ((uint64_t)BLOCKS * BLOCK) /* tokens of a file that is examined as a whole */

struct token_file {
    struct path path;
    int descriptor;
    uint64_t count;             /* tokens */
    struct stat before;         /* size and times as they were when the content was last known */
    char digest[CHECKSUM_SIZE]; /* of token_file_examine, for this vocabulary; "" before */
    uint32_t vocab_size;
};

const char *const token_folder_files[] = {"val.bin", "train.bin", "meta.json", NULL};

int token_file_open(const char *path, struct token_file **opened) {
    *opened = NULL;
    uint64_t bytes = 0;
    struct token_file *file = memory_zeroed(1, sizeof *file);
    file->path = path_of("%s", path);
    file->descriptor = files_open(path, path_of("token file %s", path).text, &bytes);
    file->count = bytes / 2;
    if (file->descriptor >= 0 && bytes == 0) {
        error_set("token file %s is empty; prepare it again with hc_prepare", path);
    } else if (bytes % 2 != 0) {
        error_set("token file %s has an odd size (%" PRIu64
                  " bytes), but tokens are 16-bit numbers: it is cut short or not a "
                  "token file; prepare it again with hc_prepare",
                  path, bytes);
    } else if (file->descriptor >= 0 && fstat(file->descriptor, &file->before) != 0) {
        error_set_errno("cannot read token file %s", path);
    } else if (file->descriptor >= 0) {
        *opened = file;
        return 0;
    }
    token_file_close(file);
    return -1;
}

int token_file_open_split(const char *folder, int split, struct token_file **opened) {
    const struct path path = path_of("%s/%s.bin", folder, token_split_name(split));
    return files_exist(path.text)
               ? token_file_open(path.text, opened)
               : error_set("%s does not exist: make it with hc_prepare --out %s FILE...", path.text, folder);
}

void token_file_close(struct token_file *file) {
    if (file == NULL) {
        return;
    }
    if (file->descriptor >= 0) {
        close(file->descriptor);
    }
    free(file);
}

uint64_t token_file_count(const struct token_file *file) {
    return file->count;
}

static int fail_shorter(const struct token_file *file) {
    return error_set("token file %s became shorter while it was in use: it had %" PRIu64
                     " tokens; put the whole file back",
                     file->path.text, file->count);
}

/* Reads tokens [first, first + count) of the file as they are stored. All must be in the vocabulary. */
static int read_stored(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                       unsigned char *bytes) {
    const size_t wanted = (size_t)(2 * count);
    const ssize_t got = files_read_all(file->descriptor, bytes, wanted, (int64_t)(2 * first));
    if (got < (ssize_t)wanted) {
        return got < 0 ? error_set_errno("cannot read token file %s", file->path.text) : fail_shorter(file);
    }
    for (uint64_t i = 0; i < count; i++, bytes += 2) {
        const uint32_t token = bytes[0] | (uint32_t)bytes[1] << 8;
        if (token >= vocab_size) {
            return error_set("%s: token %" PRIu32 " at position %" PRIu64 " does not fit a vocabulary of %" PRIu32
                             "; is vocab_size that of meta.json?",
                             file->path.text, token, first + i, vocab_size);
        }
    }
    return 0;
}

static int find_digest(const struct token_file *file, uint32_t vocab_size, char digest[CHECKSUM_SIZE]) {
    char parts[BLOCKS + 1][CHECKSUM_SIZE];
    const uint64_t blocks = file->count < WHOLE ? (file->count + BLOCK - 1) / BLOCK : BLOCKS;
    unsigned char *block = memory_allocate(2, (size_t)BLOCK);
    int result = 0;
    memset(parts, 0, sizeof parts);
    snprintf(parts[BLOCKS], CHECKSUM_SIZE, "%" PRIu64, file->count);
    for (uint64_t i = 0; result == 0 && i < blocks; i++) {
        const uint64_t last = file->count - BLOCK; /* where the last block begins, if there are so many */
        const uint64_t first =
            file->count <= WHOLE ? i * BLOCK : (uint64_t)((double)last * (double)i / (BLOCKS - 1));
        const uint64_t count = file->count - first < BLOCK ? file->count - first : BLOCK;
        result = read_stored(file, first, count, vocab_size, block);
        result = result == 0 ? checksum_memory(block, 2 * (size_t)count, parts[i]) : -1;
    }
    free(block);
    return result == 0 ? checksum_memory(parts, sizeof parts, digest) : -1;
}

int token_file_examine(struct token_file *file, uint32_t vocab_size, char digest[CHECKSUM_SIZE]) {
    if (find_digest(file, vocab_size, digest) != 0) {
        return -1;
    }
    memcpy(file->digest, digest, CHECKSUM_SIZE);
    file->vocab_size = vocab_size;
    return 0;
}

/* ---- changes */

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* The times also change when a file is touched, linked to, renamed or replaced under its name, which all leave the
 * content as it was: then that decides. Of a large file the digest has only a part, so it must not have been
 * written to. */
static int examine_again(const struct token_file *file, const struct stat *now) {
    char digest[CHECKSUM_SIZE] = "";
    const bool written = !same_time(now->st_mtim, file->before.st_mtim);
    if (now->st_size == file->before.st_size && *file->digest != '\0' && (!written || file->count <= WHOLE)) {
        if (find_digest(file, file->vocab_size, digest) != 0) {
            return error_prefix("token file %s was changed while it was in use", file->path.text);
        }
    }
    return *digest != '\0' && strcmp(digest, file->digest) == 0
               ? 0
               : error_set(
                     "token file %s was changed while it was in use: put the file back as it was, and give new "
                     "tokens a name of their own",
                     file->path.text);
}

int token_file_check(struct token_file *file) {
    struct stat now;
    if (fstat(file->descriptor, &now) != 0) {
        return error_set_errno("cannot read token file %s", file->path.text);
    }
    if ((uint64_t)now.st_size / 2 < file->count) {
        return fail_shorter(file);
    }
    const bool same = now.st_size == file->before.st_size && same_time(now.st_mtim, file->before.st_mtim) &&
                      same_time(now.st_ctim, file->before.st_ctim);
    if (!same && examine_again(file, &now) != 0) {
        return -1;
    }
    file->before = now;
    return 0;
}

int token_file_read(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                    int32_t *tokens) {
    if (first > file->count || count > file->count - first) {
        return error_set("%s: %" PRIu64 " tokens from position %" PRIu64
                         " on are wanted, but the file has only %" PRIu64,
                         file->path.text, count, first, file->count);
    }
    /* They come into the upper half of the array and spread from there, each behind what is still to be read. */
    unsigned char *bytes = (unsigned char *)tokens + 2 * count;
    if (read_stored(file, first, count, vocab_size, bytes)) {
        return -1;
    }
    for (uint64_t i = 0; i < count; i++, bytes += 2) {
        const int32_t token = (int32_t)(bytes[0] | (uint32_t)bytes[1] << 8);
        memcpy(&tokens[i], &token, sizeof token);
    }
    return 0;
}
