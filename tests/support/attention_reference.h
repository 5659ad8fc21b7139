/* Attention in double, both passes, and how far from it an implementation in 16 bits may be: what the kernels for
 * matrix units and the portable ones are held to. */
#pragma once

#include "runtime/system/element.h"
#include <stddef.h>
#include <stdint.h>

struct attention_case {
    size_t batch, sequence, heads, head_size;
    enum element_type type;
    float dropout;
    uint64_t key, first_row; /* as in struct dropout */
    double spread;           /* deviation of the numbers that are drawn */
};

/* The numbers of a case, drawn from its key: 16-bit elements, and what they are. */
struct attention_numbers {
    uint16_t *qkv_bits, *d_y_bits;
    double *qkv, *d_y;
};

/* -1 when memory runs out. */
int attention_numbers_draw(const struct attention_case *shape, struct attention_numbers *numbers);
void attention_numbers_free(struct attention_numbers *numbers);

/* A number and the largest error that the arithmetic allows, with u the unit roundoff of the type (2^-8 for bf16,
 * 2^-11 for fp16), t the largest rounding error of its smallest numbers, and h that of a probability for reasons of
 * fp32: of scores, 2^-22 (D + 8) times the largest sum of their terms' magnitudes, and 2^-17 for powers and sums. f
 * is dropout's factor. Every product counts one rounding of P or dS, every result one of its own:
 *
 *   y      sum_k f p |v| (u + h) + t sum_k f |v|                   + u |y| + t
 *   lse    h + 2^-20 |lse|
 *   delta  E = sum_d |dy| bound(y)
 *   ds     e = p (E + 2^-22 (D + 8) sum_d |f dy v|) + 3 h |p| (|f dp| + |delta|)
 *   dq     scale sum_k ((1 + u) e + u |ds| + h |ds| + t) |k|       + u |dq| + t, and dk in the same way
 *   dv     sum_q (f p (u + 3 h) + t) |dy|                          + u |dv| + t
 */
struct bounded {
    double value, bound;
};

struct attention_results {
    struct bounded *y;     /* [B, T, H, D] */
    struct bounded *lse;   /* [B, H, T] */
    struct bounded *d_qkv; /* [B, T, 3, H, D] */
};

/* Computes all from qkv [B, T, 3, H, D] and d_y [B, T, H, D]; *results is allocated, attention_results_free frees
 * it. -1 when memory runs out. */
int attention_reference(const struct attention_case *shape, const double *qkv, const double *d_y,
                        struct attention_results *results);
void attention_results_free(struct attention_results *results);
