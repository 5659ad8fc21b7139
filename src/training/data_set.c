#include "src/training/data_set.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

static int read_meta(const char *path, struct data_set *data) {
    json_t *json;
    if (json_file_read(path, (size_t)16 << 20, &json)) {
        return -1;
    }
    const json_t *vocabulary = json_object_get(json, "vocab_size");
    const char *tokenizer = json_string_value(json_object_get(json, "tokenizer"));
    int status = 0;
    if (!json_is_integer(vocabulary) || json_integer_value(vocabulary) < 1 ||
        json_integer_value(vocabulary) > 65536) {
        status = error_set("%s: 'vocab_size' is not a whole number from 1 to 65536", path);
    } else {
        data->vocab_size = json_integer_value(vocabulary);
        snprintf(data->tokenizer, sizeof data->tokenizer, "%s", tokenizer ? tokenizer : "");
    }
    json_decref(json);
    return status;
}

int data_set_open(const char *folder, bool needs_val, struct data_set *data) {
    memset(data, 0, sizeof *data);
    char *train = files_path("%s/train.bin", folder), *val = files_path("%s/val.bin", folder);
    char *meta = files_path("%s/meta.json", folder);
    int status = train && val && meta ? 0 : -1;
    if (status == 0 && !files_exist(train)) {
        status = error_set("%s does not exist: make it with hc_prepare --out %s FILE...", train, folder);
    }
    status = status || (files_exist(meta) && read_meta(meta, data)) || token_file_open(train, &data->train) ||
             (needs_val && token_file_open(val, &data->val));
    free(train);
    free(val);
    free(meta);
    if (status) {
        data_set_close(data);
    }
    return status ? -1 : 0;
}

int data_set_check(const struct data_set *data) {
    return token_file_check(data->train) || (data->val && token_file_check(data->val)) ? -1 : 0;
}

void data_set_close(struct data_set *data) {
    token_file_close(data->train);
    token_file_close(data->val);
    memset(data, 0, sizeof *data);
}
