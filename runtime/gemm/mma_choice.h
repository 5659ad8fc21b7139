/* Which tiles a GEMM on matrix cores gets, and which blocks of C are divided along k: a rule that counts and never
 * times, so that sums are the same in every run. */
#pragma once

#include "runtime/gemm/gemm_call.h"
#include "runtime/gemm/matrix_cores.h"

/* What divided blocks may take: [blocks, parts, block_m, block_n] of fp32. */
#define MMA_PARTS_BYTES ((size_t)32 << 20)

/* What the choice is for. */
struct mma_device {
    const struct mma_tiles *tiles; /* [MMA_SHAPES] */
    unsigned warp;                 /* work-items of one */
    unsigned compute_units;
};

/* Blocks of C from number `whole` on are computed by `parts` work-groups each, which have `depth` of k (a multiple
 * of block_k), the last one what is left. */
struct mma_choice {
    struct mma_tiles tiles;
    size_t blocks, whole;
    size_t parts; /* 1: all blocks are whole */
    size_t depth;
    size_t groups; /* work-groups */
    size_t bytes;  /* of the parts */
    double cost;   /* time, counted in operations that the matrix cores could do in it */
};

/* Blocks of C; SIZE_MAX when they cannot be counted. */
size_t mma_blocks(const struct gemm_call *call, const struct mma_tiles *tiles);

/* These tiles, with all but `whole` blocks in so many parts, or fewer where k is short. m, n, k > 0. */
struct mma_choice mma_divide(const struct mma_device *device, const struct gemm_call *call,
                             const struct mma_tiles *tiles, size_t whole, size_t parts);

/* The cheapest one by an estimate of the time. */
struct mma_choice mma_choose(const struct mma_device *device, const struct gemm_call *call);
