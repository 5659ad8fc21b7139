/* The optimiser: nanoGPT's schedule, clipping by the global norm, AdamW on the arena. */
#pragma once

#include "src/model/gpt.h"

struct optimizer_settings {
    double learning_rate, min_lr;
    int64_t warmup_iters, lr_decay_iters;
    double weight_decay, beta1, beta2;
    double grad_clip; /* 0: none */
};

/* Learning rate of iteration 0, 1, ...: linear warm-up, cosine to min_lr at lr_decay_iters, min_lr after. */
double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration);

/* One step with the gradients in the arena: gradient_norm gets their norm before clipping. A launch. */
void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration);

/* The step on a part of the arena, with the norm that gradient_norm holds. A launch. */
void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct adamw_range range);
