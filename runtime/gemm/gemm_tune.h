/* A search for the numbers that make a backend's products fastest on a device: CLBlast's parameters, or the tiles
 * of matrix units. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/gemm/tuned.h"

struct gemm_tune_result {
    union tuned_values best; /* of what was tried, if `improved` */
    bool improved;           /* on what the backend does untuned */
    double stock, rate;      /* FLOP/s untuned and of the best */
    int tried;               /* candidates */
    int refused;             /* of those that did not compile, or whose product was wrong */
};

/* What there is to tune in the backend that the compute runs: CLBlast or matrix units. -1 with an error for other
 * backends. */
int gemm_tune_target(struct compute *compute, struct tuned_target *target);

/* `known`: values that an earlier search found, to begin with; NULL for none.
 *
 * Times products of m x n x k in the three forms that a layer needs (A B^T, A B, and A^T B added to fp32) with
 * candidate after candidate for about `seconds` (the first candidate and one under way are finished) or until the
 * user interrupts, and compares every candidate's products with sums in double. The compute must run CLBlast or
 * matrix units, and have been opened with `untuned` for operands of the type to measure; it is of no use for other
 * work afterwards. Shows progress. -1: not even the untuned backend ran. */
int gemm_tune(struct compute *compute, size_t m, size_t n, size_t k, double seconds,
              const union tuned_values *known, struct gemm_tune_result *result);
