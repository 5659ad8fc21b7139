/* Optimizer states in bf16: their stochastic rounding against the same rule on the host, its mean, what it keeps
 * exactly; and that it depends on seed, iteration and element alone. */
#include "runtime/system/random.h"
#include "src/model/adamw.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

static void create(struct small_model *model, size_t optimizer) {
    const struct model_config config = small_model_config("shc", 4);
    const struct gpt_options options = {.batch = 3,
                                        .sequence = config.block_size,
                                        .mode = GPT_TRAINING,
                                        .optimizer = optimizer_at(optimizer),
                                        .moments = ELEMENT_BF16};
    small_model_create_planned(model, compute, &config, &options);
}

/* With decays of 0 the states are what the gradients make them: g, g^2, and g for Muon's momentum, too. */
static const struct optimizer_settings settings = {.learning_rate = 1e-3,
                                                   .min_lr = 1e-3,
                                                   .lr_decay_iters = 1000,
                                                   .moments = ELEMENT_BF16,
                                                   .muon_steps = 1,
                                                   USUAL_RATES};

/* Steps on all elements, in two ranges at `cut`, with these gradients [elements] and pass seed. */
static void step(struct small_model *model, const float *gradients, uint64_t seed, int64_t iteration,
                 uint64_t cut) {
    struct gpt *gpt = &model->gpt;
    const uint64_t elements = gpt->parameters.elements;
    const float norm = 1.0f;
    gpt->pass.seed = seed;
    small_model_require(buffer_write_floats(compute, gpt->parameters.gradients, 0, gradients, elements));
    small_model_require(buffer_write(compute, gpt->gradient_norm, 0, &norm, sizeof norm));
    optimizer_update(gpt, &settings, iteration, (struct optimizer_range){0, cut, {0, 0}});
    optimizer_update(gpt, &settings, iteration, (struct optimizer_range){cut, elements - cut, {cut, cut}});
}

/* A state [elements], as bits; the caller frees it. */
static uint16_t *read_bits(const struct small_model *model, size_t state) {
    const uint64_t elements = model->gpt.parameters.elements;
    uint16_t *bits = malloc(elements * sizeof *bits);
    assert_int_equal(model->gpt.parameters.states[state]->bytes, elements * sizeof *bits);
    small_model_require(
        buffer_read(compute, model->gpt.parameters.states[state], 0, bits, elements * sizeof *bits));
    return bits;
}

/* The bf16 number below x or above it towards infinity, chosen by 16 random bits; in double. */
static uint16_t round_on_host(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t lower = (uint16_t)(bits >> 16), upper = (uint16_t)(lower + 1);
    const double from = fabs((double)element_decode(lower, ELEMENT_BF16)),
                 to = fabs((double)element_decode(upper, ELEMENT_BF16));
    if (isnan(x)) {
        return (uint16_t)(lower | 0x40);
    }
    if (isinf(x) || isinf((float)to)) {
        return lower;
    }
    return (fabs((double)x) - from) / (to - from) + (double)random * 0x1p-16 >= 1.0 ? upper : lower;
}

/* The bits that a state of an element must have: state 0 or 1. */
static uint16_t expected(const struct small_model *model, uint64_t element, size_t state, float x,
                         int64_t iteration) {
    const uint64_t key = rounding_key(&model->gpt, iteration);
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t words[4];
    random_philox(counter, keys, words);
    return round_on_host(x, state == 0 ? words[0] & 0xffff : words[0] >> 16);
}

static float *random_gradients(const struct small_model *model) {
    const uint64_t elements = model->gpt.parameters.elements;
    float *values = malloc(elements * sizeof *values);
    random_normal(random_key(3, "gradients"), 0, elements, 0.0, 1.0, values);
    return values;
}

static void assert_rounded(const struct small_model *model, const float *gradients, int64_t iteration,
                           size_t state) {
    uint16_t *bits = read_bits(model, state);
    for (uint64_t i = 0; i < model->gpt.parameters.elements; i++) {
        const float x = state == 0 ? gradients[i] : gradients[i] * gradients[i];
        if (bits[i] != expected(model, i, state, x, iteration)) {
            fail_msg("state %zu of element %llu: %g became %g", state, (unsigned long long)i, (double)x,
                     (double)element_decode(bits[i], ELEMENT_BF16));
        }
    }
    free(bits);
}

UNIT_TEST(adamw_rounds_as_the_host_does) {
    struct small_model model;
    create(&model, 0);
    float *gradients = random_gradients(&model);
    step(&model, gradients, 7, 5, 0);
    assert_rounded(&model, gradients, 5, 0);
    assert_rounded(&model, gradients, 5, 1);
    step(&model, gradients, 7, 6, 1001); /* at no multiple of a vector: the kernel for any place */
    assert_rounded(&model, gradients, 6, 0);
    assert_rounded(&model, gradients, 6, 1);
    free(gradients);
    small_model_release(&model);
}

/* Of the parameters, matrices and others: gaps between matrices have no momentum. */
UNIT_TEST(muon_rounds_as_the_host_does) {
    struct small_model model;
    create(&model, 1);
    const struct parameters *parameters = &model.gpt.parameters;
    float *gradients = random_gradients(&model);
    step(&model, gradients, 9, 2, 0);
    uint16_t *bits = malloc(parameters->elements * sizeof *bits);
    small_model_require(buffer_read(compute, parameters->states[0], 0, bits, parameters->elements * sizeof *bits));
    size_t compared = 0;
    for (size_t k = 0; k < parameters->count; k++) {
        const struct parameter *parameter = &parameters->table[k];
        for (uint64_t i = parameter->offset; i < parameter->offset + parameter->elements; i++) {
            assert_int_equal(bits[i], expected(&model, i, 0, gradients[i], 2));
            compared += parameter->matrices[0] > 0;
        }
    }
    assert_true(compared > 1000);
    free(bits);
    free(gradients);
    small_model_release(&model);
}

/* The mean of n numbers that are one unit apart is within 5 deviations, 5 / (2 sqrt(n)) units, of x. Rounding to
 * nearest would be off by 0.3 units. */
UNIT_TEST(mean_of_rounded_numbers_is_right) {
    struct small_model model;
    create(&model, 0);
    const uint64_t elements = model.gpt.parameters.elements;
    float *gradients = malloc(elements * sizeof *gradients);
    for (uint64_t i = 0; i < elements; i++) {
        gradients[i] = i % 2 ? -1.0f - 0.3f * 0x1p-7f : 1.0f + 0.3f * 0x1p-7f;
    }
    step(&model, gradients, 1, 0, 0);
    uint16_t *bits = read_bits(&model, 0);
    double sum = 0.0;
    for (uint64_t i = 0; i < elements; i++) {
        sum += fabs((double)element_decode(bits[i], ELEMENT_BF16));
    }
    const double units = (sum / (double)elements - (double)gradients[0]) / 0x1p-7;
    assert_true(fabs(units) < 2.5 / sqrt((double)elements) && 2.5 / sqrt((double)elements) < 0.05);
    free(bits);
    free(gradients);
    small_model_release(&model);
}

UNIT_TEST(special_numbers_stay_what_they_are) {
    static const float special[] = {0.0f,   1.0f,    -2.5f,   INFINITY, -INFINITY, NAN,
                                    1e-40f, -3e-42f, FLT_MIN, FLT_MAX,  -FLT_MAX,  0x1.fffffep-126f};
    struct small_model model;
    create(&model, 0);
    float *gradients = random_gradients(&model);
    for (uint64_t i = 0; i < model.gpt.parameters.elements; i++) {
        gradients[i] = special[i % COUNT(special)];
    }
    step(&model, gradients, 1, 3, 0);
    assert_rounded(&model, gradients, 3, 0);
    uint16_t *bits = read_bits(&model, 0);
    for (size_t i = 0; i < COUNT(special); i++) {
        const float x = special[i], rounded = element_decode(bits[i], ELEMENT_BF16);
        assert_true(isnan(x) ? isnan(rounded) : isinf(x) ? rounded == x : isfinite(rounded));
        assert_true(!(fabsf(x) <= 8.0f) || fabsf(x) < 1.0f || rounded == x); /* 1 and 2.5 are numbers of bf16 */
    }
    free(bits);
    free(gradients);
    small_model_release(&model);
}

/* How many of the first moments two steps round alike. */
static uint64_t count_alike(struct small_model *model, const float *gradients, uint64_t seed, int64_t iteration) {
    step(model, gradients, 1, 1, 0);
    uint16_t *first = read_bits(model, 0);
    step(model, gradients, seed, iteration, 0);
    uint16_t *second = read_bits(model, 0);
    uint64_t alike = 0;
    for (uint64_t i = 0; i < model->gpt.parameters.elements; i++) {
        alike += first[i] == second[i];
    }
    free(first);
    free(second);
    return alike;
}

UNIT_TEST(bits_depend_on_seed_and_iteration) {
    struct small_model model;
    create(&model, 0);
    const uint64_t elements = model.gpt.parameters.elements;
    float *gradients = random_gradients(&model);
    assert_int_equal(count_alike(&model, gradients, 1, 1), elements);
    assert_true(count_alike(&model, gradients, 2, 1) < elements * 3 / 4); /* 2/3 of random numbers */
    assert_true(count_alike(&model, gradients, 1, 2) < elements * 3 / 4);
    free(gradients);
    small_model_release(&model);
}

SMALL_MODEL_TEST_MAIN(compute)
