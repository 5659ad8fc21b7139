#include "src/checkpoint/hugging_face.h"
#include "runtime/files/json_file.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/text/tokenizer.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the table */

enum key_type { SIZE /* a whole number above 0 */, POSITIVE, SHARE /* a number from 0 */, FLAG };

struct key {
    const char *theirs, *ours;
    enum key_type type;
    const char *absent; /* its value as JSON; NULL: it must be there; "": ours has its default */
};

/* A key that has one value in all models that can be computed here; where it is absent or null, too. */
struct fixed {
    const char *key, *value; /* as JSON; a list has all names of the value */
    const char *help;
};

/* What parameters are in their files, by how the names end: "attn.c_attn." stands for its weight and bias. */
struct name {
    const char *ours, *theirs[HUGGING_FACE_MOST_PARTS];
};

struct family {
    const char *model_type, *architecture, *prefix;
    const char *ours;  /* keys of ours that all its models have, as JSON */
    const char *extra; /* what is written beside the keys, as JSON */
    const struct key *keys;
    const struct fixed *fixed;
    const struct name *names; /* NULL: as ours */
    bool transposes;          /* linear layers are [in, out] (Conv1D) */
};

static const struct key gpt2_keys[] = {
    {"n_layer", "n_layer", SIZE, NULL},
    {"n_head", "n_head", SIZE, NULL},
    {"n_embd", "n_embd", SIZE, NULL},
    {"n_positions", "block_size", SIZE, NULL},
    {"vocab_size", "vocab_size", SIZE, NULL},
    {"n_inner", "mlp_width", SIZE, ""},
    {"layer_norm_epsilon", "norm_eps", POSITIVE, ""},
    {"resid_pdrop", "dropout", SHARE, ""},
    {NULL, NULL, SIZE, NULL},
};

#define UNQUANTIZED {"quantization_config", "null", "save the model in bf16 or fp32"}

static const struct fixed gpt2_fixed[] = {
    UNQUANTIZED,
    {"scale_attn_weights", "true", "attention is scaled by 1 / sqrt(head_dim)"},
    {"scale_attn_by_inverse_layer_idx", "false", "attention is scaled alike in all layers"},
    {"add_cross_attention", "false", "there are no encoders"},
    {"tie_word_embeddings", "true", "GPT-2 has no output layer of its own"},
    {NULL, NULL, NULL},
};

#define LLAMA_KEYS(head_dim)                                                                                       \
    {"num_hidden_layers", "n_layer", SIZE, NULL}, {"num_attention_heads", "n_head", SIZE, NULL},                   \
        {"num_key_value_heads", "n_kv_head", SIZE, ""}, {"head_dim", "head_dim", SIZE, head_dim},                  \
        {"hidden_size", "n_embd", SIZE, NULL}, {"intermediate_size", "mlp_width", SIZE, NULL},                     \
        {"max_position_embeddings", "block_size", SIZE, NULL}, {"vocab_size", "vocab_size", SIZE, NULL},           \
        {"rms_norm_eps", "norm_eps", POSITIVE, "1e-6"}, {"rope_theta", "rope_theta", POSITIVE, "10000.0"},         \
        {"tie_word_embeddings", "tie_embeddings", FLAG, "false"}

static const struct key llama_keys[] = {
    LLAMA_KEYS(""),
    {"attention_bias", "bias", FLAG, "false"}, /* the same as mlp_bias */
    {"mlp_bias", "bias", FLAG, "false"},
    {NULL, NULL, SIZE, NULL},
};
static const struct key qwen2_keys[] = {LLAMA_KEYS(""), {NULL, NULL, SIZE, NULL}};
static const struct key qwen3_keys[] = {LLAMA_KEYS("128"), {NULL, NULL, SIZE, NULL}};

#define LLAMA_FIXED                                                                                                \
    {"hidden_act", "[\"silu\", \"swish\"]", "gated MLPs have SiLU"},                                               \
        {"partial_rotary_factor", "1.0", "positions turn whole heads"},                                            \
        {"rope_interleaved", "false", "positions turn halves of heads, not neighbours"}, UNQUANTIZED,              \
        {"use_sliding_window", "false", "attention reaches back to the first token"}

static const struct fixed llama_fixed[] = {LLAMA_FIXED, {NULL, NULL, NULL}};
static const struct fixed qwen3_fixed[] = {LLAMA_FIXED,
                                           {"attention_bias", "false",
                                            "biases are in all linear layers, in none, or in c_attn alone"},
                                           {NULL, NULL, NULL}};

static const struct name llama_names[] = {
    {"wte.", {"embed_tokens."}},
    {"ln_f.", {"norm."}},
    {"ln_1.", {"input_layernorm."}},
    {"ln_2.", {"post_attention_layernorm."}},
    {"attn.c_attn.", {"self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."}},
    {"attn.c_proj.", {"self_attn.o_proj."}},
    {"attn.q_norm.", {"self_attn.q_norm."}},
    {"attn.k_norm.", {"self_attn.k_norm."}},
    {"mlp.c_gate.", {"mlp.gate_proj."}},
    {"mlp.c_fc.", {"mlp.up_proj."}},
    {"mlp.c_proj.", {"mlp.down_proj."}},
    {NULL, {NULL}},
};

#define LLAMA_OURS  "\"residual\": \"rc\", \"norm\": \"rmsnorm\", \"position\": \"rope\", \"mlp\": \"swiglu\""
#define LLAMA_EXTRA "\"hidden_act\": \"silu\", \"torch_dtype\": \"float32\""

static const struct family families[] = {
    {
        .model_type = "gpt2",
        .architecture = "GPT2LMHeadModel",
        .prefix = "transformer.",
        .ours = "{\"residual\": \"rc\", \"bias\": true, \"norm\": \"layernorm\", \"position\": \"learned\"}",
        .extra = "{\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}",
        .keys = gpt2_keys,
        .fixed = gpt2_fixed,
        .transposes = true,
    },
    {
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .prefix = "model.",
        .ours = "{" LLAMA_OURS "}",
        .extra = "{" LLAMA_EXTRA "}",
        .keys = llama_keys,
        .fixed = llama_fixed,
        .names = llama_names,
    },
    {
        .model_type = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .prefix = "model.",
        .ours = "{" LLAMA_OURS ", \"bias\": false, \"qkv_bias\": true}",
        .extra = "{" LLAMA_EXTRA ", \"use_sliding_window\": false}",
        .keys = qwen2_keys,
        .fixed = llama_fixed,
        .names = llama_names,
    },
    {
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .prefix = "model.",
        .ours = "{" LLAMA_OURS ", \"bias\": false, \"qk_norm\": true}",
        .extra = "{" LLAMA_EXTRA ", \"use_sliding_window\": false, \"attention_bias\": false}",
        .keys = qwen3_keys,
        .fixed = qwen3_fixed,
        .names = llama_names,
    },
};
enum { GPT2, LLAMA, QWEN2, QWEN3 };
static const char of_families[] = "of Hugging Face's models only 'gpt2', 'llama', 'qwen2', 'qwen3' can be read";

/* Keys of ours that a model of theirs has with this value, unless its row says otherwise. */
static const char usual[] =
    "{\"logit_softcap\": 0.0, \"attn_scale\": 0.0, \"rope_fraction\": 1.0, \"embed_norm\": false, \"head_bias\": "
    "false, \"qk_norm\": false, \"mlp\": \"gelu\", "
    "\"tie_embeddings\": true}";

/* Its names for the activations of ours that GPT-2 has. The first of each is written. */
static const struct {
    const char *theirs, *ours;
} activations[] = {
    {"gelu_new", "gelu_tanh"},      {"gelu_fast", "gelu_tanh"}, {"gelu_pytorch_tanh", "gelu_tanh"},
    {"gelu_accurate", "gelu_tanh"}, {"gelu", "gelu"},           {"gelu_python", "gelu"},
};

static json_t *parsed(const char *text) {
    return json_loads(text, JSON_DECODE_ANY, NULL);
}

/* A key's value; NULL if it is absent or null. */
static json_t *value_of(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool is_same(const json_t *a, const json_t *b) {
    const json_t *name;
    size_t i;
    json_array_foreach(b, i, name) {
        if (json_equal(a, name)) {
            return true;
        }
    }
    if (json_is_array(b)) {
        return false;
    }
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

/* ---- from theirs */

static int read_key(const struct key *key, const json_t *value, json_t *ours) {
    static const char *const wanted[] = {"it must be a whole number above 0", "it must be a number above 0",
                                         "it must be a number from 0", "it must be true or false"};
    const double number = json_number_value(value);
    if (!value && !key->absent) {
        return error_set("'%s' is missing, and the model cannot be read without it", key->theirs);
    }
    if (!value) {
        if (*key->absent) {
            json_object_set_new(ours, key->ours, parsed(key->absent));
        }
        return 0;
    }
    bool fits = false;
    switch (key->type) {
    case SIZE:
        fits = json_is_integer(value) && json_integer_value(value) > 0;
        break;
    case POSITIVE:
        fits = number > 0.0;
        break;
    case SHARE:
        fits = json_is_number(value) && number >= 0.0;
        break;
    case FLAG:
        fits = json_is_boolean(value);
    }
    if (!fits) {
        return json_file_fail(key->theirs, value, wanted[key->type]);
    }
    json_object_set(ours, key->ours, (json_t *)(uintptr_t)value);
    return 0;
}

static int check_fixed(const struct family *family, const json_t *theirs) {
    for (const struct fixed *fixed = family->fixed; fixed->key; fixed++) {
        const json_t *value = value_of(theirs, fixed->key);
        json_t *wanted = parsed(fixed->value);
        const bool same = !value || is_same(value, wanted);
        json_decref(wanted);
        if (!same) {
            return json_file_fail(fixed->key, value, fixed->help);
        }
    }
    return 0;
}

static int read_gpt2(const json_t *theirs, json_t *ours) {
    const json_t *value = json_object_get(theirs, "activation_function");
    const char *name = value ? json_file_text(value) : "gelu_new";
    for (size_t i = 0; name && i < COUNT(activations); i++) {
        if (strcmp(name, activations[i].theirs) == 0) {
            json_object_set_new(ours, "activation", json_string(activations[i].ours));
            return 0;
        }
    }
    return json_file_fail("activation_function", value,
                          "only GELU is supported, exact (gelu) or by tanh (gelu_new)");
}

/* Positions: as in transformers, rope_scaling counts alone if it has anything, else rope_parameters does. */
static int read_rope(const json_t *theirs, json_t *ours) {
    const json_t *scaling = value_of(theirs, "rope_scaling");
    const bool older = scaling && !(json_is_object(scaling) && json_object_size(scaling) == 0);
    const char *place = older ? "rope_scaling" : "rope_parameters", *key;
    const json_t *rope = value_of(theirs, place), *part = value_of(rope, "partial_rotary_factor");
    const json_t *type = value_of(rope, "rope_type") ? value_of(rope, "rope_type") : value_of(rope, "type");
    const json_t *theta = value_of(rope, "rope_theta");
    const char *name = type ? json_file_text(type) : "default";
    json_t *value;
    if (rope && !json_is_object(rope)) {
        return json_file_fail(place, rope, "it must be an object");
    }
    if (!name || (strcmp(name, "default") != 0 && /* linear scaling by 1 is plain, too */
                  !(strcmp(name, "linear") == 0 && json_number_value(value_of(rope, "factor")) == 1.0))) {
        return json_file_fail("rope_type", type, "positions have plain RoPE here (\"default\"), without scaling");
    }
    if (part && json_number_value(part) != 1.0) {
        return json_file_fail("partial_rotary_factor", part, "positions turn whole heads");
    }
    if (theta && read_key(&(struct key){"rope_theta", "rope_theta", POSITIVE, NULL}, theta, ours)) {
        return -1;
    }
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        if (json_is_object(value)) {
            return json_file_fail(key, value, "all layers have the same positions here");
        }
    }
    return 0;
}

static int check_layers(const json_t *theirs) {
    const json_t *types = value_of(theirs, "layer_types"), *value;
    size_t i;
    if (types && !json_is_array(types)) {
        return json_file_fail("layer_types", types, "it must be a list");
    }
    json_array_foreach(types, i, value) {
        const char *type = json_file_text(value);
        if (!type || strcmp(type, "full_attention") != 0) {
            return json_file_fail("layer_types", value, "attention reaches back to the first token in all layers");
        }
    }
    return 0;
}

static int read_llama(const struct family *family, const json_t *theirs, json_t *ours) {
    const bool attention_bias = json_is_true(json_object_get(theirs, "attention_bias"));
    const bool mlp_bias = json_is_true(json_object_get(theirs, "mlp_bias"));
    const json_int_t heads = json_integer_value(json_object_get(ours, "n_head")), kv_heads = 32;
    if (read_rope(theirs, ours) || check_layers(theirs)) {
        return -1;
    }
    if (family == &families[LLAMA] && attention_bias != mlp_bias) {
        return json_file_fail(mlp_bias ? "mlp_bias" : "attention_bias", json_true(),
                              "biases are in all linear layers or in none: attention_bias and mlp_bias must be the "
                              "same");
    }
    if (family != &families[LLAMA] && !json_object_get(theirs, "num_key_value_heads")) {
        json_object_set_new(ours, "n_kv_head", json_integer(kv_heads));
        if (heads % kv_heads != 0) {
            return error_set("'num_key_value_heads' is missing: transformers takes %d then, which does not divide "
                             "the %d of 'num_attention_heads'",
                             (int)kv_heads, (int)heads);
        }
    }
    return 0;
}

/* Keys that say which tokens begin and end texts; they are the same in ours. */
static const char *const token_keys[] = {"bos_token_id", "eos_token_id"};

json_t *hugging_face_to_ours(const json_t *theirs) {
    const json_t *type = json_object_get(theirs, "model_type");
    const char *model_type = json_file_text(type);
    const struct family *family = families;
    while (family < families + COUNT(families) && (!model_type || strcmp(model_type, family->model_type) != 0)) {
        family++;
    }
    if (family == families + COUNT(families)) {
        json_file_fail("model_type", type, of_families);
        return NULL;
    }
    json_t *ours = parsed(family->ours);
    int status = 0;
    for (const struct key *key = family->keys; key->theirs && status == 0; key++) {
        status = read_key(key, value_of(theirs, key->theirs), ours);
    }
    if (status || check_fixed(family, theirs) ||
        (family->names ? read_llama(family, theirs, ours) : read_gpt2(theirs, ours))) {
        json_decref(ours);
        return NULL;
    }
    for (size_t i = 0; i < COUNT(token_keys); i++) {
        json_t *ids = value_of(theirs, token_keys[i]);
        if (ids) {
            json_object_set(ours, token_keys[i], ids);
        }
    }
    /* models whose texts end with token 50256 have GPT-2's tokenizer, or one of its size and order */
    json_t *name = json_object_get(theirs, "tokenizer");
    if (json_is_string(name)) {
        json_object_set(ours, "tokenizer", name);
    } else if (json_integer_value(json_object_get(ours, "vocab_size")) >= GPT2_TOKENS &&
               json_integer_value(json_object_get(theirs, "eos_token_id")) == GPT2_TOKENS - 1) {
        json_object_set_new(ours, "tokenizer", json_string("gpt2"));
    }
    return ours;
}

/* ---- to theirs */

static bool is_true(const json_t *ours, const char *key) {
    return json_is_true(json_object_get(ours, key));
}

static bool has_word(const json_t *ours, const char *key, const char *word) {
    const char *value = json_file_text(json_object_get(ours, key));
    return value && strcmp(value, word) == 0;
}

/* The family that is nearest to the model. */
static const struct family *choose_family(const json_t *ours) {
    if (!has_word(ours, "norm", "rmsnorm")) {
        return &families[GPT2];
    }
    if (is_true(ours, "qk_norm")) {
        return &families[QWEN3];
    }
    return is_true(ours, "qkv_bias") && !is_true(ours, "bias") ? &families[QWEN2] : &families[LLAMA];
}

static int fail_ours(const struct family *family, const char *key, const json_t *value) {
    char *dumped = json_dumps(value, JSON_ENCODE_ANY);
    const int status = error_set("%s = %.60s, which Hugging Face's %s cannot compute: give --format torch", key,
                                 dumped ? dumped : "?", family->model_type);
    free(dumped);
    return status;
}

static bool has_row(const struct family *family, const char *ours) {
    for (const struct key *key = family->keys; key->theirs; key++) {
        if (strcmp(key->ours, ours) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the family's models have the values of ours that its keys cannot say. */
static int check_ours(const struct family *family, const json_t *ours) {
    json_t *wanted = parsed(usual), *own = parsed(family->ours), *value;
    const char *key;
    int status = 0;
    json_object_update(wanted, own);
    if (family == &families[GPT2]) { /* biases that the model lacks are written as zeros */
        json_object_del(wanted, "bias");
    }
    json_object_foreach(wanted, key, value) {
        const json_t *is = json_object_get(ours, key);
        if (status == 0 && is && !has_row(family, key) && !is_same(is, value)) {
            status = fail_ours(family, key, is);
        }
    }
    json_decref(own);
    json_decref(wanted);
    return status;
}

/* Sizes that GPT-2 has no keys for, and what transformers asks of Llama. */
static int check_shape(const struct family *family, const json_t *ours) {
    const json_t *heads = json_object_get(ours, "n_head"), *kv = json_object_get(ours, "n_kv_head");
    const json_t *dim = json_object_get(ours, "head_dim");
    const json_t *qkv = json_object_get(ours, "qkv_bias");
    const json_int_t width = json_integer_value(json_object_get(ours, "n_embd")), count = json_integer_value(heads);
    const bool gpt2 = family == &families[GPT2];
    if (gpt2 && kv && json_integer_value(kv) != count) {
        return fail_ours(family, "n_kv_head", kv);
    }
    if (gpt2 && dim && json_integer_value(dim) * count != width) {
        return fail_ours(family, "head_dim", dim);
    }
    if (family == &families[LLAMA] && (count < 1 || width % count != 0)) {
        return fail_ours(family, "n_head", heads);
    }
    if (!gpt2 && family != &families[QWEN2] && qkv && json_is_true(qkv) != is_true(ours, "bias")) {
        return fail_ours(family, "qkv_bias", qkv);
    }
    return 0;
}

static int write_gpt2(const json_t *ours, json_t *theirs) {
    json_t *dropout = json_object_get(ours, "dropout"), *activation = json_object_get(ours, "activation");
    const char *name = NULL;
    for (size_t i = 0; !name && i < COUNT(activations); i++) {
        name = has_word(ours, "activation", activations[i].ours) ? activations[i].theirs : NULL;
    }
    if (!name) {
        return fail_ours(&families[GPT2], "activation", activation);
    }
    if (json_integer_value(json_object_get(theirs, "n_inner")) ==
        4 * json_integer_value(json_object_get(theirs, "n_embd"))) {
        json_object_set_new(theirs, "n_inner", json_null());
    }
    json_object_set_new(theirs, "activation_function", json_string(name));
    json_object_set(theirs, "embd_pdrop", dropout);
    json_object_set(theirs, "attn_pdrop", dropout);
    json_object_set(theirs, "n_ctx", json_object_get(ours, "block_size"));
    return 0;
}

json_t *hugging_face_from_ours(const json_t *ours) {
    const struct family *family = choose_family(ours);
    if (check_ours(family, ours) || check_shape(family, ours)) {
        return NULL;
    }
    json_t *theirs =
        json_pack("{s:s, s:[s]}", "model_type", family->model_type, "architectures", family->architecture);
    json_t *extra = parsed(family->extra), *tokenizer = json_object_get(ours, "tokenizer");
    json_object_update(theirs, extra);
    json_decref(extra);
    for (const struct key *key = family->keys; key->theirs; key++) {
        json_t *value = json_object_get(ours, key->ours);
        if (value) {
            json_object_set(theirs, key->theirs, value);
        }
    }
    if (tokenizer) {
        json_object_set(theirs, "tokenizer", tokenizer);
    }
    /* tokens that begin and end texts: transformers has values of its own for keys that are absent */
    const bool gpt2 = has_word(ours, "tokenizer", "gpt2") &&
                      json_integer_value(json_object_get(ours, "vocab_size")) >= GPT2_TOKENS;
    for (size_t i = 0; i < COUNT(token_keys); i++) {
        json_t *ids = json_object_get(ours, token_keys[i]);
        json_object_set_new(theirs, token_keys[i],
                            ids    ? json_incref(ids)
                            : gpt2 ? json_integer(GPT2_TOKENS - 1)
                                   : json_null());
    }
    if (family->names) {
        json_object_set_new(theirs, "rope_parameters",
                            json_pack("{s:s, s:O}", "rope_type", "default", "rope_theta",
                                      json_object_get(ours, "rope_theta")));
    } else if (write_gpt2(ours, theirs)) {
        json_decref(theirs);
        return NULL;
    }
    return theirs;
}

/* ---- tensors */

static const struct family *family_of(const struct model_config *config) {
    return &families[config->norm == NORM_RMS ? LLAMA : GPT2]; /* llama and both qwen have the same names */
}

const char *hugging_face_prefix(const struct model_config *config) {
    return family_of(config)->prefix;
}

bool hugging_face_ignores(const char *name) {
    return fnmatch("*.attn.@(bias|masked_bias)", name, FNM_EXTMATCH) == 0 ||
           fnmatch("*.rotary_emb.inv_freq", name, 0) == 0;
}

/* Names of one parameter's parts. */
static void set_names(const struct family *family, const char *ours, struct hugging_face_tensors *tensors) {
    static const char prefix[] = "transformer.";
    const char *rest = strncmp(ours, prefix, sizeof prefix - 1) == 0 ? ours + sizeof prefix - 1 : "";
    char layer[32] = "", *end = NULL;
    tensors->count = 0;
    if (strncmp(rest, "h.", 2) == 0) {
        snprintf(layer, sizeof layer, "layers.%ld.", strtol(rest + 2, &end, 10));
        rest = end + 1;
    }
    for (const struct name *name = family->names; name && name->ours; name++) {
        const size_t length = strlen(name->ours);
        for (size_t i = 0; i < COUNT(name->theirs) && name->theirs[i] && !strncmp(rest, name->ours, length); i++) {
            snprintf(tensors->names[tensors->count++], HUGGING_FACE_MOST_NAME, "%s%s%s%.40s", family->prefix, layer,
                     name->theirs[i], rest + length);
        }
    }
    if (tensors->count == 0) {
        snprintf(tensors->names[tensors->count++], HUGGING_FACE_MOST_NAME, "%s", ours);
    }
}

void hugging_face_tensors(const struct model_config *config, const struct parameter *parameter,
                          struct hugging_face_tensors *tensors) {
    const struct family *family = family_of(config);
    const uint64_t kv = (uint64_t)(config->n_kv_head * config->head_dim);
    *tensors = (struct hugging_face_tensors){.transposed = family->transposes && parameter->rank == 2 &&
                                                           parameter->sublayer >= 0};
    set_names(family, parameter->name, tensors);
    for (size_t part = 0; part < tensors->count; part++) {
        struct tensor_info *info = &tensors->infos[part];
        *info = (struct tensor_info){.type = TENSOR_F32, .rank = parameter->rank};
        for (unsigned i = 0; i < info->rank; i++) {
            info->shape[i] = parameter->shape[tensors->transposed ? 1 - i : i];
        }
        if (tensors->count == HUGGING_FACE_MOST_PARTS) { /* queries, keys, values */
            info->shape[0] = part == 0 ? parameter->shape[0] - 2 * kv : kv;
        }
    }
}
