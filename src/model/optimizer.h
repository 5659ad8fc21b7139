/* The optimizer: the learning rate's schedule, clipping by the global norm, and the step of an optimizer of the
 * table in optimizer.c. An optimizer is a row of that table and a kernel. */
#pragma once

#include "src/model/gpt.h"
#include <stddef.h>

/* How the learning rate falls after its linear warm-up; see optimizer_rate. */
#define LR_SCHEDULE_WORDS "cosine|wsd|linear|constant"
enum lr_schedule { LR_COSINE, LR_WSD, LR_LINEAR, LR_CONSTANT };

struct optimizer_settings {
    int optimizer; /* number of its row, see optimizer_at */
    double learning_rate, min_lr;
    int64_t warmup_iters, lr_decay_iters;
    int lr_schedule;          /* enum lr_schedule */
    double cooldown_fraction; /* of lr_decay_iters, at whose end the rate falls; of LR_WSD */
    double weight_decay, beta1, beta2;
    double grad_clip; /* largest global norm; 0: no clipping */
    /* Leaves alpha_res of hyper-connections keep their values. The backward pass gives them a gradient of 0
     * (gpt_options), so they are not in the norm; they have no weight decay, and what a checkpoint has of their
     * states is dropped when it is loaded. */
    bool freeze_alpha_res;
};

/* A number that an optimizer brings with it, and the field of optimizer_settings that gets it. */
struct optimizer_option {
    const char *name, *initial; /* "beta1", "0.9"; no other option, of other optimizers either, may have the name */
    size_t offset;              /* of a double */
    double least, most;
    const char *help;
};

enum { OPTIMIZER_MOST_STATES = 2 };

struct optimizer {
    const char *name;
    /* Its states: floats that it keeps for each weight, by the prefix of their tensors in checkpoints. */
    const char *states[OPTIMIZER_MOST_STATES];
    const struct optimizer_option *options; /* its own; the last has no name */
    /* Updates a range of weights, weights_lowp and states from the gradients. The kernel unscales and clips them
     * and applies weight decay, as the top of cl/adamw.cl says; gpt->gradient_norm has their norm, unscaled. If
     * that is not finite the kernel changes nothing. Launches. */
    void (*step)(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                 struct optimizer_range range);
};

/* The optimizer of this number, NULL beyond the last; all names, "adamw|...". */
const struct optimizer *optimizer_at(size_t number);
const char *optimizer_names(void);

/* Returns the learning rate of iteration 0, 1, ...: linear warm-up over warmup_iters to learning_rate, then
 *   cosine    along a cosine to min_lr at lr_decay_iters;
 *   linear    in a line to min_lr at lr_decay_iters;
 *   wsd       constant, but over the last cooldown_fraction of lr_decay_iters in a line to min_lr;
 *   constant  learning_rate for ever.
 * After lr_decay_iters it stays at min_lr. */
double optimizer_rate(const struct optimizer_settings *settings, int64_t iteration);

/* One step with the gradients in the arena; gpt->gradient_norm becomes their norm before clipping. Launches. */
void optimizer_step(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration);

/* The step on a range of the arena, with the norm in gpt->gradient_norm. Launches. */
void optimizer_update(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                      struct optimizer_range range);
