#include "runtime/gemm/gemm_measure.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include <math.h>
#include <stdlib.h>

#define ROUNDS     3     /* at least */
#define SECONDS    0.3   /* of rounds for a rate */
#define PERIOD     65521 /* elements until they repeat: a prime, so that rows differ */
#define ROUND      0.01 /* seconds of calls for which the host waits once, since waiting takes as long as a GEMM may */
#define MOST_CALLS 256 /* in a round */

/* ---- matrices */

int gemm_measure_create(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
                        size_t columns) {
    size_t count, bytes;
    if (__builtin_mul_overflow(rows, columns, &count) ||
        __builtin_mul_overflow(count, element_size(type), &bytes)) {
        return error_set("a matrix of %zu x %zu is too large", rows, columns);
    }
    if (buffer_create(compute, buffer, bytes)) {
        return -1;
    }
    buffer->type = type;
    char *elements = memory_allocate(1, bytes);
    uint32_t state = 1;
    for (size_t i = 0; i < count && i < PERIOD; i++) {
        state = state * 1664525U + 1013904223U;
        element_put(elements, i, (float)(state >> 8) / 16777216.0f - 0.5f, type);
    }
    for (size_t at = PERIOD * element_size(type); at < bytes; at++) {
        elements[at] = elements[at - PERIOD * element_size(type)];
    }
    const int status = buffer_write(compute, buffer, 0, elements, bytes);
    free(elements);
    return status;
}

/* ---- time */

/* Seconds of so many calls one after another; -1 with an error. */
static double time_calls(struct compute *compute, const struct gemm_call *call, size_t calls) {
    const double start = progress_clock();
    for (size_t i = 0; i < calls; i++) {
        gemm_run(compute, call);
    }
    return compute_finish(compute) ? -1.0 : progress_clock() - start;
}

double gemm_measure_call(struct compute *compute, const struct gemm_call *call, double seconds, double limit) {
    double best = INFINITY, once = time_calls(compute, call, 1);
    if (once >= 0.0) { /* that compiled */
        once = time_calls(compute, call, 1);
    }
    if (once < 0.0) {
        return -1.0;
    }
    const size_t calls = once < ROUND / MOST_CALLS ? MOST_CALLS : once < ROUND ? (size_t)(ROUND / once) : 1;
    const double deadline = progress_clock() + seconds;
    for (int round = 0;; round++) {
        const double total = time_calls(compute, call, calls);
        if (total < 0.0) {
            return -1.0;
        }
        best = fmin(best, total / (double)calls);
        if (best > limit || (round + 1 >= ROUNDS && progress_clock() > deadline)) {
            return best;
        }
    }
}

int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second) {
    struct buffer a = {0}, b = {0}, c = {0};
    const struct gemm_call call = {
        .transpose_b = true, .m = m, .n = n, .k = k, .a = {&a, 0, k}, .b = {&b, 0, k}, .c = {&c, 0, n}};
    double seconds = -1.0;
    if (!m || !n || !k) {
        *flops_per_second = 0.0;
        return error_set("cannot measure the rate of an empty GEMM");
    }
    if (!gemm_measure_create(compute, &a, type, m, k) && !gemm_measure_create(compute, &b, type, n, k) &&
        !gemm_measure_create(compute, &c, type, m, n)) {
        seconds = gemm_measure_call(compute, &call, SECONDS, INFINITY);
    }
    buffer_release(compute, &a);
    buffer_release(compute, &b);
    buffer_release(compute, &c);
    *flops_per_second = seconds > 0.0 ? gemm_call_flops(&call) / seconds : 0.0;
    return seconds > 0.0 ? 0 : error_prefix("measuring the rate of gemm");
}
