#include "src/corpus/shard_writer.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COPY_BYTES = 1 << 20 }; /* copied at once */

struct shard_name shard_name(int split, uint64_t number) {
    struct shard_name name;
    snprintf(name.text, sizeof name.text, "corpus_%s_%06" PRIu64 ".bin", token_split_name(split), number);
    return name;
}

/* Returns the number of a shard by its name; UINT64_MAX if hc_prepare gives no such name. */
static uint64_t number_of(const char *name, int split) {
    const size_t before = strlen("corpus_") + strlen(token_split_name(split)) + 1;
    const uint64_t number = strlen(name) > before ? strtoull(name + before, NULL, 10) : 0;
    return strcmp(shard_name(split, number).text, name) == 0 ? number : UINT64_MAX;
}

/* ---- writing */

int shard_write(const char *folder, int split, unsigned token_bytes, uint64_t each, uint64_t number) {
    const struct path from = path_of("%s/%s.bin", folder, token_split_name(split));
    const struct path path = path_of("%s/%s", folder, shard_name(split, number).text);
    unsigned char header[TOKEN_SHARD_HEADER_BYTES];
    uint64_t bytes;
    const int source = files_open(from.text, from.text, &bytes);
    if (source < 0) {
        return -1;
    }
    const int target = open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const uint64_t first = number * each * token_bytes, left = bytes - first;
    const uint64_t size = left < each * token_bytes ? left - left % token_bytes : each * token_bytes;
    int status = 0;
    token_shard_fill_header(header, token_bytes, size / token_bytes);
    if (target < 0 || files_write_all(target, header, sizeof header)) {
        status = error_set_errno("cannot write %s", path.text);
    }
    unsigned char *block = memory_allocate(COPY_BYTES, 1);
    for (uint64_t done = 0; status == 0 && done < size;) {
        const size_t some = size - done < COPY_BYTES ? (size_t)(size - done) : COPY_BYTES;
        const ssize_t got = files_read_all(source, block, some, (int64_t)(first + done));
        if (got < (ssize_t)some) {
            status =
                got < 0 ? error_set_errno("cannot read %s", from.text) : error_set("%s became shorter", from.text);
        } else if (files_write_all(target, block, some)) {
            status = error_set_errno("cannot write %s", path.text);
        }
        done += some;
    }
    free(block);
    close(source);
    if (target >= 0) {
        close(target);
    }
    return status;
}

/* ---- older shards */

int shard_refuse_others(const char *folder, bool has_shards) {
    int status = 0;
    for (int split = 0; status == 0 && split < TOKEN_SPLITS; split++) {
        struct token_shard_names list;
        status = token_shards_list(folder, split, &list);
        for (size_t i = 0; status == 0 && i < list.count; i++) {
            const char *name = list.names[i];
            if (number_of(name, split) == UINT64_MAX &&
                (has_shards || token_shard_kind(path_of("%s/%s", folder, name).text))) {
                status = error_set("%s has %s, which would be read as a token shard beside the new %s: choose "
                                   "another --out",
                                   folder, name, has_shards ? "ones" : "files");
            }
        }
        token_shards_free(&list);
    }
    return status;
}

int shard_list_old(const char *folder, const int64_t kept[TOKEN_SPLITS], struct token_shard_names *old) {
    int status = 0;
    for (int split = 0; status == 0 && split < TOKEN_SPLITS; split++) {
        struct token_shard_names list;
        status = token_shards_list(folder, split, &list);
        for (size_t i = 0; i < list.count; i++) {
            const uint64_t number = number_of(list.names[i], split);
            if (number != UINT64_MAX && number >= (uint64_t)kept[split]) {
                token_shards_add(old, list.names[i]);
            }
        }
        token_shards_free(&list);
    }
    return status;
}

int shard_refuse_input(const char *folder, const char *input) {
    const char *slash = strrchr(input, '/'), *name = slash ? slash + 1 : input;
    const int64_t none[TOKEN_SPLITS] = {0};
    struct token_shard_names list = {0};
    int status = 0;
    if (files_is_link(input)) {
        status = shard_list_old(folder, none, &list);
    } else if (number_of(name, SPLIT_TRAIN) < UINT64_MAX || number_of(name, SPLIT_VAL) < UINT64_MAX) {
        token_shards_add(&list, name); /* faster than looking at all shards */
    }
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        status = files_refuse_same(path_of("%s/%s", folder, list.names[i]).text, input);
    }
    token_shards_free(&list);
    return status;
}

int shard_remove_all(const char *folder) {
    const int64_t none[TOKEN_SPLITS] = {0};
    struct token_shard_names list = {0};
    int status = shard_list_old(folder, none, &list);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        status = files_remove(path_of("%s/%s", folder, list.names[i]).text);
    }
    token_shards_free(&list);
    return status;
}
