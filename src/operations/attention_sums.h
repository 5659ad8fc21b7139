/* Causal attention of one sequence in double on the host: what self-tests compare a device with. T positions, H heads, D
 * channels of a head:
 *
 *   p = softmax(q k^T / sqrt(D)), y = (f p) v, with dropout's factors f (0 or 1 / (1 - rate)), lse = log sum exp of the scores
 *   dv = (f p)^T dy, ds = p (f dy v^T - sum_d dy y) / sqrt(D), dq = ds k, dk = ds^T q */
#pragma once

#include "src/operations/batch.h"
#include <stddef.h>

struct attention_sums {
    size_t sequence, heads, head_size;
    struct dropout dropout;
    const double *qkv; /* [T, 3, H, D] */
};

/* y [T, H, D] and lse [H, T]. -1 when memory runs out. */
int attention_sums_forward(const struct attention_sums *sums, double *y, double *lse);

/* d_qkv [T, 3, H, D] from d_y and y [T, H, D]. -1 when memory runs out. */
int attention_sums_backward(const struct attention_sums *sums, const double *y, const double *d_y, double *d_qkv);
