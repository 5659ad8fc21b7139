#include "src/checkpoint/hugging_face.h"
#include "runtime/system/error.h"
#include "src/text/tokenizer.h"
#include <math.h>
#include <stddef.h>
#include <string.h>

static const double norm_epsilon = 1e-5; /* of every layer norm of ours */

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

/* Its names for the two functions. */
static const struct {
    const char *name;
    bool tanh;
} activations[] = {
    {"gelu", false},     {"gelu_python", false},      {"gelu_new", true},
    {"gelu_fast", true}, {"gelu_pytorch_tanh", true}, {"gelu_accurate", true},
};

/* What a model must have, or not name at all, to be GPT-2 as its makers trained it. */
static const struct {
    const char *name;
    bool value;
} switches[] = {
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"add_cross_attention", false},
    {"tie_word_embeddings", true},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static int read_activation(const json_t *json, struct model_config *config) {
    const json_t *value = json_object_get(json, "activation_function");
    const char *name = value ? json_string_value(value) : "gelu_new";
    for (size_t i = 0; name && i < COUNT(activations); i++) {
        if (strcmp(name, activations[i].name) == 0) {
            config->activation = activations[i].tanh ? ACTIVATION_GELU_TANH : ACTIVATION_GELU;
            return 0;
        }
    }
    return error_set("'activation_function' is '%.60s': only GELU, exact (gelu) or by tanh (gelu_new), is here",
                     name ? name : "no text");
}

static int check_width(const json_t *json, const struct model_config *config) {
    const json_t *inner = json_object_get(json, "n_inner");
    const bool other = inner && !json_is_null(inner) &&
                       (!json_is_integer(inner) || json_integer_value(inner) / 4 != config->n_embd ||
                        json_integer_value(inner) % 4 != 0);
    return other ? error_set("'n_inner' is not 4 n_embd, the only width of MLPs that is here") : 0;
}

static int check_switches(const json_t *json) {
    for (size_t i = 0; i < COUNT(switches); i++) {
        const json_t *value = json_object_get(json, switches[i].name);
        if (value && (!json_is_boolean(value) || json_boolean_value(value) != switches[i].value)) {
            return error_set("'%s' is not %s: such models are not here", switches[i].name,
                             switches[i].value ? "true" : "false");
        }
    }
    const json_t *epsilon = json_object_get(json, "layer_norm_epsilon");
    if (epsilon && fabs(json_number_value(epsilon) - norm_epsilon) > 1e-3 * norm_epsilon) {
        return error_set("'layer_norm_epsilon' is not 1e-5, which is fixed here");
    }
    return 0;
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

int hugging_face_read_config(const json_t *json, struct model_config *config) {
    const char *type = json_string_value(json_object_get(json, "model_type"));
    if (!type || strcmp(type, "gpt2") != 0) {
        return error_set("model_type is '%.60s': of Hugging Face's models only 'gpt2' can be read",
                         type ? type : "no text");
    }
    *config = model_config_default();
    config->bias = true;
    config->residual = residual_find("rc");
    for (size_t i = 0; i < COUNT(integer_keys); i++) {
        const json_t *value = json_object_get(json, integer_keys[i].name);
        if (!json_is_integer(value)) {
            return error_set("'%s' is %s", integer_keys[i].name, value ? "not a whole number" : "missing");
        }
        *(int64_t *)((char *)config + integer_keys[i].offset) = json_integer_value(value);
    }
    config->hugging_face_rows = config->vocab_size;
    config->dropout = json_number_value(json_object_get(json, "resid_pdrop"));
    return read_tokenizer(json, config) || read_activation(json, config) || check_width(json, config) ||
                   check_switches(json)
               ? -1
               : 0;
}

json_t *hugging_face_make_config(const struct model_config *config) {
    const bool gpt2 = strcmp(config->tokenizer, "gpt2") == 0 && config->vocab_size >= GPT2_TOKENS;
    json_t *json =
        json_pack("{s:s, s:[s], s:I, s:I, s:I, s:I, s:I, s:I, s:n, s:s, s:f, s:f, s:f, s:f, s:b, s:s}",
                  "model_type", "gpt2", "architectures", "GPT2LMHeadModel", "n_layer", (json_int_t)config->n_layer,
                  "n_head", (json_int_t)config->n_head, "n_embd", (json_int_t)config->n_embd, "n_positions",
                  (json_int_t)config->block_size, "n_ctx", (json_int_t)config->block_size, "vocab_size",
                  (json_int_t)config->vocab_size, "n_inner", "activation_function",
                  config->activation == ACTIVATION_GELU_TANH ? "gelu_new" : "gelu", "layer_norm_epsilon",
                  norm_epsilon, "resid_pdrop", config->dropout, "embd_pdrop", config->dropout, "attn_pdrop",
                  config->dropout, "tie_word_embeddings", 1, "torch_dtype", "float32");
    int failed = json == NULL;
    for (int i = 0; i < 2 && !failed; i++) {
        failed = json_object_set_new(json, i ? "eos_token_id" : "bos_token_id",
                                     gpt2 ? json_integer(GPT2_TOKENS - 1) : json_null());
    }
    if (!failed && *config->tokenizer) {
        failed = json_object_set_new(json, "tokenizer", json_string(config->tokenizer));
    }
    if (failed) {
        json_decref(json);
        return NULL;
    }
    return json;
}
