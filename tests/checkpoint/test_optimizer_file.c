/* optimizer.safetensors: which tensors a model goes on with, and what is refused, with checksums that are right. */
#include "runtime/files/files.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/model/optimizer.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

#define FOLDER     "ckpt-1"
#define STATES     FOLDER "/optimizer.safetensors"
#define MANY       256
#define C_FC       "transformer.h.1.mlp.c_fc.weight"
#define TOKENS     "transformer.wte.weight"
#define FINAL_NORM "transformer.ln_f.weight"

static struct compute *compute;
static const struct training_state progress = {.iteration = 1};
static const struct checkpoint_content content = {.state = &progress, .optimizer = true};

static void create(struct small_model *model, const char *freeze) {
    const struct model_config config = small_model_config("mhc", 4);
    const struct gpt_options options = {.batch = 1,
                                        .sequence = config.block_size,
                                        .mode = GPT_TRAINING,
                                        .optimizer = optimizer_at(0),
                                        .freeze = freeze};
    small_model_create_planned(model, compute, &config, &options);
}

/* Every number of a tensor. */
static int set_half(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    (void)context, (void)tensor, (void)first;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = 0.5f;
    }
    return 0;
}

/* Writes the file again without tensors whose names end with `dropped`, with one more, which may be NULL, and all
 * numbers 0.5. */
static void rewrite(struct small_model *model, const char *dropped, const struct tensor_info *more) {
    struct safetensors *file;
    struct tensor_info infos[MANY];
    size_t count = 0;
    require(safetensors_open(scratch_path(STATES), &file));
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const struct tensor_info *info = safetensors_at(file, i);
        const size_t length = strlen(info->name);
        if (!dropped || length < strlen(dropped) || strcmp(info->name + length - strlen(dropped), dropped) != 0) {
            assert_true(count + 1 < MANY);
            infos[count] = *info;
            infos[count++].name = memory_string(info->name);
        }
    }
    safetensors_close(file);
    if (more) {
        infos[count] = *more;
        infos[count++].name = memory_string(more->name);
    }
    require(safetensors_write(scratch_path(STATES), infos, count, set_half, NULL));
    require(checkpoint_write_state(scratch_path(FOLDER), &model->gpt, &content));
    for (size_t i = 0; i < count; i++) {
        free(infos[i].name);
    }
}

/* Resumes a model with other parameters frozen from one whose file is changed in this way. */
static int resume(struct small_model *resumed, const char *frozen, const char *frozen_now, const char *dropped,
                  const struct tensor_info *more) {
    struct small_model model;
    struct training_state found;
    create(&model, frozen);
    require(checkpoint_save(scratch_path(FOLDER), &model.gpt, &content));
    rewrite(&model, dropped, more);
    small_model_release(&model);
    create(resumed, frozen_now);
    return checkpoint_resume(scratch_path(FOLDER), &resumed->gpt, &found);
}

/* The first number of a parameter's second moment. */
static float second_moment(const struct small_model *model, const char *name) {
    const struct parameter *parameter = parameters_find(&model->gpt.parameters, name);
    float value;
    assert_false(parameter->untrained);
    require(buffer_read_floats(compute, model->gpt.parameters.states[1], parameter->offset, &value, 1));
    return value;
}

UNIT_TEST(states_of_other_parts_are_taken) {
    static const struct {
        const char *before, *now;
        float of_tokens, of_layer; /* negative: none */
    } cases[] = {{NULL, NULL, 0.5f, 0.5f},  {NULL, "wte", -1.0f, 0.5f},      {"wte", NULL, 0.0f, 0.5f},
                 {"wte", "wte", -1, 0.5f},  {"wte", "h.1.mlp", 0.0f, -1.0f}, {"wte|h.1.mlp", "ln_f", 0.0f, 0.0f},
                 {"ln_f", NULL, 0.5f, 0.5f}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct small_model model;
        require(resume(&model, cases[i].before, cases[i].now, NULL, NULL));
        if (cases[i].of_tokens >= 0.0f) {
            assert_float_equal(second_moment(&model, TOKENS), cases[i].of_tokens, 0);
        }
        if (cases[i].of_layer >= 0.0f) {
            assert_float_equal(second_moment(&model, C_FC), cases[i].of_layer, 0);
        }
        assert_float_equal(second_moment(&model, FINAL_NORM), 0.5f, 0);
        small_model_release(&model);
    }
}

UNIT_TEST(other_tensors_are_refused) {
    static const struct {
        const char *frozen, *dropped;
        struct tensor_info more; /* with a name, if there is one */
        const char *text;
    } cases[] = {
        {NULL, "exp_avg." C_FC, {0}, "tensor 'exp_avg." C_FC "' is missing"},
        {NULL, "exp_avg_sq." TOKENS, {0}, "tensor 'exp_avg_sq." TOKENS "' is missing"},
        {NULL, FINAL_NORM, {0}, "tensor 'exp_avg." FINAL_NORM "' is missing"},
        {NULL, NULL, {.name = "exp_avg.x", .rank = 1, .shape = {3}}, "it belongs to another model or optimizer"},
        {NULL, "exp_avg." C_FC, {.name = "momentum_buffer." C_FC, .rank = 1, .shape = {3}}, "another model or"},
        {NULL, "exp_avg." C_FC, {.name = "exp_avg." C_FC, .rank = 2, .shape = {16, 64}}, "has another shape"},
        {"wte", NULL, {.name = "exp_avg." TOKENS, .rank = 2, .shape = {33, 16}}, "'exp_avg_sq." TOKENS "' is miss"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct small_model model;
        const struct tensor_info *more = cases[i].more.name ? &cases[i].more : NULL;
        assert_int_equal(resume(&model, cases[i].frozen, NULL, cases[i].dropped, more), -1);
        assert_error_text(cases[i].text);
        error_clear();
        small_model_release(&model);
    }
}

SMALL_MODEL_TEST_MAIN(compute)
