/* Sums of what several ranks have, added in pairs: neighbours first, then sums of two, of four and so on. The order depends on
 * nothing but the number of addends, so sums have the same bits from run to run; and groups of 2, 4, 8 .. ranks in a row that
 * are added first, each by itself, do not change them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { PAIRWISE_MOST = 1 << 16 }; /* addends */

struct pairwise_sum {
    const void *const *addends; /* [count] arrays */
    int count;                  /* at least 1 */
    bool bf16;                  /* addends are bfloat16, but for that at `wide`; else all are float */
    int wide;                   /* -1: none */
    float *const *targets;      /* [target_count] arrays that get the sums; they may be addends */
    int target_count;
};

/* Elements [first, first + count) of all arrays. */
void pairwise_sum(const struct pairwise_sum *sum, uint64_t first, uint64_t count);
