/* Linear layers: y = x W^T (+ b), weights [out, in] in the arena. */
#pragma once

#include "src/model/parameters.h"
#include "src/operations/operations.h"

/* y [rows, out] = x [rows, in] w^T, w [out, in], by what is fastest for so many rows. */
void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y);

/* x [rows, in] -> y [rows, out] and, unless `activated` is NULL, gelu(y) there: in one kernel where products can. y
 * is what the way back needs. */
void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated);

/* d_y [rows, out] -> d_x [rows, in]; gradients of weight and bias go to the arena. Unless `gelu_of`
 * [rows, in] is NULL, x is gelu(gelu_of), and d_x is what goes on to gelu_of: in one kernel where products can. */
void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x,
                     const struct buffer *gelu_of);
