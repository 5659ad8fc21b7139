/* What the host's memory gives to all ranks at once: what copies and sums between them can reach at most. */
#pragma once

#include "runtime/ranks/ranks.h"

/* Bytes a second that this rank reads and writes while all do the same on all their cores: a[i] += b[i] over arrays that no cache
 * holds, the median of several passes. Collective. */
int memory_rate_measure(const struct ranks *ranks, double *rate);
