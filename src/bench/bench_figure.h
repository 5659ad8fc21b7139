/* What one number was over the steps. */
#pragma once

#include <jansson.h>

struct bench_figure {
    double minimum, median, maximum;
};

/* Sorts the values; count > 0. */
struct bench_figure bench_figure_of(double *values, size_t count);

/* {"min": ..., "median": ..., "max": ...}; NULL when memory runs out. */
json_t *bench_figure_json(const struct bench_figure *figure);
