/* DeepSeek-V4's tensors of hyper-connections: written from checkpoints, read into runs, and files that are refused.
 * tests/compare_residuals.py, run by hand, holds the same to transformers. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/deepseek_v4.h"
#include "src/checkpoint/export.h"
#include "tests/support/child.h"
#include "tests/support/corpus.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/runs.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include "tests/support/training.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

enum { STREAMS = 3, CHANNELS = 16, ROW = STREAMS * CHANNELS, ROWS = 2 * STREAMS + STREAMS * STREAMS, MOST = 64 };

static struct model_config v4_config(bool head) {
    struct model_config config = small_model_config("mhc", STREAMS);
    config.hc_norm_gain = false;
    config.hc_eps = 1e-6;
    config.stream_reduce = head ? STREAM_REDUCE_HEAD : STREAM_REDUCE_NORM_SUM;
    return config;
}

static int export_to(const char *checkpoint, const char *out) {
    struct export_report report;
    const struct export_settings settings = {(char *)scratch_path(checkpoint), (char *)scratch_path(out),
                                             EXPORT_DEEPSEEK_V4, 0};
    return export_run(&settings, &report);
}

/* The numbers that the checkpoint has in a leaf. */
static float *leaf_of(const char *folder, const char *name) {
    struct safetensors *file = tensors_open(scratch_path(folder), "model.safetensors");
    float *values = tensors_read(file, tensors_need(file, "", name));
    safetensors_close(file);
    return values;
}

/* ---- layouts */

static void assert_rows(const float *fn, const float *leaf, size_t first, size_t width, bool transposed) {
    for (size_t k = 0; k < width; k++) {
        const size_t row = first + (transposed ? k % STREAMS * STREAMS + k / STREAMS : k);
        for (size_t c = 0; c < ROW; c++) {
            assert_true(fn[row * ROW + c] == leaf[c * width + k]);
        }
    }
}

UNIT_TEST(tensors_have_their_layouts) {
    const struct model_config config = v4_config(true);
    random_checkpoint_write("laid-out", &config);
    require(export_to("laid-out", "v4"));
    assert_int_equal(scratch_entries(scratch_path("v4")), 2);
    float *fn = leaf_of("v4", "model.layers.1.ffn_hc.fn"), *base = leaf_of("v4", "model.layers.1.ffn_hc.base");
    float *scale = leaf_of("v4", "model.layers.1.ffn_hc.scale"), *top = leaf_of("v4", "model.hc_head.hc_fn");
    float *pre = leaf_of("laid-out", "transformer.h.1.hc_mlp.w_pre");
    float *post = leaf_of("laid-out", "transformer.h.1.hc_mlp.w_post");
    float *res = leaf_of("laid-out", "transformer.h.1.hc_mlp.w_res");
    float *b_res = leaf_of("laid-out", "transformer.h.1.hc_mlp.b_res");
    float *alpha_res = leaf_of("laid-out", "transformer.h.1.hc_mlp.alpha_res");
    float *w_top = leaf_of("laid-out", "transformer.hc_head.w_pre");
    assert_rows(fn, pre, 0, STREAMS, false);
    assert_rows(fn, post, STREAMS, STREAMS, false);
    assert_rows(fn, res, (size_t)2 * STREAMS, (size_t)STREAMS * STREAMS, true);
    assert_rows(top, w_top, 0, STREAMS, false);
    assert_true(base[2 * STREAMS + 1] == b_res[STREAMS] && base[2 * STREAMS + STREAMS] == b_res[1]);
    assert_true(scale[2] == *alpha_res);
    float *const all[] = {fn, base, scale, top, pre, post, res, b_res, alpha_res, w_top};
    for (size_t i = 0; i < COUNT(all); i++) {
        free(all[i]);
    }
    struct safetensors *file = tensors_open(scratch_path("v4"), "model.safetensors");
    assert_int_equal(safetensors_count(file), 3 * 5);
    safetensors_close(file);
}

/* ---- there and back */

/* A leaf of hyper-connections is that of the checkpoint, and everything else is as it was. */
static void assert_loaded(struct small_model *model, const float *before, const char *checkpoint) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *after = small_model_read(model, parameters->weights);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        float *saved = leaf_of(checkpoint, parameter->name);
        assert_memory_equal(after + parameter->offset,
                            strstr(parameter->name, ".hc_") ? saved : before + parameter->offset,
                            parameter->elements * sizeof *saved);
        free(saved);
    }
    free(after);
}

static void load_into(const struct model_config *config, const char *path, const char *checkpoint) {
    struct small_model model;
    small_model_create(&model, compute, config, 2);
    float *before = small_model_read(&model, model.gpt.parameters.weights);
    require(deepseek_v4_load(scratch_path(path), &model.gpt));
    assert_loaded(&model, before, checkpoint);
    free(before);
    small_model_release(&model);
}

UNIT_TEST(weights_come_back_to_the_bit) {
    for (int head = 0; head < 2; head++) {
        const struct model_config config = v4_config(head != 0);
        const char *const folder = head ? "with-head" : "without", *const out = head ? "v4-head" : "v4-without";
        random_checkpoint_write(folder, &config);
        require(export_to(folder, out));
        load_into(&config, out, folder);
        load_into(&config, run_path(out, "model.safetensors"), folder);
    }
}

/* ---- files of others */

/* Tensors in memory, which tests change before they write them. */
struct tensors {
    struct tensor_info infos[MOST];
    float *values[MOST];
    size_t count;
};

static void read_tensors(const char *folder, struct tensors *tensors) {
    struct safetensors *file = tensors_open(scratch_path(folder), "model.safetensors");
    tensors->count = safetensors_count(file);
    assert_true(tensors->count < MOST);
    for (size_t i = 0; i < tensors->count; i++) {
        tensors->infos[i] = *safetensors_at(file, i);
        tensors->infos[i].name = strdup(safetensors_at(file, i)->name);
        tensors->values[i] = tensors_read(file, safetensors_at(file, i));
    }
    safetensors_close(file);
}

static size_t find_tensor(const struct tensors *tensors, const char *name) {
    size_t i = 0;
    while (i < tensors->count && strcmp(tensors->infos[i].name, name) != 0) {
        i++;
    }
    assert_true(i < tensors->count);
    return i;
}

static void rename_tensor(struct tensors *tensors, size_t i, const char *name) {
    free(tensors->infos[i].name);
    tensors->infos[i].name = strdup(name);
}

static const char *write_tensors(const char *name, const struct tensors *tensors) {
    require(safetensors_write(scratch_path(name), tensors->infos, tensors->count, tensors_take,
                              (void *)(uintptr_t)tensors->values));
    return name;
}

static void release_tensors(struct tensors *tensors) {
    for (size_t i = 0; i < tensors->count; i++) {
        free(tensors->infos[i].name);
        free(tensors->values[i]);
    }
}

/* "model.layers.0.attn_hc.fn" as DeepSeek's files and those of save_pretrained have it. */
static void name_as_released(struct tensors *tensors, const char *prefix) {
    for (size_t i = 0; i < tensors->count; i++) {
        char name[128], kind[16];
        int layer;
        char module[16];
        if (sscanf(tensors->infos[i].name, "model.layers.%d.%15[a-z]_hc.%15s", &layer, module, kind) == 3) {
            snprintf(name, sizeof name, "%slayers.%d.hc_%s_%s", prefix, layer, module, kind);
        } else {
            assert_int_equal(sscanf(tensors->infos[i].name, "model.hc_head.hc_%15s", kind), 1);
            snprintf(name, sizeof name, "%shc_head%s%s", prefix, *prefix ? ".hc_" : "_", kind);
        }
        rename_tensor(tensors, i, name);
    }
}

/* With other tensors, which are ignored. */
UNIT_TEST(names_may_be_those_of_the_release) {
    static const char *const prefixes[] = {"", "model."};
    const struct model_config config = v4_config(true);
    random_checkpoint_write("released", &config);
    require(export_to("released", "v4-released"));
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        struct tensors tensors;
        read_tensors("v4-released", &tensors);
        name_as_released(&tensors, prefixes[i]);
        tensors.infos[tensors.count] =
            (struct tensor_info){.name = strdup("layers.0.attn_norm.weight"), .rank = 1, .shape = {4}};
        tensor_measure(&tensors.infos[tensors.count]);
        tensors.values[tensors.count++] = calloc(4, sizeof(float));
        load_into(&config, write_tensors("released.safetensors", &tensors), "released");
        release_tensors(&tensors);
    }
}

static void assert_refused(const struct model_config *config, const char *path, const char *text) {
    struct small_model model;
    small_model_create(&model, compute, config, 2);
    float *before = small_model_read(&model, model.gpt.parameters.weights);
    assert_error(deepseek_v4_load(scratch_path(path), &model.gpt), text);
    float *after = small_model_read(&model, model.gpt.parameters.weights);
    assert_memory_equal(before, after, model.gpt.parameters.elements * sizeof *before);
    free(before);
    free(after);
    small_model_release(&model);
}

UNIT_TEST(other_files_are_refused) {
    struct model_config config = v4_config(true), other;
    struct tensors tensors;
    random_checkpoint_write("refused", &config);
    require(export_to("refused", "v4-refused"));
    read_tensors("v4-refused", &tensors);
    const size_t base = find_tensor(&tensors, "model.layers.1.attn_hc.base");
    rename_tensor(&tensors, base, "model.layers.1.attn_hc.bias");
    assert_refused(&config, write_tensors("missing.safetensors", &tensors),
                   "neither tensor 'model.layers.1.attn_hc.base' nor 'layers.1.hc_attn_base' is there");
    rename_tensor(&tensors, base, "model.layers.1.attn_hc.base");
    tensors.infos[base].rank = 2;
    tensors.infos[base].shape[0] = STREAMS;
    tensors.infos[base].shape[1] = ROWS / STREAMS;
    assert_refused(&config, write_tensors("shaped.safetensors", &tensors),
                   "tensor 'model.layers.1.attn_hc.base' has shape [3, 5], and the model needs [15]");
    release_tensors(&tensors);
    other = config;
    other.n_embd = 2 * CHANNELS;
    assert_refused(&other, "v4-refused",
                   "has shape [15, 48], and the model needs [15, 96]: give the --n-streams and "
                   "--n-embd of the file");
    other = config;
    other.n_layer = 1;
    assert_refused(&other, "v4-refused", "more layers than n_layer = 1: give the file's --n-layer");
    other.n_layer = 3;
    assert_refused(&other, "v4-refused", "'model.layers.2.attn_hc.fn'");
    other = v4_config(false);
    assert_refused(&other, "v4-refused", "give --stream-reduce head");
    assert_refused(&config, "nowhere", "nowhere: No such file");
    scratch_write("damaged.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10);
    assert_refused(&config, "damaged.safetensors", "damaged.safetensors");
}

/* ---- models that have none */

UNIT_TEST(other_models_are_refused_by_name) {
    struct model_config config = small_model_config("shc", 4);
    random_checkpoint_write("shc", &config);
    assert_error(export_to("shc", "v4-shc"), "residual = \"shc\": DeepSeek-V4's hyper-connections are mhc");
    config = v4_config(false);
    config.hc_norm_gain = true;
    random_checkpoint_write("gain", &config);
    assert_error(export_to("gain", "v4-gain"), "hc_norm_gain = true");
    config = v4_config(false);
    config.stream_expand = STREAM_EXPAND_SCALED;
    random_checkpoint_write("scaled", &config);
    assert_error(export_to("scaled", "v4-scaled"), "stream_expand = \"scaled\"");
    assert_false(files_exist(scratch_path("v4-shc")) || files_exist(scratch_path("v4-gain")) ||
                 files_exist(scratch_path("v4-scaled")));
}

/* ---- runs */

#define V4 "--residual", "mhc", "--n-streams", "4", "--no-hc-norm-gain", "--stream-reduce", "head"

UNIT_TEST(a_run_begins_with_them) {
    assert_int_equal(corpus_make(HC_PROGRAMS), 0);
    assert_done(TRAIN("source", V4, "--max-iters", "3"));
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_export", "--checkpoint", scratch_path("source/ckpt-3"), "--out",
                          scratch_path("source-v4"), "--format", "deepseek_v4"));
    assert_done(TRAIN("begun", V4, "--seed", "5", "--hyper-connections-from", scratch_path("source-v4"),
                      "--max-iters", "0"));
    static const char *const leaves[] = {"transformer.h.0.hc_attn.w_res", "transformer.h.0.hc_mlp.b_pre",
                                         "transformer.hc_head.alpha_pre", "transformer.wte.weight"};
    for (size_t i = 0; i < COUNT(leaves); i++) {
        float *from = leaf_of("source/ckpt-3", leaves[i]), *to = leaf_of("begun/ckpt-0", leaves[i]);
        assert_int_equal(*from == *to, i < 3);
        free(from);
        free(to);
    }
    assert_done(TRAIN("begun", "--init-from", "resume", "--max-iters", "2"));
    assert_done(TRAIN("begun", "--init-from", "resume", "--hyper-connections-from", scratch_path("source-v4"),
                      "--max-iters", "3")); /* the run has begun with them */
    assert_failed(TRAIN("begun", "--init-from", "resume", "--hyper-connections-from", scratch_path("begun")), 2,
                  "leave --hyper-connections-from out");
    assert_failed(TRAIN("other", "--residual", "shc", "--hyper-connections-from", scratch_path("source-v4")), 2,
                  "hyper-connections are mhc");
    assert_failed(TRAIN("other", V4, "--n-embd", "64", "--hyper-connections-from", scratch_path("source-v4")), 1,
                  "--n-embd of the file");
    assert_false(files_exist(scratch_path("other")));
}

SMALL_MODEL_TEST_MAIN(compute)
