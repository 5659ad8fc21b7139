/* Dynamic loss scaling: in fp16 small gradients would round to zero, so the loss is multiplied by a factor before
 * the backward pass, and the gradients by its inverse in the optimizer. The factor is a power of two and adapts:
 * halved when a gradient overflowed (then that step is left out), doubled after enough good steps. */
#pragma once

#include "runtime/system/element.h"
#include <stdbool.h>
#include <stdint.h>

struct loss_scale {
    float scale;        /* 1 where nothing is scaled */
    bool dynamic;       /* fp16 */
    int64_t good_steps; /* since the scale changed */
    int64_t skipped;    /* steps without an update, since the run began */
};

/* Returns the scale that a run begins with: 65536 for fp16; else 1, which stays. */
struct loss_scale loss_scale_begin(enum element_type type);

/* Tells whether a scale read from a checkpoint is possible. */
bool loss_scale_is_valid(const struct loss_scale *scale);

/* Updates the scale after a step; `finite` tells whether the step's gradient norm was. Returns false if training
 * has diverged: the norm was not finite and there is no smaller scale, or nothing is scaled. */
bool loss_scale_update(struct loss_scale *scale, bool finite);
