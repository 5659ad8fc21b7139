/* Quantiles of numbers in an array, and quantiles and moments of numbers that come one by one, in memory that does
 * not grow with their count. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Sorts numbers in ascending order, in place. Without NaN. */
void percentile_sort(double *values, size_t count);

/* Linear interpolation between order statistics, as numpy's default; fraction 0.5 is the median. count > 0. */
double percentile(const double *sorted, size_t count, double fraction);

/* ---- of numbers that come one by one: extremes and moments exactly, quantiles from a histogram whose bins are as
 * fine as a float of 17 bits after its first one */

enum { DISTRIBUTION_PAGES = 1 << 13, DISTRIBUTION_PAGE_BINS = 1 << 13 };

/* Begin with distribution_begin; memory is taken as values need it, 64 KiB for each factor of 2^(1/16) that they
 * reach into. */
struct distribution {
    uint64_t count;
    double minimum, maximum; /* HUGE_VAL and -HUGE_VAL while there is none */
    double sum, square_sum;  /* of the values, and of their squares */
    uint64_t **pages;        /* [DISTRIBUTION_PAGES] of [DISTRIBUTION_PAGE_BINS] counts, owned; NULL: all zero */
};

void distribution_begin(struct distribution *distribution);
void distribution_end(struct distribution *distribution);

/* 0, or -1 with an error text for a value that is not finite as a float. */
int distribution_add(struct distribution *distribution, double value);

/* Adds all of another's values. */
void distribution_merge(struct distribution *distribution, const struct distribution *other);

/* Linear interpolation between order statistics, as numpy's default; within 2^-18 of the values that it lies
 * between, and within the extremes. NaN when there are none. */
double distribution_quantile(const struct distribution *distribution, double fraction);

/* NaN when there are none; the deviation is that of all values, not of a sample. */
double distribution_mean(const struct distribution *distribution);
double distribution_deviation(const struct distribution *distribution);
