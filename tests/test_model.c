/* Gradients of whole models against finite differences of their own loss: every variant, stream counts, biases,
 * both reductions, dropout, odd sizes.
 *
 * The loss is a float, so a difference is only good to some 1e-6 of the loss: steps are chosen so that it changes
 * by a few per cent, along directions in which the gradient says that it changes: each tensor's own gradient, and a
 * random direction tilted towards the whole gradient. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/random.h"
#include "tests/small_model.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHANGE    2e-2 /* of the loss between the two ends of a difference */
#define FARTHEST  0.3  /* that weights move, in all */
#define SMALLEST  5e-3 /* slope that can be told from the loss's rounding */
#define TOLERANCE 2e-2 /* relative, of a directional derivative */

struct model_case {
    const char *residual;
    int64_t streams, channels, heads;
    bool bias, norm_sum;
    double dropout;
};

static const struct model_case cases[] = {
    {"rc", 1, 12, 3, true, true, 0.2},         {"rc", 1, 16, 2, false, false, 0.0},
    {"identity", 3, 12, 3, false, false, 0.2}, {"hc", 2, 12, 3, true, false, 0.2},
    {"hc", 5, 16, 2, false, true, 0.0},        {"mhc", 2, 20, 4, true, true, 0.0},
    {"mhc", 3, 12, 3, false, false, 0.2},      {"mhc", 8, 16, 2, true, true, 0.0},
    {"mhc_lite", 2, 12, 3, true, false, 0.0},  {"mhc_lite", 5, 16, 2, false, true, 0.2},
    {"shc", 2, 12, 3, true, true, 0.2},        {"shc", 3, 20, 4, false, false, 0.0},
    {"shc", 5, 12, 3, true, false, 0.2},       {"shc", 8, 16, 2, false, true, 0.0},
};

static struct compute *compute;
static double worst;

static struct gpt_pass pass_of(const struct model_case *model_case) {
    return (struct gpt_pass){.dropout = model_case->dropout > 0.0, .seed = 5, .iteration = 3, .first_row = 1000};
}

/* The loss with weights + step * direction. */
static double loss_at(struct small_model *model, const struct model_case *model_case, const float *weights,
                      const float *direction, double step) {
    const size_t elements = model->gpt.parameters.elements;
    float *moved = malloc(elements * sizeof *moved), loss;
    for (size_t i = 0; i < elements; i++) {
        moved[i] = (float)((double)weights[i] + step * (double)direction[i]);
    }
    small_model_require(
        buffer_write(model->gpt.compute, model->gpt.parameters.weights, 0, moved, elements * sizeof *moved));
    gpt_zero_loss(&model->gpt);
    gpt_forward(&model->gpt, pass_of(model_case));
    gpt_loss(&model->gpt, 1.0f, false);
    small_model_require(gpt_read_results(&model->gpt, &loss, NULL));
    free(moved);
    return (double)loss;
}

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

static double slope(struct small_model *model, const struct model_case *model_case, const float *weights,
                    const float *direction, double step) {
    return (loss_at(model, model_case, weights, direction, 0.5 * step) -
            loss_at(model, model_case, weights, direction, -0.5 * step)) /
           step;
}

/* Whether the loss changes along the direction as the gradient says. Directions that change it too little are
 * passed over. */
static void check_direction(struct small_model *model, const struct model_case *model_case, const float *weights,
                            const float *gradient, const float *direction, const char *name) {
    const size_t elements = model->gpt.parameters.elements;
    const double expected = dot(gradient, direction, elements), length = sqrt(dot(direction, direction, elements));
    if (fabs(expected) <= SMALLEST * length) {
        return;
    }
    double difference = HUGE_VAL;
    double step = fmin(CHANGE / fabs(expected), FARTHEST / length);
    /* shorter steps where the loss bends */
    for (int halves = 0; halves < 4 && difference > 0.25 * TOLERANCE; halves++, step /= 2.0) {
        const double coarse = slope(model, model_case, weights, direction, step);
        const double fine = slope(model, model_case, weights, direction, 0.5 * step);
        difference = fmin(difference, fabs((4.0 * fine - coarse) / 3.0 / expected - 1.0)); /* Richardson */
    }
    worst = fmax(worst, difference);
    if (difference > TOLERANCE) {
        fail_msg("%s, %d streams: along %s the loss changes by %g of what the gradient says", model_case->residual,
                 (int)model_case->streams, name, 1.0 + difference);
    }
}

static void check_tensors(struct small_model *model, const struct model_case *model_case, const float *weights,
                          const float *gradient) {
    const struct parameters *parameters = &model->gpt.parameters;
    float *direction = calloc(parameters->elements, sizeof *direction);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        memset(direction, 0, parameters->elements * sizeof *direction);
        memcpy(direction + parameter->offset, gradient + parameter->offset,
               parameter->elements * sizeof *direction);
        check_direction(model, model_case, weights, gradient, direction, parameter->name);
    }
    free(direction);
}

static void check_random_directions(struct small_model *model, const struct model_case *model_case,
                                    const float *weights, const float *gradient) {
    const size_t elements = model->gpt.parameters.elements;
    float *direction = malloc(elements * sizeof *direction);
    const double length = sqrt(dot(gradient, gradient, elements));
    for (uint64_t trial = 0; trial < 4; trial++) {
        random_normal(random_key(trial, "direction"), 0, elements, 0.0, 1.0 / sqrt((double)elements), direction);
        for (size_t i = 0; i < elements; i++) {
            direction[i] += gradient[i] / (float)length;
        }
        check_direction(model, model_case, weights, gradient, direction, "a random direction");
    }
    free(direction);
}

static void gradients_agree_with_finite_differences(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct model_case *model_case = &cases[i];
        struct model_config config = small_model_config(model_case->residual, model_case->streams);
        struct small_model model;
        config.n_embd = model_case->channels;
        config.n_head = model_case->heads;
        config.vocab_size = 19;
        config.block_size = 7;
        config.bias = model_case->bias;
        config.norm_sum = model_case->norm_sum;
        config.dropout = model_case->dropout;
        small_model_create(&model, compute, &config, 3);
        small_model_randomise(&model, 7);
        small_model_backward(&model, pass_of(model_case));
        float *gradient = small_model_read(&model, model.gpt.parameters.gradients);
        float *weights = small_model_read(&model, model.gpt.parameters.weights);
        check_tensors(&model, model_case, weights, gradient);
        check_random_directions(&model, model_case, weights, gradient);
        free(gradient);
        free(weights);
        small_model_release(&model);
    }
    printf("largest relative difference: %.2g\n", worst);
}

/* Targets of -1 count neither in the loss nor in its mean, and a batch without targets has loss 0. */
static void ignored_targets_have_no_part_in_the_loss(void **state) {
    (void)state;
    const struct model_config config = small_model_config("shc", 4);
    struct small_model model;
    small_model_create(&model, compute, &config, 3);
    for (size_t i = 0; i < gpt_tokens(&model.gpt); i++) {
        model.y[i] = -1;
    }
    small_model_require(gpt_set_batch(&model.gpt, (struct token_shape){3, 8}, model.x, model.y));
    assert_true(small_model_backward(&model, (struct gpt_pass){.dropout = false}) == 0.0f);
    float *gradient = small_model_read(&model, model.gpt.parameters.gradients);
    assert_true(dot(gradient, gradient, model.gpt.parameters.elements) == 0.0);
    free(gradient);
    small_model_release(&model);
}

/* For one seed all variants begin with the same branch weights, so that their runs can be compared. */
static void variants_start_from_the_same_branch_weights(void **state) {
    (void)state;
    static const char *const others[] = {"identity", "hc", "mhc", "mhc_lite", "shc"};
    const struct model_config plain = small_model_config("rc", 1);
    struct small_model reference;
    small_model_create(&reference, compute, &plain, 1);
    float *expected = small_model_read(&reference, reference.gpt.parameters.weights);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct model_config config = small_model_config(others[i], 3);
        struct small_model model;
        small_model_create(&model, compute, &config, 1);
        float *weights = small_model_read(&model, model.gpt.parameters.weights);
        for (size_t j = 0; j < reference.gpt.parameters.count; j++) {
            const struct parameter *parameter = &reference.gpt.parameters.table[j];
            const struct parameter *same = parameters_find(&model.gpt.parameters, parameter->name);
            assert_non_null(same);
            assert_memory_equal(expected + parameter->offset, weights + same->offset,
                                parameter->elements * sizeof *weights);
        }
        free(weights);
        small_model_release(&model);
    }
    free(expected);
    small_model_release(&reference);
}

static int begin(void **state) {
    (void)state;
    const struct compute_options options = {.device = "pocl"};
    device_prepare_environment();
    return compute_open(&compute, &options);
}

static int end(void **state) {
    (void)state;
    compute_close(compute);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_agree_with_finite_differences),
        cmocka_unit_test(ignored_targets_have_no_part_in_the_loss),
        cmocka_unit_test(variants_start_from_the_same_branch_weights),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
