#include "src/checkpoint/config_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "src/text/tokenizer.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)

/* ---- the table of Hugging Face's families */

enum key_type {
    SIZE, /* a whole number above 0 */
    POSITIVE,
    SHARE, /* a number from 0 */
    FLAG,
    FIXED, /* has one value in all models that can be computed here; where it is absent or null, too */
};

struct key {
    const char *theirs, *ours; /* ours is NULL if FIXED */
    enum key_type type;
    /* As JSON: the value where the key is absent; NULL: it must be there; "": ours has its default. FIXED: the
     * value, or a list of its names */
    const char *value;
    const char *help; /* if it has another value */
};

struct family {
    const char *model_type, *architecture;
    const char *ours;                /* keys of ours that all its models have, as JSON */
    const char *extra;               /* what is written beside the keys, as JSON */
    const struct key *keys, *biases; /* the latter may be NULL */
};

#define SIZE_HELP     "it must be a whole number above 0"
#define POSITIVE_HELP "it must be a number above 0"
#define FLAG_HELP     "it must be true or false"
#define UNQUANTIZED   {"quantization_config", NULL, FIXED, "null", "save the model in bf16 or fp32"}

static const struct key gpt2_keys[] = {
    {"n_layer", "n_layer", SIZE, NULL, SIZE_HELP},
    {"n_head", "n_head", SIZE, NULL, SIZE_HELP},
    {"n_embd", "n_embd", SIZE, NULL, SIZE_HELP},
    {"n_positions", "block_size", SIZE, NULL, SIZE_HELP},
    {"vocab_size", "vocab_size", SIZE, NULL, SIZE_HELP},
    {"n_inner", "mlp_width", SIZE, "", SIZE_HELP},
    {"layer_norm_epsilon", "norm_eps", POSITIVE, "", POSITIVE_HELP},
    {"resid_pdrop", "dropout", SHARE, "", "it must be a number from 0"},
    {"scale_attn_weights", NULL, FIXED, "true", "attention is scaled by 1 / sqrt(head_dim)"},
    {"scale_attn_by_inverse_layer_idx", NULL, FIXED, "false", "attention is scaled alike in all layers"},
    {"add_cross_attention", NULL, FIXED, "false", "there are no encoders"},
    {"tie_word_embeddings", NULL, FIXED, "true", "GPT-2 has no output layer of its own"},
    UNQUANTIZED,
    {0},
};

static const struct key llama_keys[] = {
    {"num_hidden_layers", "n_layer", SIZE, NULL, SIZE_HELP},
    {"num_attention_heads", "n_head", SIZE, NULL, SIZE_HELP},
    {"num_key_value_heads", "n_kv_head", SIZE, "", SIZE_HELP},
    {"head_dim", "head_dim", SIZE, "", SIZE_HELP},
    {"hidden_size", "n_embd", SIZE, NULL, SIZE_HELP},
    {"intermediate_size", "mlp_width", SIZE, NULL, SIZE_HELP},
    {"max_position_embeddings", "block_size", SIZE, NULL, SIZE_HELP},
    {"vocab_size", "vocab_size", SIZE, NULL, SIZE_HELP},
    {"rms_norm_eps", "norm_eps", POSITIVE, "1e-6", POSITIVE_HELP},
    {"rope_theta", "rope_theta", POSITIVE, "10000.0", POSITIVE_HELP},
    {"tie_word_embeddings", "tie_embeddings", FLAG, "false", FLAG_HELP},
    {"hidden_act", NULL, FIXED, "[\"silu\", \"swish\"]", "gated MLPs have SiLU"},
    {"partial_rotary_factor", NULL, FIXED, "1.0", "positions turn whole heads"},
    {"rope_interleaved", NULL, FIXED, "false", "positions turn halves of heads, not neighbours"},
    {"use_sliding_window", NULL, FIXED, "false", "attention reaches back to the first token"},
    UNQUANTIZED,
    {0},
};

/* Biases of the families with the keys above: llama's are the same in attention and MLPs. */
static const struct key llama_biases[] = {
    {"attention_bias", "bias", FLAG, "false", FLAG_HELP},
    {"mlp_bias", "bias", FLAG, "false", FLAG_HELP},
    {0},
};
static const struct key qwen3_biases[] = {
    {"attention_bias", NULL, FIXED, "false", "biases are in all linear layers, in none, or in c_attn alone"},
    {0},
};

#define LLAMA_OURS  "\"residual\": \"rc\", \"norm\": \"rmsnorm\", \"position\": \"rope\", \"mlp\": \"swiglu\""
#define LLAMA_EXTRA "\"hidden_act\": \"silu\", \"torch_dtype\": \"float32\""

static const struct family families[] = {
    {
        .model_type = "gpt2",
        .architecture = "GPT2LMHeadModel",
        .ours = "{\"residual\": \"rc\", \"bias\": true, \"norm\": \"layernorm\", \"position\": \"learned\"}",
        .extra = "{\"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}",
        .keys = gpt2_keys,
    },
    {
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .ours = "{" LLAMA_OURS "}",
        .extra = "{" LLAMA_EXTRA "}",
        .keys = llama_keys,
        .biases = llama_biases,
    },
    {
        .model_type = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .ours = "{" LLAMA_OURS ", \"bias\": false, \"qkv_bias\": true}",
        .extra = "{" LLAMA_EXTRA ", \"use_sliding_window\": false}",
        .keys = llama_keys,
    },
    {
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .ours = "{" LLAMA_OURS ", \"bias\": false, \"qk_norm\": true}",
        .extra = "{" LLAMA_EXTRA ", \"use_sliding_window\": false, \"attention_bias\": false}",
        .keys = llama_keys,
        .biases = qwen3_biases,
    },
};
enum { GPT2, LLAMA, QWEN2, QWEN3 };
static const char of_families[] = "of Hugging Face's models only 'gpt2', 'llama', 'qwen2', 'qwen3' can be read";

/* Keys of ours that a model of theirs has with this value, unless its row says otherwise. */
static const char usual[] =
    "{\"logit_softcap\": 0.0, \"attn_scale\": 0.0, \"rope_fraction\": 1.0, \"embed_norm\": false, \"head_bias\": "
    "false, \"qk_norm\": false, \"mlp\": \"gelu\", "
    "\"tie_embeddings\": true, \"x0_lambdas\": false, \"value_embeds\": false}";

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
    json_t *usual_value = key->value && *key->value ? parsed(key->value) : NULL;
    const double number = json_number_value(value);
    bool fits = true;
    if (!value && !key->value) {
        return error_set("'%s' is missing, and the model cannot be read without it", key->theirs);
    }
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
        break;
    case FIXED:
        fits = is_same(value, usual_value);
    }
    if (key->ours && value) {
        json_object_set(ours, key->ours, (json_t *)(uintptr_t)value);
    } else if (key->ours && usual_value) {
        json_object_set(ours, key->ours, usual_value);
    }
    json_decref(usual_value);
    return fits || !value ? 0 : json_file_fail(key->theirs, value, key->help);
}

static int read_keys(const struct key *keys, const json_t *theirs, json_t *ours) {
    for (const struct key *key = keys; key && key->theirs; key++) {
        if (read_key(key, value_of(theirs, key->theirs), ours)) {
            return -1;
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
    if (theta && read_key(&(struct key){"rope_theta", "rope_theta", POSITIVE, NULL, POSITIVE_HELP}, theta, ours)) {
        return -1;
    }
    json_object_foreach((json_t *)(uintptr_t)rope, key, value) {
        if (json_is_object(value)) {
            return json_file_fail(key, value, "all layers have the same positions here");
        }
    }
    return 0;
}

static int read_llama(const struct family *family, const json_t *theirs, json_t *ours) {
    const bool attention_bias = json_is_true(json_object_get(theirs, "attention_bias"));
    const bool mlp_bias = json_is_true(json_object_get(theirs, "mlp_bias"));
    const json_int_t heads = json_integer_value(json_object_get(ours, "n_head")), kv_heads = 32;
    const json_t *types = value_of(theirs, "layer_types"), *value;
    size_t i;
    if (read_rope(theirs, ours)) {
        return -1;
    }
    if (types && !json_is_array(types)) {
        return json_file_fail("layer_types", types, "it must be a list");
    }
    json_array_foreach(types, i, value) {
        const char *type = json_file_text(value);
        if (!type || strcmp(type, "full_attention") != 0) {
            return json_file_fail("layer_types", value, "attention reaches back to the first token in all layers");
        }
    }
    if (family == &families[LLAMA] && attention_bias != mlp_bias) {
        return json_file_fail(mlp_bias ? "mlp_bias" : "attention_bias", json_true(),
                              "biases are in all linear layers or in none: attention_bias and mlp_bias must be the "
                              "same");
    }
    if (family == &families[QWEN3] && !json_object_get(ours, "head_dim")) { /* what transformers takes then */
        json_object_set_new(ours, "head_dim", json_integer(128));
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
    if (read_keys(family->keys, theirs, ours) || read_keys(family->biases, theirs, ours) ||
        (family == &families[GPT2] ? read_gpt2(theirs, ours) : read_llama(family, theirs, ours))) {
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

/* Whether the family's models have the values of ours that its keys cannot say. */
static int check_ours(const struct family *family, const json_t *ours) {
    json_t *wanted = parsed(usual), *own = parsed(family->ours), *value;
    const char *key;
    int status = 0;
    json_object_update(wanted, own);
    for (const struct key *row = family->keys; row->theirs; row++) {
        if (row->ours) {
            json_object_del(wanted, row->ours);
        }
    }
    if (family == &families[GPT2]) { /* biases that the model lacks are written as zeros */
        json_object_del(wanted, "bias");
    }
    json_object_foreach(wanted, key, value) {
        const json_t *is = json_object_get(ours, key);
        if (status == 0 && is && !is_same(is, value)) {
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

static void write_keys(const struct key *keys, const json_t *ours, json_t *theirs) {
    for (const struct key *key = keys; key && key->theirs; key++) {
        json_t *value = key->ours ? json_object_get(ours, key->ours) : NULL;
        if (value) {
            json_object_set(theirs, key->theirs, value);
        }
    }
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
    write_keys(family->keys, ours, theirs);
    write_keys(family->biases, ours, theirs);
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
    if (family != &families[GPT2]) {
        json_object_set_new(theirs, "rope_parameters",
                            json_pack("{s:s, s:O}", "rope_type", "default", "rope_theta",
                                      json_object_get(ours, "rope_theta")));
    } else if (write_gpt2(ours, theirs)) {
        json_decref(theirs);
        return NULL;
    }
    return theirs;
}

/* ---- files */

int config_file_parse(const json_t *json, struct model_config *config) {
    if (!json_object_get(json, "model_type")) { /* Hugging Face's always has this key */
        return model_config_from_json(json, config);
    }
    json_t *ours = hugging_face_to_ours(json);
    if (!ours) {
        return -1;
    }
    const int status = model_config_from_json(ours, config);
    json_decref(ours);
    config->hugging_face_rows = status ? 0 : config->vocab_size;
    return status;
}

json_t *config_file_hugging_face(const struct model_config *config) {
    struct model_config whole = *config;
    if (model_config_check(&whole)) {
        return NULL;
    }
    json_t *ours = model_config_to_json(&whole), *theirs = hugging_face_from_ours(ours);
    json_decref(ours);
    return theirs;
}

/* If the folder is a run directory, which has checkpoints in it, an error that names the last two: ckpt-best comes
 * after all numbers. */
static int refuse_run_directory(const char *folder) {
    struct dirent **entries;
    char names[256] = "";
    size_t length = strlen(folder), found = 0;
    const int count = scandir(folder, &entries, NULL, versionsort);
    for (int i = count - 1; i >= 0; i--) {
        const char *name = entries[i]->d_name;
        if (found < 2 && strncmp(name, "ckpt-", 5) == 0 &&
            files_exist(path_of("%s/%s/config.json", folder, name).text)) {
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

int config_file_read_tokens(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/generation_config.json", folder);
    json_t *json;
    if (config->hugging_face_rows == 0 || !files_exist(path.text)) {
        return 0;
    }
    int status = json_file_read(path.text, MOST_BYTES, &json);
    if (status == 0 && (model_config_read_ids(json, "bos_token_id", &config->beginnings) ||
                        model_config_read_ids(json, "eos_token_id", &config->ends))) {
        status = error_prefix("%s", path.text);
    }
    json_decref(json);
    return status ? -1 : 0;
}

int config_file_write(const char *folder, const struct model_config *config) {
    return json_file_write(path_of("%s/config.json", folder).text, model_config_to_json(config),
                           JSON_INDENT(1) | JSON_REAL_PRECISION(17));
}
