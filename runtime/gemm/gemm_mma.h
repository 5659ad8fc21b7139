/* GEMM of 16-bit matrices on matrix cores, with sums in fp32 (cl/mma_gemm.cl): what the backend "mma" is made of,
 * for tests. */
#pragma once

#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/mma_choice.h"

struct mma {
    struct compute *compute;
    struct matrix_cores cores;
    const struct mma_tiles
        *only; /* for all GEMMs, divided by `whole` and `parts` as mma_divide does; NULL: mma_choose */
    size_t whole, parts;
    struct buffer partial; /* as large as was needed so far, at most MMA_PARTS_BYTES by mma_choose */
};

/* Whether such a call can be run: A and B of one 16-bit type, sizes that the kernel can count, and not both an
 * activation and its derivative. */
bool mma_takes(const struct gemm_call *call);

/* Runs a call that mma_takes: one launch, or two where blocks are divided. Kernels are compiled at the first
 * need. */
void mma_run(struct mma *mma, const struct gemm_call *call);

/* Compares GEMMs of operands of this type with sums on the host, with all tiles, and with divided blocks. -1 with a
 * reason, which may be that the device's compiler does not know the instructions. */
int mma_self_test(struct mma *mma, enum element_type type);
