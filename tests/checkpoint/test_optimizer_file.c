/* Checkpoints of a model: which tensors of optimizer.safetensors it goes on with, and what is refused, with
 * checksums that are right; with which bias correction parameters go on; and what checkpoints do not replace. */
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/checkpoint/checkpoint.h"
#include "src/model/optimizer.h"
#include "tests/support/reference.h"
#include "tests/support/scratch.h"
#include "tests/support/small_model.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER     "checkpoint"
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
                                        .optimizer = {.freeze = (char *)(uintptr_t)freeze}};
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
    for (size_t i = 0; i < file->count; i++) {
        const struct tensor_info *info = &file->infos[i];
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

static int resume_here(struct gpt *gpt, struct training_state *state) {
    struct model_files files;
    const int status =
        model_files_open(scratch_path(FOLDER), NULL, NULL, &files) || checkpoint_resume(&files, true, gpt, state);
    model_files_close(&files);
    return status ? -1 : 0;
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
    return resume_here(&resumed->gpt, &found);
}

/* The first number of a parameter's second moment. */
static float second_moment(const struct small_model *model, const char *name) {
    const struct parameter *parameter = parameters_find(&model->gpt.parameters, name);
    float value;
    assert_false(parameter->without_gradient);
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
        {NULL, C_FC, {0}, "tensor 'exp_avg." C_FC "' is missing, which 1 steps have changed"},
        {NULL, TOKENS, {0}, "tensor 'exp_avg." TOKENS "' is missing"},
        {"wte", C_FC, {0}, "tensor 'exp_avg." C_FC "' is missing"},
        {NULL, NULL, {.name = "exp_avg.x", .rank = 1, .shape = {3}}, "it belongs to another model or optimizer"},
        {NULL, "exp_avg." C_FC, {.name = "momentum_buffer." C_FC, .rank = 1, .shape = {3}}, "another model or"},
        {NULL, "exp_avg." C_FC, {.name = "exp_avg." C_FC, .rank = 2, .shape = {16, 64}}, "has shape [16, 64]"},
        {"wte", NULL, {.name = "exp_avg." TOKENS, .rank = 2, .shape = {33, 16}}, "'exp_avg_sq." TOKENS "' is miss"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct small_model model;
        const struct tensor_info *more = cases[i].more.name ? &cases[i].more : NULL;
        assert_error(resume(&model, cases[i].frozen, NULL, cases[i].dropped, more), cases[i].text);
        error_clear();
        small_model_release(&model);
    }
}

/* ---- steps that are counted for each parameter */

/* What a run freezes from one checkpoint to the next. */
static const struct stage {
    const char *freeze;
    bool freeze_alpha_res;
    int64_t iteration; /* at which it ends */
} stages[] = {{"wte|h\\.0\\.", true, 3000}, {"ln_f|h\\.1\\.", false, 3500}, {NULL, false, 0}};

enum { SKIPPED = 10 }; /* steps of the first stage */

/* The steps of a parameter before the last stage. What has lost its states begins again. */
static int64_t steps_of(const struct parameter *parameter) {
    const bool in_first = strncmp(parameter->name, "transformer.h.0.", 16) == 0;
    const bool in_second = strncmp(parameter->name, "transformer.h.1.", 16) == 0;
    if (in_first || strcmp(parameter->name, TOKENS) == 0) {
        return 500;
    }
    if (in_second && (parameter->matrices[0] || parameter_is_alpha_res(parameter))) {
        return 0;
    }
    return (in_second || strcmp(parameter->name, FINAL_NORM) == 0 ? 3000 : 3500) - SKIPPED;
}

static void create_stage(struct small_model *model, const struct stage *stage, size_t optimizer,
                         enum element_type moments) {
    const struct model_config config = small_model_config("mhc", 4);
    const struct gpt_options options = {.batch = 1,
                                        .sequence = config.block_size,
                                        .mode = GPT_TRAINING,
                                        .optimizer = {.optimizer = (int)optimizer,
                                                      .freeze = (char *)(uintptr_t)stage->freeze,
                                                      .freeze_alpha_res = stage->freeze_alpha_res,
                                                      .moments = moments}};
    small_model_create_planned(model, compute, &config, &options);
}

/* The model of the last stage, after the checkpoints of the others; nothing has changed weights or states. */
static void resume_stages(struct small_model *model, size_t optimizer, enum element_type moments) {
    create_stage(model, &stages[0], optimizer, moments);
    model->gpt.loss_scale.skipped = SKIPPED;
    for (size_t i = 1; i < COUNT(stages); i++) {
        const struct training_state ended = {.iteration = stages[i - 1].iteration};
        struct training_state found;
        require(checkpoint_save(scratch_path(FOLDER), &model->gpt,
                                &(struct checkpoint_content){.state = &ended, .optimizer = true}));
        small_model_release(model);
        create_stage(model, &stages[i], optimizer, moments);
        require(resume_here(&model->gpt, &found));
        assert_int_equal(found.iteration, ended.iteration);
    }
}

static const struct optimizer_settings constant_rate = {.learning_rate = 1e-3,
                                                        .min_lr = 1e-3,
                                                        .lr_decay_iters = 1000,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.999,
                                                        .muon_momentum = 0.95,
                                                        .muon_steps = 1,
                                                        USUAL_RATES};

/* A step from states of zero, whose ranges meet at `cut`, as where ranks divide the states. */
static void step_at(struct small_model *model, const float *gradients, uint64_t cut) {
    struct gpt *gpt = &model->gpt;
    const uint64_t elements = gpt->parameters.elements;
    const uint64_t second = optimizer_state_offset(gpt->optimizer, &gpt->parameters, 1, cut);
    const float norm = 1.0f;
    require(buffer_write_floats(compute, gpt->parameters.gradients, 0, gradients, elements));
    require(buffer_write(compute, gpt->gradient_norm, 0, &norm, sizeof norm));
    optimizer_update(gpt, &constant_rate, 3500, (struct optimizer_range){0, cut, {0, 0}});
    optimizer_update(gpt, &constant_rate, 3500, (struct optimizer_range){cut, elements - cut, {cut, second}});
}

/* AdamW's step of a parameter is that of double precision with its own count. */
static void assert_step(const struct parameter *parameter, const float *gradients, const float *before,
                        const float *after) {
    const struct reference_adamw adamw = {.rate = constant_rate.learning_rate,
                                          .beta1 = constant_rate.beta1,
                                          .beta2 = constant_rate.beta2,
                                          .norm = 1.0,
                                          .step = steps_of(parameter) + 1};
    for (uint64_t i = parameter->offset; i < parameter->offset + parameter->elements; i++) {
        double weight = (double)before[i], first = 0.0, second = 0.0;
        reference_adamw(&adamw, (double)gradients[i], &weight, &first, &second);
        if (!(fabs((double)after[i] - weight) < 1e-6)) { /* of 1e-3 where the count is 0 */
            fail_msg("%s: %g became %g, not %g, in step %lld", parameter->name, (double)before[i], (double)after[i],
                     weight, (long long)adamw.step);
        }
    }
}

static void check_steps(size_t optimizer, enum element_type moments, uint64_t cut) {
    struct small_model model;
    size_t compared = 0;
    resume_stages(&model, optimizer, moments);
    const struct parameters *parameters = &model.gpt.parameters;
    float *gradients = malloc(parameters->elements * sizeof *gradients);
    random_normal(random_key(3, "gradients"), 0, parameters->elements, 0.0, 1.0, gradients);
    float *before = small_model_read(&model, parameters->weights);
    step_at(&model, gradients, cut);
    float *after = small_model_read(&model, parameters->weights);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        if (optimizer == 0 || !parameter->matrices[0]) {
            assert_step(parameter, gradients, before, after);
            compared++;
        }
    }
    assert_true(compared > 0);
    free(gradients);
    free(before);
    free(after);
    small_model_release(&model);
}

UNIT_TEST(bias_correction_counts_the_steps_of_each_parameter) {
    check_steps(0, ELEMENT_FP32, 0);
    check_steps(1, ELEMENT_BF16, 1024);
}

UNIT_TEST(counts_that_cannot_be_are_refused) {
    static const struct {
        const char *counts, *text;
    } cases[] = {
        {"{\"" TOKENS "\": 3001}", "optimizer_steps of '" TOKENS "' is no number from 0 to 2990"},
        {"{\"" TOKENS "\": -1}", "is no number from 0 to"},
        {"{\"" TOKENS "\": \"1\"}", "is no number from 0 to"},
        {"{\"x\": 1}", "is no object with numbers of this model's parameters"},
        {"3", "is no object with numbers of this model's parameters"},
    };
    struct small_model model;
    struct training_state found;
    create_stage(&model, &stages[0], 0, ELEMENT_FP32);
    model.gpt.loss_scale.skipped = SKIPPED;
    require(checkpoint_save(scratch_path(FOLDER), &model.gpt,
                            &(struct checkpoint_content){.state = &(struct training_state){.iteration = 3000},
                                                         .optimizer = true}));
    require(resume_here(&model.gpt, &found));
    for (size_t i = 0; i < COUNT(cases); i++) {
        json_t *saved;
        const char *path = scratch_path(FOLDER "/state.json");
        require(json_file_read(path, 1 << 20, &saved));
        json_object_set_new(saved, "optimizer_steps", json_loads(cases[i].counts, JSON_DECODE_ANY, NULL));
        require(json_file_write(path, saved, 0));
        assert_error(resume_here(&model.gpt, &found), cases[i].text);
        error_clear();
    }
    small_model_release(&model);
}

/* ---- what was there before */

UNIT_TEST(other_folders_are_not_written_over) {
    SMALL_MODEL model;
    create(&model, NULL);
    for (const char *const *name = checkpoint_files; name[1]; name++) {
        const char *folder = scratch_format("theirs %s", *name);
        require(files_make_folder(scratch_path(folder)));
        scratch_put(scratch_format("theirs %s/%s", *name, *name), "theirs");
        assert_error(checkpoint_save(scratch_path(folder), &model.gpt, &content),
                     "is not a checkpoint of this program: move it away");
    }
}

UNIT_TEST(files_of_an_older_checkpoint_go) {
    SMALL_MODEL model;
    create(&model, NULL);
    require(checkpoint_save(scratch_path("ckpt-1"), &model.gpt, &content));
    scratch_put("ckpt-1/notes", "mine");
    require(checkpoint_save(scratch_path("ckpt-1"), &model.gpt, &(struct checkpoint_content){.state = &progress}));
    assert_true(files_exist(scratch_path("ckpt-1/notes")));
    assert_false(files_exist(scratch_path("ckpt-1/" OPTIMIZER_FILE)));
}

SMALL_MODEL_TEST_MAIN(compute)
