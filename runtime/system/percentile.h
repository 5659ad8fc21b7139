/* Order statistics of numbers in double. */
#pragma once

#include <stddef.h>

/* Ascending, in place. Without NaN. */
void percentile_sort(double *values, size_t count);

/* Linear interpolation between order statistics, as numpy's default; fraction 0.5 is the median. count > 0. */
double percentile(const double *sorted, size_t count, double fraction);
