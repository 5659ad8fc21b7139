/* Matrix products of 16-bit matrices on the matrix units of a GPU, summed in float (cl/mma_gemm.cl). The GEMM
 * backend "mma" (gemm_mma.h) is made of this; tests and the search for tiles use it directly. */
#pragma once

#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/mma_choice.h"

struct mma_variant;

struct mma {
    struct compute *compute;
    struct mma_unit unit;
    struct mma_tiles shapes[MMA_SHAPES];
    size_t whole, parts;   /* that blocks have of the first of those tiles, see mma_divide; 0: by mma_choose */
    struct buffer partial; /* as large as was needed so far, at most MMA_PARTS_BYTES by mma_choose */
    struct mma_variant *variants; /* kernels built so far, newest first */
};

/* Makes all products use these tiles, whatever their sizes. */
void mma_use_tiles(struct mma *mma, const struct mma_tiles *tiles);

/* Whether such a call can be run: A and B of one 16-bit type, sizes that the kernel can count, and not both an
 * activation and its derivative. */
bool mma_takes(const struct gemm_call *call);

/* Runs a call that mma_takes. One launch, or two where blocks are divided; kernels are compiled at the first
 * need. */
void mma_run(struct mma *mma, const struct gemm_call *call);

/* Releases the kernels and the memory for parts. */
void mma_release(struct mma *mma);

/* Checks products with all tiles, and with blocks divided (gemm_check_tiles, gemm_check_layer). -1 with a
 * reason, which may be that the device's compiler does not know the unit. */
int mma_self_test(struct mma *mma, enum element_type type);
