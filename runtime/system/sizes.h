/* Arithmetic of sizes. */
#pragma once

#include <stddef.h>

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
