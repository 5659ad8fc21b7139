/* Multiway dense connections: a model begins as one with plain residuals, and a pass with recompute has the same
 * gradients. */
#include "src/model/frame.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

enum { LAYERS = 3 };

static struct model_config config_of(const char *residual) {
    struct model_config config = small_model_config(residual, 1);
    config.n_layer = LAYERS;
    config.n_kv_head = 1;
    return config;
}

/* The weights after a layer, with its second sublayer. */
static struct frame_value weights_of(const struct small_model *model, int64_t layer) {
    struct frame_value values[FRAME_MOST_VALUES];
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer, values), 0);
    assert_int_equal(model->gpt.frame->values(&model->gpt, 2 * layer + 1, values), 1);
    return values[0];
}

/* Every mixture is the newest state alone. */
UNIT_TEST(mixtures_are_the_newest_state_at_first) {
    const struct model_config config = config_of("mudd");
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    small_model_forward(&model, (struct gpt_pass){.dropout = false});
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        const struct frame_value value = weights_of(&model, layer);
        const size_t states = (size_t)layer + 2, elements = gpt_tokens(&model.gpt) * value.row;
        float *weights = calloc(elements, sizeof *weights);
        assert_int_equal(value.shape[0], layer + 1 == LAYERS ? 1 : 4);
        assert_int_equal(value.shape[1], states);
        require(buffer_read(compute, value.buffer, 0, weights, elements * sizeof *weights));
        for (size_t i = 0; i < elements; i++) {
            const size_t k = i % value.row;
            const bool one = k < value.shape[0] * states && k % states == states - 1;
            assert_true(weights[i] == (one ? 1.0f : 0.0f));
        }
        free(weights);
    }
    small_model_release(&model);
}

static float *first_logits(const char *residual, enum element_type type, float *loss) {
    const struct model_config config = config_of(residual);
    struct small_model model;
    small_model_create_typed(&model, compute, &config, 3, type);
    const size_t rows = gpt_tokens(&model.gpt), count = rows * model.gpt.vocabulary;
    float *logits = calloc(count, sizeof *logits);
    *loss = small_model_backward(&model, (struct gpt_pass){.dropout = false});
    require(gpt_read_logits(&model.gpt, 0, rows, logits));
    small_model_release(&model);
    return logits;
}

/* The streams have the same bits. GEMMs of queries, keys and values apart may add in another order than one of all
 * three, so that logits agree to rounding; those of PoCL have the same bits, too. */
UNIT_TEST(a_model_begins_as_one_with_plain_residuals) {
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_BF16; type++) {
        float losses[2], *plain = first_logits("rc", type, &losses[0]),
                         *mixed = first_logits("mudd", type, &losses[1]);
        const struct model_config config = config_of("rc");
        const size_t count = (size_t)(3 * config.block_size * config.vocab_size);
        float largest = 0.0f;
        for (size_t i = 0; i < count; i++) {
            largest = fmaxf(largest, fabsf(plain[i] - mixed[i]));
        }
        print_message("largest difference of logits: %g, of losses: %g\n", (double)largest,
                      fabs((double)losses[0] - (double)losses[1]));
        assert_true(largest <= (type == ELEMENT_FP32 ? 1e-6f : 1e-2f));
        free(plain);
        free(mixed);
    }
}

static struct model_config config_with_heads(void) {
    struct model_config config = config_of("mudd");
    config.dropout = 0.1;
    config.position = POSITION_ROPE;
    config.qk_norm = QK_NORM_GAINED;
    require(model_config_check(&config));
    return config;
}

static float *gradients_of(bool recompute, enum element_type type, uint64_t *elements) {
    const struct model_config config = config_with_heads();
    struct small_model model;
    small_model_create_planned(&model, compute, &config,
                               &(struct gpt_options){.batch = 3,
                                                     .sequence = config.block_size,
                                                     .mode = GPT_TRAINING,
                                                     .type = type,
                                                     .recompute = recompute});
    small_model_randomise(&model, 7);
    small_model_backward(&model, (struct gpt_pass){.dropout = true, .seed = 5, .iteration = 3});
    float *gradients = small_model_read(&model, model.gpt.parameters.gradients);
    *elements = model.gpt.parameters.elements;
    small_model_release(&model);
    return gradients;
}

/* States and weights are kept, so a layer that runs forward again reads what it has read. */
UNIT_TEST(recompute_has_the_same_gradients) {
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        uint64_t elements;
        float *kept = gradients_of(false, type, &elements), *again = gradients_of(true, type, &elements);
        assert_memory_equal(kept, again, elements * sizeof *kept);
        free(kept);
        free(again);
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
    const struct model_config config = config_with_heads();
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    small_model_randomise(&model, 7);
    const size_t count = gpt_tokens(&model.gpt) * model.gpt.vocabulary;
    float *training = logits_in(&model, GPT_TRAINING), *inference = logits_in(&model, GPT_INFERENCE),
          *analysis = logits_in(&model, GPT_ANALYSIS);
    assert_memory_equal(training, inference, count * sizeof *training);
    assert_memory_equal(training, analysis, count * sizeof *training);
    free(training);
    free(inference);
    free(analysis);
    small_model_release(&model);
}

UNIT_TEST(what_has_no_sense_is_refused) {
    struct model_config config = config_of("mudd");
    config.n_streams = 4; /* the option's default */
    require(model_config_check(&config));
    assert_int_equal(config.n_streams, 1);
    config.stream_expand = STREAM_EXPAND_SCALED;
    assert_error(model_config_check(&config), "stream_expand = scaled: 'mudd' has one stream");
    config = config_of("mudd");
    config.read_delay = true;
    assert_error(model_config_check(&config), "read_delay = true: 'mudd' has no H_pre");
}

/* The arena's gaps stay zero: rows of weights end in one behind b. */
UNIT_TEST(nothing_is_written_between_parameters) {
    uint64_t elements;
    float *gradients = gradients_of(false, ELEMENT_FP32, &elements);
    const struct model_config config = config_with_heads();
    struct parameters parameters;
    parameters_create(&config, &parameters);
    bool *owned = calloc(elements, sizeof *owned);
    for (size_t i = 0; i < parameters.count; i++) {
        memset(owned + parameters.table[i].offset, true, parameters.table[i].elements);
    }
    for (uint64_t i = 0; i < elements; i++) {
        assert_true(owned[i] || gradients[i] == 0.0f);
    }
    free(owned);
    free(gradients);
    parameters_release(&parameters);
}

SMALL_MODEL_TEST_MAIN(compute)
