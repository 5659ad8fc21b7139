/* Which tiles a product on matrix units gets, and which of its blocks are divided along k: by counting, never by
 * the clock, so that sums are the same on every run. */
#pragma once

#include "runtime/gemm/gemm_call.h"
#include "runtime/gemm/mma_tiles.h"

/* What blocks that are divided may take: [blocks, parts, block_m, block_n] of fp32. */
#define MMA_PARTS_BYTES ((size_t)32 << 20)

/* What the choice is for. */
struct mma_device {
    struct mma_tiles shapes[MMA_SHAPES];
    unsigned warp;          /* work-items of one */
    unsigned compute_units; /* multiprocessors */
};

/* Blocks of C from number `whole` on are made by `parts` work-groups each, which have `depth` of k (a multiple
 * of block_k), the last one what is left. */
struct mma_choice {
    struct mma_tiles tiles;
    size_t blocks, whole;
    size_t parts; /* 1: all blocks are whole */
    size_t depth;
    double cost; /* time, in what the device's units could do in it: operations */
};

/* Blocks of C; SIZE_MAX when they cannot be counted. */
size_t mma_blocks(const struct gemm_call *call, const struct mma_tiles *tiles);

/* Work-groups of the product. */
size_t mma_choice_groups(const struct mma_choice *choice);

/* Bytes of its parts. */
size_t mma_choice_bytes(const struct mma_choice *choice);

/* These tiles, with all but `whole` blocks in so many parts, or fewer where k is short. m, n, k > 0. */
struct mma_choice mma_divide(const struct mma_device *device, const struct gemm_call *call,
                             const struct mma_tiles *tiles, size_t whole, size_t parts);

/* The cheapest one. */
struct mma_choice mma_choose(const struct mma_device *device, const struct gemm_call *call);
