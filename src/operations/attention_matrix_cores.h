/* Attention on the matrix cores of a GPU, for activations in 16 bits (cl/attention_matrix_cores.cl): a row of the
 * table in attention.c. It has the same dropout and, up to rounding, the same results as the other rows. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/gemm/matrix_cores.h"
#include "src/operations/batch.h"

struct attention_matrix_cores;
struct attention_values; /* src/operations/operations.h */

struct attention_matrix_cores_shape {
    int64_t heads, head_size;
    enum element_type type; /* of qkv, y and their gradients */
};

/* 0 where the kernels take heads of this kind, else -1 with the reason. */
int attention_matrix_cores_check_shape(const struct attention_matrix_cores_shape *shape);

/* Builds the kernels for this kind of matrix cores. -1 with the reason why it cannot be used: the kernels do not
 * take the shape, the device is too small, or the compiler does not know its instructions. Whether they compute the
 * right numbers is for attention_check. On success *opened is the caller's (attention_matrix_cores_close), else
 * NULL. */
int attention_matrix_cores_open(struct compute *compute, const struct attention_matrix_cores_shape *shape,
                                const struct matrix_cores *unit, struct attention_matrix_cores **opened);
void attention_matrix_cores_close(struct attention_matrix_cores *cores);

/* Whether the kernels can count such a batch. */
bool attention_matrix_cores_take(const struct attention_matrix_cores *cores, struct token_shape tokens);

/* FLOPs of so many matrix multiplications of heads [sequence, head_size], below the diagonal of their scores. */
double attention_flops(int64_t heads, int64_t head_size, struct token_shape tokens, int gemms);

/* The kind of matrix cores, human-readable. */
const char *attention_matrix_cores_name(const struct attention_matrix_cores *cores);

/* As attention_forward of operations.h. */
void attention_matrix_cores_forward(struct attention_matrix_cores *cores, struct token_shape tokens,
                                    const struct attention_values *values, struct dropout dropout);

/* As attention_backward. delta [batch, H, sequence] (float) is scratch. */
void attention_matrix_cores_backward(struct attention_matrix_cores *cores, struct token_shape tokens,
                                     const struct attention_values *values, struct dropout dropout,
                                     const struct buffer *d_y, const struct buffer *delta,
                                     const struct buffer *d_qkv);
