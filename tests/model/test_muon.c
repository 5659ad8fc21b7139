/* Training by Muon, beside what test_golden and test_operations have of it: whole steps against double precision,
 * with a rate for each group of parameters; groups that stay; 16 bits; and what the iterations cost. */
#include "runtime/system/memory.h"
#include "src/operations/muon.h"
#include "tests/support/reference.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

/* One shape for all, each of whose kernels is compiled for each type. Weights are random. */
static void create(struct small_model *model, enum element_type type, bool freeze_alpha_res) {
    assert_string_equal(optimizer_at(1)->name, "muon");
    struct model_config config = small_model_config("mhc", 4);
    config.tie_embeddings = false;
    const struct gpt_options options = {.batch = 3,
                                        .sequence = config.block_size,
                                        .mode = GPT_TRAINING,
                                        .type = type,
                                        .optimizer = {.optimizer = 1,
                                                      .freeze_alpha_res = freeze_alpha_res,
                                                      .muon_dtype = type == ELEMENT_BF16 ? MUON_BF16 : MUON_FP32}};
    small_model_create_planned(model, compute, &config, &options);
    small_model_randomise(model, 5);
}

/* Every group has a rate of its own. */
static const struct optimizer_settings own_rates = {.optimizer = 1,
                                                    .learning_rate = 0.01,
                                                    .min_lr = 0.01,
                                                    .lr_decay_iters = 1000,
                                                    .weight_decay = 0.1,
                                                    .grad_clip = 0.5,
                                                    .beta1 = 0.9,
                                                    .beta2 = 0.95,
                                                    .adam_eps = 1e-8,
                                                    .embed_learning_rate = 0.02,
                                                    .head_learning_rate = 0.03,
                                                    .scalar_learning_rate = 0.005,
                                                    .new_learning_rate = -1.0,
                                                    .muon_momentum = 0.9,
                                                    .muon_learning_rate = 0.04,
                                                    .muon_weight_decay = 0.2,
                                                    .muon_steps = 5};

enum group { EMBEDDINGS, HEAD, SCALARS, MATRICES, OTHERS, GROUPS };

/* By name, rank and table, where src/model/adamw.c looks at offsets. */
static enum group group_of(const struct parameter *parameter) {
    return strstr(parameter->name, ".wte.") || strstr(parameter->name, ".wpe.") ? EMBEDDINGS
           : strncmp(parameter->name, "lm_head.", 8) == 0                       ? HEAD
           : parameter->rank < 2                                                ? SCALARS
           : parameter->matrices[0]                                             ? MATRICES
                                                                                : OTHERS;
}

static double rate_of(enum group group) {
    const double rates[GROUPS] = {[EMBEDDINGS] = own_rates.embed_learning_rate,
                                  [HEAD] = own_rates.head_learning_rate,
                                  [SCALARS] = own_rates.scalar_learning_rate,
                                  [MATRICES] = own_rates.muon_learning_rate,
                                  [OTHERS] = own_rates.learning_rate};
    return rates[group];
}

/* Forward, backward, and a step; the gradients stay in the arena. The norm of the gradients. */
static float step(struct small_model *model, const struct optimizer_settings *settings, int64_t iteration) {
    float norm;
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    optimizer_step(&model->gpt, settings, iteration);
    small_model_require(buffer_read(compute, model->gpt.gradient_norm, 0, &norm, sizeof norm));
    return norm;
}

/* ---- against double precision */

struct moments {
    double *first, *second; /* [elements]; first: also the momentum */
};

/* A matrix after its step: `weights` and `momentum` change; gradients are clipped. */
static void step_matrix(size_t rows, size_t columns, const double *gradients, double *weights, double *momentum) {
    const float coefficients[3] = {3.4445f, -4.7750f, 2.0315f};
    const size_t count = rows * columns;
    const double mu = own_rates.muon_momentum, rate = own_rates.muon_learning_rate;
    double *x = memory_allocate(count, sizeof *x);
    for (size_t i = 0; i < count; i++) {
        momentum[i] = mu * momentum[i] + (1.0 - mu) * gradients[i];
        x[i] = (1.0 - mu) * gradients[i] + mu * momentum[i];
    }
    const double size = sqrt(reference_dot(count, x, x));
    for (size_t i = 0; i < count; i++) {
        x[i] /= size;
    }
    reference_newton_schulz(rows, columns, own_rates.muon_steps, coefficients, x);
    for (size_t i = 0; i < count; i++) {
        weights[i] -= rate * own_rates.muon_weight_decay * weights[i];
        weights[i] -= rate * 0.2 * sqrt(fmax((double)rows, (double)columns)) * x[i];
    }
    free(x);
}

/* A parameter after its step; gradients [its elements] are not clipped. */
static void step_parameter(const struct parameter *parameter, const float *gradients, double norm,
                           int64_t iteration, struct moments moments, double *weights) {
    const enum group group = group_of(parameter);
    const struct reference_adamw adamw = {rate_of(group),      own_rates.beta1,
                                          own_rates.beta2,     parameter->decayed ? own_rates.weight_decay : 0.0,
                                          own_rates.grad_clip, norm,
                                          iteration + 1,       0.0};
    double *clipped = memory_allocate(parameter->elements, sizeof *clipped);
    for (uint64_t i = 0; i < parameter->elements; i++) {
        clipped[i] = (double)gradients[i] * fmin(1.0, own_rates.grad_clip / (norm + 1e-6));
        if (group != MATRICES) {
            reference_adamw(&adamw, (double)gradients[i], weights + i, moments.first + i, moments.second + i);
        }
    }
    uint64_t at = 0;
    for (int k = 0; k < PARAMETER_MOST_MATRICES && parameter->matrices[k]; k++) {
        step_matrix(parameter->matrices[k], parameter->shape[1], clipped + at, weights + at, moments.first + at);
        at += parameter->matrices[k] * parameter->shape[1];
    }
    assert_true(group != MATRICES || at == parameter->elements);
    free(clipped);
}

/* How far a parameter is from the reference, relative to its change. Without a gradient it has none. */
static double distance(const struct parameter *parameter, const float *before, const double *expected,
                       const float *after) {
    double error = 0.0, change = 0.0;
    for (uint64_t i = 0; i < parameter->elements; i++) {
        error += pow((double)after[i] - expected[i], 2.0);
        change += pow((double)before[i] - expected[i], 2.0);
    }
    assert_true(change > 0.0 || error == 0.0);
    return change > 0.0 ? sqrt(error / change) : 0.0;
}

/* One step of the model, and of the reference, which begins with the model's weights and has moments of its own. */
static void compare_step(struct small_model *model, int64_t iteration, struct moments moments, double worst[GROUPS],
                         size_t counts[GROUPS]) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *before = small_model_read(model, parameters->weights);
    const float norm = step(model, &own_rates, iteration);
    float *gradients = small_model_read(model, parameters->gradients);
    float *after = small_model_read(model, parameters->weights);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const uint64_t at = parameter->offset;
        const enum group group = group_of(parameter);
        double *expected = memory_allocate(parameter->elements, sizeof *expected);
        for (uint64_t k = 0; k < parameter->elements; k++) {
            expected[k] = (double)before[at + k];
        }
        step_parameter(parameter, gradients + at, (double)norm, iteration,
                       (struct moments){moments.first + at, moments.second + at}, expected);
        worst[group] = fmax(worst[group], distance(parameter, before + at, expected, after + at));
        counts[group]++;
        free(expected);
    }
    free(before);
    free(gradients);
    free(after);
}

UNIT_TEST(steps_with_rates_of_groups_are_those_of_double_precision) {
    struct small_model model;
    create(&model, ELEMENT_FP32, false);
    const size_t elements = model.gpt.parameters.elements;
    const struct moments moments = {memory_zeroed(elements, sizeof(double)),
                                    memory_zeroed(elements, sizeof(double))};
    double worst[GROUPS] = {0.0};
    size_t counts[GROUPS] = {0};
    for (int64_t iteration = 0; iteration < 2; iteration++) {
        compare_step(&model, iteration, moments, worst, counts);
    }
    for (size_t group = 0; group < GROUPS; group++) {
        print_message("  group %zu: %zu parameters, error %.1e\n", group, counts[group], worst[group]);
        assert_true(counts[group] > 0 && worst[group] < 1e-4);
    }
    free(moments.first);
    free(moments.second);
    small_model_release(&model);
}

/* ---- what stays */

static bool is_same(const struct parameter *parameter, const float *one, const float *other) {
    return memcmp(one + parameter->offset, other + parameter->offset, parameter->elements * sizeof *one) == 0;
}

/* A step with these settings leaves the group to the bit, and moves all others. */
static void check_frozen(struct small_model *model, const struct optimizer_settings *settings, enum group frozen) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *before = small_model_read(model, parameters->weights);
    step(model, settings, 0);
    float *after = small_model_read(model, parameters->weights);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        const bool stays = group_of(parameter) == frozen || parameter_is_alpha_res(parameter);
        if (is_same(parameter, before, after) != stays) {
            fail_msg("%s %s", parameter->name, stays ? "moves" : "stays");
        }
    }
    free(before);
    free(after);
}

/* alpha_res is frozen all the time, where decay would move it. */
UNIT_TEST(groups_whose_rate_is_zero_stay) {
    struct optimizer_settings settings[MATRICES + 1] = {own_rates, own_rates, own_rates, own_rates};
    struct small_model model;
    settings[EMBEDDINGS].embed_learning_rate = 0.0;
    settings[HEAD].head_learning_rate = 0.0;
    settings[SCALARS].scalar_learning_rate = 0.0;
    settings[MATRICES].muon_learning_rate = 0.0;
    create(&model, ELEMENT_FP32, true);
    for (size_t group = 0; group < COUNT(settings); group++) {
        settings[group].decay_all = true;
        check_frozen(&model, &settings[group], (enum group)group);
    }
    small_model_release(&model);
}

/* ---- 16 bits */

/* What one step makes of all matrices: their change, and their momentum; both [elements], zero elsewhere. */
struct outcome {
    float *change, *momentum;
};

static struct outcome step_matrices(struct small_model *model) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *before = small_model_read(model, parameters->weights);
    step(model, &own_rates, 0);
    float *after = small_model_read(model, parameters->weights);
    float *momentum = small_model_read(model, parameters->states[0]);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        for (uint64_t k = parameter->offset; k < parameter->offset + parameter->elements; k++) {
            after[k] = parameter->matrices[0] ? after[k] - before[k] : 0.0f;
            momentum[k] = parameter->matrices[0] ? momentum[k] : 0.0f;
        }
    }
    free(before);
    return (struct outcome){after, momentum};
}

/* Gradients differ by what the pass rounds. In bf16 the iterations round as well; in fp16 they are in fp32. */
UNIT_TEST(a_step_in_16_bits_is_near_that_in_32) {
    static const double bounds[] = {[ELEMENT_BF16] = 0.1, [ELEMENT_FP16] = 0.01};
    struct outcome outcomes[3];
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        struct small_model model;
        create(&model, type, false);
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
        small_model_release(&model);
    }
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        free(outcomes[type].change);
        free(outcomes[type].momentum);
    }
}

/* ---- the cost */

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
