#include "src/training/data_set.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
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
    const struct path train = path_of("%s/train.bin", folder), meta = path_of("%s/meta.json", folder);
    if (!files_exist(train.text)) {
        return error_set("%s does not exist: make it with hc_prepare --out %s FILE...", train.text, folder);
    }
    if ((files_exist(meta.text) && read_meta(meta.text, data)) || token_file_open(train.text, &data->train) ||
        (needs_val && token_file_open(path_of("%s/val.bin", folder).text, &data->val))) {
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
    memset(data, 0, sizeof *data);
}
