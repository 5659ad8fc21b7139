/* Whole models of odd sizes: loss and logits against the reference in double precision, and the gradient of every
 * parameter against central differences of that reference, for all variants and numbers of streams, with and
 * without biases, dropout, and either way of reducing the streams. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/random.h"
#include "tests/support/reference_model.h"
#include "tests/support/reference_residual.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double LOSS_TOLERANCE = 1e-5;     /* relative */
static const double LOGIT_TOLERANCE = 1e-5;    /* of the largest logit, at least of 1 */
static const double GRADIENT_TOLERANCE = 1e-4; /* of the tensor's norm, along a random direction */
static const double GRADIENT_FLOOR = 1e-7;     /* of the whole gradient's norm: see test_golden.c */
static const double STEP = 1e-5;               /* of central differences, L2 */

/* In 16 bits an activation is rounded each time that it is stored: a sublayer's streams, packed projections, branch
 * input, wide, inner and output, weights twice; and the embedding's and head's. These errors, each up to the type's
 * unit roundoff, are independent, so that of the result grows as the root of their number; twice that is allowed
 * for what the model amplifies. A gradient has as many again from the backward pass, and its error along a normal
 * direction is a normal number times its size, of which four deviations are allowed. */
static const double ROUNDINGS_OF_SUBLAYER = 8, ROUNDINGS_OUTSIDE = 4, AMPLIFICATION = 2;
static const double GRADIENT_AMPLIFICATION = 4 * 1.41;

static struct compute *compute;
static double worst_loss, worst_logits, worst_gradient;

struct model_case {
    const char *residual;
    int64_t streams;
    bool bias, norm_sum, dropout;
    enum element_type type;
    bool scaled; /* streams */
};

/* Tens of thousands of parameters a sublayer, such as mhc_lite's of 40320 permutations. */
static bool is_large(const struct model_case *shape) {
    return residual_sizes(residual_find(shape->residual), shape->streams, NULL).theta > 1000;
}

static struct model_config config_of(const struct model_case *shape) {
    struct model_config config = small_model_config(shape->residual, shape->streams);
    config.n_layer = is_large(shape) ? 1 : residual_has_frame(residual_find(shape->residual), "mudd") ? 3 : 2;
    config.n_head = is_large(shape) ? 1 : 3;
    config.n_embd = is_large(shape) ? 8 : 12;
    config.block_size = is_large(shape) ? 3 : 7; /* the reference takes seconds a token there */
    config.vocab_size = 19;
    reference_set(&config.settings, "sinkhorn_iters", 9);
    reference_set(&config.settings, "attnres_block", shape->bias ? 3 : 1);
    reference_set(&config.settings, "mudd_round", shape->bias ? 0 : 16);
    config.bias = shape->bias;
    config.stream_reduce = shape->norm_sum ? STREAM_REDUCE_NORM_SUM : STREAM_REDUCE_SUM_NORM;
    config.stream_expand = shape->scaled;
    config.dropout = shape->dropout ? 0.2 : 0.0;
    return config;
}

static void judge(const char *name, double error, double allowed, double *so_far) {
    *so_far = fmax(*so_far, error / allowed);
    if (!(error <= allowed)) {
        fail_msg("%s: error %.3g, allowed %.3g", name, error, allowed);
    }
}

/* What rounding to 16 bits may add to a tolerance; 0 in fp32. */
static double rounding_of(const struct small_model *model) {
    const double sublayers = 2.0 * (double)model->gpt.config.n_layer;
    return AMPLIFICATION * sqrt(ROUNDINGS_OF_SUBLAYER * sublayers + ROUNDINGS_OUTSIDE) *
           rounding_unit(model->gpt.options.type);
}

/* ---- against the reference */

static double *widened(const float *values, size_t count) {
    double *wide = malloc(count * sizeof *wide);
    assert_non_null(wide);
    for (size_t i = 0; i < count; i++) {
        wide[i] = (double)values[i];
    }
    return wide;
}

static void compare_forward(struct small_model *model, const struct reference_model *reference, float loss) {
    const size_t tokens = gpt_tokens(&model->gpt), count = tokens * (size_t)model->gpt.config.vocab_size;
    float *actual = malloc(count * sizeof *actual);
    double *expected = malloc(count * sizeof *expected), largest = 1.0, error = 0.0;
    const double wanted = reference_model_loss(reference, expected);
    small_model_require(gpt_read_logits(&model->gpt, 0, tokens, actual));
    judge("loss", fabs((double)loss - wanted), (LOSS_TOLERANCE + rounding_of(model)) * wanted, &worst_loss);
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(actual[i]));
        largest = fmax(largest, fabs(expected[i]));
        error = fmax(error, fabs((double)actual[i] - expected[i]));
    }
    judge("logits", error, (LOGIT_TOLERANCE + rounding_of(model)) * largest, &worst_logits);
    free(actual);
    free(expected);
}

/* The reference's derivative along a direction of one parameter. */
static double derivative(const struct reference_model *reference, double *values, const struct parameter *parameter,
                         const float *direction) {
    const size_t count = parameter->elements;
    double *place = values + parameter->offset, *kept = malloc(count * sizeof *kept), loss[2];
    const double step = STEP / tensors_norm(direction, count);
    memcpy(kept, place, count * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < count; i++) {
            place[i] = kept[i] + (side ? -step : step) * (double)direction[i];
        }
        loss[side] = reference_model_loss(reference, NULL);
    }
    memcpy(place, kept, count * sizeof *kept);
    free(kept);
    return (loss[0] - loss[1]) / (2.0 * step);
}

static void compare_gradients(const struct small_model *model, const float *gradients,
                              const struct reference_model *reference, double *values) {
    const struct parameters *parameters = &model->gpt.parameters;
    const double rounding = GRADIENT_AMPLIFICATION * rounding_of(model);
    const double whole = tensors_norm(gradients, parameters->elements);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const float *gradient = gradients + parameter->offset;
        float *direction = malloc(parameter->elements * sizeof *direction);
        double along = 0.0;
        random_normal(random_key(11, parameter->name), 0, parameter->elements, 0.0, 1.0, direction);
        for (size_t k = 0; k < parameter->elements; k++) {
            along += (double)gradient[k] * (double)direction[k];
        }
        judge(parameter->name, fabs(along - derivative(reference, values, parameter, direction)),
              (GRADIENT_TOLERANCE + rounding) * tensors_norm(gradient, parameter->elements) +
                  (GRADIENT_FLOOR + 1e-3 * rounding) * whole,
              &worst_gradient);
        free(direction);
    }
}

/* Leaves the device only what the model takes with GELU's outputs kept, which is too little to keep them. */
static void leave_little_memory(const struct model_config *config, int64_t batch, enum element_type type) {
    struct small_model model;
    small_model_create_typed(&model, compute, config, batch, type);
    compute->device.memory_bytes = model.gpt.plan.total_bytes;
    small_model_release(&model);
}

static void compare_with_the_reference(const struct model_config *config, int64_t batch, enum element_type type,
                                       bool keeps_activation) {
    const size_t memory = compute->device.memory_bytes;
    const struct gpt_pass pass = {.dropout = config->dropout > 0.0, .seed = 5, .iteration = 3, .first_row = 70};
    struct small_model model;
    if (!keeps_activation) {
        leave_little_memory(config, batch, type);
    }
    small_model_create_typed(&model, compute, config, batch, type);
    compute->device.memory_bytes = memory;
    small_model_randomise(&model, 2);
    float *weights = small_model_read(&model, model.gpt.parameters.weights);
    double *values = widened(weights, model.gpt.parameters.elements);
    const struct reference_model reference = {.config = &model.gpt.config,
                                              .parameters = &model.gpt.parameters,
                                              .values = values,
                                              .shape = model.gpt.shape,
                                              .x = model.x,
                                              .y = model.y,
                                              .pass = pass};
    const float loss = small_model_backward(&model, pass);
    float *gradients = small_model_gradients(&model);
    assert_int_equal(model.gpt.keeps_activation, keeps_activation);
    compare_forward(&model, &reference, loss);
    compare_gradients(&model, gradients, &reference, values);
    free(weights);
    free(values);
    free(gradients);
    small_model_release(&model);
}

static void compare_case(const struct model_case *shape) {
    const struct model_config config = config_of(shape);
    compare_with_the_reference(&config, is_large(shape) ? 1 : 3, shape->type, shape->type == ELEMENT_FP32);
}

UNIT_TEST(models_in_16_bits_agree) {
    static const struct model_case shapes[] = {
        {"rc", 1, .bias = true, .dropout = true, .type = ELEMENT_FP16},
        {"hc", 4, .type = ELEMENT_FP16},
        {"mhc", 4, .bias = true, .norm_sum = true, .type = ELEMENT_FP16},
        {"shc", 4, .norm_sum = true, .dropout = true, .type = ELEMENT_BF16},
        {"mudd", 1, .bias = true, .norm_sum = true, .dropout = true, .type = ELEMENT_BF16},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        compare_case(&shapes[i]);
    }
}

/* GEMMs by a backend that reads 16 bits and has an epilogue, as on a GPU: bias and both GELUs. */
UNIT_TEST(matrix_units_agree_too) {
    const struct model_case shape = {"rc", 1, .bias = true, .norm_sum = true, .type = ELEMENT_BF16};
    struct model_config config = config_of(&shape);
    struct compute *usual = compute;
    const struct compute_options options = {.device = "pocl",
                                            .gemm = "mma",
                                            .operands = ELEMENT_BF16,
                                            .cache_dir = ""};
    small_model_require(gemm_compute_open(&compute, &options));
    assert_true(gemm_fuses(compute, ELEMENT_BF16));
    compare_with_the_reference(&config, 3, ELEMENT_BF16, false);
    if (test_is_whole()) {
        config.activation = ACTIVATION_GELU_TANH;
        compare_with_the_reference(&config, 3, ELEMENT_BF16, true);
        config.mlp_width = 20;
        for (int mlp = MLP_SWIGLU; mlp <= MLP_RELU2; mlp++) {
            config.mlp = mlp;
            compare_with_the_reference(&config, 3, ELEMENT_BF16, false);
        }
    }
    compute_close(compute);
    compute = usual;
}

/* ---- parts of a model's life */

/* These have the same kernels, which are compiled once. */
static const struct model_case plain_shc = {"shc", 5, .bias = false}, plain_rc = {"rc", 1, .bias = false};

/* A batch smaller than planned, right after a larger one. */
UNIT_TEST(smaller_batches_agree_too) {
    const struct model_config config = config_of(&plain_shc);
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 2);
    small_model_backward(&model, (struct gpt_pass){.dropout = false});
    const struct token_shape small = {2, 5};
    small_model_require(gpt_set_batch(&model.gpt, small, model.x, model.y));
    const float loss = small_model_backward(&model, (struct gpt_pass){.dropout = false});
    float *weights = small_model_read(&model, model.gpt.parameters.weights);
    float *gradients = small_model_read(&model, model.gpt.parameters.gradients);
    double *values = widened(weights, model.gpt.parameters.elements);
    const struct reference_model reference = {.config = &model.gpt.config,
                                              .parameters = &model.gpt.parameters,
                                              .values = values,
                                              .shape = small,
                                              .x = model.x,
                                              .y = model.y};
    compare_forward(&model, &reference, loss);
    compare_gradients(&model, gradients, &reference, values);
    free(weights);
    free(gradients);
    free(values);
    small_model_release(&model);
}

UNIT_TEST(gelu_by_tanh_agrees_too) {
    const struct model_case shape = {"rc", 1, .bias = true, .norm_sum = true, .dropout = false};
    struct model_config config = config_of(&shape);
    config.activation = ACTIVATION_GELU_TANH;
    compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
}

UNIT_TEST(models_without_positions_agree_too) {
    struct model_config config = config_of(&plain_shc);
    config.position = POSITION_NONE;
    compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    assert_null(parameters_find(&model.gpt.parameters, "transformer.wpe.weight"));
    small_model_release(&model);
}

/* In fp32 and in bf16, or in one of them in turn. */
static void compare_in_both(const struct model_config *config, size_t turn) {
    if (turn % 2 == 0 || test_is_whole()) {
        compare_with_the_reference(config, 3, ELEMENT_FP32, true);
    }
    if (turn % 2 == 1 || test_is_whole()) {
        compare_with_the_reference(config, 3, ELEMENT_BF16, false);
    }
}

/* Heads that share keys, and whose channels together are not those of the model: wider than it, and of a size that
 * no vector divides. */
UNIT_TEST(other_heads_agree_too) {
    static const struct {
        int64_t heads, kv_heads, size;
    } all[] = {{4, 2, 6}, {5, 1, 3}, {2, 2, 32}};
    const struct model_case shapes[] = {{"shc", 5, .bias = true, .dropout = true},
                                        {"mudd", 1, .bias = true, .dropout = true}};
    for (size_t i = 0; i < 2 * COUNT(all); i++) {
        const size_t k = i / 2;
        struct model_config config = config_of(&shapes[i % 2]);
        config.n_head = all[k].heads;
        config.n_kv_head = all[k].kv_heads;
        config.head_dim = all[k].size;
        small_model_require(model_config_check(&config));
        compare_in_both(&config, i + k);
    }
}

/* RoPE in place and qk_norm, alone and together, then with a scale of scores; grouped and odd heads. */
UNIT_TEST(changed_queries_and_keys_agree_too) {
    const struct model_case shapes[] = {{"shc", 5, .bias = true, .norm_sum = true},
                                        {"mudd", 1, .bias = true, .norm_sum = true}};
    for (int all = 2; all < 8; all++) {
        const int i = all / 2;
        struct model_config config = config_of(&shapes[all % 2]);
        config.n_layer = 2; /* mudd amplifies the rounding of 16 bits from layer to layer */
        config.position = i & 1 ? POSITION_ROPE : POSITION_LEARNED;
        config.qk_norm = !(i & 2) ? QK_NORM_NONE : all == 7 ? QK_NORM_PLAIN : QK_NORM_GAINED;
        config.rope_theta = 30.0;
        config.n_head = 4;
        config.n_kv_head = 2;
        config.head_dim = i & 1 ? 6 : 5;
        config.qkv_bias = i == 1 ? SWITCH_OFF : SWITCH_FOLLOWS;
        config.attn_scale = i == 3 ? 0.7 : 0.0;
        config.rope_fraction = i == 3 ? 2.0 / 3.0 : 1.0;
        small_model_require(model_config_check(&config));
        compare_in_both(&config, (size_t)(all + i));
    }
}

/* With biases, which an RMSNorm has not, and of both an epsilon that shows. */
UNIT_TEST(other_norms_agree_too) {
    const struct model_case shape = {"shc", 5, .bias = true, .norm_sum = true};
    for (int norm = NORM_LAYER; norm <= NORM_RMS; norm++) {
        struct model_config config = config_of(&shape);
        config.norm = norm;
        config.norm_eps = 0.03;
        compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
        struct small_model model;
        small_model_create(&model, compute, &config, 3);
        assert_int_equal(parameters_find(&model.gpt.parameters, "transformer.ln_f.bias") != NULL,
                         norm == NORM_LAYER);
        small_model_release(&model);
    }
}

/* Before all kinds of connections, with learned positions and without, with streams that are scaled. */
UNIT_TEST(normed_embeddings_agree_too) {
    static const struct model_case shapes[] = {{"shc", 5, .bias = true, .dropout = true, .scaled = true},
                                               {"gated", 2, .dropout = true, .type = ELEMENT_FP16},
                                               {"attnres", 1, .bias = true},
                                               {"mudd", 1, .bias = true, .dropout = true, .type = ELEMENT_BF16},
                                               {"rc", 1, .bias = false}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct model_config config = config_of(&shapes[i]);
        config.embed_norm = true;
        config.norm_eps = 0.03;
        config.position = i % 2 ? POSITION_NONE : POSITION_LEARNED;
        compare_with_the_reference(&config, 3, shapes[i].type, shapes[i].type == ELEMENT_FP32);
    }
}

/* Their own weights, then those of the token embedding with a bias, in 16 bits and bounded in another way. */
UNIT_TEST(capped_logits_of_a_head_of_its_own_agree_too) {
    struct model_config config = config_of(&plain_rc);
    config.qkv_bias = SWITCH_ON;
    config.tie_embeddings = false;
    config.logit_softcap = 0.7;
    compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
    config.head_bias = true;
    config.tie_embeddings = true;
    compare_with_the_reference(&config, 3, ELEMENT_BF16, false);
    config.softcap_kind = SOFTCAP_RSQRT;
    compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
}

/* Where their squares are infinite in floats, too. */
UNIT_TEST(huge_logits_are_capped) {
    for (int kind = SOFTCAP_TANH; kind <= SOFTCAP_RSQRT; kind++) {
        struct model_config config = config_of(&plain_rc);
        struct small_model model;
        config.logit_softcap = 15.0;
        config.softcap_kind = kind;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 5);
        const struct parameter *gain = parameters_find(&model.gpt.parameters, "transformer.ln_f.weight");
        const size_t vocabulary = model.gpt.vocabulary;
        float gains[64], logits[64], loss;
        assert_true(gain->elements <= COUNT(gains) && vocabulary <= COUNT(logits));
        for (size_t i = 0; i < gain->elements; i++) {
            gains[i] = 1e24f;
        }
        small_model_require(parameters_write(compute, &model.gpt.parameters, gain->offset, gain->elements, gains));
        small_model_forward(&model, (struct gpt_pass){.dropout = false});
        gpt_loss(&model.gpt, 1.0f, false);
        const size_t token = model.y[0] >= 0 ? 0 : 1;
        double sum = 0.0;
        small_model_require(gpt_read_losses(&model.gpt, token, 1, &loss));
        small_model_require(gpt_read_logits(&model.gpt, token, 1, logits));
        for (size_t i = 0; i < vocabulary; i++) {
            assert_float_equal(fabsf(logits[i]), 15.0f, 1e-5f);
            sum += exp((double)logits[i]);
        }
        assert_true(model.y[token] >= 0);
        assert_float_equal(loss, (float)(log(sum) - (double)logits[model.y[token]]), 1e-4f);
        small_model_release(&model);
    }
}

/* Of all kinds, of usual and odd widths, with biases and without, with the activation's output kept or not. */
UNIT_TEST(other_mlps_agree_too) {
    static const int64_t widths[] = {0, 20, 31};
    for (int i = 0; i < 6; i++) {
        const struct model_case shape = {i % 2 ? "rc" : "mhc", i % 2 ? 1 : 3, .bias = i < 3, .norm_sum = true};
        struct model_config config = config_of(&shape);
        config.n_layer = 1;
        config.mlp = i % 3 == 0 ? MLP_GELU : i % 3 == 1 ? MLP_SWIGLU : MLP_RELU2;
        config.mlp_width = widths[(i + i / 3) % 3];
        compare_with_the_reference(&config, 3, i == 4 ? ELEMENT_BF16 : ELEMENT_FP32, i >= 3);
    }
}

/* Of the kind of norm that runs over all streams, and of that over each. */
UNIT_TEST(connections_with_eps_and_no_gain_agree_too) {
    static const struct model_case shapes[] = {{"mhc", 3, .bias = true}, {"hc", 2, .bias = false}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct model_config config = config_of(&shapes[i]);
        config.hc_norm_gain = false;
        config.hc_eps = 0.01;
        compare_with_the_reference(&config, 3, ELEMENT_FP32, true);
    }
}

/* What the public code of s2HC has beyond the paper's text. */
UNIT_TEST(transposed_connections_agree_too) {
    static const struct model_case shapes[] = {{"shc", 4, .bias = false},
                                               {"mhc", 3, .bias = true, .dropout = true},
                                               {"hc", 2, .bias = false},
                                               {"circulant", 5, .bias = false}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct model_config config = config_of(&shapes[i]);
        config.h_res_transposed = true;
        config.hc_norm_eps = i % 2 ? 1e-3 : 0.0;
        config.read_delay = i == 3;
        compare_with_the_reference(&config, 3, shapes[i].type, shapes[i].type == ELEMENT_FP32);
    }
}

/* The streams summed at the top with weights that are learned; rc has one and ignores it. */
UNIT_TEST(collapsed_streams_agree_too) {
    static const struct model_case shapes[] = {{"mhc", 3, .bias = true},
                                               {"hc", 2, .bias = false},
                                               {"krom", 8, .bias = false, .type = ELEMENT_FP16},
                                               {"rc", 1, .bias = false}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        struct model_config config = config_of(&shapes[i]);
        config.stream_reduce = STREAM_REDUCE_HEAD;
        config.hc_eps = 0.01;
        config.norm = i % 2 ? NORM_RMS : NORM_LAYER;
        compare_with_the_reference(&config, 3, shapes[i].type, shapes[i].type == ELEMENT_FP32);
    }
}

/* A model whose sublayers read with the H_pre of the one before; three kinds of top, with and without gains. */
static struct model_config delayed_config(const struct model_case *shape, size_t i) {
    static const int tops[] = {STREAM_REDUCE_AUTO, STREAM_REDUCE_NORM_SUM, STREAM_REDUCE_HEAD};
    struct model_config config = config_of(shape);
    config.read_delay = true;
    config.stream_reduce = tops[i % COUNT(tops)];
    config.hc_norm_gain = i % 2;
    config.norm = i % 2 ? NORM_RMS : NORM_LAYER;
    return config;
}

UNIT_TEST(delayed_reads_agree_too) {
    static const struct model_case shapes[] = {{"mhc", 3, .bias = true, .dropout = true},
                                               {"hc", 2, .bias = true},
                                               {"krom", 4, .bias = false, .scaled = true},
                                               {"shc", 5, .bias = false, .type = ELEMENT_BF16},
                                               {"hc", 3, .bias = true, .type = ELEMENT_FP16},
                                               {"wide", 4, .bias = false}};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const struct model_config config = delayed_config(&shapes[i], i);
        compare_with_the_reference(&config, 3, shapes[i].type, shapes[i].type == ELEMENT_FP32);
    }
}

static float *pass_gradients(const struct model_config *config, bool recompute) {
    struct small_model model;
    small_model_create_planned(&model, compute, config,
                               &(struct gpt_options){.batch = 3,
                                                     .sequence = config->block_size,
                                                     .mode = GPT_TRAINING,
                                                     .recompute = recompute});
    small_model_randomise(&model, 2);
    small_model_backward(&model, (struct gpt_pass){.dropout = true, .seed = 5});
    float *gradients = small_model_gradients(&model);
    small_model_release(&model);
    return gradients;
}

/* A layer that runs forward again reads with the H_pre of the layer before, whose buffers it shares. */
UNIT_TEST(delayed_reads_are_recomputed) {
    static const struct model_case shape = {"mhc", 3, .bias = true, .dropout = true};
    for (size_t i = 0; i < 2; i++) {
        struct model_config config = delayed_config(&shape, i);
        config.n_layer = 3;
        struct parameters parameters;
        small_model_require(model_config_check(&config));
        parameters_create(&config, &parameters);
        float *kept = pass_gradients(&config, false), *recomputed = pass_gradients(&config, true);
        const double whole = tensors_norm(kept, parameters.elements);
        judge("gradients", tensors_distance(kept, recomputed, parameters.elements), 1e-6 * whole, &worst_gradient);
        parameters_release(&parameters);
        free(kept);
        free(recomputed);
    }
}

/* Nobody reads with the H_pre of the last sublayer, unless the top does. */
UNIT_TEST(last_read_has_no_gradient_unless_the_top_reads) {
    static const struct model_case shape = {"mhc", 3, .bias = true};
    static const char *const leaves[] = {"w_pre", "b_pre", "alpha_pre"};
    for (size_t i = 0; i < 2; i++) {
        const struct model_config config = delayed_config(&shape, i);
        struct small_model model;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 2);
        small_model_backward(&model, (struct gpt_pass){.dropout = false});
        float *gradients = small_model_gradients(&model);
        for (size_t k = 0; k < COUNT(leaves); k++) {
            const struct parameter *parameter =
                parameters_find(&model.gpt.parameters, scratch_format("transformer.h.1.hc_mlp.%s", leaves[k]));
            assert_int_equal(tensors_norm(gradients + parameter->offset, parameter->elements) > 0.0, i == 0);
        }
        free(gradients);
        small_model_release(&model);
    }
}

UNIT_TEST(frozen_gamma_has_no_gradient) {
    struct model_config config = config_of(&plain_shc);
    struct small_model model;
    reference_set(&config.settings, "freeze_gamma", true);
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 2);
    small_model_backward(&model, (struct gpt_pass){.dropout = false});
    float *gradients = small_model_read(&model, model.gpt.parameters.gradients);
    static const char *const frozen[] = {"gamma_u", "gamma_v", "tau_u"};
    for (size_t i = 0; i < 3; i++) {
        const char *name = scratch_format("transformer.h.1.hc_attn.%s", frozen[i]);
        const struct parameter *parameter = parameters_find(&model.gpt.parameters, name);
        assert_int_equal(gradients[parameter->offset] == 0.0f, i < 2);
    }
    free(gradients);
    small_model_release(&model);
}

static const int64_t few_to_many[] = {2, 5, 8};

/* Of variant i, in turn: tests that use these share compiled kernels. */
static int64_t streams_of(size_t i) {
    const struct residual_variant *variant = residual_at(i);
    for (size_t k = i; k < i + COUNT(few_to_many); k++) {
        if (residual_takes(variant, few_to_many[k % COUNT(few_to_many)])) {
            return few_to_many[k % COUNT(few_to_many)];
        }
    }
    return reference_streams(variant, 4);
}

/* The gradients of variant i, each alpha_res's zero with `frozen`; *norm is what is clipped. */
static float *gradients_of(size_t i, bool frozen, struct small_model *model, float *norm) {
    const struct model_config config = small_model_config(residual_at(i)->name, streams_of(i));
    const struct gpt_options options = {.batch = 3,
                                        .sequence = config.block_size,
                                        .mode = GPT_TRAINING,
                                        .optimizer = {.freeze_alpha_res = frozen}};
    small_model_create_planned(model, compute, &config, &options);
    small_model_randomise(model, 2);
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    float *gradients = small_model_read(model, model->gpt.parameters.gradients);
    optimizer_step(&model->gpt, &(struct optimizer_settings){.beta1 = 0.9, .beta2 = 0.95, USUAL_RATES}, 0);
    small_model_require(buffer_read(compute, model->gpt.gradient_norm, 0, norm, sizeof *norm));
    return gradients;
}

/* Of every variant, all other gradients are the same to the bit, and the norm is that of the others. */
UNIT_TEST(frozen_alpha_res_has_no_gradient) {
    size_t with_one = 0;
    for (size_t i = 0; residual_at(i); i++) {
        struct small_model free_model, frozen_model;
        float free_norm, frozen_norm;
        double frozen_squares = 0.0;
        float *whole = gradients_of(i, false, &free_model, &free_norm);
        float *others = gradients_of(i, true, &frozen_model, &frozen_norm);
        for (size_t k = 0; k < free_model.gpt.parameters.count; k++) {
            const struct parameter *parameter = &free_model.gpt.parameters.table[k];
            float *values = whole + parameter->offset;
            if (strcmp(strrchr(parameter->name, '.'), ".alpha_res") == 0) {
                frozen_squares += (double)*values * (double)*values;
                with_one += *values != 0.0f; /* in the first sublayer it may be zero: all streams are equal */
                *values = 0.0f;
            }
            assert_memory_equal(values, others + parameter->offset, parameter->elements * sizeof *values);
        }
        const double expected = sqrt((double)free_norm * (double)free_norm - frozen_squares);
        assert_true(fabs((double)frozen_norm - expected) <= 1e-6 * expected);
        assert_true(frozen_squares == 0.0 || frozen_norm < free_norm);
        free(whole);
        free(others);
        small_model_release(&free_model);
        small_model_release(&frozen_model);
    }
    assert_true(with_one >= 7 * 3);
}

/* Variant and number of streams do not change what the other parameters start from. */
UNIT_TEST(initial_weights_do_not_depend_on_the_variant) {
    const struct model_config configs[2] = {config_of(&plain_rc), config_of(&plain_shc)};
    struct small_model models[2];
    float *weights[2];
    for (int i = 0; i < 2; i++) {
        small_model_create(&models[i], compute, &configs[i], 3);
        weights[i] = small_model_read(&models[i], models[i].gpt.parameters.weights);
    }
    for (size_t i = 0; i < models[0].gpt.parameters.count; i++) {
        const struct parameter *first = &models[0].gpt.parameters.table[i];
        const struct parameter *second = parameters_find(&models[1].gpt.parameters, first->name);
        assert_memory_equal(weights[0] + first->offset, weights[1] + second->offset,
                            first->elements * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        free(weights[i]);
        small_model_release(&models[i]);
    }
}

/* The deviation of a parameter's first values, and what it is to be. */
static void judge_deviation(const struct small_model *model, const float *weights, const char *name,
                            double expected) {
    const struct parameter *parameter = parameters_find(&model->gpt.parameters, name);
    const double count = (double)parameter->elements;
    const double deviation = tensors_norm(weights + parameter->offset, parameter->elements) / sqrt(count);
    if (!(fabs(deviation - expected) <= 4.0 / sqrt(2.0 * count) * expected)) {
        fail_msg("%s: deviation %g, expected %g", name, deviation, expected);
    }
}

UNIT_TEST(track3_begins_with_zeros_and_wide_embeddings) {
    struct model_config config = config_of(&plain_rc);
    config.tie_embeddings = false;
    config.mlp = MLP_SWIGLU;
    config.init = INIT_TRACK3;
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    float *weights = small_model_read(&model, model.gpt.parameters.weights);
    const double inner = sqrt(0.33 / (double)config.n_embd);
    judge_deviation(&model, weights, "transformer.wte.weight", 1.0);
    judge_deviation(&model, weights, "transformer.wpe.weight", 1.0);
    judge_deviation(&model, weights, "transformer.h.1.attn.c_attn.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.attn.c_proj.weight", 0.0);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_gate.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_fc.weight", inner);
    judge_deviation(&model, weights, "transformer.h.1.mlp.c_proj.weight", 0.0);
    judge_deviation(&model, weights, "lm_head.weight", 0.0);
    free(weights);
    small_model_release(&model);
}

static int begin(void **state) {
    return small_model_begin(state, &compute);
}

static int end(void **state) {
    assert_int_equal(compute->programs_refused, 0);
    compute_close(compute);
    print_message("largest errors, as parts of the tolerances: loss %.2g, logits %.2g, gradients %.2g\n",
                  worst_loss, worst_logits, worst_gradient);
    return scratch_end(state);
}

/* ---- every variant, with few, several or many streams in turn, and all settings in turn */

static void compare_variant(const char *residual, int64_t streams) {
    static const struct model_case settings[] = {{.norm_sum = true},
                                                 {.bias = true, .dropout = true, .scaled = true},
                                                 {.bias = true, .norm_sum = true, .scaled = true},
                                                 {.dropout = true}};
    static size_t turn;
    struct model_case shape = settings[turn++ % COUNT(settings)];
    shape.residual = residual;
    shape.streams = streams;
    shape.scaled &= streams > 1;
    print_message("  %s of %d streams, bias %d, norm_sum %d, dropout %d, scaled %d\n", residual, (int)streams,
                  shape.bias, shape.norm_sum, shape.dropout, shape.scaled);
    compare_case(&shape);
}

UNIT_TEST(every_variant_agrees) {
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (residual_is_single(variant)) {
            compare_variant(variant->name, 1);
            compare_variant(variant->name, 1);
            continue;
        }
        const int64_t usual = streams_of(i);
        compare_variant(variant->name, usual);
        for (size_t k = 0; k < COUNT(few_to_many) && test_is_whole(); k++) {
            if (few_to_many[k] != usual && residual_takes(variant, few_to_many[k])) {
                compare_variant(variant->name, few_to_many[k]);
            }
        }
    }
}

DEVICE_TEST_MAIN(begin, end)
