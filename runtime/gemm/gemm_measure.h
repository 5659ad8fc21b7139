/* How fast GEMMs are, and matrices to measure them with. */
#pragma once

#include "runtime/gemm/gemm.h"

/* Creates the buffer of a rows x columns matrix of this type with numbers in [-0.5, 0.5) in it: zeros would not
 * draw the power that real data does. */
int gemm_measure_create(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
                        size_t columns);

/* Seconds of a call in the fastest of a few rounds, three or as many as begin in `seconds`, after calls that
 * compile and warm up; fewer when it is longer than `limit`. A round is as many calls as take 10 ms, but at
 * least one and at most 256, one after another without waiting. -1 with an error on failure. */
double gemm_measure_call(struct compute *compute, const struct gemm_call *call, double seconds, double limit);

/* Measures the multiply-add rate in FLOP/s of C[m, n] = A[m, k] B[n, k]^T with matrices of this type, as
 * gemm_measure_call does (about 0.3 s); what metrics call mfu is relative to this. Returns 0 rate with an error
 * on failure. */
int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second);
