/* A search for the parameters of CLBlast's matrix product that are fastest on a device. */
#ifndef HC_RUNTIME_GEMM_TUNE_H
#define HC_RUNTIME_GEMM_TUNE_H

#include "runtime/device/compute.h"
#include "runtime/gemm/gemm_parameters.h"

struct gemm_tune_result {
    struct gemm_parameters best;
    bool improved;      /* on CLBlast's own choice; else `best` holds nothing */
    double stock, rate; /* FLOP/s of CLBlast's own choice and of the best */
    int tried;          /* candidates that ran */
    int refused;        /* of those that CLBlast or the driver refused, or whose product was wrong */
};

/* `known`: parameters that an earlier search found, to begin with; NULL for none.
 *
 * Times C[m, n] = A B in the three forms that a layer needs (A B^T, A B, A^T B) with candidate after candidate for
 * about `seconds` (the first candidate and one under way are finished) or until the user interrupts, and compares
 * every candidate's product with one in double. The compute must use CLBlast and have been opened with `untuned`;
 * it is of no use for other work afterwards. Shows progress. -1: not even CLBlast's own choice ran. */
int gemm_tune(struct compute *compute, size_t m, size_t n, size_t k, double seconds,
              const struct gemm_parameters *known, struct gemm_tune_result *result);

#endif
