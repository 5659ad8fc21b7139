/* Binary search in ascending numbers, of which some may be equal. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Returns the index of the last one of `count` ranges (at least 1) that begins at or before `place`, or else 0.
 * begins: where the first one begins; the others' places follow at distances of `stride` bytes. */
static inline size_t search_range(const uint64_t *begins, size_t stride, size_t count, uint64_t place) {
    size_t low = 0, high = count; /* it is `low` or a later one before `high` */
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        uint64_t begin;
        memcpy(&begin, (const char *)begins + middle * stride, sizeof begin);
        *(begin <= place ? &low : &high) = middle;
    }
    return low;
}
