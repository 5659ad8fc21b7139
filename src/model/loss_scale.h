/* Dynamic loss scaling: in fp16 small gradients would round to zero, so the loss is multiplied by a factor before
 * the backward pass, and the gradients by its inverse in the optimiser. The factor is a power of two and adapts:
 * halved when a gradient overflowed (then that step is left out), doubled after enough good steps. */
#pragma once

#include "runtime/system/element.h"
#include <stdbool.h>
#include <stdint.h>

struct loss_scale {
    float scale;        /* 1 where nothing is scaled */
    bool dynamic;       /* fp16 */
    int64_t good_steps; /* since the scale changed */
    int64_t skipped;    /* steps left out in all */
};

/* Of a run's begin: 65536 for fp16, else 1 for ever. */
struct loss_scale loss_scale_begin(enum element_type type);

/* As a checkpoint has it: whether that can be. */
bool loss_scale_is_valid(const struct loss_scale *scale);

/* After a step whose gradient norm was finite, or not. False when the norm was not and no smaller scale is left to
 * try (or nothing is scaled): the training has diverged. */
bool loss_scale_update(struct loss_scale *scale, bool finite);
