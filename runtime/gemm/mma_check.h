/* Products on matrix units compared with sums in double. */
#ifndef HC_RUNTIME_MMA_CHECK_H
#define HC_RUNTIME_MMA_CHECK_H

#include "runtime/gemm/mma.h"

struct mma_case {
    bool transpose_a, transpose_b;
    enum element_type type, type_c; /* of A and B, of C */
    size_t m, n, k;
    size_t batch;               /* products, at least 1 */
    size_t pad_a, pad_b, pad_c; /* stride less width */
    size_t offset_a, offset_b, offset_c;
    float alpha, beta;
    bool bias, residual, activated; /* `activated`: into a matrix of its own */
    enum gemm_activation activation;
};

/* Runs the case through the units on numbers whose products have exact sums, so that rounding is that of C alone,
 * and compares every element of every matrix written, and what lies around them. -1 with the element that is wrong.
 */
int mma_check(struct mma *mma, const struct mma_case *wanted);

/* Compares products of all kinds with sums in double: transpositions, edges, alignments, types of C, epilogues,
 * both tiles. -1 with a reason, which may be that the device's compiler does not know the unit. */
int mma_self_test(struct mma *mma, enum element_type type);

#endif
