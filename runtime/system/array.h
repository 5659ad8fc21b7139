/* Arrays and sizes. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* How many elements an array has: not for pointers, nor for parameters of functions. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

static inline size_t size_smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

static inline size_t size_larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* How many groups so many items need: items / group, rounded up. */
static inline size_t groups_for(size_t items, size_t group) {
    return items ? (items - 1) / group + 1 : 0;
}

/* Returns the index of the last one of `count` ranges (at least 1) that begins at or before `place`, or else 0: a
 * binary search. begins: where the first one begins; the others' places, which ascend, follow at distances of
 * `stride` bytes. */
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
