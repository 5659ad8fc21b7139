/* Training by Muon, beside what test_golden has of whole steps, with a rate for each group of parameters, and
 * test_operations of its kernels: groups that stay; 16 bits; and what the iterations cost. */
#include "src/operations/muon.h"
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
    const struct gpt_options options = {.type = type,
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

/* Forward, backward, and a step; the gradients stay in the arena. The norm of the gradients. */
static float step(struct small_model *model, const struct optimizer_settings *settings, int64_t iteration) {
    float norm;
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    optimizer_step(&model->gpt, settings, iteration);
    small_model_require(buffer_read(compute, model->gpt.gradient_norm, 0, &norm, sizeof norm));
    return norm;
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
