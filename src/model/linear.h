/* Linear layers: y = x W^T (+ b), weights [out, in] in the arena; and the GEMMs that they and frames consist of. */
#pragma once

#include "runtime/gemm/gemm.h"
#include "src/model/parameters.h"
#include "src/operations/operations.h"

/* y [rows, out] = x [rows, in] w^T, w [out, in], by the kernel for few rows or a GEMM. */
void linear_multiply(struct operations *operations, struct matrix x, struct matrix w, struct matrix y);

/* c = a b^T by a GEMM, which may add to what is there. */
void linear_gemm(struct operations *operations, struct matrix a, struct matrix b, struct matrix c, bool adds);

/* The two GEMMs of its backward pass, which may add to what is there: d_x = d_y w, and the gradient of w as it is
 * stored, a^T b: d_y^T x, or of a w that is stored transposed x^T d_y. */
void linear_input_backward(struct compute *compute, struct matrix d_y, struct matrix w, struct matrix d_x,
                           bool adds);
void linear_matrix_backward(struct compute *compute, struct matrix a, struct matrix b, struct matrix gradient,
                            bool adds);

/* An input of a layer: its outputs [first, first + count) are x W^T of those rows of W. */
struct linear_input {
    size_t first, count;
    const struct buffer *x, *d_x; /* [rows, in]; d_x is the backward pass's alone */
    struct dropout dropout;       /* of what adapters read of x */
};

/* y [rows, out] from `count` inputs, which together make all outputs, with the layer's adapters, and, unless
 * `activated` is NULL, activated = f(y), f being the activation: in the GEMM's epilogue where the backend has one,
 * if there is one input. The backward pass reads y. */
void linear_forward(struct operations *operations, const struct parameters *parameters, const struct linear *layer,
                    size_t rows, const struct linear_input *inputs, size_t count, const struct buffer *y,
                    const struct buffer *activated);

/* d_x [rows, in] = d_y [rows, out] W of each input, and the gradients of weight, bias and adapters in the arena. If
 * an activation made x of the one input, `activation_of` is what it read, else NULL. Its backward pass is the
 * GEMM's epilogue where the backend has one:
 *   if x = f(activation_of) [rows, in], d_x becomes the gradient of activation_of;
 *   in a gated MLP x = f(g) u, and the rows of activation_of, g [in] | u [in], become their gradients in place;
 *   what d_x has then is not specified. */
void linear_backward(struct operations *operations, const struct parameters *parameters, const struct linear *layer,
                     size_t rows, const struct linear_input *inputs, size_t count, const struct buffer *d_y,
                     const struct buffer *activation_of);
