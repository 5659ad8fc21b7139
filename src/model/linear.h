/* Linear layers: y = x W^T (+ b), weights [out, in] in the arena. */
#pragma once

#include "src/model/parameters.h"
#include "src/operations/operations.h"

/* y [rows, out] = x [rows, in] w^T, w [out, in], by the kernel for few rows or a GEMM. */
void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y);

/* y [rows, out] = x [rows, in] W^T (+ b) and, unless `activated` is NULL, activated = f(y), f being the
 * activation: in the GEMM's epilogue where the backend has one. The backward pass reads y. */
void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated);

/* d_x [rows, in] = d_y [rows, out] W, and the gradients of weight and bias in the arena. If an activation made x,
 * `activation_of` is what it read, else NULL. Its backward pass is the GEMM's epilogue where the backend has one:
 *   if x = f(activation_of) [rows, in], d_x becomes the gradient of activation_of;
 *   in a gated MLP x = f(g) u, and the rows of activation_of, g [in] | u [in], become their gradients in place;
 *   what d_x has then is not specified. */
void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x,
                     const struct buffer *activation_of);

/* Outputs [first, first + count) of a layer that has several inputs: its part of y is x W^T of those rows of W. */
struct linear_part {
    size_t first, count;
    const struct buffer *x, *d_x; /* [rows, in]; d_x is the backward pass's alone */
};

/* The same for a layer whose `count` parts together are all outputs. */
void linear_forward_parts(struct operations *operations, const struct parameters *parameters, struct linear layer,
                          size_t rows, const struct linear_part *parts, size_t count, const struct buffer *y);
void linear_backward_parts(struct operations *operations, const struct parameters *parameters, struct linear layer,
                           size_t rows, const struct linear_part *parts, size_t count, const struct buffer *d_y);
