/* Training in 16 bits: dynamic loss scaling, the memory it plans, and that it follows fp32. */
#include "src/model/optimizer_settings.h"
#include "tests/support/small_model.h"
#include "tests/support/tensors.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct compute *compute;

/* One shape for all: each is compiled for each type. */
static void create(struct small_model *model, enum element_type type) {
    const struct model_config config = small_model_config("shc", 4);
    small_model_create_typed(model, compute, &config, 3, type);
}

/* ---- the rules */

UNIT_TEST(other_types_are_not_scaled) {
    struct loss_scale scale = loss_scale_begin(ELEMENT_BF16);
    assert_true(scale.scale == 1.0f && !scale.dynamic);
    assert_true(loss_scale_update(&scale, true));
    assert_false(loss_scale_update(&scale, false)); /* diverged */
    assert_true(scale.scale == 1.0f && scale.skipped == 0);
}

UNIT_TEST(scale_halves_at_once_and_doubles_after_2000_good_steps) {
    struct loss_scale scale = loss_scale_begin(ELEMENT_FP16);
    assert_true(scale.scale == 65536.0f);
    for (int step = 0; step < 1999; step++) {
        assert_true(loss_scale_update(&scale, true));
    }
    assert_true(scale.scale == 65536.0f && scale.good_steps == 1999);
    assert_true(loss_scale_update(&scale, false));
    assert_true(scale.scale == 32768.0f && scale.good_steps == 0 && scale.skipped == 1);
    for (int step = 0; step < 2000; step++) {
        assert_true(scale.scale == 32768.0f);
        assert_true(loss_scale_update(&scale, true));
    }
    assert_true(scale.scale == 65536.0f && scale.good_steps == 0 && scale.skipped == 1);
}

UNIT_TEST(scale_has_limits) {
    struct loss_scale scale = loss_scale_begin(ELEMENT_FP16);
    for (int step = 0; step < 16; step++) {
        assert_true(loss_scale_update(&scale, false));
    }
    assert_true(scale.scale == 1.0f);
    assert_false(loss_scale_update(&scale, false));
    scale.scale = 0x1p+32f;
    scale.good_steps = 1999;
    assert_true(loss_scale_update(&scale, true));
    assert_true(scale.scale == 0x1p+32f && scale.good_steps == 0);
}

UNIT_TEST(damaged_scales_are_not_valid) {
    const struct loss_scale wrong[] = {
        {.scale = 0.0f},
        {.scale = -2.0f},
        {.scale = 3.0f},
        {.scale = NAN},
        {.scale = 0.5f},
        {.scale = 0x1p40f},
        {.scale = 2.0f, .good_steps = -1},
        {.scale = 2.0f, .good_steps = 2000},
        {.scale = 2.0f, .skipped = -1},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        assert_false(loss_scale_is_valid(&wrong[i]));
    }
    const struct loss_scale good = {.scale = 1.0f, .good_steps = 1999, .skipped = 7};
    assert_true(loss_scale_is_valid(&good));
}

/* ---- on a model */

static const struct optimizer_settings optimizer = {.learning_rate = 1e-2,
                                                    .min_lr = 1e-2,
                                                    .beta1 = 0.9,
                                                    .beta2 = 0.95,
                                                    .muon_momentum = 0.9,
                                                    .muon_steps = 5,
                                                    USUAL_RATES,
                                                    .grad_clip = 1.0,
                                                    .lr_decay_iters = 1000};

/* One step with a loss scaled so: the gradient norm. */
static float step_scaled(struct small_model *model, float scale, int64_t iteration) {
    model->gpt.loss_scale.scale = scale;
    return small_model_step(model, &optimizer, iteration);
}

/* Weights, low-precision weights, first moments or Muon's momentum, second moments. */
enum { KEPT = 4 };

static void read_kept(struct small_model *model, unsigned char *kept[KEPT], size_t bytes[KEPT]) {
    const struct parameters *parameters = &model->gpt.parameters;
    const struct buffer *buffers[KEPT] = {parameters->weights, parameters->weights_lowp, parameters->states[0],
                                          parameters->states[1]};
    const uint64_t elements = parameters->elements;
    const uint64_t seconds = optimizer_state_offset(model->gpt.optimizer, parameters, 1, elements);
    const size_t sizes[KEPT] = {elements * 4, elements * 2, elements * 4, seconds * 4};
    for (size_t i = 0; i < KEPT; i++) {
        bytes[i] = sizes[i];
        kept[i] = malloc(sizes[i]);
        require(buffer_read(compute, buffers[i], 0, kept[i], sizes[i]));
    }
}

/* Whether all or none of them are the same, to the bit, as before. */
static void assert_kept(struct small_model *model, unsigned char *before[KEPT], bool same) {
    unsigned char *after[KEPT];
    size_t bytes[KEPT];
    read_kept(model, after, bytes);
    for (size_t i = 0; i < KEPT; i++) {
        assert_int_equal(memcmp(before[i], after[i], bytes[i]) == 0, same);
        free(after[i]);
    }
}

/* With each optimizer, before the first step and after one. */
UNIT_TEST(overflowing_step_changes_nothing_and_halves_the_scale) {
    for (int i = 0; optimizer_at((size_t)i); i++) {
        const struct model_config config = small_model_config("mhc", 4);
        const struct gpt_options options = {.type = ELEMENT_FP16,
                                            .optimizer = {.optimizer = i, .muon_dtype = MUON_FP32}};
        SMALL_MODEL model;
        unsigned char *before[KEPT];
        size_t bytes[KEPT];
        small_model_create_planned(&model, compute, &config, &options);
        struct loss_scale *scale = &model.gpt.loss_scale;
        for (int64_t iteration = 0; iteration < 4; iteration += 2) {
            read_kept(&model, before, bytes);
            const float norm = step_scaled(&model, 0x1p+32f, iteration);
            assert_false(isfinite(norm));
            assert_kept(&model, before, true);
            assert_true(loss_scale_update(scale, isfinite(norm)));
            assert_true(scale->scale == 0x1p+31f && scale->skipped == 1 + iteration / 2);
            assert_true(isfinite(step_scaled(&model, 256.0f, iteration + 1)));
            assert_kept(&model, before, false);
            for (size_t k = 0; k < KEPT; k++) {
                free(before[k]);
            }
        }
    }
}

/* The scale changes what is rounded to zero, and nothing else: norm and step are of the loss itself. */
UNIT_TEST(scale_is_taken_out_of_norm_and_step) {
    struct small_model models[2];
    float norms[2];
    for (int i = 0; i < 2; i++) {
        create(&models[i], i == 0 ? ELEMENT_FP32 : ELEMENT_FP16);
        norms[i] = step_scaled(&models[i], i == 0 ? 1.0f : 1024.0f, 0);
    }
    assert_true(fabsf(norms[1] - norms[0]) < 0.01f * norms[0]);
    /* Adam's first step is the sign of the gradient: a wrong factor would not show but in epsilon; the moments show
     * it */
    float *moments[2];
    const size_t elements = models[0].gpt.parameters.elements;
    for (int i = 0; i < 2; i++) {
        moments[i] = small_model_read(&models[i], models[i].gpt.parameters.states[0]);
    }
    assert_true(tensors_distance(moments[0], moments[1], elements) < 0.02 * tensors_norm(moments[0], elements));
    for (int i = 0; i < 2; i++) {
        free(moments[i]);
        small_model_release(&models[i]);
    }
}

/* ---- the three types side by side */

/* Bytes that a model with these options has on the device after a step: those of its plan, in 16 bits but for the
 * fp32 copies of matrices, which the GEMM backend makes when it needs larger ones. */
static size_t check_plan(const struct model_config *config, const struct gpt_options *options) {
    const size_t before = compute->allocated_bytes;
    SMALL_MODEL model;
    small_model_create_planned(&model, compute, config, options);
    small_model_train(&model, 1, 1e-3);
    const size_t bytes = compute->allocated_bytes - before, planned = model.gpt.plan.total_bytes;
    print_message("  %s, moments %s, master %s, frozen weights %d, recompute %d, optimizer %s: %zu of %zu bytes\n",
                  element_name(options->type), element_name((enum element_type)options->optimizer.moments),
                  element_name((enum element_type)options->optimizer.master), options->optimizer.frozen_weights,
                  options->recompute, model.gpt.optimizer->name, bytes, planned);
    assert_true(bytes <= planned && bytes >= planned / 10 * 9);
    assert_true(bytes == planned || options->type != ELEMENT_FP32);
    return bytes;
}

UNIT_TEST(plan_knows_all_memory) {
    const struct model_config config = small_model_config("shc", 4);
    size_t bytes[24];
    for (size_t i = 0; i < COUNT(bytes); i++) {
        const struct gpt_options options = {.type = (enum element_type)(i / 8),
                                            .optimizer = {.optimizer = i & 2 ? 1 : 0,
                                                          .moments = i & 4 ? ELEMENT_BF16 : ELEMENT_FP32},
                                            .recompute = i & 1};
        bytes[i] = check_plan(&config, &options);
        assert_true(!(i & 4) || bytes[i] < bytes[i - 4]);
        assert_true(!(i & 1) || bytes[i] < bytes[i - 1]);
        if (options.type == ELEMENT_BF16) {
            struct gpt_options narrow = options;
            narrow.optimizer.master = ELEMENT_BF16;
            assert_true(check_plan(&config, &narrow) < bytes[i]);
        }
    }
}

/* With adapters the model's own weights have neither gradients nor states; narrow ones leave their buffers, too. */
UNIT_TEST(plan_knows_adapters) {
    struct model_config config = small_model_config("rc", 1);
    small_model_set(&config, "n_embd=64 mlp_width=128");
    const size_t whole = check_plan(&config, &(struct gpt_options){.type = ELEMENT_FP32});
    config.lora = (struct lora_settings){.rank = 2, .alpha = 4.0, .targets = 1u << LORA_UP | 1u << LORA_O};
    for (int kept = FROZEN_AS_OTHERS; kept <= FROZEN_NF4; kept++) {
        const struct gpt_options options = {.type = kept == FROZEN_BF16 ? ELEMENT_BF16 : ELEMENT_FP32,
                                            .optimizer.frozen_weights = kept};
        assert_true(check_plan(&config, &options) < whole);
    }
}

/* Steps on one batch: the loss falls as in fp32, to within a few percent of what is learned. */
UNIT_TEST(training_follows_fp32) {
    float losses[3];
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_FP16; type++) {
        SMALL_MODEL model;
        create(&model, type);
        losses[type] = small_model_train(&model, 10, 1e-2);
    }
    const float learned = logf(33.0f) - losses[ELEMENT_FP32];
    print_message("  after 10 steps: fp32 %.4f, bf16 %.4f, fp16 %.4f\n", (double)losses[ELEMENT_FP32],
                  (double)losses[ELEMENT_BF16], (double)losses[ELEMENT_FP16]);
    assert_true(learned > 0.5f);
    assert_true(fabsf(losses[ELEMENT_BF16] - losses[ELEMENT_FP32]) < 0.03f * learned);
    assert_true(fabsf(losses[ELEMENT_FP16] - losses[ELEMENT_FP32]) < 0.01f * learned);
}

SMALL_MODEL_TEST_MAIN(compute)
