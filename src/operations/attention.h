/* What attention.c shares with its kernels for matrix cores and its self-test. */
#pragma once

#include "runtime/gemm/matrix_cores.h"
#include "src/operations/kernels.h"

/* The arguments of one forward or backward pass over a batch, and how many elements its buffers have. */
struct attention_pass {
    struct token_shape tokens;
    const struct attention_values *values;
    const struct attention_scratch *scratch;
    struct dropout dropout;
    const struct buffer *d_y, *d_qkv; /* backward */
    struct head_shape heads;
    size_t padded;                  /* operations_padded */
    size_t y_elements, kv_elements; /* y [N, H D]; keys, and values, [N, K D] */
    size_t qkv_elements;            /* [N, (H + 2 K) D] */
    size_t transposed_elements;     /* of keys_t: batch * K D * padded, in tiles */
    size_t score_rows;              /* lse and delta [batch, H, sequence]: one number per row of scores */
};

/* A launch with the FLOPs of so many matrix multiplications of heads [sequence, D], on and below the diagonal of
 * their scores. */
struct launch attention_launch(const struct kernel *kernel, const struct attention_pass *pass, size_t groups,
                               size_t local, int gemms);

/* ---- on the matrix cores of a GPU, for activations in 16 bits (cl/attention_matrix_cores.cl): a row of the table
 * in attention.c. It has the same dropout and, up to rounding, the same results as the other rows. */

enum { FORWARD, BACKWARD_QUERIES, BACKWARD_KEYS, ATTENTION_KERNELS };

struct attention_matrix_cores {
    struct matrix_cores unit;
    struct attention_tiles {
        unsigned keys, block; /* rows that pass at a time, forward and backward */
        bool keep;            /* rows that stay are in registers */
        unsigned warps;       /* of a work-group */
        unsigned shares;      /* warps that have the same rows, and a part of the channels each */
    } tiles;
    struct kernel kernels[2][ATTENTION_KERNELS]; /* without dropout, and with it where shape.drops */
};

/* Builds the kernels for these matrix cores (NULL: the device's own) as operations->attention_matrix_cores. -1 with
 * the reason why they cannot be used: they do not take the shape, the device is too small, or the compiler does not
 * know its instructions. Whether they compute the right numbers is for attention_check. kernels.h has
 * attention_matrix_cores_close. */
int attention_matrix_cores_open(struct operations *operations, const struct matrix_cores *unit);

/* Whether they are open, and the batch is small enough for their 32-bit indices. */
bool attention_matrix_cores_take(const struct operations *operations, struct token_shape tokens);

void attention_matrix_cores_forward(struct operations *operations, const struct attention_pass *pass);
void attention_matrix_cores_backward(struct operations *operations, const struct attention_pass *pass);

/* ---- the self-test */

/* Runs both passes on a batch with this dropout, and compares y, lse and d_qkv with sums on the host in double, and
 * what lies behind them in memory with what was there. qkv is uniform in +- 2 `spread`, which is 1 or 2. 1 with the
 * row that is wrong, -1 where the kernels could not run; the compute is in order either way. */
int attention_check_case(struct operations *operations, struct token_shape tokens, struct dropout dropout,
                         float spread);

/* The same of a small batch, with and without dropout, for each form of the kernels. */
int attention_check(struct operations *operations);
