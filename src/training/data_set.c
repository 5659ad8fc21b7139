#include "src/training/data_set.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 24 }; /* of a model's vocabulary */

/* What llm.c's shards say without a meta.json. */
static int read_shard_kind(const char *folder, struct data_set *data) {
    const struct token_shard_kind *kind;
    if (token_shards_kind(folder, &kind)) {
        return -1;
    }
    if (kind) {
        data->vocab_size = kind->vocab_size;
        snprintf(data->tokenizer, sizeof data->tokenizer, "%s", kind->tokenizer);
    }
    return 0;
}

int data_set_read_meta(const char *folder, struct data_set *data) {
    const struct path meta = path_of("%s/meta.json", folder);
    const char *path = meta.text;
    json_t *json;
    memset(data, 0, sizeof *data);
    if (!files_exist(path)) {
        return read_shard_kind(folder, data);
    }
    if (json_file_read(path, TOKEN_META_MOST_BYTES, &json)) {
        return -1;
    }
    const char *tokenizer = "";
    int status = json_file_get_whole(json, "vocab_size", 1, MOST_TOKENS, &data->vocab_size) ||
                         json_file_get_text(json, "tokenizer", &tokenizer)
                     ? -1
                     : 0;
    if (status == 0 && data->vocab_size == 0) {
        status = error_set("'vocab_size' is missing");
    }
    snprintf(data->tokenizer, sizeof data->tokenizer, "%s", tokenizer);
    json_decref(json);
    return status ? error_prefix("%s", path) : 0;
}

int64_t data_set_model_vocabulary(const struct data_set *data) {
    const bool rounded = strcmp(data->tokenizer, "gpt2") == 0 || strcmp(data->tokenizer, "file") == 0;
    return rounded ? (data->vocab_size + 63) / 64 * 64 : data->vocab_size;
}

int data_set_fail_without_vocabulary(const char *folder) {
    return error_set(
        "%s/meta.json does not exist, so vocab_size is needed (50304 for GPT-2's tokens, 256 for bytes)", folder);
}

static int read_tokenizer(const char *folder, struct data_set *data) {
    return strcmp(data->tokenizer, "file") == 0
               ? files_read(path_of("%s/" TOKENIZER_FILE_NAME, folder).text, TOKENIZER_FILE_MOST_BYTES,
                            &data->tokenizer_json, &data->tokenizer_json_bytes)
               : 0;
}

/* Both splits are of one tokenizer. */
static int compare_splits(const char *folder, const struct data_set *data) {
    const unsigned train = 8 * token_file_token_bytes(data->train), val = 8 * token_file_token_bytes(data->val);
    return train == val
               ? 0
               : error_set("%s has tokens of %u bits to train on and of %u bits to evaluate on: they are of "
                           "two tokenizers, so put them into folders of their own",
                           folder, train, val);
}

int data_set_open(const char *folder, bool needs_val, struct data_set *data) {
    if (data_set_read_meta(folder, data) || read_tokenizer(folder, data) ||
        token_file_open_split(folder, SPLIT_TRAIN, &data->train) ||
        (needs_val && (token_file_open_split(folder, SPLIT_VAL, &data->val) || compare_splits(folder, data)))) {
        data_set_close(data);
        return -1;
    }
    return 0;
}

int data_set_check(const struct data_set *data) {
    return token_file_check(data->train) || (data->val && token_file_check(data->val)) ? -1 : 0;
}

void data_set_close(struct data_set *data) {
    token_file_close(data->train);
    token_file_close(data->val);
    free(data->tokenizer_json);
    memset(data, 0, sizeof *data);
}
