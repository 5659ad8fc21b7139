#include "src/checkpoint/config_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/text/tokenizer.h"
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)

/* ---- Hugging Face's GPT-2 */

static const struct {
    const char *name;
    size_t offset;
} integer_keys[] = {
    {"n_layer", offsetof(struct model_config, n_layer)},
    {"n_head", offsetof(struct model_config, n_head)},
    {"n_embd", offsetof(struct model_config, n_embd)},
    {"n_positions", offsetof(struct model_config, block_size)},
    {"vocab_size", offsetof(struct model_config, vocab_size)},
};

/* Its names for the activations of ours that it has. The first of each is written. */
static const struct {
    const char *name;
    enum activation activation;
} activations[] = {
    {"gelu_new", ACTIVATION_GELU_TANH},
    {"gelu_fast", ACTIVATION_GELU_TANH},
    {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
    {"gelu_accurate", ACTIVATION_GELU_TANH},
    {"gelu", ACTIVATION_GELU},
    {"gelu_python", ACTIVATION_GELU},
};

/* Switches that a model either lacks or has at the value of the original GPT-2. */
static const struct {
    const char *name;
    bool value;
} switches[] = {
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"add_cross_attention", false},
    {"tie_word_embeddings", true},
};

static int read_sizes(const json_t *json, struct model_config *config) {
    for (size_t i = 0; i < COUNT(integer_keys); i++) {
        const json_t *value = json_object_get(json, integer_keys[i].name);
        if (!json_is_integer(value)) {
            return error_set("'%s' is %s", integer_keys[i].name, value ? "not a whole number" : "missing");
        }
        *(int64_t *)((char *)config + integer_keys[i].offset) = json_integer_value(value);
    }
    const json_t *hidden = json_object_get(json, "n_inner");
    if (!hidden || json_is_null(hidden)) {
        return 0;
    }
    config->mlp_width = json_integer_value(hidden);
    return config->mlp_width < 1 ? error_set("'n_inner' is not a whole number above 0") : 0;
}

static int read_activation(const json_t *json, struct model_config *config) {
    const json_t *value = json_object_get(json, "activation_function");
    const char *name = value ? json_string_value(value) : "gelu_new";
    for (size_t i = 0; name && i < COUNT(activations); i++) {
        if (strcmp(name, activations[i].name) == 0) {
            config->activation = activations[i].activation;
            return 0;
        }
    }
    return error_set("'activation_function' is '%.60s': only GELU is supported, exact (gelu) or by tanh (gelu_new)",
                     name ? name : "no text");
}

static int check_switches(const json_t *json) {
    for (size_t i = 0; i < COUNT(switches); i++) {
        const json_t *value = json_object_get(json, switches[i].name);
        if (value && (!json_is_boolean(value) || json_boolean_value(value) != switches[i].value)) {
            return error_set("'%s' is not %s: such models are not supported", switches[i].name,
                             switches[i].value ? "true" : "false");
        }
    }
    return 0;
}

static int read_epsilon(const json_t *json, struct model_config *config) {
    const json_t *value = json_object_get(json, "layer_norm_epsilon");
    config->norm_eps = json_number_value(value);
    return value && !(config->norm_eps > 0.0) ? error_set("'layer_norm_epsilon' is not a number above 0") : 0;
}

/* Models whose texts end with token 50256 have GPT-2's tokenizer, or one of its size and order. */
static int read_tokenizer(const json_t *json, struct model_config *config) {
    const char *name = json_string_value(json_object_get(json, "tokenizer"));
    const json_t *end = json_object_get(json, "eos_token_id");
    if (!name && config->vocab_size >= GPT2_TOKENS && json_integer_value(end) == GPT2_TOKENS - 1) {
        name = "gpt2";
    }
    return model_config_set_tokenizer(config, name);
}

static int read_hugging_face(const json_t *json, struct model_config *config) {
    const char *type = json_string_value(json_object_get(json, "model_type"));
    if (!type || strcmp(type, "gpt2") != 0) {
        return error_set("model_type is '%.60s': of Hugging Face's models only 'gpt2' can be read",
                         type ? type : "no text");
    }
    *config = model_config_default();
    config->bias = true;
    config->residual = residual_find("rc");
    config->dropout = json_number_value(json_object_get(json, "resid_pdrop"));
    if (read_sizes(json, config) || read_tokenizer(json, config) || read_activation(json, config) ||
        read_epsilon(json, config) || check_switches(json)) {
        return -1;
    }
    config->hugging_face_rows = config->vocab_size;
    return model_config_check(config);
}

/* NULL if it has no such activation. */
static const char *activation_name(int activation) {
    for (size_t i = 0; i < COUNT(activations); i++) {
        if ((int)activations[i].activation == activation) {
            return activations[i].name;
        }
    }
    return NULL;
}

int config_file_check_hugging_face(const struct model_config *config) {
    if (!residual_is_plain(config->residual)) {
        return error_set("residual = %s, which Hugging Face's GPT-2 cannot compute: give --format torch",
                         config->residual->name);
    }
    if (config->mlp != MLP_GELU) {
        return error_set("the model has another kind of MLP than Hugging Face's GPT-2: give --format torch");
    }
    if (!config->tie_embeddings || config->logit_softcap > 0.0) {
        return error_set("the model has %s, which Hugging Face's GPT-2 has not: give --format torch",
                         config->tie_embeddings ? "a logit_softcap" : "a head of its own (tie_embeddings = false)");
    }
    const struct head_shape heads = model_config_heads(config);
    if (heads.kv_heads != heads.heads || heads.y_row != config->n_embd) {
        return error_set("the model has heads that Hugging Face's GPT-2 has not (n_kv_head, head_dim): give "
                         "--format torch");
    }
    if (config->position != POSITION_LEARNED) {
        return error_set("the model has no embeddings of positions, which Hugging Face's GPT-2 has: give "
                         "--format torch");
    }
    return config->norm != NORM_LAYER || !activation_name(config->activation)
               ? error_set(
                     "the model has another norm or activation than Hugging Face's GPT-2: give --format torch")
               : 0;
}

json_t *config_file_hugging_face(const struct model_config *config) {
    const bool gpt2 = strcmp(config->tokenizer, "gpt2") == 0 && config->vocab_size >= GPT2_TOKENS;
    return json_pack(
        "{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:f, s:f, s:f, s:f, s:b, s:s, s:o, s:o, s:s*}",
        "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "n_layer", (json_int_t)config->n_layer, "n_head",
        (json_int_t)config->n_head, "n_embd", (json_int_t)config->n_embd, "n_positions",
        (json_int_t)config->block_size, "n_ctx", (json_int_t)config->block_size, "vocab_size",
        (json_int_t)config->vocab_size, "n_inner",
        config->mlp_width == 4 * config->n_embd ? json_null() : json_integer(config->mlp_width),
        "activation_function", activation_name(config->activation), "layer_norm_epsilon", config->norm_eps,
        "resid_pdrop", config->dropout, "embd_pdrop", config->dropout, "attn_pdrop", config->dropout,
        "tie_word_embeddings", 1, "torch_dtype", "float32", "bos_token_id",
        gpt2 ? json_integer(GPT2_TOKENS - 1) : json_null(), "eos_token_id",
        gpt2 ? json_integer(GPT2_TOKENS - 1) : json_null(), "tokenizer",
        *config->tokenizer ? config->tokenizer : NULL);
}

/* ---- files */

int config_file_parse(const json_t *json, struct model_config *config) {
    const bool ours = json_object_get(json, "model_type") == NULL; /* Hugging Face's always has this key */
    return ours ? model_config_from_json(json, config) : read_hugging_face(json, config);
}

static int has_checkpoint_name(const struct dirent *entry) {
    return strncmp(entry->d_name, "ckpt-", 5) == 0;
}

/* If the folder is a run directory, which has checkpoints in it, an error that names the last two: ckpt-best comes
 * after all numbers. */
static int refuse_run_directory(const char *folder) {
    struct dirent **entries;
    char names[256] = "";
    size_t length = strlen(folder), found = 0;
    const int count = scandir(folder, &entries, has_checkpoint_name, versionsort);
    for (int i = count - 1; i >= 0; i--) {
        const char *name = entries[i]->d_name;
        if (found < 2 && files_exist(path_of("%s/%s/config.json", folder, name).text)) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, found++ ? " (or %.60s)" : "%.60s", name);
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    return found ? error_set("%s is a run directory, not a checkpoint: give %.*s/%s", folder, (int)length, folder,
                             names)
                 : 0;
}

int config_file_read(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/config.json", folder);
    json_t *json;
    if ((!files_exist(path.text) && refuse_run_directory(folder)) || json_file_read(path.text, MOST_BYTES, &json)) {
        return -1;
    }
    const int status = config_file_parse(json, config);
    json_decref(json);
    return status ? error_prefix("%s", path.text) : 0;
}

int config_file_write(const char *folder, const struct model_config *config) {
    return json_file_write(path_of("%s/config.json", folder).text, model_config_to_json(config),
                           JSON_INDENT(1) | JSON_REAL_PRECISION(17));
}
