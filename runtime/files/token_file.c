#include "runtime/files/token_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
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

const char *const token_folder_files[] = {
    "val.bin", "train.bin", TOKENIZER_FILE_NAME, "val.documents", "train.documents", "meta.json", NULL};

/* Opens the next file of the split, without looking at its content. */
static struct token_shard *add_file(struct token_file *file, const char *path, uint64_t *bytes) {
    memory_reserve((void **)&file->shards, &file->capacity, file->shard_count + 1, sizeof *file->shards);
    struct token_shard *shard = &file->shards[file->shard_count++];
    *shard = (struct token_shard){.path = memory_string(path), .first = file->count};
    shard->descriptor = files_open(path, path_of("token file %s", path).text, bytes);
    if (shard->descriptor >= 0 && fstat(shard->descriptor, &shard->before) != 0) {
        error_set_errno("cannot read token file %s", path);
        return NULL;
    }
    return shard->descriptor >= 0 ? shard : NULL;
}

static int add_plain(struct token_file *file, const char *path, unsigned token_bytes) {
    uint64_t bytes = 0;
    struct token_shard *shard = add_file(file, path, &bytes);
    if (!shard) {
        return -1;
    }
    if (bytes == 0) {
        return error_set("token file %s is empty; prepare it again with hc_prepare", path);
    }
    if (bytes % token_bytes != 0) {
        return error_set("token file %s has %s size (%" PRIu64
                         " bytes), but tokens are %u-bit numbers: it is cut short or not a "
                         "token file; prepare it again with hc_prepare",
                         path, bytes % 2 ? "an odd" : "a wrong", bytes, 8 * token_bytes);
    }
    file->token_bytes = token_bytes;
    file->count = shard->count = bytes / token_bytes;
    return 0;
}

static int add_shard(struct token_file *file, const char *path) {
    uint64_t bytes = 0;
    const struct token_shard_kind *kind;
    struct token_shard *shard = add_file(file, path, &bytes);
    if (!shard || token_shard_read_header(shard->descriptor, path, bytes, &kind, &shard->count)) {
        return -1;
    }
    if (file->token_bytes != 0 && file->token_bytes != kind->token_bytes) {
        return error_set("token shard %s has tokens of %u bits, and those before it have %u: shards of two "
                         "tokenizers need folders of their own",
                         path, 8 * kind->token_bytes, 8 * file->token_bytes);
    }
    host_spare_descriptors(shard->descriptor); /* there may be more shards than descriptors by default */
    shard->header_bytes = TOKEN_SHARD_HEADER_BYTES;
    file->token_bytes = kind->token_bytes;
    file->count += shard->count;
    return 0;
}

/* "token_bytes" of a meta.json; 2 if it lacks the key. Fails, without the path, on numbers other than 2 and 4, and
 * on 2 with a "vocab_size" that needs 4. */
static int token_bytes_of(const json_t *meta, unsigned *token_bytes) {
    int64_t vocab_size = 0, bytes = TOKEN_LEAST_BYTES;
    if (json_file_get_whole(meta, "vocab_size", 0, INT64_MAX, &vocab_size) ||
        json_file_get_whole(meta, "token_bytes", INT64_MIN, INT64_MAX, &bytes)) {
        return -1;
    }
    if (bytes != TOKEN_LEAST_BYTES && bytes != TOKEN_MOST_BYTES) {
        return error_set("'token_bytes' is neither 2 nor 4: token files have tokens of 16 or 32 bits");
    }
    *token_bytes = (unsigned)bytes;
    return *token_bytes < token_bytes_for((uint64_t)vocab_size)
               ? error_set("'vocab_size' is %" PRId64
                           ", and such tokens do not fit into 2 bytes: if the files have "
                           "tokens of 32 bits, say so with \"token_bytes\": 4",
                           vocab_size)
               : 0;
}

/* has_documents: whether the folder has the lengths of documents. */
static int read_meta(const char *folder, unsigned *token_bytes, bool *has_documents) {
    const struct path path = path_of("%s/meta.json", folder);
    json_t *meta = NULL;
    *has_documents = false;
    if (files_exist(path.text) && json_file_read(path.text, TOKEN_META_MOST_BYTES, &meta)) {
        return -1;
    }
    const int status =
        token_bytes_of(meta, token_bytes) || json_file_get_flag(meta, "document_lengths", has_documents);
    json_decref(meta);
    return status ? error_prefix("%s", path.text) : 0;
}

/* Reads the documents, which must have exactly the tokens of the file. */
static int read_documents(struct token_file *file, const char *path) {
    const uint64_t tokens = file->count;
    const uint64_t most = tokens < SIZE_MAX / TOKEN_DOCUMENT_BYTES ? tokens * TOKEN_DOCUMENT_BYTES : SIZE_MAX - 1;
    uint64_t begin = 0, targets = 0;
    char *text;
    size_t bytes;
    if (files_read(path, (size_t)most, &text, &bytes)) {
        return -1;
    }
    struct token_documents *documents = file->documents = memory_zeroed(1, sizeof *documents);
    const size_t count = documents->count = bytes / TOKEN_DOCUMENT_BYTES;
    documents->begins = memory_zeroed(count + 1, sizeof *documents->begins);
    documents->targets = memory_zeroed(count + 1, sizeof *documents->targets);
    int status = bytes % TOKEN_DOCUMENT_BYTES ? error_set("its size is not a whole number of documents") : 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const unsigned char *stored = (const unsigned char *)text + i * TOKEN_DOCUMENT_BYTES;
        const uint32_t length = token_load(stored, 4), prompt = token_load(stored + 4, 4);
        if (length == 0 || prompt > length || length > tokens - begin) {
            status = error_set("document %zu has %" PRIu32 " tokens, %" PRIu32 " of them a prompt, at %" PRIu64
                               " of %" PRIu64 " tokens",
                               i, length, prompt, begin, tokens);
        }
        begin += length;
        targets += length - prompt;
        documents->begins[i + 1] = begin;
        documents->targets[i + 1] = targets;
    }
    free(text);
    if (status == 0 && begin != tokens) {
        status = error_set("it has %" PRIu64 " of %" PRIu64 " tokens", begin, tokens);
    }
    return status
               ? error_prefix("%s does not describe the token file beside it: prepare both again with hc_prepare",
                              path)
               : 0;
}

/* Opens the files of a split. has_documents: whether there is a file of its documents. */
static int open_files(struct token_file *file, const char *folder, int split, bool *has_documents) {
    const struct path path = path_of("%s/%s.bin", folder, token_split_name(split));
    const bool is_plain = files_exist(path.text), has_meta = files_exist(path_of("%s/meta.json", folder).text);
    unsigned token_bytes = 0;
    struct token_shard_names list;
    file->name =
        is_plain ? memory_string(path.text) : memory_format("%s/*%s*.bin", folder, token_split_name(split));
    int status = token_shards_list(folder, split, &list);
    for (size_t i = 0; is_plain && status == 0 && i < list.count; i++) {
        /* files that only have such a name are no shards */
        if (token_shard_kind(path_of("%s/%s", folder, list.names[i]).text)) {
            status =
                error_set("%s has %s.bin and token shards of llm.c, such as %s: put them into folders of their "
                          "own",
                          folder, token_split_name(split), list.names[i]);
        }
    }
    if (status == 0 && is_plain) {
        status = read_meta(folder, &token_bytes, has_documents) || add_plain(file, path.text, token_bytes) ? -1 : 0;
    } else if (status == 0 && list.count == 0) {
        status = error_set("%s does not exist: make it with hc_prepare --out %s FILE..., or give the folder token "
                           "shards of llm.c, named *%s*.bin",
                           path.text, folder, token_split_name(split));
    } else if (status == 0 && !has_meta && files_exist(path_of("%s/.hc_prepare", folder).text)) {
        /* hc_prepare moves meta.json into place behind all shards */
        status = error_set("%s has token shards without meta.json and unfinished work of hc_prepare (.hc_prepare), "
                           "so shards may be missing: give the hc_prepare command again",
                           folder);
    } else if (status == 0 && has_meta) {
        status = read_meta(folder, &token_bytes, has_documents);
    }
    for (size_t i = 0; !is_plain && status == 0 && i < list.count; i++) {
        status = add_shard(file, path_of("%s/%s", folder, list.names[i]).text);
    }
    if (status == 0 && !is_plain && has_meta && file->token_bytes != token_bytes) {
        status =
            error_set("%s/meta.json is of tokens of %u bits, but the token shards (*%s*.bin) have %u: set "
                      "\"token_bytes\" to %u",
                      folder, 8 * token_bytes, token_split_name(split), 8 * file->token_bytes, file->token_bytes);
    }
    token_shards_free(&list);
    return status;
}

int token_file_open_split(const char *folder, int split, struct token_file **opened) {
    struct token_file *file = memory_zeroed(1, sizeof *file);
    bool has_documents = false;
    int status = open_files(file, folder, split, &has_documents);
    if (status == 0 && has_documents) {
        status = read_documents(file, path_of("%s/%s.documents", folder, token_split_name(split)).text);
    }
    *opened = status ? NULL : file;
    if (status) {
        token_file_close(file);
    }
    return status;
}

void token_file_close(struct token_file *file) {
    if (file == NULL) {
        return;
    }
    if (file->documents) {
        free(file->documents->begins);
        free(file->documents->targets);
        free(file->documents);
    }
    for (size_t i = 0; i < file->shard_count; i++) {
        if (file->shards[i].descriptor >= 0) {
            close(file->shards[i].descriptor);
        }
        free(file->shards[i].path);
    }
    free(file->shards);
    free(file->name);
    free(file);
}

const char *token_file_short_name(const struct token_file *file) {
    const char *slash = strrchr(file->name, '/');
    return slash ? slash + 1 : file->name;
}

static int fail_shorter(const struct token_shard *shard) {
    return error_set("token file %s became shorter while it was in use: it had %" PRIu64
                     " tokens; put the whole file back",
                     shard->path, shard->count);
}

/* Reads tokens [first, first + count) of one file as they are stored. */
static int read_shard(const struct token_file *file, const struct token_shard *shard, uint64_t first,
                      uint64_t count, uint32_t vocab_size, unsigned char *bytes) {
    const unsigned token_bytes = file->token_bytes;
    const size_t wanted = (size_t)(token_bytes * count);
    const ssize_t got =
        files_read_all(shard->descriptor, bytes, wanted, (int64_t)(shard->header_bytes + token_bytes * first));
    if (got < (ssize_t)wanted) {
        return got < 0 ? error_set_errno("cannot read token file %s", shard->path) : fail_shorter(shard);
    }
    for (uint64_t i = 0; i < count; i++, bytes += token_bytes) {
        const uint32_t token = token_load(bytes, token_bytes);
        if (token >= vocab_size) {
            return error_set("%s: token %" PRIu32 " at position %" PRIu64 " does not fit a vocabulary of %" PRIu32
                             "; is vocab_size that of meta.json?",
                             shard->path, token, first + i, vocab_size);
        }
    }
    return 0;
}

/* Reads tokens [first, first + count) of the split as they are stored. All must be in the vocabulary. */
static int read_stored(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                       unsigned char *bytes) {
    size_t index = search_range(&file->shards->first, sizeof *file->shards, file->shard_count, first);
    for (; count > 0; index++) {
        const struct token_shard *shard = &file->shards[index];
        const uint64_t begin = first - shard->first, left = shard->count - begin,
                       some = count < left ? count : left;
        if (read_shard(file, shard, begin, some, vocab_size, bytes)) {
            return -1;
        }
        first += some;
        count -= some;
        bytes += some * file->token_bytes;
    }
    return 0;
}

/* How many blocks are examined at most: 256, or two for each shard if there are more than 128 shards. */
static uint64_t most_blocks(const struct token_file *file) {
    const uint64_t both = 2 * (uint64_t)file->shard_count;
    return both > BLOCKS ? both : BLOCKS;
}

/* The digest is of the blocks' digests, of the number of tokens in each file, and of the documents. */
static int find_digest(const struct token_file *file, uint32_t vocab_size, char digest[CHECKSUM_SIZE]) {
    const uint64_t most = most_blocks(file), whole = most * BLOCK;
    const uint64_t blocks = file->count < whole ? (file->count + BLOCK - 1) / BLOCK : most;
    const size_t rows = (size_t)most + file->shard_count + (file->documents ? 2 : 0);
    char(*lines)[CHECKSUM_SIZE] = memory_zeroed(rows, sizeof *lines);
    unsigned char *block = memory_zeroed(file->token_bytes, (size_t)BLOCK);
    int result = 0;
    for (size_t i = 0; i < file->shard_count; i++) {
        snprintf(lines[most + i], CHECKSUM_SIZE, "%" PRIu64, file->shards[i].count);
    }
    if (file->documents) {
        const size_t bytes = (file->documents->count + 1) * sizeof(uint64_t);
        checksum_memory(file->documents->begins, bytes, lines[rows - 2]);
        checksum_memory(file->documents->targets, bytes, lines[rows - 1]);
    }
    for (uint64_t i = 0; result == 0 && i < blocks; i++) {
        const uint64_t last = file->count - BLOCK; /* where the last block begins, if there are so many */
        const uint64_t first =
            file->count <= whole ? i * BLOCK : (uint64_t)((double)last * (double)i / (double)(most - 1));
        const uint64_t count = file->count - first < BLOCK ? file->count - first : BLOCK;
        result = read_stored(file, first, count, vocab_size, block);
        checksum_memory(block, file->token_bytes * (size_t)count, lines[i]);
    }
    checksum_memory(lines, rows * sizeof *lines, digest);
    free(block);
    free(lines);
    return result;
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

static int check_shard(const struct token_file *file, struct token_shard *shard) {
    const struct stat *before = &shard->before;
    char digest[CHECKSUM_SIZE] = "";
    struct stat now;
    if (fstat(shard->descriptor, &now) != 0) {
        return error_set_errno("cannot read token file %s", shard->path);
    }
    if ((uint64_t)now.st_size < shard->header_bytes + shard->count * file->token_bytes) {
        return fail_shorter(shard);
    }
    const bool same_size = now.st_size == before->st_size, written = !same_time(now.st_mtim, before->st_mtim);
    if (same_size && !written && same_time(now.st_ctim, before->st_ctim)) {
        return 0;
    }
    /* The times also change when a file is touched, linked to, renamed or replaced under its name, which all leave
     * the content as it was: then that decides. Of a large file the digest has only some blocks, so it must not
     * have been written to. */
    if (same_size && *file->digest != '\0' && (!written || file->count <= most_blocks(file) * BLOCK) &&
        find_digest(file, file->vocab_size, digest) != 0) {
        return error_prefix("token file %s was changed while it was in use", shard->path);
    }
    if (*digest == '\0' || strcmp(digest, file->digest) != 0) {
        return error_set("token file %s was changed while it was in use: put the file back as it was, and give new "
                         "tokens a name of their own",
                         shard->path);
    }
    shard->before = now;
    return 0;
}

int token_file_check(struct token_file *file) {
    for (size_t i = 0; i < file->shard_count; i++) {
        if (check_shard(file, &file->shards[i])) {
            return -1;
        }
    }
    return 0;
}

int token_file_read(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                    int32_t *tokens) {
    if (first > file->count || count > file->count - first) {
        return error_set("%s: %" PRIu64 " tokens from position %" PRIu64
                         " on are wanted, but the file has only %" PRIu64,
                         file->name, count, first, file->count);
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

/* ---- documents */

bool token_file_has_prompts(const struct token_file *file) {
    return file->documents && file->documents->targets[file->documents->count] < file->count;
}

void token_documents_store(unsigned char bytes[TOKEN_DOCUMENT_BYTES], uint32_t tokens, uint32_t prompt) {
    token_store(bytes, 4, tokens);
    token_store(bytes + 4, 4, prompt);
}

size_t token_documents_find(const struct token_documents *documents, uint64_t place) {
    return search_range(documents->begins, sizeof *documents->begins, documents->count, place);
}

/* The place after the document's prompt. */
static uint64_t prompt_end(const struct token_documents *documents, size_t i) {
    return documents->begins[i + 1] - (documents->targets[i + 1] - documents->targets[i]);
}

int token_file_read_targets(const struct token_file *file, uint64_t first, uint64_t count, uint32_t vocab_size,
                            int32_t *targets) {
    const struct token_documents *documents = file->documents;
    if (token_file_read(file, first, count, vocab_size, targets)) {
        return -1;
    }
    for (size_t i = documents ? token_documents_find(documents, first) : 0; documents && i < documents->count;
         i++) {
        const uint64_t begin = documents->begins[i], end = prompt_end(documents, i);
        if (begin >= first + count) {
            break;
        }
        for (uint64_t place = begin > first ? begin : first; place < end && place < first + count; place++) {
            targets[place - first] = -1;
        }
    }
    return 0;
}

/* How many of the tokens [0, place) are no prompt; place is at most the number of tokens. */
static uint64_t targets_before(const struct token_documents *documents, uint64_t place) {
    const size_t i = token_documents_find(documents, place);
    const uint64_t end = prompt_end(documents, i);
    return documents->targets[i] + (place > end ? place - end : 0);
}

uint64_t token_file_count_targets(const struct token_file *file, uint64_t first, uint64_t count) {
    return file->documents ? targets_before(file->documents, first + count) - targets_before(file->documents, first)
                           : count;
}
