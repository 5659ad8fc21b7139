/* Attention residuals: the invariants of their weights over depth, from the first pass on, and that a pass with
 * recompute has the same gradients. */
#include "src/measuring/h_measurement.h"
#include "src/model/frame.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>

static struct compute *compute;

static struct model_config config_of(int64_t block) {
    struct model_config config = small_model_config("attnres", 1);
    config.n_layer = 3;
    config.settings.values[residual_setting_find("attnres_block")].number = block;
    return config;
}

/* The weights over depth of a sublayer, or of the top. */
static struct frame_value weights_of(const struct small_model *model, int64_t sublayer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, sublayer, values), 1);
    return values[0];
}

/* Queries begin as zero: every sublayer reads the mean of all states so far, and states are sums of 4 outputs. */
UNIT_TEST(sublayers_read_means_at_first) {
    static const size_t counts[] = {1, 2, 2, 2, 2, 3, 3};
    const struct model_config config = config_of(4);
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t sublayer = 0; sublayer <= 2 * config.n_layer; sublayer++) {
        const struct frame_value value = weights_of(&model, sublayer);
        const size_t elements = gpt_tokens(&model.gpt) * counts[sublayer];
        float *weights = calloc(elements, sizeof *weights);
        assert_int_equal(value.shape[0], counts[sublayer]);
        require(buffer_read(compute, value.buffer, 0, weights, elements * sizeof *weights));
        for (size_t i = 0; i < elements; i++) {
            assert_true(fabsf(weights[i] - 1.0f / (float)counts[sublayer]) < 1e-6f);
        }
        free(weights);
    }
    small_model_release(&model);
}

static void assert_kept(struct small_model *model) {
    struct h_violation violation;
    small_model_forward(model, (struct gpt_pass){.dropout = false});
    require(depth_check(&violation, &model->gpt, ~0u));
    assert_int_equal(violation.invariant, 0);
}

UNIT_TEST(invariants_hold) {
    for (int64_t block = 1; block <= 7; block += 3) {
        const struct model_config config = config_of(block);
        struct small_model model;
        small_model_create(&model, compute, &config, 3);
        assert_kept(&model);
        small_model_train(&model, 20, 3e-2);
        assert_kept(&model);
        small_model_randomise(&model, 7);
        assert_kept(&model);
        small_model_release(&model);
    }
}

/* A number in the weights of a sublayer becomes another one. */
static struct h_violation violation_with(struct small_model *model, int64_t sublayer, size_t place, float number,
                                         unsigned looked_for) {
    const struct frame_value value = weights_of(model, sublayer);
    struct h_violation violation;
    float before;
    require(buffer_read(compute, value.buffer, place * sizeof before, &before, sizeof before));
    require(buffer_write(compute, value.buffer, place * sizeof number, &number, sizeof number));
    require(depth_check(&violation, &model->gpt, looked_for));
    require(buffer_write(compute, value.buffer, place * sizeof before, &before, sizeof before));
    return violation;
}

UNIT_TEST(violated_invariants_are_named) {
    const struct model_config config = config_of(1);
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    assert_kept(&model);
    struct h_violation violation = violation_with(&model, 0, 5, 0.75f, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 0 && violation.value == 0.75);
    violation = violation_with(&model, 6, 3, NAN, ~0u);
    assert_true(violation.invariant == INVARIANT_ROW_SUMS && violation.sublayer == 6 && isnan(violation.value));
    violation = violation_with(&model, 4, 9, -0.25f, ~(unsigned)INVARIANT_ROW_SUMS);
    assert_true(violation.invariant == INVARIANT_SIGN && violation.sublayer == 4 && violation.value == -0.25);
    assert_int_equal(violation_with(&model, 4, 9, -0.25f, 0).invariant, 0);
    small_model_release(&model);
}

/* Values of all states are kept, so a layer that runs forward again reads what it has read. */
UNIT_TEST(recompute_has_the_same_gradients) {
    for (int64_t block = 1; block <= 4; block++) {
        float *gradients[2];
        uint64_t elements = 0;
        for (int recompute = 0; recompute < 2; recompute++) {
            struct model_config config = config_of(block);
            config.dropout = 0.1;
            struct small_model model;
            small_model_create_planned(&model, compute, &config,
                                       &(struct gpt_options){.batch = 3,
                                                             .sequence = config.block_size,
                                                             .mode = GPT_TRAINING,
                                                             .recompute = recompute});
            small_model_randomise(&model, 7);
            small_model_backward(&model, (struct gpt_pass){.dropout = true, .seed = 5, .iteration = 3});
            gradients[recompute] = small_model_read(&model, model.gpt.parameters.gradients);
            elements = model.gpt.parameters.elements;
            small_model_release(&model);
        }
        assert_memory_equal(gradients[0], gradients[1], elements * sizeof *gradients[0]);
        free(gradients[0]);
        free(gradients[1]);
    }
}

UNIT_TEST(scaled_streams_are_refused) {
    struct model_config config = config_of(1);
    config.n_streams = 4; /* the option's default */
    require(model_config_check(&config));
    assert_int_equal(config.n_streams, 1);
    config.stream_expand = STREAM_EXPAND_SCALED;
    assert_error(model_config_check(&config), "stream_expand = scaled: 'attnres' has one stream");
}

SMALL_MODEL_TEST_MAIN(compute)
