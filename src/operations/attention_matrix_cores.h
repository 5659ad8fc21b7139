/* Attention on the matrix units of a GPU, for activations in 16 bits (cl/attention_matrix_cores.cl). Same arguments, same
 * dropout and, to rounding, same results as the portable kernels behind src/operations/operations.h, which takes
 * this path where it is open. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/gemm/mma_tiles.h"
#include "src/operations/batch.h"

struct attention_matrix_cores;
struct attention_values; /* src/operations/operations.h */

struct attention_matrix_cores_shape {
    int64_t heads, head_size;
    enum element_type type; /* of qkv, y and their gradients */
};

/* 0 where the kernels take heads of this kind, else -1 with the reason. */
int attention_matrix_cores_check_shape(const struct attention_matrix_cores_shape *shape);

/* Builds the kernels for one unit. -1 with the reason why it cannot be used: a shape that they do not take, a device
 * that is too small, a compiler that does not know the unit. Whether they compute what they should is for
 * attention_check (attention_check.h). On success *opened is the caller's (attention_matrix_cores_close), else NULL. */
int attention_matrix_cores_open(struct compute *compute, const struct attention_matrix_cores_shape *shape,
                                const struct mma_unit *unit, struct attention_matrix_cores **opened);
void attention_matrix_cores_close(struct attention_matrix_cores *units);

/* Whether the kernels can count such a batch. */
bool attention_matrix_cores_take(const struct attention_matrix_cores *units, struct token_shape tokens);

/* FLOPs of so many products of heads [sequence, head_size], below the diagonal of their scores. */
double attention_flops(int64_t heads, int64_t head_size, struct token_shape tokens, int products);

/* What it works with, for people. */
const char *attention_matrix_cores_name(const struct attention_matrix_cores *units);

/* qkv [N, 3 C] -> y [N, C], lse [batch, H, sequence] (float) */
void attention_matrix_cores_forward(struct attention_matrix_cores *units, struct token_shape tokens,
                                    const struct buffer *qkv, struct dropout dropout, const struct buffer *y,
                                    const struct buffer *lse);

/* d_y [N, C] -> d_qkv [N, 3 C]. delta [batch, H, sequence] (float) is scratch. */
void attention_matrix_cores_backward(struct attention_matrix_cores *units, struct token_shape tokens,
                                     const struct attention_values *values, struct dropout dropout,
                                     const struct buffer *d_y, const struct buffer *delta,
                                     const struct buffer *d_qkv);
