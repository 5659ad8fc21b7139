/* Models for and from others: what hc_export writes, what is read of Hugging Face's folders, and what is refused.
 * tests/compare_transformers.py, run by hand, holds both to transformers and PyTorch themselves. */
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/export.h"
#include "src/checkpoint/weights.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/reference_residual.h"
#include "tests/support/runs.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"

static const char export_program[] = HC_PROGRAMS "/hc_export", train_program[] = HC_PROGRAMS "/hc_train",
                  probe_program[] = HC_PROGRAMS "/hc_probe";

static struct model_config plain_config(bool bias) {
    struct model_config config = small_model_config("rc", 1);
    config.bias = bias;
    return config;
}

static int export_to(const char *checkpoint, const char *out, enum export_format format, int64_t rows) {
    const struct export_settings settings = {(char *)scratch_path(checkpoint), (char *)scratch_path(out), format,
                                             rows};
    return export_run(&settings);
}

/* The folder "hf": a model of random weights, "plain", as Hugging Face's. */
static void make_hugging_face(const struct model_config *config) {
    random_checkpoint_write("plain", config);
    require(export_to("plain", "hf", EXPORT_HUGGING_FACE, 0));
}

/* ---- what comes back */

/* Compares every parameter in the folder with the numbers of write_checkpoint; biases that the checkpoint lacked
 * are 0. */
static void assert_weights(const char *folder, const struct model_config *config, bool had_bias) {
    struct parameters parameters;
    struct weights *weights;
    parameters_create(config, &parameters);
    require(weights_open(scratch_path(folder), config, &parameters, &weights));
    for (size_t i = 0; i < parameters.count; i++) {
        const struct parameter *parameter = &parameters.table[i];
        const bool bias = strstr(parameter->name, ".bias") != NULL;
        float *expected = calloc(parameter->elements, sizeof *expected);
        float *found = malloc(parameter->elements * sizeof *found);
        if (!bias || had_bias) {
            random_checkpoint_values(&parameters, i, 0, parameter->elements, expected);
        }
        const uint64_t half = parameter->elements / 2; /* in two pieces */
        require(weights_read(weights, parameter, false, 0, half, found));
        require(weights_read(weights, parameter, false, half, parameter->elements - half, found + half));
        assert_memory_equal(found, expected, parameter->elements * sizeof *found);
        free(expected);
        free(found);
    }
    weights_close(weights);
    parameters_release(&parameters);
}

/* What GPT-2 has not, each by itself. An activation that no other file knows is as somebody may add. */
UNIT_TEST(newer_parts_are_not_exported_as_gpt2) {
    struct model_config configs[7];
    static const char *const texts[COUNT(configs)] = {
        "position = \"none\", which Hugging Face's gpt2 cannot compute: give --format torch",
        "tie_embeddings = false, which Hugging Face's gpt2",
        "logit_softcap = 2.0, which Hugging Face's gpt2",
        "activation = ",
        "n_kv_head = 1, which Hugging Face's gpt2",
        "head_dim = 4, which Hugging Face's gpt2",
        "mlp = \"relu2\", which Hugging Face's gpt2",
    };
    for (size_t i = 0; i < COUNT(configs); i++) {
        configs[i] = plain_config(true);
    }
    json_decref(config_file_hugging_face(&configs[0]));
    configs[0].position = POSITION_NONE;
    configs[1].tie_embeddings = false;
    configs[2].logit_softcap = 2.0;
    configs[3].activation = ACTIVATION_GELU_TANH + 1;
    configs[4].n_kv_head = 1;
    configs[5].head_dim = 4;
    configs[6].mlp = MLP_RELU2;
    for (size_t i = 0; i < COUNT(configs); i++) {
        assert_error(config_file_hugging_face(&configs[i]) ? 0 : -1, texts[i]);
    }
}

UNIT_TEST(weights_come_back_from_hugging_faces_format) {
    for (int bias = 0; bias < 2; bias++) {
        struct model_config config = plain_config(bias != 0), back;
        config.activation = bias ? ACTIVATION_GELU_TANH : ACTIVATION_GELU;
        config.dropout = 0.25;
        config.mlp_width = bias ? 20 : 0;
        memcpy(config.tokenizer, "byte", 5);
        make_hugging_face(&config);
        require(config_file_read(scratch_path("hf"), &back));
        assert_int_equal(back.hugging_face_rows, config.vocab_size);
        assert_true(back.bias && back.activation == config.activation && back.dropout == 0.25);
        assert_string_equal(back.tokenizer, "byte");
        assert_true(back.n_head == config.n_head && back.block_size == config.block_size);
        assert_weights("hf", &back, bias != 0);
        assert_int_equal(scratch_entries(scratch_path("hf")), 2);
    }
}

/* Models of today's parts, each of another model type. */
static struct model_config modern_config(int kind) {
    struct model_config config = plain_config(kind == 1);
    config.norm = NORM_RMS;
    config.position = POSITION_ROPE;
    config.mlp = MLP_SWIGLU;
    config.mlp_width = 20;
    config.rope_theta = 500.0;
    config.qk_norm = kind == 2 ? QK_NORM_GAINED : QK_NORM_NONE;
    config.qkv_bias = kind == 3 ? SWITCH_ON : SWITCH_FOLLOWS;
    config.n_kv_head = kind == 0 ? 2 : 1;
    config.head_dim = kind == 0 ? 0 : 6;
    config.tie_embeddings = kind == 0;
    return config;
}

/* From ours to theirs and, from there, to theirs again: no bit changes on the way. */
UNIT_TEST(llama_and_qwen_come_back_bit_for_bit) {
    static const char *const types[] = {"\"llama\"", "\"llama\"", "\"qwen3\"", "\"qwen2\""};
    for (int kind = 0; kind < (int)COUNT(types); kind++) {
        const struct model_config config = modern_config(kind);
        struct model_config back;
        make_hugging_face(&config);
        require(config_file_read(scratch_path("hf"), &back));
        assert_true(back.norm == NORM_RMS && back.position == POSITION_ROPE && back.mlp == MLP_SWIGLU);
        assert_true(back.rope_theta == 500.0 && back.qk_norm == config.qk_norm && back.bias == config.bias);
        assert_true(back.n_kv_head == config.n_kv_head && back.tie_embeddings == config.tie_embeddings);
        assert_non_null(strstr(scratch_text(scratch_path("hf/config.json"), NULL), types[kind]));
        assert_weights("hf", &back, true);
        require(export_to("hf", "again", EXPORT_HUGGING_FACE, 0));
        assert_same_file("hf/model.safetensors", "again/model.safetensors");
        assert_same_file("hf/config.json", "again/config.json");
    }
}

/* Queries, keys and values are tensors of their own, of as many rows as they have heads. */
UNIT_TEST(queries_keys_and_values_are_parted) {
    const struct model_config config = modern_config(2);
    make_hugging_face(&config);
    struct safetensors *ours = tensors_open(scratch_path("plain"), "model.safetensors");
    struct safetensors *theirs = tensors_open(scratch_path("hf"), "model.safetensors");
    static const char *const parts[] = {"q", "k", "v"};
    float *whole = tensors_read(ours, tensors_need(ours, "", "transformer.h.1.attn.c_attn.weight"));
    const float *at = whole;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const char *name = scratch_format("model.layers.1.self_attn.%s_proj.weight", parts[i]);
        const struct tensor_info *info = tensors_need(theirs, "", name);
        assert_true(info->shape[0] == (i == 0 ? 12U : 6U) && info->shape[1] == 16);
        float *part = tensors_read(theirs, info);
        assert_memory_equal(part, at, info->elements * sizeof *part);
        at += info->elements;
        free(part);
    }
    assert_int_equal(at - whole, 24 * 16);
    free(whole);
    safetensors_close(ours);
    safetensors_close(theirs);
}

UNIT_TEST(linear_layers_are_transposed_for_hugging_face) {
    const struct model_config config = plain_config(false);
    make_hugging_face(&config);
    struct safetensors *ours = tensors_open(scratch_path("plain"), "model.safetensors");
    struct safetensors *theirs = tensors_open(scratch_path("hf"), "model.safetensors");
    const char *name = "transformer.h.1.attn.c_attn.weight";
    const struct tensor_info *from = tensors_need(ours, "", name), *to = tensors_need(theirs, "", name);
    float *a = tensors_read(ours, from), *b = tensors_read(theirs, to);
    assert_true(to->shape[0] == 16 && to->shape[1] == 48);
    for (size_t in = 0; in < 16; in++) {
        for (size_t out = 0; out < 48; out++) {
            assert_true(b[in * 48 + out] == a[out * 16 + in]);
        }
    }
    assert_int_equal(theirs->count, 4 + 2 * 12);
    free(a);
    free(b);
    safetensors_close(ours);
    safetensors_close(theirs);
}

UNIT_TEST(torch_folders_have_the_checkpoints_tensors_and_a_program) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        const struct model_config config = small_model_config(variant->name, reference_streams(variant, 3));
        struct model_config back;
        random_checkpoint_write("variant", &config);
        require(export_to("variant", "torch", EXPORT_TORCH, 0));
        assert_same_file("variant/model.safetensors", "torch/model.safetensors");
        require(config_file_read(scratch_path("torch"), &back));
        assert_true(back.residual == config.residual && back.n_streams == config.n_streams);
        assert_int_equal(back.hugging_face_rows, 0);
        assert_int_equal(scratch_entries(scratch_path("torch")), 3);
        assert_true(files_exist(scratch_path("torch/model.py")));
    }
}

static int64_t rows_of(const char *folder) {
    struct model_config config;
    require(config_file_read(scratch_path(folder), &config));
    assert_weights(folder, &config, true); /* the first rows do not depend on the number of rows */
    return config.vocab_size;
}

UNIT_TEST(padding_of_the_vocabulary_is_left_out) {
    struct model_config config = plain_config(true);
    config.vocab_size = 50304;
    memcpy(config.tokenizer, "gpt2", 5);
    random_checkpoint_write("padded", &config);
    require(export_to("padded", "cut", EXPORT_HUGGING_FACE, 0));
    assert_int_equal(rows_of("cut"), 50257);
    require(export_to("padded", "cut", EXPORT_HUGGING_FACE, 50304));
    assert_int_equal(rows_of("cut"), 50304);
    require(export_to("padded", "cut", EXPORT_TORCH, 0));
    assert_int_equal(rows_of("cut"), 50304);
    require(export_to("padded", "cut", EXPORT_TORCH, 50000));
    assert_int_equal(rows_of("cut"), 50000);
    assert_error(export_to("padded", "cut", EXPORT_TORCH, 50305), "--vocab-size 50305 is more than the 50304");
}

UNIT_TEST(added_tokens_get_the_mean_of_the_others) {
    struct model_config config = plain_config(true), grown;
    struct parameters parameters;
    struct weights *weights;
    float values[40 * 16];
    make_hugging_face(&config);
    require(config_file_read(scratch_path("hf"), &grown));
    grown.vocab_size = 40;
    parameters_create(&grown, &parameters);
    require(weights_open(scratch_path("hf"), &grown, &parameters, &weights));
    require(
        weights_read(weights, parameters_find(&parameters, "transformer.wte.weight"), false, 0, 40 * 16, values));
    for (size_t channel = 0; channel < 16; channel++) {
        double sum = 0.0;
        for (size_t row = 0; row < 33; row++) {
            sum += (double)values[row * 16 + channel];
        }
        for (size_t row = 33; row < 40; row++) {
            assert_true(values[row * 16 + channel] == (float)(sum / 33.0));
        }
    }
    weights_close(weights);
    parameters_release(&parameters);
}

/* ---- folders as others write them */

/* A change to a file of tensors while it is copied. */
struct change {
    const char *cut;       /* removed from the beginning of names */
    const char *drop;      /* this tensor is left out */
    const char *add;       /* a tensor of this name comes too: a copy of the token embedding, */
    float shift;           /* plus this, */
    bool empty;            /* of 0 rows, */
    enum tensor_type type; /* as which its bytes are stored */
    const char *swap;      /* this tensor's two sizes change places */
};

static void copy_changed(const char *from, const char *to, const struct change *change) {
    struct safetensors *file = tensors_open(scratch_path(from), "model.safetensors");
    const size_t count = file->count;
    struct tensor_info infos[64];
    float *values[64];
    size_t kept = 0;
    for (size_t i = 0; i < count + (change->add != NULL); i++) {
        const struct tensor_info *info =
            i < count ? &file->infos[i] : tensors_need(file, "", "transformer.wte.weight");
        const char *name = i < count ? info->name : change->add;
        if (change->drop && strcmp(name, change->drop) == 0) {
            continue;
        }
        infos[kept] = *info;
        infos[kept].name = (char *)(uintptr_t)name;
        infos[kept].type = i < count ? info->type : change->type;
        infos[kept].shape[0] = i == count && change->empty ? 0 : info->shape[0];
        if (change->cut && strncmp(name, change->cut, strlen(change->cut)) == 0) {
            infos[kept].name += strlen(change->cut);
        }
        if (change->swap && strcmp(name, change->swap) == 0) {
            infos[kept].shape[0] = info->shape[1];
            infos[kept].shape[1] = info->shape[0];
        }
        values[kept] = tensors_read(file, info);
        values[kept++][0] += i < count ? 0.0f : change->shift;
    }
    const char *path = scratch_format("%s/model.safetensors", to);
    require(safetensors_write(scratch_path(path), infos, kept, tensors_take, values));
    for (size_t i = 0; i < kept; i++) {
        free(values[i]);
    }
    safetensors_close(file);
}

/* The folder "changed": an export of a small model with this change. */
static void make_changed(struct change change) {
    const struct model_config config = plain_config(true);
    make_hugging_face(&config);
    copy("hf/config.json", "changed/config.json");
    copy_changed("hf", "changed", &change);
}

/* Opens the weights of a folder, and closes them. */
static int open_weights(const char *folder) {
    struct model_config config;
    struct parameters parameters;
    struct weights *weights;
    require(config_file_read(scratch_path(folder), &config));
    parameters_create(&config, &parameters);
    const int status = weights_open(scratch_path(folder), &config, &parameters, &weights);
    weights_close(weights);
    parameters_release(&parameters);
    return status;
}

UNIT_TEST(other_ways_to_write_the_same_model_are_read) {
    static const struct change changes[] = {
        {.cut = "transformer."},                                   /* GPT2Model */
        {.add = "lm_head.weight"},                                 /* the tied head written out */
        {.add = "transformer.h.0.attn.bias", .type = TENSOR_BOOL}, /* masks, as older versions have them */
        {.cut = "transformer.", .add = "h.1.attn.masked_bias"},
        {.add = "score.weight", .empty = true},
    };
    for (size_t i = 0; i < COUNT(changes); i++) {
        struct model_config config;
        make_changed(changes[i]);
        require(config_file_read(scratch_path("changed"), &config));
        assert_weights("changed", &config, true);
    }
}

UNIT_TEST(other_models_are_refused) {
    static const struct {
        struct change change;
        const char *text;
    } cases[] = {
        {{.add = "lm_head.weight", .shift = 1.0f},
         "'lm_head.weight' differs from the token embedding, and config.json says that they are one: if "
         "they are not, set tie_word_embeddings to false there (llama"},
        {{.add = "score.weight"}, "tensor 'score.weight' is not part of this model"},
        {{.add = "transformer.h.2.ln_1.weight"}, "tensor 'transformer.h.2.ln_1.weight' is not part of this model"},
        {{.drop = "transformer.h.1.mlp.c_fc.bias"}, "tensor 'transformer.h.1.mlp.c_fc.bias' is missing"},
        {{.swap = "transformer.h.0.attn.c_attn.weight"},
         "tensor 'transformer.h.0.attn.c_attn.weight' has shape [48, 16], and the model needs [16, 48]: the file "
         "belongs to"},
        {{.swap = "transformer.wte.weight"}, "tensor 'transformer.wte.weight' has shape [16, 33]"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        make_changed(cases[i].change);
        assert_error(open_weights("changed"), cases[i].text);
        assert_error_text("changed/model.safetensors: ");
    }
}

UNIT_TEST(truncated_and_absent_weights_are_named) {
    size_t bytes;
    make_changed((struct change){0});
    char *text = scratch_text(scratch_path("changed/model.safetensors"), &bytes);
    for (size_t part = 0; part < 8; part++) {
        scratch_write("changed/model.safetensors", text, bytes * part / 8);
        assert_error(open_weights("changed"), "changed/model.safetensors");
    }
    remove(scratch_path("changed/model.safetensors"));
    assert_error(open_weights("changed"), "model.safetensors: No such file");
    scratch_put("changed/pytorch_model.bin", "x");
    assert_error(open_weights("changed"), "changed has pytorch_model.bin instead of model.safetensors: ");
    scratch_put("changed/model.safetensors.index.json", "{}");
    assert_error(open_weights("changed"), "changed/model.safetensors.index.json: 'weight_map' names no tensors");
    require(files_remove_folder(scratch_path("changed")));
}

/* ---- weights in several files */

/* Writes each tensor of "hf" to the first or the second file of the folder "divided", and the index with `extra`
 * before its end; `turned`: names the other file for one tensor. */
static void write_divided(const char *extra, bool turned) {
    const struct model_config config = plain_config(true);
    static const char *const names[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    size_t kept[2] = {0};
    struct tensor_info infos[2][64];
    float *values[2][64];
    make_hugging_face(&config);
    copy("hf/config.json", "divided/config.json");
    struct safetensors *file = tensors_open(scratch_path("hf"), "model.safetensors");
    const char *text = "{\"weight_map\": {";
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor_info *info = &file->infos[i];
        const size_t half = i % 2;
        infos[half][kept[half]] = *info;
        values[half][kept[half]++] = tensors_read(file, info);
        text = scratch_format("%s%s\"%s\": \"%s\"", text, i ? ", " : "", info->name,
                              names[turned && i == 3 ? 1 - half : half]);
    }
    scratch_put("divided/model.safetensors.index.json", scratch_format("%s%s}}", text, extra));
    for (size_t half = 0; half < 2; half++) {
        const char *path = scratch_path(scratch_format("divided/%s", names[half]));
        require(safetensors_write(path, infos[half], kept[half], tensors_take, values[half]));
        for (size_t i = 0; i < kept[half]; i++) {
            free(values[half][i]);
        }
    }
    safetensors_close(file);
}

UNIT_TEST(weights_in_several_files_are_read) {
    struct model_config config;
    write_divided("", false);
    require(config_file_read(scratch_path("divided"), &config));
    assert_weights("divided", &config, true);
    require(files_remove_folder(scratch_path("divided")));
}

UNIT_TEST(hostile_indexes_are_refused) {
    static const struct {
        const char *extra;
        bool turned;
        const char *text;
    } cases[] = {
        {", \"a\": \"../hf/model.safetensors\"", false, "the file of tensor 'a' is '../hf/model.saf"},
        {", \"a\": \"/etc/a.safetensors\"", false, "which is not a plain name"},
        {", \"a\": \".safetensors\"", false, "which is not a plain name"},
        {", \"a\": \"config.json\"", false, "which is not a plain name that ends with .safetensors"},
        {", \"a\": 3", false, "the file of tensor 'a' is '(no string)'"},
        {", \"a\": \"none.safetensors\"", false, "divided/none.safetensors: No such file"},
        {", \"a\": \"model-00001-of-00002.safetensors\"", false,
         "tensor 'a' is not in model-00001-of-00002.safetensors: copy"},
        {"", true, "is in another file than model-00001-of-00002.safetensors"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_divided(cases[i].extra, cases[i].turned);
        assert_error(open_weights("divided"), cases[i].text);
        assert_error_text("divided/model.safetensors.index.json");
        require(files_remove_folder(scratch_path("divided")));
    }
}

#define GPT2(layers, heads, more)                                                                                  \
    "{\"model_type\": \"gpt2\", \"n_layer\": " #layers ", \"n_head\": " #heads                                     \
    ", \"n_embd\": 16, \"n_positions\": 8, \"vocab_size\": 33" more "}"

UNIT_TEST(configs_that_cannot_be_computed_are_refused) {
    static const char *const cases[][2] = {
        {"{\"model_type\": \"mistral\"}", "'model_type' is \"mistral\": of Hugging Face's models only 'gpt2', "
                                          "'llama', 'qwen2', 'qwen3' can be read"},
        {"{\"model_type\": 2}", "'model_type' is 2: of Hugging Face's models only"},
        {"{\"model_type\": \"gpt2\"}", "'n_layer' is missing"},
        {GPT2(2, 2, ", \"activation_function\": \"relu\""), "'activation_function' is \"relu\": only GELU"},
        {GPT2(2, 2, ", \"activation_function\": null"), "'activation_function' is "},
        {GPT2(2, 2, ", \"n_inner\": 0"), "'n_inner' is 0: it must be a whole number above 0"},
        {GPT2(2, 2, ", \"n_inner\": 64.0"), "'n_inner' is 64.0: it must be a whole number above 0"},
        {GPT2(2, 2, ", \"scale_attn_weights\": false"), "'scale_attn_weights' is false: attention is scaled"},
        {GPT2(2, 2, ", \"quantization_config\": {}"),
         "'quantization_config' is {}: save the model in bf16 or fp32"},
        {GPT2(2, 2, ", \"scale_attn_by_inverse_layer_idx\": true"),
         "'scale_attn_by_inverse_layer_idx' is true: attention is scaled alike"},
        {GPT2(2, 2, ", \"layer_norm_epsilon\": 0"), "'layer_norm_epsilon' is 0: it must be a number above 0"},
        {GPT2(2, 2, ", \"layer_norm_epsilon\": \"small\""), "'layer_norm_epsilon' is \"small\": it must be"},
        {GPT2(2, 2, ", \"resid_pdrop\": 1.5"), "dropout = 1.5 is out of range"},
        {GPT2(2, 3, ""), "n_embd = 16 is not divisible"},
        {GPT2(-2, 2, ""), "'n_layer' is -2: it must be a whole number above 0"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config config;
        scratch_put("config/config.json", cases[i][0]);
        assert_error(config_file_read(scratch_path("config"), &config), cases[i][1]);
        assert_error_text("config/config.json: ");
    }
}

UNIT_TEST(what_configs_leave_out_is_gpt2s) {
    static const char minimal[] = GPT2(2, 2, ", \"n_inner\": null");
    static const char tokens[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, "
                                 "\"n_positions\": 8, \"vocab_size\": 50257, \"eos_token_id\": 50256, "
                                 "\"n_inner\": 40, \"activation_function\": \"gelu\", "
                                 "\"layer_norm_epsilon\": 1e-6}";
    struct model_config config;
    scratch_put("config/config.json", minimal);
    require(config_file_read(scratch_path("config"), &config));
    assert_true(config.activation == ACTIVATION_GELU_TANH && config.bias && config.dropout == 0.0);
    assert_string_equal(config.tokenizer, "");
    scratch_put("config/config.json", tokens);
    require(config_file_read(scratch_path("config"), &config));
    assert_true(config.activation == ACTIVATION_GELU && config.norm_eps == 1e-6 && config.mlp_width == 40);
    assert_string_equal(config.tokenizer, "gpt2");
}

/* ---- where exports go */

UNIT_TEST(only_exports_are_replaced) {
    const struct model_config config = plain_config(true);
    random_checkpoint_write("plain", &config);
    random_checkpoint_write("precious", &config);
    assert_error(export_to("plain", "precious", EXPORT_TORCH, 0), "precious exists and is not just an export");
    require(export_to("plain", "mixed", EXPORT_TORCH, 0));
    assert_error(export_to("plain", "plain", EXPORT_TORCH, 0), "--out is the checkpoint itself");
    require(export_to("plain", "edited", EXPORT_TORCH, 0));
    require(export_to("plain", "edited", EXPORT_TORCH, 0));
    scratch_put("edited/model.py", "mine");
    assert_error(export_to("plain", "edited", EXPORT_HUGGING_FACE, 0),
                 "edited/model.py was changed since it was exported");
    scratch_put("mixed/notes.txt", "mine");
    assert_error(export_to("plain", "mixed", EXPORT_TORCH, 0), "mixed exists and is not just an export");
    scratch_put("a-file", "mine");
    assert_error(export_to("plain", "a-file", EXPORT_TORCH, 0), "a-file: Not a directory");
    require(files_make_folder(scratch_path("new/empty")));
    require(export_to("plain", "new/empty", EXPORT_TORCH, 0));
    require(files_make_folder(scratch_path("new/empty/__pycache__"))); /* model.py was imported */
    require(export_to("plain", "new/empty", EXPORT_HUGGING_FACE, 0));  /* model.py goes */
    assert_int_equal(scratch_entries(scratch_path("new/empty")), 2);
    assert_int_equal(scratch_entries(scratch_path("new")), 1);
}

UNIT_TEST(exports_that_fail_leave_nothing_behind) {
    const struct model_config plain = plain_config(true), streams = small_model_config("shc", 3);
    random_checkpoint_write("plain", &plain);
    random_checkpoint_write("shc", &streams);
    assert_error(export_to("shc", "failed/x", EXPORT_HUGGING_FACE, 0), "give --format torch");
    assert_error(export_to("nowhere", "failed/x", EXPORT_TORCH, 0), "nowhere/config.json");
    assert_false(files_exist(scratch_path("failed")));
    require(export_to("plain", "failed/x", EXPORT_TORCH, 0));
    random_checkpoint_write("kept", &plain);
    require(export_to("kept", "kept-torch", EXPORT_TORCH, 0));
    scratch_limit_file_size(10000);
    assert_error(export_to("shc", "failed/x", EXPORT_TORCH, 0), "model.safetensors: File too large");
    scratch_limit_file_size(UINT64_MAX);
    assert_int_equal(scratch_entries(scratch_path("failed")), 1);
    assert_same_file("failed/x/model.safetensors", "kept-torch/model.safetensors");
}

/* ---- programs */

UNIT_TEST(export_program_says_what_is_wrong) {
    const struct model_config streams = small_model_config("shc", 3);
    random_checkpoint_write("shc", &streams);
    assert_failed(CHILD_RUN(export_program), 2, "--checkpoint and --out are both needed");
    assert_failed(CHILD_RUN(export_program, "--format", "onnx"), 2, "--format");
    assert_failed(CHILD_RUN(export_program, "--checkpoint", scratch_path("shc"), "--out", scratch_path("no")), 1,
                  "residual = \"shc\", which Hugging Face's gpt2 cannot compute");
    assert_done(CHILD_RUN_WRITING(scratch_path("printed"), export_program, "--checkpoint", scratch_path("shc"),
                                  "--out", scratch_path("shc-torch"), "--format", "torch"));
    char *printed = scratch_text(scratch_path("printed"), NULL);
    assert_non_null(strstr(printed, "shc-torch: shc with 2 layers, "));
}

static void probe(const char *checkpoint, const char *out) {
    assert_done(CHILD_RUN(probe_program, "--checkpoint", scratch_path(checkpoint), "--batch", scratch_path("batch"),
                          "--out", scratch_path(out), "--logits", "--no-grad", "--device", "pocl"));
}

/* The same numbers through the same kernels. */
UNIT_TEST(imported_models_compute_the_same_bits) {
    struct model_config config = plain_config(true);
    config.activation = ACTIVATION_GELU_TANH;
    make_hugging_face(&config);
    int32_t x[2 * 8], y[2 * 8];
    for (int i = 0; i < 16; i++) {
        x[i] = (7 * i + 3) % 33;
        y[i] = (5 * i + 1) % 33;
    }
    tensors_write_batch(scratch_path("batch"), (struct tensors_ids){2, {2, 8}, x},
                        (struct tensors_ids){2, {2, 8}, y});
    probe("plain", "probe-ours");
    probe("hf", "probe-theirs");
    assert_same_file("probe-ours", "probe-theirs");
}

/* Data of 40 tokens for a model of 33. */
static void write_data(void) {
    uint16_t tokens[256];
    for (int i = 0; i < 256; i++) {
        tokens[i] = (uint16_t)(i % 40);
    }
    scratch_write("data/train.bin", tokens, sizeof tokens);
    scratch_write("data/val.bin", tokens, sizeof tokens);
    scratch_put("data/meta.json", "{\"vocab_size\": 40}");
}

#define TRAIN_FROM_HF(...)                                                                                         \
    CHILD_RUN(train_program, "--data-dir", scratch_path("data"), "--init-from", scratch_path("hf"), "--out-dir",   \
              scratch_path("tuned"), "--device", "pocl", "--max-iters", "1", "--batch-size", "2", "--eval-iters",  \
              "0", __VA_ARGS__)

UNIT_TEST(training_starts_from_hugging_faces_folder) {
    const struct model_config config = plain_config(true);
    struct model_config tuned;
    make_hugging_face(&config);
    write_data();
    assert_failed(TRAIN_FROM_HF("--seed", "1"), 1, "give vocab_size = 40 or more");
    assert_failed(TRAIN_FROM_HF("--vocab-size", "32"), 1, "another vocab_size");
    assert_failed(TRAIN_FROM_HF("--residual", "attnres"), 1, "hf cannot go on with residual = attnres");
    assert_false(files_exist(scratch_path("tuned/ckpt-1")));
    assert_done(TRAIN_FROM_HF("--vocab-size", "48"));
    require(config_file_read(scratch_path("tuned/ckpt-1"), &tuned));
    assert_true(tuned.vocab_size == 48 && tuned.hugging_face_rows == 0 &&
                residual_has_frame(tuned.residual, "plain"));
    assert_done(CHILD_RUN(train_program, "--init-from", "resume", "--out-dir", scratch_path("tuned"), "--max-iters",
                          "2", "--device", "pocl"));
    assert_true(files_exist(scratch_path("tuned/ckpt-2")));
}

static void assert_tokens(const char *folder, const char *beginning, const char *end) {
    const char *const texts[] = {beginning, end}, *const keys[] = {"bos_token_id", "eos_token_id"};
    json_t *json = json_loads(scratch_text(scratch_path(scratch_format("%s/config.json", folder)), NULL), 0, NULL);
    for (size_t i = 0; i < COUNT(keys); i++) {
        json_t *expected = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        if (!json_equal(expected, json_object_get(json, keys[i]))) {
            fail_msg("%s/config.json: %s is not %s", folder, keys[i], texts[i]);
        }
        json_decref(expected);
    }
    json_decref(json);
}

/* Those of config.json and, before them, of generation_config.json; through a run, and out again. */
UNIT_TEST(tokens_that_end_texts_come_back) {
    const struct model_config config = modern_config(2);
    struct model_config back;
    require(files_remove_folder(scratch_path("tuned")));
    require(files_remove_folder(scratch_path("hf")));
    make_hugging_face(&config);
    assert_tokens("hf", "null", "null");
    scratch_put("hf/generation_config.json", "{\"bos_token_id\": 1, \"eos_token_id\": [3, 4], \"top_k\": 20}");
    write_data();
    assert_done(TRAIN_FROM_HF("--vocab-size", "48"));
    require(export_to("tuned/ckpt-1", "again", EXPORT_HUGGING_FACE, 0));
    assert_tokens("again", "1", "[3, 4]");
    scratch_put("again/generation_config.json", "{\"eos_token_id\": null}");
    require(config_file_read(scratch_path("again"), &back));
    require(config_file_read_tokens(scratch_path("again"), &back));
    assert_true(back.beginnings.count == 1 && back.ends.count == 2 && back.ends.ids[1] == 4);
    scratch_put("again/generation_config.json", "{\"eos_token_id\": \"</s>\"}");
    require(config_file_read(scratch_path("again"), &back)); /* hc_eval needs no such tokens */
    assert_error(
        config_file_read_tokens(scratch_path("again"), &back),
        "again/generation_config.json: 'eos_token_id' must be the number of a token, or a list of at most 16");
    scratch_put("again/generation_config.json",
                "{\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]}");
    assert_error(config_file_read_tokens(scratch_path("again"), &back), "or a list of at most 16");
}

/* A run of ours has those of its tokenizer. */
UNIT_TEST(tokens_that_end_texts_are_the_tokenizers) {
    struct model_config config = modern_config(0);
    size_t bytes;
    config.vocab_size = 410;
    memcpy(config.tokenizer, "file", 5);
    random_checkpoint_write("tokens", &config);
    const char *tokenizer = scratch_text(HC_TEST_DATA "/text/tokenizers/llama3.json", &bytes);
    scratch_write("tokens/tokenizer.json", tokenizer, bytes);
    require(export_to("tokens", "tokens-hf", EXPORT_HUGGING_FACE, 0));
    assert_tokens("tokens-hf", "400", "401");
    scratch_put("tokens/tokenizer.json", "{}");
    require(export_to("tokens", "tokens-hf", EXPORT_HUGGING_FACE, 0));
    assert_tokens("tokens-hf", "null", "null");
}

/* A larger vocabulary, whose rows of both embeddings are means, and a shorter context. */
UNIT_TEST(training_starts_from_llama) {
    const struct model_config config = modern_config(1);
    struct model_config tuned;
    require(files_remove_folder(scratch_path("tuned")));
    require(files_remove_folder(scratch_path("hf")));
    make_hugging_face(&config);
    assert_failed(TRAIN_FROM_HF("--vocab-size", "48", "--block-size", "9"), 1, "another block_size");
    assert_done(TRAIN_FROM_HF("--vocab-size", "48", "--block-size", "4"));
    require(config_file_read(scratch_path("tuned/ckpt-1"), &tuned));
    assert_true(tuned.vocab_size == 48 && tuned.block_size == 4 && tuned.n_kv_head == 1 && tuned.head_dim == 6);
    assert_true(tuned.position == POSITION_ROPE && !tuned.tie_embeddings && tuned.hugging_face_rows == 0);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
