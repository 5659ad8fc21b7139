#include "runtime/files/token_shards.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct token_shard_kind kinds[] = {
    {20240520, 1, 2, 50257, "gpt2"},
    {20240801, 7, 4, 128256, ""},
};

static const struct token_shard_kind *kind_of(uint32_t magic) {
    for (size_t i = 0; i < COUNT(kinds); i++) {
        if (kinds[i].magic == magic) {
            return &kinds[i];
        }
    }
    return NULL;
}

int token_shard_read_header(int descriptor, const char *path, uint64_t bytes, const struct token_shard_kind **kind,
                            uint64_t *count) {
    unsigned char header[TOKEN_SHARD_HEADER_BYTES];
    const ssize_t got = files_read_all(descriptor, header, sizeof header, 0);
    if (got < (ssize_t)sizeof header) {
        return got < 0 ? error_set_errno("cannot read token file %s", path)
                       : error_set("token shard %s has no whole header of %d bytes: copy or make the file again",
                                   path, TOKEN_SHARD_HEADER_BYTES);
    }
    const uint32_t magic = token_load(header, 4), version = token_load(header + 4, 4);
    const uint32_t tokens = token_load(header + 8, 4);
    *kind = kind_of(magic);
    if (!*kind) {
        return error_set("%s does not begin as a token shard of llm.c (20240520 or 20240801, but %" PRIu32
                         "): name files of tokens without a header train.bin and val.bin",
                         path, magic);
    }
    if (version != (*kind)->version) {
        return error_set("token shard %s has version %" PRIu32 ", and only %" PRIu32 " is known for %" PRIu32
                         ": make it again with llm.c's scripts",
                         path, version, (*kind)->version, magic);
    }
    if (tokens == 0 || tokens > INT32_MAX) {
        return error_set("token shard %s has %s tokens by its header: copy or make the file again", path,
                         tokens ? "a negative number of" : "no");
    }
    const uint64_t wanted = TOKEN_SHARD_HEADER_BYTES + (uint64_t)tokens * (*kind)->token_bytes;
    if (bytes != wanted) {
        return error_set("token shard %s has %" PRIu64 " bytes, but %" PRIu64
                         " by its header, which counts %" PRIu32 " tokens: copy or make the file again",
                         path, bytes, wanted, tokens);
    }
    *count = tokens;
    return 0;
}

const struct token_shard_kind *token_shard_kind(const char *path) {
    unsigned char magic[4];
    uint64_t bytes;
    const int descriptor = files_open(path, path, &bytes);
    if (descriptor < 0) {
        error_clear();
        return NULL;
    }
    const bool is_read = files_read_all(descriptor, magic, sizeof magic, 0) == (ssize_t)sizeof magic;
    close(descriptor);
    return is_read ? kind_of(token_load(magic, 4)) : NULL;
}

void token_shard_fill_header(unsigned char header[TOKEN_SHARD_HEADER_BYTES], unsigned token_bytes, uint64_t count) {
    const struct token_shard_kind *kind = token_bytes == kinds[0].token_bytes ? &kinds[0] : &kinds[1];
    memset(header, 0, TOKEN_SHARD_HEADER_BYTES);
    token_store(header, 4, kind->magic);
    token_store(header + 4, 4, kind->version);
    token_store(header + 8, 4, (uint32_t)count);
}

/* ---- names */

/* The last place of a word in a name; NULL: it is not there. */
static const char *last_word(const char *name, const char *word) {
    const char *last = NULL;
    for (const char *found = strstr(name, word); found; found = strstr(found + 1, word)) {
        last = found;
    }
    return last;
}

static bool is_shard_name(const char *name, int split) {
    const size_t length = strlen(name);
    if (*name == '.' || length < 4 || strcmp(name + length - 4, ".bin") != 0 || strcmp(name, "train.bin") == 0 ||
        strcmp(name, "val.bin") == 0) {
        return false;
    }
    const char *own = last_word(name, token_split_name(split));
    const char *other = last_word(name, token_split_name(split == SPLIT_VAL ? SPLIT_TRAIN : SPLIT_VAL));
    return own && (!other || own > other);
}

void token_shards_add(struct token_shard_names *list, const char *name) {
    memory_reserve((void **)&list->names, &list->capacity, list->count + 1, sizeof *list->names);
    list->names[list->count++] = name ? memory_string(name) : NULL;
}

static int add_name(void *context, const char *name) {
    struct token_shard_names *list = context;
    if (!is_shard_name(name, list->split)) {
        return 0;
    }
    if (list->count == TOKEN_SHARDS_MOST) {
        return error_set("%s has more than %d token shards (*%s*.bin): put fewer, larger ones there", list->folder,
                         TOKEN_SHARDS_MOST, token_split_name(list->split));
    }
    token_shards_add(list, name);
    return 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int token_shards_list(const char *folder, int split, struct token_shard_names *list) {
    *list = (struct token_shard_names){.folder = folder, .split = split};
    if (!files_exist(folder)) {
        return 0;
    }
    if (files_each(folder, add_name, list)) {
        token_shards_free(list);
        return -1;
    }
    if (list->count > 0) {
        qsort(list->names, list->count, sizeof *list->names, compare_names);
    }
    return 0;
}

void token_shards_free(struct token_shard_names *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->names[i]);
    }
    free(list->names);
    *list = (struct token_shard_names){0};
}

int token_shards_kind(const char *folder, const struct token_shard_kind **kind) {
    struct token_shard_names list = {0};
    uint64_t bytes, count;
    int status = 0;
    *kind = NULL;
    if (!files_exist(path_of("%s/train.bin", folder).text) && token_shards_list(folder, SPLIT_TRAIN, &list)) {
        return -1;
    }
    if (list.count > 0) {
        const struct path path = path_of("%s/%s", folder, list.names[0]);
        const int descriptor = files_open(path.text, path.text, &bytes);
        status = descriptor < 0 ? -1 : token_shard_read_header(descriptor, path.text, bytes, kind, &count);
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    token_shards_free(&list);
    return status;
}

int token_shards_refuse_output(const char *folder, const char *output) {
    struct token_shard_names list;
    int status = 0;
    for (int split = 0; status == 0 && split < TOKEN_SPLITS; split++) {
        status = token_shards_list(folder, split, &list);
        for (size_t i = 0; status == 0 && i < list.count; i++) {
            status = files_refuse_same(output, path_of("%s/%s", folder, list.names[i]).text);
        }
        token_shards_free(&list);
    }
    return status;
}
