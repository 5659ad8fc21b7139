/* The mean of a sample and its confidence interval. */
#pragma once

#include <stddef.h>

struct mean_interval {
    double mean;       /* NaN without values */
    double deviation;  /* standard deviation of a sample; NaN below two values */
    double half_width; /* the 95 % interval by Student's t is mean +- half_width; NaN below two values */
};

struct mean_interval mean_interval_of(const double *values, size_t count);
