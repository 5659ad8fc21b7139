#include "runtime/files/token_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK  ((uint64_t)1 << 17) /* tokens examined in one go */
#define BLOCKS 256
#define WHOLE  ((uint64_t)BLOCKS * BLOCK) /* tokens of a file that is examined as a whole */

struct token_file {
    struct path path;
    int descriptor;
    unsigned token_bytes;
    uint64_t count;             /* tokens */
    struct stat before;         /* size and times as they were when the content was last known */
    char digest[CHECKSUM_SIZE]; /* of token_file_examine, for this vocabulary; "" before */
    uint32_t vocab_size;
};

const char *const token_folder_files[] = {"val.bin", "train.bin", TOKENIZER_FILE_NAME, "meta.json", NULL};

int token_bytes_of_meta(const json_t *meta, unsigned *token_bytes) {
    const json_t *given = json_object_get(meta, "token_bytes");
    const uint64_t vocab_size = json_file_number(meta, "vocab_size"), bytes = json_file_number(meta, "token_bytes");
    *token_bytes = given ? (unsigned)bytes : TOKEN_LEAST_BYTES;
    if (given && bytes != TOKEN_LEAST_BYTES && bytes != TOKEN_MOST_BYTES) {
        return error_set("'token_bytes' is neither 2 nor 4: token files have tokens of 16 or 32 bits");
    }
    return *token_bytes < token_bytes_for(vocab_size)
               ? error_set("'vocab_size' is %" PRIu64
                           ", and such tokens do not fit into 2 bytes: if the files have "
                           "tokens of 32 bits, say so with \"token_bytes\": 4",
                           vocab_size)
               : 0;
}

int token_file_open(const char *path, unsigned token_bytes, struct token_file **opened) {
    *opened = NULL;
    uint64_t bytes = 0;
    struct token_file *file = memory_zeroed(1, sizeof *file);
    file->path = path_of("%s", path);
    file->descriptor = files_open(path, path_of("token file %s", path).text, &bytes);
    file->token_bytes = token_bytes;
    file->count = bytes / token_bytes;
    if (file->descriptor >= 0 && bytes == 0) {
        error_set("token file %s is empty; prepare it again with hc_prepare", path);
    } else if (bytes % token_bytes != 0) {
        error_set("token file %s has %s size (%" PRIu64
                  " bytes), but tokens are %u-bit numbers: it is cut short or not a "
                  "token file; prepare it again with hc_prepare",
                  path, bytes % 2 ? "an odd" : "a wrong", bytes, 8 * token_bytes);
    } else if (file->descriptor >= 0 && fstat(file->descriptor, &file->before) != 0) {
        error_set_errno("cannot read token file %s", path);
    } else if (file->descriptor >= 0) {
        *opened = file;
        return 0;
    }
    token_file_close(file);
    return -1;
}

static int read_token_bytes(const char *folder, unsigned *token_bytes) {
    const struct path path = path_of("%s/meta.json", folder);
    json_t *meta = NULL;
    if (files_exist(path.text) && json_file_read(path.text, TOKEN_META_MOST_BYTES, &meta)) {
        return -1;
    }
    const int status = token_bytes_of_meta(meta, token_bytes);
    json_decref(meta);
    return status ? error_prefix("%s", path.text) : 0;
}

int token_file_open_split(const char *folder, int split, struct token_file **opened) {
    const struct path path = path_of("%s/%s.bin", folder, token_split_name(split));
    unsigned token_bytes;
    *opened = NULL;
    if (!files_exist(path.text)) {
        return error_set("%s does not exist: make it with hc_prepare --out %s FILE...", path.text, folder);
    }
    return read_token_bytes(folder, &token_bytes) ? -1 : token_file_open(path.text, token_bytes, opened);
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
    const unsigned token_bytes = file->token_bytes;
    const size_t wanted = (size_t)(token_bytes * count);
    const ssize_t got = files_read_all(file->descriptor, bytes, wanted, (int64_t)(token_bytes * first));
    if (got < (ssize_t)wanted) {
        return got < 0 ? error_set_errno("cannot read token file %s", file->path.text) : fail_shorter(file);
    }
    for (uint64_t i = 0; i < count; i++, bytes += token_bytes) {
        const uint32_t token = token_load(bytes, token_bytes);
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
    unsigned char *block = memory_allocate(file->token_bytes, (size_t)BLOCK);
    int result = 0;
    memset(parts, 0, sizeof parts);
    snprintf(parts[BLOCKS], CHECKSUM_SIZE, "%" PRIu64, file->count);
    for (uint64_t i = 0; result == 0 && i < blocks; i++) {
        const uint64_t last = file->count - BLOCK; /* where the last block begins, if there are so many */
        const uint64_t first =
            file->count <= WHOLE ? i * BLOCK : (uint64_t)((double)last * (double)i / (BLOCKS - 1));
        const uint64_t count = file->count - first < BLOCK ? file->count - first : BLOCK;
        result = read_stored(file, first, count, vocab_size, block);
        result = result == 0 ? checksum_memory(block, file->token_bytes * (size_t)count, parts[i]) : -1;
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
    if ((uint64_t)now.st_size / file->token_bytes < file->count) {
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
    /* They come to the end of the array and spread from there, each behind what is still to be read. */
    unsigned char *bytes = (unsigned char *)tokens + (sizeof *tokens - file->token_bytes) * count;
    if (read_stored(file, first, count, vocab_size, bytes)) {
        return -1;
    }
    for (uint64_t i = 0; i < count; i++, bytes += file->token_bytes) {
        const int32_t token = (int32_t)token_load(bytes, file->token_bytes);
        memcpy(&tokens[i], &token, sizeof token);
    }
    return 0;
}
