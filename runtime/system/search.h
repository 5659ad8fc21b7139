/* Binary search in ascending numbers, of which some may be equal. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the index of the last one of `count` ranges (at least 1) that begins at or before `place`, or else 0.
 * begins: where the first one begins; the others' places follow at distances of `stride` bytes. */
size_t search_range(const uint64_t *begins, size_t stride, size_t count, uint64_t place);
