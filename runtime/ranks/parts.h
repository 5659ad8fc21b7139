/* Which rank owns what of a range. */
#pragma once

#include <stdint.h>

/* In elements of a buffer. */
struct element_range {
    uint64_t offset, count;
};

/* The part of a range that one of `count` ranks owns: multiples of 64 elements from its beginning, so that parts
 * begin where vectors do; maybe none. Rank 0's is the largest. */
static inline struct element_range rank_part(struct element_range range, int count, int rank) {
    const uint64_t ranks = (uint64_t)count, index = (uint64_t)rank;
    const uint64_t each = ((range.count + ranks - 1) / ranks + 63) / 64 * 64;
    const uint64_t first = index * each < range.count ? index * each : range.count;
    const uint64_t rest = range.count - first;
    return (struct element_range){range.offset + first, rest < each ? rest : each};
}
