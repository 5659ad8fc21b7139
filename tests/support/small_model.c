#include "tests/support/small_model.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int small_model_begin(void **state, struct compute **compute) {
    if (scratch_begin(state)) {
        return -1;
    }
    const struct compute_options options = {.device = "pocl", .cache_dir = ""};
    require(gemm_compute_open(compute, &options));
    return 0;
}

struct model_config small_model_config(const char *residual, int64_t streams) {
    struct model_config config = model_config_default();
    config.n_layer = 2;
    config.n_head = 2;
    config.n_embd = 16;
    config.vocab_size = 33;
    config.block_size = 8;
    config.n_streams = streams;
    config.residual = residual_find(residual);
    return config;
}

void small_model_set(struct model_config *config, const char *settings) {
    struct model_setting all[MODEL_MOST_SETTINGS];
    struct option_spec options[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(config, all);
    char *lines = scratch_format("%s", settings);
    for (size_t i = 0; i < count; i++) {
        options[i] = all[i].option;
    }
    for (char *space = lines; (space = strchr(space, ' ')); space++) {
        *space = '\n';
    }
    require(options_apply_text(options, count, settings, lines, strlen(lines)));
}

void small_model_set_if_taken(struct model_config *config, const char *settings) {
    struct model_config changed = *config, checked;
    small_model_set(&changed, settings);
    checked = changed;
    if (model_config_check(&checked) == 0) {
        *config = changed;
    }
}

static void make_batch(struct small_model *model) {
    const struct gpt *gpt = &model->gpt;
    const size_t tokens = gpt_tokens(gpt);
    const uint64_t vocabulary = (uint64_t)gpt->config.vocab_size, scored = (uint64_t)gpt->vocabulary;
    model->x = memory_allocate(tokens, sizeof *model->x);
    model->y = memory_allocate(tokens, sizeof *model->y);
    for (size_t i = 0; i < tokens; i++) {
        model->x[i] = (int32_t)random_below(random_key(1, "x"), i, vocabulary);
        model->y[i] = i % 11 == 4 ? -1 : (int32_t)random_below(random_key(1, "y"), i, scored);
    }
}

void small_model_create(struct small_model *model, struct compute *compute, const struct model_config *config,
                        int64_t batch) {
    small_model_create_typed(model, compute, config, batch, ELEMENT_FP32);
}

void small_model_create_typed(struct small_model *model, struct compute *compute, const struct model_config *config,
                              int64_t batch, enum element_type type) {
    small_model_create_planned(model, compute, config, &(struct gpt_options){.batch = batch, .type = type});
}

void small_model_create_planned(struct small_model *model, struct compute *compute,
                                const struct model_config *config, const struct gpt_options *options) {
    struct model_config checked = *config;
    struct gpt_options whole = *options;
    whole.batch = options->batch ? options->batch : 3;
    whole.sequence = options->sequence ? options->sequence : config->block_size;
    whole.mode = GPT_TRAINING;
    require(model_config_check(&checked));
    require(gpt_plan(compute, &checked, &whole, &model->gpt));
    require(gpt_create(&model->gpt));
    require(parameters_initialise(compute, &model->gpt.parameters, &checked, 1));
    make_batch(model);
    require(gpt_set_batch(&model->gpt, (struct token_shape){whole.batch, whole.sequence}, model->x, model->y));
}

void small_model_release(struct small_model *model) {
    gpt_release(&model->gpt);
    free(model->x);
    free(model->y);
}

/* Mean and deviation of a parameter's random values. */
static void choose_distribution(const char *name, double *mean, double *deviation) {
    const char *leaf = strrchr(name, '.') + 1;
    const bool hyper = strstr(name, ".hc_") != NULL;
    const bool gain = strstr(name, ".ln_") || strstr(name, "norm.weight") || strstr(name, ".norm_p");
    /* of states with weights around 0 little is left */
    const bool mixture = strstr(name, ".mudd.b") || strstr(name, ".dense.b") || strcmp(leaf, "lambda_resid") == 0;
    *mean = (gain && strcmp(leaf, "weight") == 0) || mixture ? 1.0 : 0.0;
    *deviation = hyper && leaf[0] != 'w' ? 1.0 : 0.3;
}

void small_model_randomise(struct small_model *model, uint64_t seed) {
    const struct parameters *parameters = &model->gpt.parameters;
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        double mean, deviation;
        choose_distribution(parameter->name, &mean, &deviation);
        FREED float *values = malloc(parameter->elements * sizeof *values);
        random_normal(random_key(seed, parameter->name), 0, parameter->elements, mean, deviation, values);
        require(parameters_write(model->gpt.compute, parameters, parameter->offset, parameter->elements, values));
    }
    parameters_round(model->gpt.compute, parameters);
}

void small_model_forward(struct small_model *model, struct gpt_pass pass) {
    gpt_forward(&model->gpt, pass);
    require(compute_finish(model->gpt.compute));
}

float small_model_backward(struct small_model *model, struct gpt_pass pass) {
    gpt_zero(&model->gpt);
    return small_model_accumulate(model, pass);
}

float small_model_accumulate(struct small_model *model, struct gpt_pass pass) {
    float loss = 0.0f;
    gpt_forward(&model->gpt, pass);
    gpt_loss(&model->gpt, 1.0f, true);
    gpt_backward(&model->gpt, NULL);
    require(gpt_read_results(&model->gpt, &loss, NULL));
    return loss;
}

float small_model_step(struct small_model *model, const struct optimizer_settings *optimizer, int64_t iteration) {
    float norm;
    small_model_backward(model, (struct gpt_pass){.dropout = false});
    optimizer_step(&model->gpt, optimizer, iteration);
    require(buffer_read(model->gpt.compute, model->gpt.gradient_norm, 0, &norm, sizeof norm));
    return norm;
}

float small_model_train(struct small_model *model, int64_t steps, double rate) {
    const struct optimizer_settings optimizer = {.learning_rate = rate,
                                                 .min_lr = rate,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.95,
                                                 USUAL_RATES,
                                                 .grad_clip = 1.0,
                                                 .lr_decay_iters = 1000};
    float loss = 0.0f;
    for (int64_t step = 0; step < steps; step++) {
        loss = small_model_backward(model, (struct gpt_pass){.dropout = false});
        float norm;
        optimizer_step(&model->gpt, &optimizer, step);
        require(buffer_read(model->gpt.compute, model->gpt.gradient_norm, 0, &norm, sizeof norm));
        loss_scale_update(&model->gpt.loss_scale, isfinite(norm));
    }
    return loss;
}

float *small_model_gradients(struct small_model *model) {
    float *gradients = small_model_read(model, model->gpt.parameters.gradients);
    for (size_t i = 0; i < model->gpt.parameters.elements; i++) {
        gradients[i] /= model->gpt.loss_scale.scale;
    }
    return gradients;
}

float *small_model_read(struct small_model *model, const struct buffer *arena) {
    float *values = calloc(model->gpt.parameters.elements, sizeof *values);
    require(buffer_read(model->gpt.compute, arena, 0, values, arena->bytes));
    return values;
}

float *small_model_matrices(struct small_model *model, int64_t sublayer) {
    const size_t bytes = gpt_tokens(&model->gpt) * model->gpt.operations.h_row * sizeof(float);
    float *values = malloc(bytes);
    require(buffer_read(model->gpt.compute, model->gpt.sublayers[sublayer].mix.h, 0, values, bytes));
    return values;
}
