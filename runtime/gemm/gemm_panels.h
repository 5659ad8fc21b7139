/* The product of fp32 matrices by kernels of our own on CPUs, cl/gemm_panels.cl. It runs on the threads that run all other
 * kernels: where a product takes less than a millisecond, waking a library's own threads costs as much as the product. */
#pragma once

#include "runtime/gemm/gemm_call.h"

/* Kernels, each built at the first need. */
struct gemm_panels {
    struct kernel kernels[2][2]; /* transposed A, B */
};

/* Whether the device is one for it: a CPU, where a work-item has a row to itself. */
bool gemm_panels_suit(const struct compute *compute);

/* Turns of loops that a work-item makes for sums of k, at most. */
size_t gemm_panels_turns(const struct compute *compute, size_t k);

/* Whether the product is small enough to be faster so than by the host's BLAS: a rule of sizes. */
bool gemm_panels_are_faster(const struct gemm_call *call);

/* The product, of a call of plain fp32 with m, n, k > 0. */
void gemm_panels_run(struct compute *compute, struct gemm_panels *state, const struct gemm_call *call);

void gemm_panels_release(struct gemm_panels *state);
