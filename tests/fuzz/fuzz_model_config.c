/* Any bytes as config.json, ours or Hugging Face's. A config that is accepted must be within ranges, and read back
 * the same after it is written in both formats. */
#include "runtime/files/json_file.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/utf8.h"
#include "src/checkpoint/config_file.h"
#include "src/model/model_config.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes over the reference. */
static void read_back(json_t *json, const struct model_config *config, bool same_bias) {
    static const char *const names[] = {"n_layer",       "n_head",     "n_embd",     "vocab_size",
                                        "block_size",    "n_streams",  "residual",   "stream_reduce",
                                        "stream_expand", "read_delay", "activation", "bias"};
    struct model_config again;
    fuzz_require(json && config_file_parse(json, &again) == 0, "what was written is refused");
    for (size_t i = 0; i + !same_bias < COUNT(names); i++) {
        fuzz_require(model_config_same(config, &again, names[i]), names[i]);
    }
    fuzz_require(again.dropout == config->dropout && strcmp(again.tokenizer, config->tokenizer) == 0,
                 "dropout or tokenizer changed");
    json_decref(json);
}

/* Any text is a name in JSON, as it is where it is UTF-8. */
static void name(const uint8_t *data, size_t bytes) {
    char text[64];
    snprintf(text, sizeof text, "%.*s", (int)(bytes < sizeof text ? bytes : sizeof text - 1), (const char *)data);
    json_t *name = json_file_name(text);
    json_t *object = json_pack("{s:i}", "number", (int)bytes);
    fuzz_require(json_file_number(object, "number") == bytes && json_file_number(object, "none") == 0,
                 "another number came back");
    json_decref(object);
    fuzz_require(name &&
                     (utf8_prefix(text, strlen(text)) < strlen(text) || strcmp(json_string_value(name), text) == 0),
                 "another name came back");
    json_decref(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {"config.json", NULL};
    const char *folder = fuzz_folder(data, bytes, names);
    struct model_config config, again;
    name(data, bytes);
    if (config_file_read(folder, &config) == 0) {
        fuzz_require(model_config_check(&config) == 0, "what was accepted is out of range");
        read_back(model_config_to_json(&config), &config, true);
        if (residual_has_frame(config.residual, "plain")) {
            json_t *theirs = config_file_hugging_face(&config);
            fuzz_require(theirs || *error_text(), "a refusal without a reason");
            if (theirs) {
                read_back(theirs, &config, config.bias);
            }
        }
        fuzz_require(config_file_write(folder, &config) == 0 && config_file_read(folder, &again) == 0 &&
                         model_config_same(&config, &again, "n_streams"),
                     "another configuration came back");
    }
    return 0;
}
