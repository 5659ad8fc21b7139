#include "runtime/system/percentile.h"
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    const double first = *(const double *)a, second = *(const double *)b;
    return (first > second) - (first < second);
}

void percentile_sort(double *values, size_t count) {
    qsort(values, count, sizeof *values, compare);
}

double percentile(const double *sorted, size_t count, double fraction) {
    const double place = fraction * (double)(count - 1);
    const size_t below = (size_t)place;
    const size_t above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (place - (double)below) * (sorted[above] - sorted[below]);
}
