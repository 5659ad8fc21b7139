/* Plain models that go on with another residual connection: the same logits at first, and what is new moves. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOLERANCE 1e-5 /* of logits, relative to the largest */

enum { BATCH = 3 };

static struct compute *compute;

/* ---- plain models */

static struct model_config like_gpt2(void) {
    struct model_config config = small_model_config("rc", 1);
    config.bias = true;
    return config;
}

static struct model_config like_llama(void) {
    struct model_config config = small_model_config("rc", 1);
    config.norm = NORM_RMS;
    config.position = POSITION_ROPE;
    config.mlp = MLP_SWIGLU;
    config.n_kv_head = 1;
    config.tie_embeddings = false;
    return config;
}

static float *logits_of(struct small_model *model) {
    const size_t tokens = gpt_tokens(&model->gpt);
    float *logits = calloc(tokens * model->gpt.vocabulary, sizeof *logits);
    small_model_forward(model, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&model->gpt, 0, tokens, logits));
    return logits;
}

/* Writes a random plain model to a folder, and returns its logits of the batch. */
static float *write_plain(const char *name, const struct model_config *config) {
    struct small_model model;
    small_model_create(&model, compute, config, BATCH);
    small_model_randomise(&model, 5);
    float *logits = logits_of(&model);
    require(files_make_folder(scratch_path(name)));
    require(config_file_write(scratch_path(name), &model.gpt.config));
    require(checkpoint_write_weights(scratch_path(name), &model.gpt, NULL));
    small_model_release(&model);
    return logits;
}

static struct model_config upcycled_config(const char *name, const char *residual, int64_t streams) {
    struct model_config config;
    require(config_file_read(scratch_path(name), &config));
    config.residual = residual_find(residual);
    config.n_streams = streams;
    config.stream_reduce = STREAM_REDUCE_AUTO;
    return config;
}

static void create_upcycled(struct small_model *model, const char *name, struct model_config *config) {
    struct model_files files;
    require(upcycle_check(config));
    small_model_create(model, compute, config, BATCH);
    require(model_files_open(scratch_path(name), NULL, NULL, &files));
    require(model_files_load(&files, 3, &model->gpt));
    model_files_close(&files);
}

/* ---- the same function */

static void assert_same_logits(struct small_model *model, const float *expected) {
    const size_t count = gpt_tokens(&model->gpt) * model->gpt.vocabulary;
    float *logits = logits_of(model), largest = 0.0f, off = 0.0f;
    for (size_t i = 0; i < count; i++) {
        largest = fmaxf(largest, fabsf(expected[i]));
        off = fmaxf(off, fabsf(logits[i] - expected[i]));
    }
    if (!(off <= TOLERANCE * largest)) {
        fail_msg("%s, %d streams: off by %g, largest %g", model->gpt.config.residual->name,
                 (int)model->gpt.config.n_streams, (double)off, (double)largest);
    }
    free(logits);
}

/* Elements of a parameter that are other than before. */
static size_t moved(const struct parameter *parameter, const float *before, const float *now) {
    size_t count = 0;
    for (uint64_t i = parameter->offset; i < parameter->offset + parameter->elements; i++) {
        count += before[i] < now[i] || before[i] > now[i];
    }
    return count;
}

/* The streams of the first sublayer are all the embedding, whatever happens: no H_res whose rows sum to 1 changes
 * them, so what it is computed from has no gradient. That of dar weighs the embedding alone, with 1. */
static bool can_move(const struct parameter *parameter, bool is_dar) {
    const char *leaf = strrchr(parameter->name, '.') + 1;
    const bool of_reads_or_writes = strstr(leaf, "_pre") || strstr(leaf, "_post") || strcmp(leaf, "weight") == 0;
    if (is_dar) {
        return !strstr(parameter->name, ".h.0.hc_attn.") || strcmp(leaf, "gate") == 0;
    }
    return parameter->sublayer != 0 || !parameter->leaf || of_reads_or_writes;
}

/* Trains without weight decay, so that what moves has had a gradient. */
static void assert_all_move(struct small_model *model) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *before = small_model_read(model, parameters->weights);
    small_model_train(model, 4, 1e-2);
    float *now = small_model_read(model, parameters->weights);
    const bool is_dar = strcmp(model->gpt.config.residual->name, "dar") == 0;
    for (size_t i = 0; i < parameters->count; i++) {
        if (can_move(&parameters->table[i], is_dar) && moved(&parameters->table[i], before, now) == 0) {
            fail_msg("%s: %s has not moved", model->gpt.config.residual->name, parameters->table[i].name);
        }
    }
    free(before);
    free(now);
}

static void check(const char *name, struct model_config *config, const float *logits) {
    struct small_model model;
    create_upcycled(&model, name, config);
    assert_same_logits(&model, logits);
    assert_all_move(&model);
    small_model_release(&model);
}

UNIT_TEST(every_connection_begins_as_the_plain_model) {
    const struct model_config plain = like_llama();
    const struct residual_variant *residual;
    float *logits = write_plain("llama", &plain);
    size_t refused = 0;
    for (size_t i = 0; (residual = residual_at(i)); i++) {
        struct model_config config = upcycled_config("llama", residual->name, residual_is_single(residual) ? 1 : 4);
        if (strcmp(residual->name, "attnres") == 0) {
            assert_error(upcycle_check(&config), "means of states where a plain model reads their sum");
            refused++;
        } else if (!residual_has_frame(residual, "plain")) {
            check("llama", &config, logits);
        }
    }
    assert_int_equal(refused, 1);
    free(logits);
}

UNIT_TEST(other_blocks_and_settings) {
    const struct model_config plain = like_gpt2();
    float *logits = write_plain("gpt2", &plain);
    struct model_config three = upcycled_config("gpt2", "shc", 3), eight = upcycled_config("gpt2", "krom", 8),
                        v4 = upcycled_config("gpt2", "mhc", 4), delayed = upcycled_config("gpt2", "wide", 3),
                        mudd = upcycled_config("gpt2", "mudd", 1), fixed = upcycled_config("gpt2", "mhc", 4),
                        until = upcycled_config("gpt2", "shc", 3), normed = upcycled_config("gpt2", "mudd", 1),
                        heads = upcycled_config("gpt2", "dar", 1), parts = upcycled_config("gpt2", "frac", 8);
    fixed.hc_dynamic = false;
    until.hc_until = 2;
    until.x0_lambdas = normed.value_embeds = heads.x0_lambdas = heads.value_embeds = true;
    small_model_set(&normed, "mudd_norm=prepost");
    small_model_set(&heads, "attnres_heads=4");
    small_model_set(&parts, "hc_until=3 hc_dynamic=false");
    v4.hc_eps = 1e-6;
    v4.hc_norm_gain = false;
    v4.read_delay = delayed.read_delay = true;
    check("gpt2", &three, logits);
    check("gpt2", &eight, logits);
    check("gpt2", &v4, logits);
    check("gpt2", &delayed, logits);
    check("gpt2", &mudd, logits); /* its norms of queries, keys and values take biases, too */
    check("gpt2", &fixed, logits);
    check("gpt2", &until, logits);
    check("gpt2", &normed, logits);
    check("gpt2", &heads, logits);
    check("gpt2", &parts, logits);
    free(logits);
}

/* ---- what cannot be the same function */

static void assert_refused(struct model_config config, const char *why) {
    assert_error(upcycle_check(&config), why);
}

UNIT_TEST(others_are_refused_in_words) {
    struct model_config plain = like_gpt2();
    free(write_plain("refusing", &plain));
    struct model_config config = upcycled_config("refusing", "shc", 4);
    config.stream_reduce = STREAM_REDUCE_NORM_SUM;
    assert_refused(config, "stream_reduce = norm_sum sums 4 streams");
    config.stream_reduce = STREAM_REDUCE_AUTO;
    config.stream_expand = STREAM_EXPAND_SCALED;
    assert_refused(config, "stream_expand = scaled");
    config.stream_expand = STREAM_EXPAND_COPY;
    config.hc_eps = 0.1;
    assert_refused(config, "hc_eps = 0.1 is too much");
    config = upcycled_config("refusing", "mhc", 4);
    config.hc_eps = 1e-4;
    assert_refused(config, "with hc_eps = 0.0001 each sublayer takes that part of the streams");
    config = upcycled_config("refusing", "gated", 4);
    assert_refused(config, "this model has LayerNorms");
    config.norm = NORM_RMS;
    config.hc_norm_gain = false;
    assert_refused(config, "hc_norm_gain = false");
    config = upcycled_config("refusing", "wide", 4);
    config.settings.values[residual_setting_find("wide_retention")].flag = true;
    assert_refused(config, "wide_retention = true");
    config = upcycled_config("refusing", "dar", 1);
    small_model_set(&config, "dar_gate=none");
    assert_refused(config, "dar_gate = none");
}

/* A file of another model is found out before anything is taken from it. */
UNIT_TEST(files_of_other_models_are_refused) {
    struct model_config plain = like_llama();
    struct small_model model;
    free(write_plain("short", &plain));
    struct model_config config = upcycled_config("short", "shc", 4);
    struct model_files files;
    require(upcycle_check(&config));
    small_model_create(&model, compute, &config, BATCH);
    require(model_files_open(scratch_path("short"), NULL, NULL, &files));
    files.plain.n_layer = 3;
    assert_error(model_files_load(&files, 3, &model.gpt), "belongs to another model");
    model_files_close(&files);
    small_model_release(&model);
}

SMALL_MODEL_TEST_MAIN(compute)
