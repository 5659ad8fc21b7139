/* Connections over depth. Attention residuals: the invariants of their weights, from the first pass on. Multiway
 * dense connections: a model begins as one with plain residuals. Of both, and of hyper-connections with delayed
 * reads, a pass with recompute has the same gradients. */
#include "src/measuring/h_measurement.h"
#include "src/model/frame.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

enum { LAYERS = 3 };

/* ---- attention residuals */

static struct model_config attnres_config(int64_t block) {
    struct model_config config = small_model_config("attnres", 1);
    config.n_layer = LAYERS;
    small_model_set(&config, scratch_format("attnres_block=%d", (int)block));
    return config;
}

/* The weights over depth of a sublayer, or of the top. */
static struct frame_value depth_weights(const struct small_model *model, int64_t sublayer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, sublayer, values), 1);
    return values[0];
}

/* Queries begin as zero: every sublayer reads the mean of all states so far, and states are sums of 4 outputs. */
UNIT_TEST(attnres_sublayers_read_means_at_first) {
    static const size_t counts[] = {1, 2, 2, 2, 2, 3, 3};
    const struct model_config config = attnres_config(4);
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t sublayer = 0; sublayer <= 2 * config.n_layer; sublayer++) {
        const struct frame_value value = depth_weights(&model, sublayer);
        const size_t elements = gpt_tokens(&model.gpt) * counts[sublayer];
        FREED float *weights = calloc(elements, sizeof *weights);
        assert_int_equal(value.shape[0], counts[sublayer]);
        require(buffer_read(compute, value.buffer, 0, weights, elements * sizeof *weights));
        for (size_t i = 0; i < elements; i++) {
            assert_true(fabsf(weights[i] - 1.0f / (float)counts[sublayer]) < 1e-6f);
        }
    }
}

static void assert_kept(struct small_model *model) {
    struct h_violation violation;
    small_model_forward(model, (struct gpt_pass){.dropout = false});
    require(depth_check(&violation, &model->gpt, ~0u));
    assert_int_equal(violation.invariant, 0);
}

UNIT_TEST(attnres_invariants_hold) {
    for (int64_t block = 1; block <= 7; block += 3) {
        const struct model_config config = attnres_config(block);
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
    const struct model_config config = attnres_config(1);
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

/* ---- multiway dense connections */

static struct model_config plain_config(const char *residual) {
    struct model_config config = small_model_config(residual, 1);
    config.n_layer = LAYERS;
    config.n_kv_head = 1;
    return config;
}

/* The weights after a layer, with its second sublayer. */
static struct frame_value layer_weights(const struct small_model *model, int64_t layer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer, values), 0);
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer + 1, values), 1);
    return values[0];
}

/* Every mixture is the newest state alone. */
UNIT_TEST(mudd_mixtures_are_the_newest_state_at_first) {
    const struct model_config config = plain_config("mudd");
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        const struct frame_value value = layer_weights(&model, layer);
        const size_t states = (size_t)layer + 2, elements = gpt_tokens(&model.gpt) * value.row;
        FREED float *weights = calloc(elements, sizeof *weights);
        assert_int_equal(value.shape[0], layer + 1 == LAYERS ? 1 : 4);
        assert_int_equal(value.shape[1], states);
        require(buffer_read(compute, value.buffer, 0, weights, elements * sizeof *weights));
        for (size_t i = 0; i < elements; i++) {
            const size_t k = i % value.row;
            const bool one = k < value.shape[0] * states && k % states == states - 1;
            assert_true(weights[i] == (one ? 1.0f : 0.0f));
        }
    }
}

static float *first_logits(const char *residual, enum element_type type, float *loss) {
    const struct model_config config = plain_config(residual);
    SMALL_MODEL model;
    small_model_create_typed(&model, compute, &config, 3, type);
    const size_t rows = gpt_tokens(&model.gpt), count = rows * model.gpt.vocabulary;
    float *logits = calloc(count, sizeof *logits);
    *loss = small_model_backward(&model, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&model.gpt, 0, rows, logits));
    return logits;
}

/* The streams have the same bits. GEMMs of queries, keys and values apart may add in another order than one of all
 * three, so that logits agree to rounding; those of PoCL have the same bits, too. */
UNIT_TEST(mudd_begins_as_one_with_plain_residuals) {
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_BF16; type++) {
        float losses[2];
        FREED float *plain = first_logits("rc", type, &losses[0]), *mixed = first_logits("mudd", type, &losses[1]);
        const struct model_config config = plain_config("rc");
        const size_t count = (size_t)(3 * config.block_size * config.vocab_size);
        float largest = 0.0f;
        for (size_t i = 0; i < count; i++) {
            largest = fmaxf(largest, fabsf(plain[i] - mixed[i]));
        }
        print_message("largest difference of logits: %g, of losses: %g\n", (double)largest,
                      fabs((double)losses[0] - (double)losses[1]));
        assert_true(largest <= (type == ELEMENT_FP32 ? 1e-6f : 1e-2f));
    }
}

/* Models whose passes are taken apart. */
struct frame_case {
    const char *residual, *settings;
    enum element_type type;
};

static const struct frame_case mudd = {"mudd", "n_layer=3 n_kv_head=1 dropout=0.1 position=rope qk_norm=true",
                                       ELEMENT_FP32};

static struct model_config config_with(const struct frame_case *wanted) {
    struct model_config config = small_model_config(wanted->residual, 1);
    small_model_set(&config, wanted->settings);
    require(model_config_check(&config));
    return config;
}

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

#define DELAYED "n_layer=3 n_streams=3 bias=true dropout=0.2 read_delay=true "

/* States and weights are kept, so a layer that runs forward again reads what it has read. */
UNIT_TEST(recompute_has_the_same_gradients) {
    const struct frame_case cases[] = {
        {"attnres", "n_layer=3 dropout=0.1 attnres_block=1", ELEMENT_FP32},
        {"attnres", "n_layer=3 dropout=0.1 attnres_block=2", ELEMENT_FP32},
        {"attnres", "n_layer=3 dropout=0.1 attnres_block=3", ELEMENT_FP32},
        {"attnres", "n_layer=3 dropout=0.1 attnres_block=4", ELEMENT_FP32},
        {"mudd", mudd.settings, ELEMENT_FP32},
        {"mudd", mudd.settings, ELEMENT_BF16},
        {"mudd", mudd.settings, ELEMENT_FP16},
        /* which read with the H_pre of the layer before, whose buffers they share */
        {"mhc", DELAYED "stream_reduce=auto hc_norm_gain=false", ELEMENT_FP32},
        {"mhc", DELAYED "stream_reduce=norm_sum norm=rmsnorm", ELEMENT_FP32},
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
    } cases[] = {{"attnres", "stream_expand=scaled", "stream_expand = scaled: 'attnres' has one stream"},
                 {"mudd", "stream_expand=scaled", "stream_expand = scaled: 'mudd' has one stream"},
                 {"mudd", "read_delay=true", "read_delay = true: 'mudd' has no H_pre"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config config = small_model_config(cases[i].residual, 4); /* the option's default */
        require(model_config_check(&config));
        assert_int_equal(config.n_streams, 1);
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
    const struct model_config config = config_with(&mudd);
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 7);
    const size_t count = gpt_tokens(&model.gpt) * model.gpt.vocabulary;
    FREED float *training = logits_in(&model, GPT_TRAINING), *inference = logits_in(&model, GPT_INFERENCE),
                *analysis = logits_in(&model, GPT_ANALYSIS);
    assert_memory_equal(training, inference, count * sizeof *training);
    assert_memory_equal(training, analysis, count * sizeof *training);
}

SMALL_MODEL_TEST_MAIN(compute)
