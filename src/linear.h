/* Linear layers: y = x W^T (+ b), weights [out, in] in the arena. */
#ifndef HC_SRC_LINEAR_H
#define HC_SRC_LINEAR_H

#include "src/operations.h"
#include "src/parameters.h"

struct linear {
    uint64_t weight_at, bias_at; /* in the arena; the bias only with operations->shape.bias */
    size_t in, out;
};

/* x [rows, in] -> y [rows, out] */
void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y);

/* d_y [rows, out] -> d_x [rows, in]; gradients of weight and bias are added to the arena. */
void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x);

#endif
