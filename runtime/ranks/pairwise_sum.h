/* Pairwise sums over ranks: addends are added in adjacent pairs, then sums of two, of four, and so on. The order
 * depends only on the number of addends, so results have the same bits from run to run. Adding groups of 2, 4, 8
 * ... adjacent addends first gives the same bits as well. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { PAIRWISE_MOST = 1 << 16 }; /* most addends */

struct pairwise_sum {
    const void *const *addends; /* [count] arrays */
    int count;                  /* at least 1 */
    uint64_t elements;          /* of each array */
    bool bf16;                  /* addends are bfloat16, except addends[wide]; else all are float */
    int wide;                   /* index of the float addend; -1: none */
    float *const *targets;      /* [target_count] arrays for the sums; they may be addends */
    int target_count;
};

/* Adds the arrays; with `threads`, on all cores of this rank. */
void pairwise_sum(struct pairwise_sum *sum, bool threads);
