/* How fast GEMMs are. */
#pragma once

#include "runtime/gemm/gemm.h"

/* Measures the multiply-add rate in FLOP/s of C[m, n] = A[m, k] B[n, k]^T with matrices of this type, in the
 * fastest of a few rounds (about 0.3 s); what metrics call mfu is relative to this. Returns 0 rate with an error on
 * failure. */
int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second);
