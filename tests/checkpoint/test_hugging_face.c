/* The table of Hugging Face's model types: keys in both directions, names of tensors, and what is refused. */
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <string.h>

static json_t *parsed(const char *text) {
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    return json;
}

/* All keys of `expected` are in `json` with these values; null: it is not there. */
static void assert_keys(const json_t *json, const char *expected) {
    json_t *wanted = parsed(expected), *value;
    const char *key;
    json_object_foreach(wanted, key, value) {
        const json_t *found = json_object_get(json, key);
        const bool same = json_is_null(value) ? !found || json_is_null(found)
                          : json_is_number(value)
                              ? json_is_number(found) && json_number_value(found) == json_number_value(value)
                              : json_equal(found, value);
        if (!same) {
            char *text = json_dumps(found, JSON_ENCODE_ANY);
            fail_msg("%s is %s in place of what %s says", key, text ? text : "absent", expected);
        }
    }
    json_decref(wanted);
}

#define SIZES                                                                                                      \
    "\"hidden_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"vocab_size\": 97, "              \
    "\"intermediate_size\": 128, \"max_position_embeddings\": 24"
#define KV                ", \"num_key_value_heads\": null"
#define MODEL(type, more) "{\"model_type\": \"" type "\", " SIZES more "}"

UNIT_TEST(keys_of_theirs_become_ours) {
    static const char *const cases[][2] = {
        {MODEL("llama", ""), "{\"residual\": \"rc\", \"norm\": \"rmsnorm\", \"position\": \"rope\", \"mlp\": "
                             "\"swiglu\", \"n_embd\": 48, "
                             "\"n_layer\": 3, \"n_head\": 4, \"vocab_size\": 97, \"mlp_width\": 128, "
                             "\"block_size\": 24, \"norm_eps\": 1e-6, "
                             "\"rope_theta\": 10000, \"tie_embeddings\": false, \"bias\": false, \"n_kv_head\": "
                             "null, \"head_dim\": null}"},
        {MODEL("llama",
               ", \"num_key_value_heads\": 2, \"head_dim\": 16, \"rms_norm_eps\": 1e-5, \"rope_theta\": 5e5, "
               "\"tie_word_embeddings\": true, \"attention_bias\": true, \"mlp_bias\": true, "
               "\"rope_scaling\": null"),
         "{\"n_kv_head\": 2, \"head_dim\": 16, \"norm_eps\": 1e-5, \"rope_theta\": 500000, \"tie_embeddings\": "
         "true, "
         "\"bias\": true}"},
        {MODEL("llama", ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 7}"),
         "{\"rope_theta\": 7}"},
        {MODEL("llama", ", \"rope_scaling\": {\"type\": \"default\"}, \"rope_theta\": 8"), "{\"rope_theta\": 8}"},
        {MODEL("llama", ", \"hidden_act\": \"swish\""), "{\"mlp\": \"swiglu\"}"},
        {MODEL("llama", ", \"rope_theta\": 8, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1}"),
         "{\"rope_theta\": 8}"},
        {MODEL("llama", ", \"rope_theta\": 8, \"rope_scaling\": {\"type\": \"default\"}, \"rope_parameters\": "
                        "{\"rope_type\": \"yarn\", \"rope_theta\": 9}"),
         "{\"rope_theta\": 8}"},
        {MODEL("llama", ", \"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 9}"), "{\"rope_theta\": 9}"},
        {"{\"model_type\": \"qwen2\", \"hidden_size\": 48, \"num_hidden_layers\": 3, \"num_attention_heads\": 64, "
         "\"vocab_size\": 97, \"intermediate_size\": 128, \"max_position_embeddings\": 24}",
         "{\"n_kv_head\": 32}"},
        {MODEL("qwen2", KV ", \"use_sliding_window\": false, \"sliding_window\": 4096, \"layer_types\": "
                           "[\"full_attention\"]"),
         "{\"bias\": false, \"qkv_bias\": true, \"qk_norm\": null, \"head_dim\": null}"},
        {MODEL("qwen3", KV ", \"head_dim\": null"),
         "{\"bias\": false, \"qkv_bias\": null, \"qk_norm\": true, \"head_dim\": 128}"},
        {MODEL("qwen3", KV ", \"bos_token_id\": null, \"eos_token_id\": [5, 6]"),
         "{\"bos_token_id\": null, \"eos_token_id\": [5, 6]}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *theirs = parsed(cases[i][0]), *ours = hugging_face_to_ours(theirs);
        require(ours ? 0 : -1);
        assert_keys(ours, cases[i][1]);
        json_decref(ours);
        json_decref(theirs);
    }
}

UNIT_TEST(what_changes_the_function_is_refused) {
    static const char *const cases[][2] = {
        {MODEL("smollm3", ""),
         "'model_type' is \"smollm3\": of Hugging Face's models only 'gpt2', 'llama', 'qwen2', 'qwen3'"},
        {"{\"model_type\": \"llama\"}", "'num_hidden_layers' is missing"},
        {MODEL("llama", ", \"hidden_act\": \"gelu\""), "'hidden_act' is \"gelu\": gated MLPs have SiLU"},
        {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}"),
         "'rope_type' is \"llama3\": positions have plain RoPE here"},
        {MODEL("llama", ", \"rope_scaling\": {\"type\": \"linear\"}"), "'rope_type' is \"linear\""},
        {MODEL("llama", ", \"rope_parameters\": {\"rope_type\": \"yarn\"}"), "'rope_type' is \"yarn\""},
        {MODEL("llama", ", \"rope_parameters\": {\"full_attention\": {}}"), "'full_attention' is {}"},
        {MODEL("llama", ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}"),
         "'partial_rotary_factor' is 0.5"},
        {MODEL("llama", ", \"rope_parameters\": 5"), "'rope_parameters' is 5: it must be an object"},
        {MODEL("llama", ", \"rope_theta\": \"Infinity\""),
         "'rope_theta' is \"Infinity\": it must be a number above 0"},
        {MODEL("llama", ", \"rope_theta\": -1"), "'rope_theta' is -1: it must be a number above 0"},
        {MODEL("llama", ", \"partial_rotary_factor\": 0.25"), "'partial_rotary_factor' is 0.25"},
        {MODEL("llama", ", \"rope_interleaved\": true"), "'rope_interleaved' is true"},
        {MODEL("llama", ", \"attention_bias\": true"),
         "'attention_bias' is true: biases are in all linear layers or in"},
        {MODEL("llama", ", \"mlp_bias\": true"), "'mlp_bias' is true"},
        {MODEL("llama", ", \"mlp_bias\": \"true\""), "'mlp_bias' is \"true\": it must be true or false"},
        {MODEL("llama", ", \"quantization_config\": {}"), "'quantization_config' is {}: save the model in bf16"},
        {MODEL("llama", ", \"tie_word_embeddings\": 1"), "'tie_word_embeddings' is 1: it must be true or false"},
        {MODEL("llama", ", \"num_key_value_heads\": \"2\""),
         "'num_key_value_heads' is \"2\": it must be a whole number"},
        {MODEL("llama", ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": \"1\"}"),
         "'rope_type' is \"linear\": positions have plain RoPE here"},
        {MODEL("llama", ", \"attention_bias\": \"true\", \"mlp_bias\": \"true\""),
         "'attention_bias' is \"true\": it must be true or false"},
        {MODEL("llama", ", \"layer_types\": \"sliding_attention\""),
         "'layer_types' is \"sliding_attention\": it must be a list"},
        {MODEL("llama", ", \"hidden_act\": [\"silu\", \"swish\"]"), "'hidden_act' is "},
        {MODEL("qwen2", ""),
         "'num_key_value_heads' is missing: transformers takes 32 then, which does not divide the 4 of"},
        {MODEL("qwen2", ", \"use_sliding_window\": true"), "'use_sliding_window' is true"},
        {MODEL("qwen2", ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         "'layer_types' is \"sliding_attention\""},
        {MODEL("qwen3", ", \"attention_bias\": true"), "'attention_bias' is true"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *theirs = parsed(cases[i][0]), *ours = hugging_face_to_ours(theirs);
        assert_error(ours ? 0 : -1, cases[i][1]);
        json_decref(theirs);
    }
}

#define OURS(more)                                                                                                 \
    "{\"residual\": \"rc\", \"norm\": \"rmsnorm\", \"position\": \"rope\", \"mlp\": \"swiglu\", \"n_embd\": 48, "  \
    "\"n_layer\": 3, "                                                                                             \
    "\"n_head\": 4, \"n_kv_head\": 2, \"head_dim\": 12, \"vocab_size\": 97, \"mlp_width\": 128, \"block_size\": "  \
    "24, "                                                                                                         \
    "\"norm_eps\": 1e-5, \"rope_theta\": 500.0, \"logit_softcap\": 0.0, \"dropout\": 0.0, \"activation\": "        \
    "\"gelu\"" more "}"
#define PLAIN   ", \"bias\": false, \"qkv_bias\": false, \"qk_norm\": false, \"tie_embeddings\": true"
#define BIASES  ", \"bias\": true, \"qkv_bias\": true, \"qk_norm\": false, \"tie_embeddings\": false"
#define QKV     ", \"bias\": false, \"qkv_bias\": true, \"qk_norm\": false, \"tie_embeddings\": false"
#define QK_NORM ", \"bias\": false, \"qkv_bias\": false, \"qk_norm\": true, \"tie_embeddings\": false"

/* And back: all keys of ours come again. */
UNIT_TEST(ours_become_the_nearest_of_theirs) {
    static const char *const cases[][2] = {
        {OURS(PLAIN),
         "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 48, "
         "\"num_key_value_heads\": 2, \"head_dim\": 12, \"tie_word_embeddings\": true, \"attention_bias\": "
         "false, \"mlp_bias\": false, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_parameters\": "
         "{\"rope_type\": \"default\", \"rope_theta\": 500.0}}"},
        {OURS(PLAIN ", \"bos_token_id\": 1, \"eos_token_id\": [2, 3]"),
         "{\"model_type\": \"llama\", \"bos_token_id\": 1, \"eos_token_id\": [2, 3]}"},
        {OURS(BIASES), "{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true}"},
        {OURS(QKV),
         "{\"model_type\": \"qwen2\", \"attention_bias\": null, \"architectures\": [\"Qwen2ForCausalLM\"]}"},
        {OURS(QK_NORM), "{\"model_type\": \"qwen3\", \"attention_bias\": false}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *ours = parsed(cases[i][0]), *theirs = hugging_face_from_ours(ours);
        require(theirs ? 0 : -1);
        assert_keys(theirs, cases[i][1]);
        json_t *back = hugging_face_to_ours(theirs), *value;
        const char *key;
        require(back ? 0 : -1);
        json_object_foreach(back, key, value) {
            assert_true(json_equal(value, json_object_get(ours, key)));
        }
        json_decref(back);
        json_decref(theirs);
        json_decref(ours);
    }
}

UNIT_TEST(ours_that_none_of_theirs_computes_are_refused) {
    static const char *const cases[][2] = {
        {"{\"residual\": \"mhc\"}",
         "residual = \"mhc\", which Hugging Face's llama cannot compute: give --format torch"},
        {"{\"logit_softcap\": 15.0}", "logit_softcap = 15.0"},
        {"{\"qk_norm\": \"plain\"}", "qk_norm = \"plain\", which Hugging Face's llama"},
        {"{\"embed_norm\": true}", "embed_norm = true, which Hugging Face's llama"},
        {"{\"head_bias\": true}", "head_bias = true, which Hugging Face's llama"},
        {"{\"rope_fraction\": 0.5}", "rope_fraction = 0.5"},
        {"{\"attn_scale\": 0.12}", "attn_scale = 0.12"},
        {"{\"position\": \"none\"}", "position = \"none\""},
        {"{\"mlp\": \"relu2\"}", "mlp = \"relu2\""},
        {"{\"norm\": \"layernorm\"}", "mlp = \"swiglu\", which Hugging Face's gpt2"},
        {"{\"bias\": true}", "qkv_bias = false, which Hugging Face's llama"},
        {"{\"qk_norm\": true, \"bias\": true}", "bias = true, which Hugging Face's qwen3"},
        {"{\"qk_norm\": true, \"qkv_bias\": true}", "qkv_bias = true, which Hugging Face's qwen3"},
        {"{\"n_head\": 5}", "n_head = 5, which Hugging Face's llama"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *ours = parsed(OURS(PLAIN));
        json_t *changes = parsed(cases[i][0]);
        json_object_update(ours, changes);
        assert_error(hugging_face_from_ours(ours) ? 0 : -1, cases[i][1]);
        json_decref(changes);
        json_decref(ours);
    }
}

static void assert_names(const char *parameter, size_t count, const char *const names[]) {
    const struct model_config config = {.norm = NORM_RMS, .n_kv_head = 1, .head_dim = 2};
    struct parameter row = {.rank = 2, .shape = {6, 4}, .sublayer = 1};
    struct hugging_face_tensors tensors;
    snprintf(row.name, sizeof row.name, "%s", parameter);
    hugging_face_tensors(&config, &row, &tensors);
    assert_int_equal(tensors.count, count);
    uint64_t rows = 0;
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(tensors.names[i], names[i]);
        assert_int_equal(tensors.infos[i].shape[1], 4);
        rows += tensors.infos[i].shape[0];
    }
    assert_int_equal(tensors.infos[count - 1].shape[0], count == 3 ? 2 : 6);
    assert_int_equal(rows, 6);
    assert_false(tensors.transposed);
}
#define NAMES(parameter, ...)                                                                                      \
    assert_names(parameter, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *), (const char *[]){__VA_ARGS__})

UNIT_TEST(tensors_have_their_names) {
    NAMES("transformer.wte.weight", "model.embed_tokens.weight");
    NAMES("transformer.ln_f.weight", "model.norm.weight");
    NAMES("lm_head.weight", "lm_head.weight");
    NAMES("transformer.h.0.ln_1.weight", "model.layers.0.input_layernorm.weight");
    NAMES("transformer.h.10.ln_2.weight", "model.layers.10.post_attention_layernorm.weight");
    NAMES("transformer.h.2.attn.c_attn.weight", "model.layers.2.self_attn.q_proj.weight",
          "model.layers.2.self_attn.k_proj.weight", "model.layers.2.self_attn.v_proj.weight");
    NAMES("transformer.h.2.attn.c_attn.bias", "model.layers.2.self_attn.q_proj.bias",
          "model.layers.2.self_attn.k_proj.bias", "model.layers.2.self_attn.v_proj.bias");
    NAMES("transformer.h.2.attn.c_proj.weight", "model.layers.2.self_attn.o_proj.weight");
    NAMES("transformer.h.2.attn.q_norm.weight", "model.layers.2.self_attn.q_norm.weight");
    NAMES("transformer.h.2.attn.k_norm.weight", "model.layers.2.self_attn.k_norm.weight");
    NAMES("transformer.h.2.mlp.c_gate.weight", "model.layers.2.mlp.gate_proj.weight");
    NAMES("transformer.h.2.mlp.c_fc.weight", "model.layers.2.mlp.up_proj.weight");
    NAMES("transformer.h.2.mlp.c_proj.bias", "model.layers.2.mlp.down_proj.bias");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
