/* Connections over depth, and others of one stream. Attention residuals: the invariants of their weights, from the
 * first pass on. Those that begin as plain residuals do so. Of all, and of hyper-connections with delayed reads, a
 * pass with recompute has the same gradients. */
#include "src/measuring/h_measurement.h"
#include "src/model/frame.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

enum { LAYERS = 3 };

/* Models of one stream, or of as many as settings say. */
struct frame_case {
    const char *residual, *settings;
    enum element_type type;
};

static struct model_config config_with(const struct frame_case *wanted) {
    struct model_config config = small_model_config(wanted->residual, 1);
    config.n_layer = LAYERS;
    small_model_set(&config, wanted->settings);
    require(model_config_check(&config));
    return config;
}

/* ---- attention residuals */

/* The weights over depth of a sublayer, or of the top. */
static struct frame_value depth_weights(const struct small_model *model, int64_t sublayer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, sublayer, values), 1);
    return values[0];
}

/* Its heads; their weights [heads, states] of each token are value.row numbers, from value.first on. */
static size_t heads_of(const struct frame_value *value) {
    return value->rank == 2 ? value->shape[0] : 1;
}

static float *read_value(const struct small_model *model, const struct frame_value *value) {
    const size_t elements = gpt_tokens(&model->gpt) * value->row;
    float *values = calloc(elements, sizeof *values);
    require(buffer_read(compute, value->buffer, 0, values, elements * sizeof *values));
    return values;
}

/* Queries begin as zero: every sublayer reads the mean of all states so far, and states are sums of 4 outputs. With
 * `dar` it reads those that are complete, and the top none. */
UNIT_TEST(sublayers_read_means_at_first) {
    static const struct frame_case cases[] = {{"attnres", "attnres_block=4", ELEMENT_FP32},
                                              {"attnres", "attnres_block=4 attnres_heads=4", ELEMENT_FP32},
                                              {"dar", "attnres_block=4 attnres_heads=2", ELEMENT_FP32}};
    static const size_t counts[][2 * LAYERS + 1] = {{1, 2, 2, 2, 2, 3, 3}, {1, 1, 1, 1, 2, 2, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_config config = config_with(&cases[i]);
        const bool is_dar = strcmp(cases[i].residual, "dar") == 0;
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 3);
        small_model_forward(&model, (struct gpt_pass){.dropout = false});
        for (int64_t sublayer = 0; sublayer <= 2 * LAYERS - is_dar; sublayer++) {
            const struct frame_value value = depth_weights(&model, sublayer);
            const size_t count = counts[is_dar][sublayer], heads = heads_of(&value);
            FREED float *weights = read_value(&model, &value);
            assert_int_equal(value.shape[value.rank - 1], count);
            for (size_t k = 0; k < gpt_tokens(&model.gpt) * heads * count; k++) {
                const size_t place = k / (heads * count) * value.row + value.first + k % (heads * count);
                assert_true(fabsf(weights[place] - 1.0f / (float)count) < 1e-6f);
            }
        }
    }
}

/* Weights of each head and token sum to 1, and none is negative. */
static void assert_shares(const struct small_model *model, const struct frame_value *value) {
    const size_t states = value->shape[value->rank - 1], heads = heads_of(value);
    FREED float *weights = read_value(model, value);
    for (size_t i = 0; i < gpt_tokens(&model->gpt) * heads; i++) {
        const float *head = weights + i / heads * value->row + value->first + i % heads * states;
        double sum = 0.0;
        for (size_t s = 0; s < states; s++) {
            assert_true(head[s] >= 0.0f);
            sum += (double)head[s];
        }
        assert_true(fabs(sum - 1.0) <= RESIDUAL_TOLERANCE);
    }
}

static void assert_kept(struct small_model *model) {
    struct h_violation violation;
    struct frame_value values[FRAME_MOST_VALUES];
    small_model_forward(model, (struct gpt_pass){.dropout = false});
    require(depth_check(&violation, &model->gpt, ~0u));
    assert_int_equal(violation.invariant, 0);
    for (int64_t sublayer = 0; sublayer <= 2 * model->gpt.config.n_layer; sublayer++) {
        if (model->gpt.frame->values(&model->gpt, sublayer, values) > 0) {
            assert_shares(model, &values[0]);
        }
    }
}

UNIT_TEST(invariants_over_depth_hold) {
    static const struct frame_case cases[] = {
        {"attnres", "attnres_block=1", ELEMENT_FP32},
        {"attnres", "attnres_block=4 attnres_heads=8", ELEMENT_FP32},
        {"attnres", "attnres_block=7", ELEMENT_FP32},
        {"dar", "attnres_block=1 attnres_heads=2 dar_gate=none", ELEMENT_FP32},
        {"dar", "attnres_block=2", ELEMENT_FP32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_config config = config_with(&cases[i]);
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 3);
        assert_kept(&model);
        small_model_train(&model, 20, 3e-2);
        assert_kept(&model);
        small_model_randomise(&model, 7);
        assert_kept(&model);
    }
}

/* A number in the weights of a sublayer becomes another one. */
static struct h_violation violation_with(struct small_model *model, int64_t sublayer, size_t place, float number,
                                         unsigned looked_for) {
    const struct frame_value value = depth_weights(model, sublayer);
    struct h_violation violation;
    float before;
    require(buffer_read(compute, value.buffer, place * sizeof before, &before, sizeof before));
    require(buffer_write(compute, value.buffer, place * sizeof number, &number, sizeof number));
    require(depth_check(&violation, &model->gpt, looked_for));
    require(buffer_write(compute, value.buffer, place * sizeof before, &before, sizeof before));
    return violation;
}

UNIT_TEST(violated_invariants_are_named) {
    const struct model_config config =
        config_with(&(struct frame_case){"attnres", "attnres_block=1", ELEMENT_FP32});
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    assert_kept(&model);
    struct h_violation violation = violation_with(&model, 0, 5, 0.75f, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 0 && violation.value == 0.75);
    violation = violation_with(&model, 6, 3, NAN, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 6 && isnan(violation.value));
    violation = violation_with(&model, 4, 9, -0.25f, ~(unsigned)INVARIANT_ROW_SUMS);
    assert_true(violation.invariant == INVARIANT_SIGN && violation.sublayer == 4 && violation.value == -0.25);
    assert_int_equal(violation_with(&model, 4, 9, -0.25f, 0).invariant, 0);
}

/* Each head has weights of its own: here in sublayer 2 of dar, of the last token's last head the last state. */
UNIT_TEST(violated_invariants_of_heads_are_named) {
    const struct model_config config =
        config_with(&(struct frame_case){"dar", "attnres_block=1 attnres_heads=4", ELEMENT_FP32});
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    assert_kept(&model);
    const struct frame_value value = depth_weights(&model, 2);
    assert_true(value.rank == 2 && value.shape[0] == 4 && value.shape[1] == 3);
    const size_t last = (gpt_tokens(&model.gpt) - 1) * value.row + value.first + 4 * 3 - 1;
    struct h_violation violation = violation_with(&model, 2, last, 0.75f, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 2);
    violation = violation_with(&model, 2, last, -0.25f, ~(unsigned)INVARIANT_ROW_SUMS);
    assert_true(violation.invariant == INVARIANT_SIGN && violation.sublayer == 2 && violation.value == -0.25);
}

/* ---- multiway dense connections */

/* The weights after a layer, with its second sublayer. */
static struct frame_value layer_weights(const struct small_model *model, int64_t layer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer, values), 0);
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer + 1, values), 1);
    return values[0];
}

/* Every mixture is the newest state alone. */
UNIT_TEST(mudd_mixtures_are_the_newest_state_at_first) {
    const struct model_config config = config_with(&(struct frame_case){"mudd", "n_kv_head=1", ELEMENT_FP32});
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        const struct frame_value value = layer_weights(&model, layer);
        const size_t states = (size_t)layer + 2, elements = gpt_tokens(&model.gpt) * value.row;
        FREED float *weights = read_value(&model, &value);
        assert_int_equal(value.shape[0], layer + 1 == LAYERS ? 1 : 4);
        assert_int_equal(value.shape[1], states);
        for (size_t i = 0; i < elements; i++) {
            const size_t k = i % value.row;
            const bool one = k < value.shape[0] * states && k % states == states - 1;
            assert_true(weights[i] == (one ? 1.0f : 0.0f));
        }
    }
}

static float *first_logits(const struct frame_case *wanted, float *loss) {
    const struct model_config config = config_with(wanted);
    SMALL_MODEL model;
    small_model_create_typed(&model, compute, &config, 3, wanted->type);
    const size_t rows = gpt_tokens(&model.gpt), count = rows * model.gpt.vocabulary;
    float *logits = calloc(count, sizeof *logits);
    *loss = small_model_backward(&model, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&model.gpt, 0, rows, logits));
    return logits;
}

/* The streams have the same bits. GEMMs of queries, keys and values apart may add in another order than one of all
 * three, so that logits agree to rounding; those of PoCL have the same bits, too. */
UNIT_TEST(models_begin_as_ones_with_plain_residuals) {
    static const struct frame_case cases[] = {
        {"mudd", "n_kv_head=1", ELEMENT_FP32},
        {"mudd", "n_kv_head=1", ELEMENT_BF16},
        {"mudd", "mudd_norm=prepost n_kv_head=1", ELEMENT_FP32},
        {"dense", "n_kv_head=1", ELEMENT_BF16},
        {"laurel", "n_kv_head=1 laurel_rank=5", ELEMENT_FP32},
        {"dar", "n_kv_head=1 attnres_block=2", ELEMENT_BF16},
        {"frac", "n_kv_head=1 n_streams=4", ELEMENT_FP32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const enum element_type type = cases[i].type;
        float losses[2];
        FREED float *plain = first_logits(&(struct frame_case){"rc", "n_kv_head=1", type}, &losses[0]),
                    *mixed = first_logits(&cases[i], &losses[1]);
        const struct model_config config = config_with(&cases[i]);
        const size_t count = (size_t)(3 * config.block_size * config.vocab_size);
        float largest = 0.0f;
        for (size_t k = 0; k < count; k++) {
            largest = fmaxf(largest, fabsf(plain[k] - mixed[k]));
        }
        print_message("  %s: largest difference of logits: %g, of losses: %g\n", cases[i].residual, (double)largest,
                      fabs((double)losses[0] - (double)losses[1]));
        assert_true(largest <= (type == ELEMENT_FP32 ? 1e-6f : 1e-2f));
    }
}

#define MUDD    "n_kv_head=1 dropout=0.1 position=rope qk_norm=true "
#define DELAYED "n_streams=3 bias=true dropout=0.2 read_delay=true "
#define DROPS   "dropout=0.1 "

static float *gradients_of(const struct model_config *config, bool recompute, enum element_type type,
                           uint64_t *elements) {
    SMALL_MODEL model;
    small_model_create_planned(&model, compute, config,
                               &(struct gpt_options){.type = type, .recompute = recompute});
    small_model_randomise(&model, 7);
    small_model_backward(&model, (struct gpt_pass){.dropout = true, .seed = 5, .iteration = 3});
    float *gradients = small_model_read(&model, model.gpt.parameters.gradients);
    *elements = model.gpt.parameters.elements;
    return gradients;
}

/* States and weights are kept, so a layer that runs forward again reads what it has read. */
UNIT_TEST(recompute_has_the_same_gradients) {
    const struct frame_case cases[] = {
        {"attnres", DROPS "attnres_block=1 attnres_heads=4", ELEMENT_BF16},
        {"attnres", DROPS "attnres_block=2", ELEMENT_FP32},
        {"attnres", DROPS "attnres_block=3 value_embeds=true", ELEMENT_FP32},
        {"attnres", DROPS "attnres_block=4", ELEMENT_FP32},
        {"dar", DROPS "attnres_block=1 x0_lambdas=true", ELEMENT_FP32},
        {"dar", DROPS "attnres_block=3 attnres_heads=4 dar_gate=none", ELEMENT_BF16},
        {"mudd", MUDD, ELEMENT_FP32},
        {"mudd", MUDD "mudd_norm=prepost", ELEMENT_BF16},
        {"mudd", MUDD "value_embeds=true", ELEMENT_FP16},
        {"dense", DROPS "value_embeds=true", ELEMENT_BF16},
        {"laurel", DROPS "x0_lambdas=true", ELEMENT_FP32},
        {"laurel", DROPS "laurel_form=rw", ELEMENT_BF16},
        {"frac", DROPS "n_streams=4 x0_lambdas=true hc_until=3", ELEMENT_FP32},
        {"rc", DROPS "x0_lambdas=true value_embeds=true", ELEMENT_FP32},
        {"gated", DROPS "n_streams=3 x0_lambdas=true value_embeds=true", ELEMENT_BF16},
        {"mhc", DROPS "n_streams=3 x0_lambdas=true hc_until=2", ELEMENT_FP32},
        {"mhc", DROPS "n_streams=3 hc_dynamic=false", ELEMENT_BF16},
        /* which read with the H_pre of the layer before, whose buffers they share */
        {"mhc", DELAYED "stream_reduce=auto hc_norm_gain=false", ELEMENT_FP32},
        {"mhc", DELAYED "stream_reduce=norm_sum norm=rmsnorm", ELEMENT_FP32},
        {"mhc", DELAYED "stream_reduce=auto hc_dynamic=false hc_until=3 x0_lambdas=true", ELEMENT_FP32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_config config = config_with(&cases[i]);
        uint64_t elements;
        FREED float *kept = gradients_of(&config, false, cases[i].type, &elements),
                    *again = gradients_of(&config, true, cases[i].type, &elements);
        if (memcmp(kept, again, elements * sizeof *kept) != 0) {
            fail_msg("%s in %s, %s", cases[i].residual, element_name(cases[i].type), cases[i].settings);
        }
    }
}

UNIT_TEST(what_has_no_sense_is_refused) {
    static const struct {
        const char *residual, *settings, *error;
    } cases[] = {
        {"attnres", "stream_expand=scaled", "stream_expand = scaled needs several streams, and 'attnres' has one"},
        {"mudd", "stream_expand=scaled", "stream_expand = scaled needs several streams, and 'mudd' has one"},
        {"mudd", "read_delay=true", "read_delay = true: 'mudd' has no H_pre"},
        {"dar", "stream_expand=scaled", "stream_expand = scaled needs several streams, and 'dar' has one"},
        {"laurel", "h_res_transposed=true", "h_res_transposed = true: 'laurel' has no H_res"},
        {"frac", "stream_expand=scaled", "stream_expand = scaled is for streams, and 'frac' has fractions"},
        {"frac", "read_delay=true", "read_delay = true is for streams"},
        {"frac", "h_res_transposed=true", "h_res_transposed = true is for streams"},
        {"frac", "n_streams=3", "n_embd = 16 is not divisible by n_streams = 3, the fractions"},
        {"frac", "n_streams=1", "'frac' needs 2 to 8 streams"},
        {"rc", "attnres_heads=2", "attnres_heads = 2: 'rc' has no attention over depth"},
        {"dar", "attnres_heads=3", "n_embd = 16 is not divisible by attnres_heads = 3"},
        {"dense", "mudd_norm=prepost", "mudd_norm = prepost is for residual = mudd, not 'dense'"},
        {"wide", "hc_dynamic=false", "hc_dynamic = false: H of 'wide' never depends on the token"},
        {"laurel", "hc_dynamic=false", "hc_dynamic = false: 'laurel' has no H; leave hc_dynamic out"},
        {"identity", "hc_until=1", "hc_until = 1: 'identity' does not mix its streams"},
        {"wide", "hc_until=1", "hc_until = 1: 'wide' does not mix its streams"},
        {"gated", "hc_until=1", "hc_until = 1: 'gated' does not mix its streams"},
        {"shc", "hc_until=5", "hc_until = 5 of 4 sublayers"},
        {"attnres", "x0_lambdas=true", "x0_lambdas = true: 'attnres' already mixes the embedding into every layer"},
        {"mudd", "x0_lambdas=true", "x0_lambdas = true: 'mudd' already mixes the embedding into every layer"},
        {"dense", "x0_lambdas=true", "x0_lambdas = true: 'dense' already mixes the embedding into every layer"},
        {"rc", "value_embeds=true n_embd=10", "value_embeds = true: the gates read 12 channels, and n_embd = 10"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config config = small_model_config(cases[i].residual, 4); /* the option's default */
        require(model_config_check(&config));
        assert_int_equal(config.n_streams, residual_is_single(config.residual) ? 1 : 4);
        small_model_set(&config, cases[i].settings);
        assert_error(model_config_check(&config), cases[i].error);
    }
}

/* Logits of a model in this mode, whose layers may share what they compute, with the weights of `from`. */
static float *logits_in(const struct small_model *from, enum gpt_mode mode) {
    const struct model_config *config = &from->gpt.config;
    const size_t rows = gpt_tokens(&from->gpt), count = rows * from->gpt.vocabulary;
    const struct gpt_options options = {.batch = 3, .sequence = config->block_size, .mode = mode};
    float *logits = calloc(count, sizeof *logits);
    struct gpt gpt;
    require(gpt_plan(compute, config, &options, &gpt));
    require(gpt_create(&gpt));
    buffer_copy(compute, from->gpt.parameters.weights, 0, gpt.parameters.weights, 0,
                gpt.parameters.elements * sizeof(float));
    require(gpt_set_batch(&gpt, (struct token_shape){3, config->block_size}, from->x, NULL));
    gpt_forward(&gpt, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&gpt, 0, rows, logits));
    gpt_release(&gpt);
    return logits;
}

UNIT_TEST(modes_that_share_buffers_agree) {
    static const struct frame_case cases[] = {
        {"mudd", MUDD, ELEMENT_FP32},
        {"mudd", "mudd_norm=prepost", ELEMENT_FP32},
        {"dense", "value_embeds=true", ELEMENT_FP32},
        {"laurel", "x0_lambdas=true", ELEMENT_FP32},
        {"dar", "attnres_block=2 attnres_heads=4 x0_lambdas=true", ELEMENT_FP32},
        {"frac", "n_streams=4 hc_until=4", ELEMENT_FP32},
        {"mhc", "n_streams=3 hc_until=3 x0_lambdas=true value_embeds=true", ELEMENT_FP32},
        {"mhc", "n_streams=3 hc_dynamic=false stream_reduce=head", ELEMENT_FP32},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct model_config config = config_with(&cases[i]);
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 7);
        const size_t count = gpt_tokens(&model.gpt) * model.gpt.vocabulary;
        FREED float *training = logits_in(&model, GPT_TRAINING), *inference = logits_in(&model, GPT_INFERENCE),
                    *analysis = logits_in(&model, GPT_ANALYSIS);
        assert_memory_equal(training, inference, count * sizeof *training);
        assert_memory_equal(training, analysis, count * sizeof *training);
    }
}

SMALL_MODEL_TEST_MAIN(compute)
