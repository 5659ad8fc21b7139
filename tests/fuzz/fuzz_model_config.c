/* Any bytes as config.json, ours or Hugging Face's. A config that is accepted must be within ranges, and read back
 * the same after it is written in both formats. */
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/hugging_face.h"
#include "src/model/model_config.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fuzz_model_config: %s\n", what);
        abort();
    }
}

/* Takes over the reference. */
static void read_back(json_t *json, const struct model_config *config, bool same_bias) {
    static const char *const names[] = {"n_layer",   "n_head",   "n_embd",        "vocab_size", "block_size",
                                        "n_streams", "residual", "stream_reduce", "activation", "bias"};
    struct model_config again;
    require(json && config_file_parse(json, &again) == 0, "what was written is refused");
    for (size_t i = 0; i + !same_bias < sizeof names / sizeof *names; i++) {
        require(model_config_same(config, &again, names[i]), names[i]);
    }
    require(again.dropout == config->dropout && strcmp(again.tokenizer, config->tokenizer) == 0,
            "dropout or tokenizer changed");
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct model_config config;
    json_t *json = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (json && config_file_parse(json, &config) == 0) {
        require(model_config_check(&config) == 0, "what was accepted is out of range");
        read_back(model_config_to_json(&config), &config, true);
        if (residual_is_plain(config.residual)) {
            read_back(hugging_face_make_config(&config), &config, config.bias);
        }
    }
    json_decref(json);
    return 0;
}
