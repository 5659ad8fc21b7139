/* What is kept in bf16 between steps. Optimizer states: their stochastic rounding against the same rule on the
 * host, its mean, what it keeps exactly, and what random bits depend on: seed, iteration and element alone.
 * Weights: passes and steps as with fp32 weights of the same values, rounded by this rule. And Muon in 16 bits,
 * beside what test_golden has of whole steps and test_operations of its kernels. */
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/model/optimizer.h"
#include "src/operations/muon.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

static void create(struct small_model *model, size_t optimizer) {
    const struct model_config config = small_model_config("shc", 4);
    const struct gpt_options options = {.optimizer = {.optimizer = (int)optimizer, .moments = ELEMENT_BF16}};
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
    require(buffer_write_floats(compute, gpt->parameters.gradients, 0, gradients, elements));
    require(buffer_write(compute, gpt->gradient_norm, 0, &norm, sizeof norm));
    optimizer_update(gpt, &settings, iteration, (struct optimizer_range){0, cut, {0, 0}});
    optimizer_update(gpt, &settings, iteration, (struct optimizer_range){cut, elements - cut, {cut, cut}});
}

/* A state [elements], as bits; the caller frees it. */
static uint16_t *read_bits(const struct small_model *model, size_t state) {
    const uint64_t elements = model->gpt.parameters.elements;
    uint16_t *bits = malloc(elements * sizeof *bits);
    assert_int_equal(model->gpt.parameters.states[state]->bytes, elements * sizeof *bits);
    require(buffer_read(compute, model->gpt.parameters.states[state], 0, bits, elements * sizeof *bits));
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

enum kept { KEPT_FIRST, KEPT_SECOND, KEPT_WEIGHT };

/* The bits that a state of an element must have, or its weight. */
static uint16_t expected(const struct small_model *model, uint64_t element, enum kept kept, float x,
                         int64_t iteration) {
    const uint64_t key = rounding_key(&model->gpt, iteration);
    const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), 0, 0};
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t words[4];
    random_philox(counter, keys, words);
    return round_on_host(x, kept == KEPT_FIRST    ? words[0] & 0xffff
                            : kept == KEPT_SECOND ? words[0] >> 16
                                                  : words[1] & 0xffff);
}

static float *random_gradients(const struct small_model *model) {
    const uint64_t elements = model->gpt.parameters.elements;
    float *values = malloc(elements * sizeof *values);
    random_normal(random_key(3, "gradients"), 0, elements, 0.0, 1.0, values);
    return values;
}

/* Of the parameters: gaps between matrices have no momentum. */
static void assert_rounded(const struct small_model *model, const float *gradients, int64_t iteration,
                           size_t state) {
    const struct parameters *parameters = &model->gpt.parameters;
    FREED uint16_t *bits = malloc(parameters->elements * sizeof *bits);
    require(buffer_read(compute, parameters->states[state], 0, bits, parameters->elements * sizeof *bits));
    for (size_t k = 0; k < parameters->count; k++) {
        const struct parameter *parameter = &parameters->table[k];
        for (uint64_t i = parameter->offset; i < parameter->offset + parameter->elements; i++) {
            const float x = state == 0 ? gradients[i] : gradients[i] * gradients[i];
            if (bits[i] != expected(model, i, state == 0 ? KEPT_FIRST : KEPT_SECOND, x, iteration)) {
                fail_msg("state %zu of element %llu of %s: %g became %g", state, (unsigned long long)i,
                         parameter->name, (double)x, (double)element_decode(bits[i], ELEMENT_BF16));
            }
        }
    }
}

UNIT_TEST(states_round_as_the_host_does) {
    for (size_t optimizer = 0; optimizer < 2; optimizer++) {
        SMALL_MODEL model;
        create(&model, optimizer);
        FREED float *gradients = random_gradients(&model);
        step(&model, gradients, 7, 5, 0);
        assert_rounded(&model, gradients, 5, 0);
        if (optimizer == 0) { /* Muon has second moments of some parameters alone, and takes no part of a matrix */
            assert_rounded(&model, gradients, 5, 1);
            step(&model, gradients, 7, 6, 1001); /* at no multiple of a vector: the kernel for any place */
            assert_rounded(&model, gradients, 6, 0);
            assert_rounded(&model, gradients, 6, 1);
        }
    }
}

/* The mean of n numbers that are one unit apart is within 5 deviations, 5 / (2 sqrt(n)) units, of x. Rounding to
 * nearest would be off by 0.3 units. */
UNIT_TEST(mean_of_rounded_numbers_is_right) {
    SMALL_MODEL model;
    create(&model, 0);
    const uint64_t elements = model.gpt.parameters.elements;
    FREED float *gradients = malloc(elements * sizeof *gradients);
    for (uint64_t i = 0; i < elements; i++) {
        gradients[i] = i % 2 ? -1.0f - 0.3f * 0x1p-7f : 1.0f + 0.3f * 0x1p-7f;
    }
    step(&model, gradients, 1, 0, 0);
    FREED uint16_t *bits = read_bits(&model, 0);
    double sum = 0.0;
    for (uint64_t i = 0; i < elements; i++) {
        sum += fabs((double)element_decode(bits[i], ELEMENT_BF16));
    }
    const double units = (sum / (double)elements - (double)gradients[0]) / 0x1p-7;
    assert_true(fabs(units) < 2.5 / sqrt((double)elements) && 2.5 / sqrt((double)elements) < 0.05);
}

UNIT_TEST(special_numbers_stay_what_they_are) {
    static const float special[] = {0.0f,   1.0f,    -2.5f,   INFINITY, -INFINITY, NAN,
                                    1e-40f, -3e-42f, FLT_MIN, FLT_MAX,  -FLT_MAX,  0x1.fffffep-126f};
    SMALL_MODEL model;
    create(&model, 0);
    FREED float *gradients = random_gradients(&model);
    for (uint64_t i = 0; i < model.gpt.parameters.elements; i++) {
        gradients[i] = special[i % COUNT(special)];
    }
    step(&model, gradients, 1, 3, 0);
    assert_rounded(&model, gradients, 3, 0);
    FREED uint16_t *bits = read_bits(&model, 0);
    for (size_t i = 0; i < COUNT(special); i++) {
        const float x = special[i], rounded = element_decode(bits[i], ELEMENT_BF16);
        assert_true(isnan(x) ? isnan(rounded) : isinf(x) ? rounded == x : isfinite(rounded));
        assert_true(!(fabsf(x) <= 8.0f) || fabsf(x) < 1.0f || rounded == x); /* 1 and 2.5 are numbers of bf16 */
    }
}

/* How many of the first moments two steps round alike. */
static uint64_t count_alike(struct small_model *model, const float *gradients, uint64_t seed, int64_t iteration) {
    step(model, gradients, 1, 1, 0);
    FREED uint16_t *first = read_bits(model, 0);
    step(model, gradients, seed, iteration, 0);
    FREED uint16_t *second = read_bits(model, 0);
    uint64_t alike = 0;
    for (uint64_t i = 0; i < model->gpt.parameters.elements; i++) {
        alike += first[i] == second[i];
    }
    return alike;
}

UNIT_TEST(bits_depend_on_seed_and_iteration) {
    SMALL_MODEL model;
    create(&model, 0);
    const uint64_t elements = model.gpt.parameters.elements;
    FREED float *gradients = random_gradients(&model);
    assert_int_equal(count_alike(&model, gradients, 1, 1), elements);
    assert_true(count_alike(&model, gradients, 2, 1) < elements * 3 / 4); /* 2/3 of random numbers */
    assert_true(count_alike(&model, gradients, 1, 2) < elements * 3 / 4);
}

/* ---- weights in bf16 */

/* Two models in bf16 with the same weights, numbers of bf16 where the second one has no fp32 of them. */
struct pair {
    struct small_model wide, narrow;
    float *gradients; /* [elements] */
};

static void create_pair(struct pair *pair, const struct model_config *config, size_t optimizer,
                        enum element_type moments) {
    struct gpt_options options = {.type = ELEMENT_BF16,
                                  .optimizer = {.optimizer = (int)optimizer,
                                                .muon_dtype = MUON_FP32,
                                                .moments = moments}};
    small_model_create_planned(&pair->wide, compute, config, &options);
    options.optimizer.master = ELEMENT_BF16;
    small_model_create_planned(&pair->narrow, compute, config, &options);
    small_model_randomise(&pair->narrow, 5);
    const struct parameters *parameters = &pair->narrow.gpt.parameters;
    FREED float *values = malloc(parameters->elements * sizeof *values);
    require(parameters_read(compute, parameters, 0, parameters->elements, values));
    require(parameters_write(compute, &pair->wide.gpt.parameters, 0, parameters->elements, values));
    parameters_round(compute, &pair->wide.gpt.parameters);
    pair->gradients = random_gradients(&pair->narrow);
}

static void release_pair(struct pair *pair) {
    small_model_release(&pair->wide);
    small_model_release(&pair->narrow);
    free(pair->gradients);
}

static struct model_config normed_embeddings(void) {
    struct model_config config = small_model_config("shc", 4);
    config.embed_norm = true;
    config.stream_expand = STREAM_EXPAND_SCALED;
    return config;
}

UNIT_TEST(passes_are_those_of_fp32_weights) {
    const struct model_config configs[] = {small_model_config("rc", 1), small_model_config("mhc", 2),
                                           normed_embeddings()};
    for (size_t i = 0; i < COUNT(configs); i++) {
        struct pair pair;
        create_pair(&pair, &configs[i], 0, ELEMENT_FP32);
        const size_t bytes = pair.narrow.gpt.parameters.elements * sizeof(float);
        const float wide = small_model_backward(&pair.wide, (struct gpt_pass){.dropout = false});
        const float narrow = small_model_backward(&pair.narrow, (struct gpt_pass){.dropout = false});
        assert_memory_equal(&wide, &narrow, sizeof wide);
        FREED float *first = small_model_read(&pair.wide, pair.wide.gpt.parameters.gradients);
        FREED float *second = small_model_read(&pair.narrow, pair.narrow.gpt.parameters.gradients);
        assert_memory_equal(first, second, bytes);
        release_pair(&pair);
    }
}

/* Both models make the same step; the narrow weights are what the others became, rounded. */
static void compare_step(struct pair *pair, int64_t iteration, uint64_t cut) {
    const struct parameters *parameters = &pair->narrow.gpt.parameters;
    const uint64_t elements = parameters->elements;
    step(&pair->wide, pair->gradients, 11, iteration, cut);
    step(&pair->narrow, pair->gradients, 11, iteration, cut);
    FREED float *wide = small_model_read(&pair->wide, pair->wide.gpt.parameters.weights);
    FREED float *narrow = malloc(elements * sizeof *narrow);
    require(parameters_read(compute, parameters, 0, elements, narrow));
    assert_memory_equal(wide, narrow, parameters->lowp_only_from * sizeof *wide);
    size_t nearest = 0, compared = 0;
    for (size_t k = 0; k < parameters->count; k++) {
        const struct parameter *parameter = &parameters->table[k];
        for (uint64_t i = parameter->offset; parameter->lowp_only && i < parameter->offset + parameter->elements;
             i++) {
            const uint16_t bits = expected(&pair->narrow, i, KEPT_WEIGHT, wide[i], iteration);
            if (bits != element_encode(narrow[i], ELEMENT_BF16)) {
                fail_msg("%s, element %llu: %g became %g", parameter->name, (unsigned long long)i, (double)wide[i],
                         (double)narrow[i]);
            }
            nearest += bits == element_encode(wide[i], ELEMENT_BF16);
            compared++;
        }
    }
    assert_true(compared > 3000 && nearest > compared / 2 && nearest < compared * 9 / 10); /* 3 of 4 */
}

UNIT_TEST(steps_round_weights_as_the_host_does) {
    static const uint64_t cuts[] = {0, 1001, 4097}; /* the last two at no multiple of a vector */
    const struct model_config config = small_model_config("shc", 4);
    for (size_t optimizer = 0; optimizer_at(optimizer); optimizer++) {
        for (int moments = ELEMENT_FP32; moments <= ELEMENT_BF16; moments++) {
            for (size_t i = 0; i < (optimizer ? 1 : COUNT(cuts)); i++) {
                struct pair pair;
                create_pair(&pair, &config, optimizer, (enum element_type)moments);
                assert_true(cuts[i] <= pair.narrow.gpt.parameters.elements);
                compare_step(&pair, 4, cuts[i]);
                release_pair(&pair);
            }
        }
    }
}

/* Steps that are much smaller than the distance of numbers of bf16 move the mean of weights all the same. */
UNIT_TEST(small_steps_are_not_lost) {
    struct pair pair;
    const struct model_config config = small_model_config("shc", 4);
    create_pair(&pair, &config, 0, ELEMENT_FP32);
    struct parameters *parameters = &pair.narrow.gpt.parameters;
    FREED float *values = malloc(parameters->elements * sizeof *values);
    for (uint64_t i = 0; i < parameters->elements; i++) {
        values[i] = 1.0f;
        pair.gradients[i] = -1.0f; /* so that a step adds the rate, 1e-3 */
    }
    require(parameters_write(compute, parameters, 0, parameters->elements, values));
    for (int64_t iteration = 0; iteration < 8; iteration++) {
        step(&pair.narrow, pair.gradients, 3, iteration, 0);
    }
    require(parameters_read(compute, parameters, 0, parameters->elements, values));
    double sum = 0.0;
    for (uint64_t i = parameters->lowp_only_from; i < parameters->elements; i++) {
        sum += (double)values[i] - 1.0;
    }
    const double count = (double)(parameters->elements - parameters->lowp_only_from);
    print_message("  8 steps of 1e-3 from 1: mean %.5f, where bf16 has 1 and 1.0078125\n", sum / count);
    assert_true(fabs(sum / count - 8e-3) < 5.0 * 0x1p-7 * sqrt(2.0 / count));
    release_pair(&pair);
}

UNIT_TEST(fp32_weights_are_only_the_small_ones) {
    struct pair pair;
    const struct model_config config = small_model_config("mhc", 4);
    create_pair(&pair, &config, 0, ELEMENT_FP32);
    const struct parameters *parameters = &pair.narrow.gpt.parameters;
    assert_int_equal(parameters->weights->bytes, parameters->lowp_only_from * sizeof(float));
    assert_int_equal(pair.wide.gpt.parameters.weights->bytes, parameters->elements * sizeof(float));
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const bool is_narrow =
            strstr(parameter->name, "wte") || strstr(parameter->name, "wpe") || strstr(parameter->name, ".c_");
        assert_int_equal(parameter->lowp_only, is_narrow && parameter->rank == 2);
        assert_int_equal(parameter->lowp_only, parameter->offset >= parameters->lowp_only_from);
        assert_int_equal(parameter->decayed, parameter->offset >= parameters->decayed_from);
    }
    release_pair(&pair);
}

UNIT_TEST(other_types_are_refused) {
    const struct model_config config = small_model_config("rc", 1);
    for (int type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        const struct gpt_options options = {.batch = 1,
                                            .sequence = 8,
                                            .mode = GPT_TRAINING,
                                            .type = (enum element_type)type,
                                            .optimizer = {.master = ELEMENT_BF16}};
        struct gpt gpt;
        assert_int_equal(gpt_plan(compute, &config, &options, &gpt) == 0, type == ELEMENT_BF16);
        assert_true(type == ELEMENT_BF16 || strstr(error_text(), "master = bf16 needs dtype = bf16"));
        gpt_release(&gpt);
    }
}

/* ---- rates and decay of groups of parameters */

/* What one step of gradient `value` makes of all weights, each 2 before it; heap memory. */
static float *step_from_two(struct small_model *model, const struct optimizer_settings *given, float value) {
    struct gpt *gpt = &model->gpt;
    const uint64_t elements = gpt->parameters.elements;
    const float norm = 1.0f;
    float *values = malloc(elements * sizeof *values);
    for (uint64_t i = 0; i < elements; i++) {
        values[i] = value;
    }
    require(buffer_write_floats(compute, gpt->parameters.gradients, 0, values, elements));
    require(buffer_write(compute, gpt->gradient_norm, 0, &norm, sizeof norm));
    for (uint64_t i = 0; i < elements; i++) {
        values[i] = 2.0f;
    }
    require(buffer_write_floats(compute, gpt->parameters.weights, 0, values, elements));
    optimizer_update(gpt, given, 0, (struct optimizer_range){0, elements, {0, 0}});
    require(buffer_read_floats(compute, gpt->parameters.weights, 0, values, elements));
    return values;
}

UNIT_TEST(only_gains_before_projections_decay_to_one) {
    static const char *const residuals[] = {"mhc", "laurel", "mudd", "dense", "attnres", "dar"};
    const struct optimizer_settings decaying = {.learning_rate = 0.1,
                                                .min_lr = 0.1,
                                                .lr_decay_iters = 1000,
                                                .weight_decay = 5.0,
                                                .decay_all = true,
                                                .decay_hc_gain = DECAY_TO_ONE,
                                                USUAL_RATES};
    for (size_t r = 0; r < COUNT(residuals); r++) {
        const struct model_config config = small_model_config(residuals[r], r ? 1 : 4);
        SMALL_MODEL model;
        small_model_create(&model, compute, &config, 1);
        FREED float *weights = step_from_two(&model, &decaying, 0.0f);
        for (size_t i = 0; i < model.gpt.parameters.count; i++) {
            const struct parameter *parameter = &model.gpt.parameters.table[i];
            const bool to_one = (strstr(parameter->name, ".hc_attn.") || strstr(parameter->name, ".hc_mlp.")) &&
                                strstr(parameter->name, ".norm.weight");
            assert_float_equal(weights[parameter->offset], to_one ? 1.5 : 1.0, 1e-6);
        }
    }
}

/* The first step of AdamW moves a weight by the rate. */
UNIT_TEST(named_rates_come_before_that_of_new_parameters) {
    struct optimizer_settings rates = {
        .learning_rate = 1e-3, .min_lr = 1e-3, .lr_decay_iters = 1000, .beta1 = 0.9, .beta2 = 0.9, USUAL_RATES};
    rates.new_learning_rate = 0.01;
    rates.x0_lambda_learning_rate = 0.5;
    rates.value_embed_learning_rate = 0.25;
    struct model_config config = small_model_config("mhc", 4);
    config.x0_lambdas = config.value_embeds = true;
    SMALL_MODEL model;
    small_model_create(&model, compute, &config, 1);
    FREED float *weights = step_from_two(&model, &rates, 1.0f);
    for (size_t i = 0; i < model.gpt.parameters.count; i++) {
        const struct parameter *parameter = &model.gpt.parameters.table[i];
        const double rate = strstr(parameter->name, "lambda_x0")            ? 0.5
                            : strstr(parameter->name, "value_embed.weight") ? 0.25
                            : parameter->auxiliary                          ? 0.01
                                                                            : 1e-3;
        assert_float_equal(weights[parameter->offset], 2.0 - rate, 1e-5);
    }
}

UNIT_TEST(rates_name_what_stands_for_them) {
    struct optimizer_settings rates = {USUAL_RATES};
    rates.resid_lambda_learning_rate = -0.5;
    assert_int_equal(optimizer_check(&rates), -1);
    assert_string_equal(error_text(), "resid_lambda_learning_rate = -0.5 is negative: give 0 or more, or -1 for "
                                      "scalar_learning_rate");
}

/* ---- Muon in 16 bits, and its cost */

/* What one step makes of all matrices: their change, and their momentum; both [elements], zero elsewhere. */
struct outcome {
    float *change, *momentum;
};

static const struct optimizer_settings muon = {.learning_rate = 0.01,
                                               .min_lr = 0.01,
                                               .lr_decay_iters = 1000,
                                               .weight_decay = 0.1,
                                               .grad_clip = 0.5,
                                               .muon_momentum = 0.9,
                                               .muon_steps = 5,
                                               USUAL_RATES};

static struct outcome step_matrices(struct small_model *model) {
    const struct parameters *parameters = &model->gpt.parameters;
    FREED float *before = small_model_read(model, parameters->weights);
    small_model_step(model, &muon, 0);
    float *after = small_model_read(model, parameters->weights);
    float *momentum = small_model_read(model, parameters->states[0]);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        for (uint64_t k = parameter->offset; k < parameter->offset + parameter->elements; k++) {
            after[k] = parameter->matrices[0] ? after[k] - before[k] : 0.0f;
            momentum[k] = parameter->matrices[0] ? momentum[k] : 0.0f;
        }
    }
    return (struct outcome){after, momentum};
}

/* Gradients differ by what the pass rounds. In bf16 the iterations round as well; in fp16 they are in fp32. */
UNIT_TEST(a_step_in_16_bits_is_near_that_in_32) {
    static const double bounds[] = {[ELEMENT_BF16] = 0.1, [ELEMENT_FP16] = 0.01};
    const struct model_config config = small_model_config("mhc", 4);
    struct outcome outcomes[3];
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        const struct gpt_options options = {.type = type,
                                            .optimizer = {.optimizer = 1,
                                                          .muon_dtype =
                                                              type == ELEMENT_BF16 ? MUON_BF16 : MUON_FP32}};
        SMALL_MODEL model;
        small_model_create_planned(&model, compute, &config, &options);
        small_model_randomise(&model, 5);
        model.gpt.loss_scale.scale = type == ELEMENT_FP16 ? 256.0f : 1.0f;
        outcomes[type] = step_matrices(&model);
        const size_t elements = model.gpt.parameters.elements;
        const struct outcome *fp32 = &outcomes[ELEMENT_FP32], *this = &outcomes[type];
        const double change = tensors_distance(this->change, fp32->change, elements) /
                              tensors_norm(fp32->change, elements),
                     momentum = tensors_distance(this->momentum, fp32->momentum, elements) /
                                tensors_norm(fp32->momentum, elements);
        print_message("  %s: change %.4f, momentum %.4f\n", element_name(type), change, momentum);
        assert_true(type == ELEMENT_FP32 || (change < bounds[type] && momentum < bounds[type]));
    }
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        free(outcomes[type].change);
        free(outcomes[type].momentum);
    }
}

/* By hand: GEMMs of [24, 24] make 2 * 24^3 FLOPs, those of X [96, 24] four times as many. */
UNIT_TEST(flops_are_those_of_the_gemms) {
    const double square = 2.0 * 24.0 * 24.0 * 24.0;
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 24, 5) == 5.0 * 3.0 * square);
    assert_true(newton_schulz_flops(ELEMENT_BF16, 24, 96, 5) == 5.0 * 9.0 * square);
    /* 3 steps of A and then 2, where the last step of both makes no A, and the first no P */
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 96, 5) == (2.0 * 8.0 + 9.0 + 5.0) * square);
    assert_true(newton_schulz_flops(ELEMENT_FP32, 96, 24, 5) == newton_schulz_flops(ELEMENT_FP32, 24, 96, 5));
    assert_true(newton_schulz_flops(ELEMENT_FP32, 24, 96, 1) == 9.0 * square);
}

SMALL_MODEL_TEST_MAIN(compute)
