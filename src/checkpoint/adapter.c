#include "src/checkpoint/adapter.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)
#define JSON_STYLE (JSON_INDENT(2) | JSON_REAL_PRECISION(17))

/* ---- adapter_config.json */

/* Keys that are read below, or on which what an adapter computes does not depend. Others are of kinds of LoRA that
 * compute or contain something else: they must be null, false or empty. */
static const char *const known_keys[] = {
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "target_modules",
    "bias",
    "task_type",
    "revision",
    "init_lora_weights",
    "peft_version",
    "base_model_name_or_path",
    "auto_mapping",
    "eva_config",
    "loftq_config",
    "fan_in_fan_out",
    "corda_config",
    "inference_mode",
    "megatron_config",
    "layers_pattern",
    "lora_ga_config",
    "megatron_core",
    "runtime_config",
    "qalora_group_size",
};

/* Ways to begin that change the base model as well: such an adapter is of another base model than the folder's. */
static const char *const other_bases[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

static bool is_nothing(const char *key, const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (strstr(key, "_pattern") && json_is_object(value) && json_object_size(value) == 0);
}

static int check_kind(const json_t *json) {
    const char *type = json_file_text(json_object_get(json, "peft_type"));
    const json_t *bias = json_object_get(json, "bias"), *init = json_object_get(json, "init_lora_weights");
    const char *start = json_file_text(init), *key;
    json_t *value;
    if (!type || strcmp(type, "LORA") != 0) {
        return json_file_fail("peft_type", json_object_get(json, "peft_type"), "adapters are LORA here");
    }
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        bool is_known = is_nothing(key, value);
        for (size_t i = 0; i < COUNT(known_keys); i++) {
            is_known |= strcmp(key, known_keys[i]) == 0;
        }
        if (!is_known) {
            return json_file_fail(key, value,
                                  "this setting is not supported: only LoRA with one rank for all modules is");
        }
    }
    if (bias && (!json_file_text(bias) || strcmp(json_file_text(bias), "none") != 0)) {
        return json_file_fail("bias", bias, "biases of the base model are not trained here (\"none\")");
    }
    for (size_t i = 0; start && i < COUNT(other_bases); i++) {
        if (strncmp(start, other_bases[i], strlen(other_bases[i])) == 0) {
            return json_file_fail("init_lora_weights", init, "it changes the base model's weights, too");
        }
    }
    return 0;
}

/* A module's name behind the last dot but GPT-2's attn.c_proj and mlp.c_proj. */
static const char *module_of(const char *name) {
    const char *last = strrchr(name, '.');
    return !last || strcmp(name, "attn.c_proj") == 0 || strcmp(name, "mlp.c_proj") == 0 ? name : last + 1;
}

static int read_targets(const json_t *value, struct model_config *config) {
    char text[512] = "";
    const json_t *name;
    size_t i, used = 0;
    if (json_file_text(value) && strcmp(json_file_text(value), "all-linear") == 0) {
        return lora_read_targets(model_config_modules(config), LORA_ALL, &config->lora.targets);
    }
    if (!json_is_array(value)) {
        return json_file_fail("target_modules", value, "it must be a list of modules");
    }
    json_array_foreach(value, i, name) {
        const char *module = json_file_text(name);
        const int length = module && used < sizeof text ? snprintf(text + used, sizeof text - used, "%s%.64s",
                                                                   i ? "," : "", module_of(module))
                                                        : -1;
        if (length < 0 || (used += (size_t)length) >= sizeof text) {
            return json_file_fail("target_modules", name, "it must be a name of a module");
        }
    }
    return lora_read_targets(model_config_modules(config), text, &config->lora.targets);
}

int adapter_config_parse(const json_t *json, struct model_config *config) {
    struct lora_settings *lora = &config->lora;
    *lora = (struct lora_settings){.alpha = 8.0}; /* PEFT's default */
    if (!json_is_object(json)) {
        return error_set("the file is not a JSON object");
    }
    if (check_kind(json)) {
        return -1;
    }
    int64_t rank = 8; /* PEFT's default */
    if (json_file_get_whole(json, "r", 1, LORA_MOST_RANK, &rank) ||
        json_file_get_real(json, "lora_alpha", &lora->alpha) ||
        json_file_get_real(json, "lora_dropout", &lora->dropout) ||
        json_file_get_flag(json, "use_rslora", &lora->by_root)) {
        return -1;
    }
    lora->rank = rank;
    if (!(lora->alpha >= LORA_LEAST_ALPHA && lora->alpha <= LORA_MOST_ALPHA)) {
        return json_file_fail("lora_alpha", json_object_get(json, "lora_alpha"),
                              "it must be a number from 1.2e-38 to 1e6");
    }
    if (!(lora->dropout >= 0.0 && lora->dropout <= LORA_MOST_DROPOUT)) {
        return json_file_fail("lora_dropout", json_object_get(json, "lora_dropout"), "it must be from 0 to 0.99");
    }
    return read_targets(json_object_get(json, "target_modules"), config);
}

int adapter_config_read(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/" ADAPTER_CONFIG_FILE, folder);
    json_t *json;
    if (json_file_read(path.text, MOST_BYTES, &json)) {
        return -1;
    }
    const int status = adapter_config_parse(json, config);
    json_decref(json);
    return status ? error_prefix("%s", path.text) : 0;
}

/* The modules as PEFT's target_modules; a new reference. */
static json_t *targets_json(const struct model_config *config) {
    const unsigned both = 1u << LORA_O | 1u << LORA_DOWN, targets = config->lora.targets;
    const bool gpt2 = model_config_modules(config).gpt2;
    json_t *list = json_array();
    for (unsigned module = 0; module < LORA_MODULES; module++) {
        const char *name = lora_module_name(model_config_modules(config), (enum lora_module)module);
        const bool is_one_of_two = gpt2 && (both >> module & 1) && (targets & both) != both;
        const bool repeats =
            gpt2 && (module == LORA_K || module == LORA_V || (module == LORA_DOWN && !is_one_of_two));
        if (targets >> module & 1 && !repeats) {
            json_array_append_new(list, json_sprintf("%s%s", is_one_of_two ? name : strchr(name, '.') + 1,
                                                     gpt2 ? "" : "_proj"));
        }
    }
    return list;
}

int adapter_config_write(const char *folder, const struct model_config *config, const char *base) {
    const struct lora_settings *lora = &config->lora;
    json_t *json =
        json_pack("{s:s, s:s, s:o, s:b, s:s, s:b, s:b, s:f, s:f, s:n, s:I, s:o, s:b}", "peft_type", "LORA",
                  "task_type", "CAUSAL_LM", "base_model_name_or_path", json_file_name(base), "fan_in_fan_out",
                  model_config_modules(config).gpt2, "bias", "none", "inference_mode", true, "init_lora_weights",
                  true, "lora_alpha", lora->alpha, "lora_dropout", lora->dropout, "modules_to_save", "r",
                  (json_int_t)lora->rank, "target_modules", targets_json(config), "use_rslora", lora->by_root);
    return json_file_write(path_of("%s/" ADAPTER_CONFIG_FILE, folder).text, json, JSON_STYLE);
}

/* ---- tensors */

char *adapter_tensor_name(const struct model_config *config, const struct parameter *parameter) {
    static const char ours[] = "transformer.h.";
    const char *name = parameter->name + sizeof ours - 1;
    char *end;
    const long layer = strtol(name, &end, 10);
    const char *module = end + 1, *kind = strrchr(module, '.');
    const int length = (int)(kind - module);
    if (model_config_modules(config).gpt2) {
        return memory_format("base_model.model.transformer.h.%ld.%.*s%s.weight", layer, length, module, kind);
    }
    const char *of_attention = strncmp(module, "attn.", 5) == 0 ? "self_" : "";
    return memory_format("base_model.model.model.layers.%ld.%s%.*s_proj%s.weight", layer, of_attention, length,
                         module, kind);
}

/* ---- base.json */

int adapter_base_read(const char *folder, char **base, char checksum[CHECKSUM_SIZE], int64_t *trained) {
    const struct path path = path_of("%s/" ADAPTER_BASE_FILE, folder);
    const char *saved = NULL, *digest = NULL;
    json_t *json;
    *base = NULL;
    *trained = -1;
    if (json_file_read(path.text, MOST_BYTES, &json)) {
        return -1;
    }
    int status = json_file_get_text(json, "folder", &saved) ||
                 json_file_get_text(json, "weights_sha256", &digest) ||
                 json_file_get_whole(json, "trained_tensors", 0, INT32_MAX, trained);
    if (status == 0 && (!saved || !*saved || !digest || strlen(digest) != CHECKSUM_SIZE - 1 || *trained < 0)) {
        status = error_set("'folder', 'weights_sha256' and 'trained_tensors' are needed");
    }
    if (status) {
        error_prefix("%s", path.text);
    } else {
        *base = memory_string(saved);
        memcpy(checksum, digest, CHECKSUM_SIZE);
    }
    json_decref(json);
    return status ? -1 : 0;
}

int adapter_base_write(const char *folder, const char *base, const char *checksum, int64_t trained) {
    return json_file_write(path_of("%s/" ADAPTER_BASE_FILE, folder).text,
                           json_pack("{s:o, s:s, s:I}", "folder", json_file_name(base), "weights_sha256", checksum,
                                     "trained_tensors", (json_int_t)trained),
                           JSON_STYLE);
}
