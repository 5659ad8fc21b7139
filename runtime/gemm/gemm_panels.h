/* GEMM of fp32 matrices in panels of C, cl/gemm_panels.cl: for the cores of a CPU, and correct on any device. It
 * runs on the threads that run all other kernels: where a GEMM takes less than a millisecond, waking a library's
 * own threads costs as much. */
#pragma once

#include "runtime/gemm/gemm_call.h"

/* Whether the device is a CPU where a work-item has a row to itself. */
bool gemm_panels_suit(const struct compute *compute);

/* Whether the GEMM is small enough to be faster so than by the host's BLAS: a rule of sizes. */
bool gemm_panels_are_faster(const struct gemm_call *call);

/* Runs a call of plain fp32 with m, n > 0. With k == 0, C = beta C, and A and B are not looked at. */
void gemm_panels_run(struct compute *compute, const struct gemm_call *call);

/* Iterations of loops that a work-item makes for sums of k, at most. */
size_t gemm_panels_iterations(const struct compute *compute, size_t k);
