/* Any bytes as adapter_config.json and as base.json. What is accepted must be within ranges, and be the same when
 * it is written and read again, for models with Llama's modules and with GPT-2's. */
#include "runtime/system/error.h"
#include "src/checkpoint/adapter.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdlib.h>
#include <string.h>

static void read_config(const char *folder, int norm) {
    struct model_config config = model_config_default(), again;
    config.norm = norm;
    config.mlp = norm == NORM_RMS ? MLP_SWIGLU : MLP_GELU;
    again = config;
    if (adapter_config_read(folder, &config)) {
        fuzz_require(*error_text(), "a refusal without a reason");
        return;
    }
    const struct lora_settings *lora = &config.lora;
    fuzz_require(lora->rank >= 1 && lora->rank <= LORA_MOST_RANK && lora->alpha >= LORA_LEAST_ALPHA &&
                     lora->alpha <= LORA_MOST_ALPHA && lora->dropout >= 0.0 && lora->dropout <= LORA_MOST_DROPOUT &&
                     lora->targets,
                 "what was accepted is out of range");
    struct parameters parameters;
    config.n_layer = 1;
    config.n_head = config.n_embd = config.vocab_size = config.block_size = 8;
    config.residual = residual_at(0);
    fuzz_require(model_config_check(&config) == 0, "a small model is refused");
    parameters_create(&config, &parameters);
    for (size_t i = 0; i < parameters.count; i++) {
        if (parameters.table[i].adapter) {
            char *name = adapter_tensor_name(&config, &parameters.table[i]);
            fuzz_require(strncmp(name, "base_model.model.", 17) == 0, "a tensor's name is not PEFT's");
            free(name);
        }
    }
    parameters_release(&parameters);
    fuzz_require(adapter_config_write(folder, &config, "base") == 0 && adapter_config_read(folder, &again) == 0 &&
                     again.lora.rank == lora->rank && again.lora.alpha == lora->alpha &&
                     again.lora.dropout == lora->dropout && again.lora.by_root == lora->by_root &&
                     again.lora.targets == lora->targets,
                 "another adapter came back");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const names[] = {ADAPTER_CONFIG_FILE, ADAPTER_BASE_FILE, NULL};
    for (int norm = NORM_LAYER; norm <= NORM_RMS; norm++) {
        read_config(fuzz_folder(data, bytes, names), norm);
    }
    char *base, checksum[CHECKSUM_SIZE];
    int64_t trained;
    if (adapter_base_read(fuzz_folder(data, bytes, names), &base, checksum, &trained) == 0) {
        fuzz_require(*base && strlen(checksum) == CHECKSUM_SIZE - 1 && trained >= 0,
                     "a base without its folder, checksum or number of tensors");
    }
    free(base);
    return 0;
}
