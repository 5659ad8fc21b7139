/* A search for the tiles that are fastest on a device's matrix units. */
#ifndef HC_RUNTIME_MMA_TUNE_H
#define HC_RUNTIME_MMA_TUNE_H

#include "runtime/gemm/mma.h"

struct mma_tune_result {
    struct mma_tiles best;
    bool improved;      /* on the default; else `best` is that */
    double stock, rate; /* FLOP/s of the default and of the best */
    int tried;          /* candidates */
    int refused;        /* of those that did not compile, or whose products were wrong */
};

/* Times C[m, n] of A and B of this type in the three forms that a layer needs (A B^T, A B, A^T B added to fp32)
 * with candidate after candidate for about `seconds`, `known` (NULL for none) before all others, or until the user
 * interrupts; every candidate's products are compared with sums in double. The compute must run "mma" and have been
 * opened with `untuned`; it is of no use for other work afterwards. Shows progress. -1: not even the default ran.
 */
int mma_tune(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k, double seconds,
             const struct mma_tiles *known, struct mma_tune_result *result);

#endif
