/* The whole model's forward pass in plain C and double precision, put together from tests/support/reference.h. */
#pragma once

#include "src/model/gpt.h"

struct reference_model {
    const struct model_config *config;
    const struct parameters *parameters; /* where in `values` each is */
    const double *values;                /* the arena of weights */
    struct token_shape shape;
    const int32_t *x, *y;
    struct gpt_pass pass;
};

/* The mean loss over the targets that are not -1; logits [N, V] unless NULL. */
double reference_model_loss(const struct reference_model *model, double *logits);
