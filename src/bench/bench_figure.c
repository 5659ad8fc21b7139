#include "src/bench/bench_figure.h"
#include "runtime/system/distribution.h"

struct bench_figure bench_figure_of(double *values, size_t count) {
    percentile_sort(values, count);
    return (struct bench_figure){values[0], percentile(values, count, 0.5), values[count - 1]};
}

json_t *bench_figure_json(const struct bench_figure *figure) {
    return json_pack("{s:f, s:f, s:f}", "min", figure->minimum, "median", figure->median, "max", figure->maximum);
}
