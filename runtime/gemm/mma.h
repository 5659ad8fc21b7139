/* Matrix products of 16-bit matrices on the matrix units of a GPU, summed in float (cl/mma_gemm.cl). The GEMM
 * backend "mma" (gemm_mma.h) is made of this; tests and the search for tiles use it directly. */
#pragma once

#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/mma_tiles.h"

struct mma_variant;

struct mma {
    struct compute *compute;
    struct mma_unit unit;
    struct mma_tiles large, small;
    struct mma_variant *variants; /* kernels built so far, newest first */
};

/* Whether such a call can be run: A and B of one 16-bit type, and sizes that the kernel can count. */
bool mma_takes(const struct gemm_call *call);

/* Runs a call that mma_takes. A launch; kernels are compiled at the first need. */
void mma_run(struct mma *mma, const struct gemm_call *call);

/* Releases the kernels. */
void mma_release(struct mma *mma);

/* Checks products of all kinds with both tiles (gemm_check_tiles). -1 with a reason, which may be that the device's
 * compiler does not know the unit. */
int mma_self_test(struct mma *mma, enum element_type type);
