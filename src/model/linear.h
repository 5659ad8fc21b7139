/* Linear layers: y = x W^T (+ b), weights [out, in] in the arena. */
#pragma once

#include "src/model/parameters.h"
#include "src/operations/operations.h"

/* y [rows, out] = x [rows, in] w^T, w [out, in], by the kernel for few rows or a GEMM. */
void linear_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                     struct span w, const struct buffer *y);

/* y [rows, out] = x [rows, in] W^T (+ b) and, unless `activated` is NULL, activated = f(y), f being the
 * activation: a GELU in the GEMM's epilogue where the backend has one. The backward pass reads y. */
void linear_forward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                    size_t rows, const struct buffer *x, const struct buffer *y, const struct buffer *activated);

/* d_x [rows, in] = d_y [rows, out] W, and the gradients of weight and bias in the arena. With `gelu_of` [rows, in],
 * x is f(gelu_of) and d_x becomes the gradient of gelu_of: for a GELU in the GEMM's epilogue where the backend has
 * one. */
void linear_backward(struct operations *operations, const struct parameters *parameters, struct linear layer,
                     size_t rows, const struct buffer *x, const struct buffer *d_y, const struct buffer *d_x,
                     const struct buffer *gelu_of);
