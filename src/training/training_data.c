#include "src/training/training_data.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/training/data_parallel.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 1 << 24 }; /* of a model's vocabulary */

/* ---- folders and shares */

/* Adds a folder of a mixture, whose share becomes its weight: the first `length` characters of `part`. */
static int add_folder(const char *text, const char *part, size_t length, struct training_data *data) {
    if (data->count == TRAINING_DATA_MOST) {
        return error_set("data_dir: a mixture has at most %d folders", TRAINING_DATA_MOST);
    }
    struct data_folder *folder = &data->folders[data->count++];
    folder->path = memory_string_part(part, length);
    char *colon = strrchr(folder->path, ':'), *end = NULL;
    const char *digits = colon ? colon + 1 : "";
    folder->share = strtod(digits, &end);
    const bool is_number = *digits && digits[strspn(digits, "0123456789+-.eE")] == '\0' && *end == '\0';
    if (!colon || colon == folder->path || !is_number || !(folder->share > 0.0) || !isfinite(folder->share)) {
        return error_set(
            "data_dir: there is no %s, and as a mixture FOLDER:WEIGHT,FOLDER:WEIGHT,... its part '%.*s' has "
            "no weight above 0 behind a colon, or no folder before it",
            text, (int)(length < 200 ? length : 200), part);
    }
    *colon = '\0';
    return 0;
}

static int find_folders(const char *text, struct training_data *data) {
    double total = 0.0;
    *data = (struct training_data){.folders = memory_zeroed(TRAINING_DATA_MOST, sizeof *data->folders)};
    if (files_exist(text) || !strchr(text, ':')) {
        data->folders[data->count++] = (struct data_folder){.path = memory_string(text), .share = 1.0};
        return 0;
    }
    for (const char *part = text; part;) {
        const size_t length = strcspn(part, ",");
        if (add_folder(text, part, length, data)) {
            return -1;
        }
        part = part[length] ? part + length + 1 : NULL;
    }
    for (size_t i = 0; i < data->count; i++) {
        total += data->folders[i].share;
    }
    for (size_t i = 0; i < data->count; i++) {
        data->folders[i].share /= total;
    }
    return isfinite(total) ? 0
                           : error_set("data_dir: the weights of the mixture add up to more than a number holds");
}

/* ---- their vocabulary */

/* Reads meta.json, or without one the header of a shard. tokenizer_json stays NULL. */
static int read_meta(const char *folder, struct vocabulary *vocabulary) {
    const struct path path = path_of("%s/meta.json", folder);
    const struct token_shard_kind *kind;
    const char *tokenizer = "";
    json_t *json;
    *vocabulary = (struct vocabulary){.size = 0};
    if (!files_exist(path.text)) {
        if (token_shards_kind(folder, &kind)) {
            return -1;
        }
        if (kind) {
            vocabulary->size = kind->vocab_size;
            snprintf(vocabulary->tokenizer, sizeof vocabulary->tokenizer, "%s", kind->tokenizer);
        }
        return 0;
    }
    if (json_file_read(path.text, TOKEN_META_MOST_BYTES, &json)) {
        return -1;
    }
    int status = json_file_get_whole(json, "vocab_size", 1, MOST_TOKENS, &vocabulary->size) ||
                 json_file_get_text(json, "tokenizer", &tokenizer);
    if (status == 0 && vocabulary->size == 0) {
        status = error_set("'vocab_size' is missing");
    }
    snprintf(vocabulary->tokenizer, sizeof vocabulary->tokenizer, "%s", tokenizer);
    json_decref(json);
    return status ? error_prefix("%s", path.text) : 0;
}

static bool are_same(const struct vocabulary *a, const struct vocabulary *b) {
    return a->size == b->size && strcmp(a->tokenizer, b->tokenizer) == 0 &&
           a->tokenizer_json_bytes == b->tokenizer_json_bytes &&
           (!a->tokenizer_json || memcmp(a->tokenizer_json, b->tokenizer_json, a->tokenizer_json_bytes) == 0);
}

int64_t vocabulary_of_model(const struct vocabulary *vocabulary) {
    const bool rounded = strcmp(vocabulary->tokenizer, "gpt2") == 0 || strcmp(vocabulary->tokenizer, "file") == 0;
    return rounded ? (vocabulary->size + 63) / 64 * 64 : vocabulary->size;
}

int training_data_fail_without_vocabulary(const char *text) {
    return error_set(
        "%s/meta.json does not exist, so vocab_size is needed (50304 for GPT-2's tokens, 256 for bytes)", text);
}

int training_data_read_vocabulary(const char *text, bool is_needed, int64_t *size) {
    struct training_data data;
    const int status = find_folders(text, &data) || read_meta(data.folders->path, &data.vocabulary);
    *size = status ? 0 : vocabulary_of_model(&data.vocabulary);
    training_data_close(&data);
    if (status) {
        return -1;
    }
    return is_needed && *size == 0 ? training_data_fail_without_vocabulary(text) : 0;
}

/* ---- tokens */

/* Opens the token files. `own`: the vocabulary of the folder. */
static int open_folder(struct data_folder *folder, bool needs_val, struct vocabulary *own) {
    if (read_meta(folder->path, own) ||
        (strcmp(own->tokenizer, "file") == 0 &&
         files_read(path_of("%s/" TOKENIZER_FILE_NAME, folder->path).text, TOKENIZER_FILE_MOST_BYTES,
                    &own->tokenizer_json, &own->tokenizer_json_bytes)) ||
        token_file_open_split(folder->path, SPLIT_TRAIN, &folder->train) ||
        (needs_val && token_file_open_split(folder->path, SPLIT_VAL, &folder->val))) {
        return -1;
    }
    const unsigned train = 8 * folder->train->token_bytes;
    const unsigned val = folder->val ? 8 * folder->val->token_bytes : train;
    if (train != val) {
        return error_set("%s has tokens of %u bits to train on and of %u bits to evaluate on: they are of "
                         "two tokenizers, so put them into folders of their own",
                         folder->path, train, val);
    }
    return 0;
}

int training_data_open(const char *text, bool needs_val, struct training_data *data) {
    struct vocabulary *all = &data->vocabulary;
    int status = find_folders(text, data);
    for (size_t i = 0; status == 0 && i < data->count; i++) {
        struct vocabulary other = {.size = 0}, *own = i == 0 ? all : &other;
        status = open_folder(&data->folders[i], needs_val, own);
        if (status == 0 && !are_same(all, own)) {
            status =
                error_set("%s has %" PRId64 " tokens of the tokenizer \"%s\", and %s has %" PRId64
                          " of \"%s\": a mixture has one vocabulary, so prepare both with the same --tokenizer",
                          data->folders->path, all->size, all->tokenizer, data->folders[i].path, own->size,
                          own->tokenizer);
        }
        free(other.tokenizer_json);
    }
    if (status) {
        training_data_close(data);
    }
    return status;
}

int training_data_compare(const struct training_data *data, struct ranks *ranks, int64_t vocab_size,
                          char train_digest[CHECKSUM_SIZE], char val_digest[CHECKSUM_SIZE]) {
    char(*digests)[CHECKSUM_SIZE] = memory_zeroed(2 * data->count, sizeof *digests); /* of files, and shares */
    char(*shares)[CHECKSUM_SIZE] = digests + data->count;
    for (size_t i = 0; i < data->count; i++) {
        snprintf(shares[i], sizeof shares[i], "%.17g", data->folders[i].share);
    }
    checksum_memory(shares, data->count * sizeof *shares, train_digest);
    int status = same_job_digest(ranks, 0, train_digest, "data_dir",
                                 "give as many folders and the same weights on all hosts");
    for (int split = 0; status == 0 && split < 2; split++) {
        char *digest = split == 0 ? train_digest : val_digest;
        for (size_t i = 0; status == 0 && i < data->count; i++) {
            struct token_file *file = split == 0 ? data->folders[i].train : data->folders[i].val;
            status = file ? token_file_examine(file, (uint32_t)vocab_size, digests[i]) : 0;
            digests[i][0] = file ? digests[i][0] : '\0';
            status = same_job_digest(ranks, status, digests[i], file ? file->name : "",
                                     "prepare the data once and copy it");
        }
        memcpy(digest, digests[0], CHECKSUM_SIZE);
        if (status == 0 && data->count > 1 && *digest) {
            checksum_memory(digests, 2 * data->count * sizeof *digests, digest);
        }
    }
    free(digests);
    return status;
}

int training_data_check(const struct training_data *data) {
    for (size_t i = 0; i < data->count; i++) {
        const struct data_folder *folder = &data->folders[i];
        if (token_file_check(folder->train) || (folder->val && token_file_check(folder->val))) {
            return -1;
        }
    }
    return 0;
}

void training_data_close(struct training_data *data) {
    for (size_t i = 0; i < data->count; i++) {
        token_file_close(data->folders[i].train);
        token_file_close(data->folders[i].val);
        free(data->folders[i].path);
    }
    free(data->folders);
    free(data->vocabulary.tokenizer_json);
    *data = (struct training_data){0};
}
