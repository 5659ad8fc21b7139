/* The optimizer: nanoGPT's learning-rate schedule, clipping by the global norm, and AdamW on the arena. */
#pragma once

#include "src/model/gpt.h"

struct optimizer_settings {
    double learning_rate, min_lr;
    int64_t warmup_iters, lr_decay_iters;
    double weight_decay, beta1, beta2;
    double grad_clip; /* largest global norm; 0: no clipping */
};

/* Returns the learning rate of iteration 0, 1, ...: linear warm-up, cosine to min_lr at lr_decay_iters, then
 * min_lr. */
double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration);

/* One step with the gradients in the arena; gpt->gradient_norm becomes their norm before clipping. A launch. */
void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration);

/* The step on a range of the arena, with the norm in gpt->gradient_norm. A launch. */
void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct adamw_range range);
