/* The portable GEMM on devices whose work-items share local memory, cl/gemm_blocks.cl: which blocks it gets, and
 * the launches. */
#pragma once

#include "runtime/gemm/gemm_call.h"

#define GEMM_PARTS_BYTES ((size_t)16 << 20) /* of sums that several work-groups share, at most */

enum { GEMM_BLOCK_SIZES = 3 }; /* 128, 64 and 32 */

/* How a GEMM is divided. */
struct gemm_blocks_choice {
    size_t size;   /* index of the blocks' size; GEMM_BLOCK_SIZES: none fits the device */
    size_t edge;   /* rows and columns of a block */
    size_t blocks; /* in C */
    size_t parts;  /* work-groups that share a block */
    size_t depth;  /* of k, for each of them */
};

struct gemm_blocks {
    struct buffer partial;  /* of sums that work-groups share, as large as was needed so far */
    size_t groups_expected; /* tests set it: work-groups that a launch should have; 0: by the device */
};

/* Whether the device is one for it: not a CPU, where a work-item has a row to itself. */
bool gemm_blocks_suit(const struct compute *compute);

/* Whether it takes the call there: A and B of one type, C of that or fp32, nothing behind the sums, sizes that its
 * 32 bits hold. */
bool gemm_blocks_takes(struct compute *compute, const struct gemm_call *call);

/* By a rule that knows sizes only, so that sums are the same in every run on a device: the largest blocks that
 * neither reach far over the edges of C nor leave the device with few work-groups; k is divided where that makes
 * the difference. `expected`: of groups, 0: by the device. */
struct gemm_blocks_choice gemm_blocks_choose(const struct device *device, size_t expected,
                                             const struct gemm_call *call);

/* Runs a call that is taken. */
void gemm_blocks_run(struct compute *compute, struct gemm_blocks *state, const struct gemm_call *call);

/* Builds every kernel for operands of this type in rows of whole vectors: to compile them for devices that are not
 * here. */
int gemm_blocks_build(struct compute *compute, enum element_type type);
