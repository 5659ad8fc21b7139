#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include <math.h>
#include <stdlib.h>

#define ROUNDS     3     /* at least */
#define SECONDS    0.1   /* of rounds for a rate */
#define PERIOD     65521 /* elements until they repeat: a prime, so that rows differ */
#define ROUND      0.01  /* seconds of calls for one wait of the host, which may take as long as a GEMM */
#define MOST_CALLS 256   /* in a round */

/* Creates the buffer of a rows x columns matrix of this type with numbers in [-0.5, 0.5) in it: zeros would not
 * draw the power that real data does. */
static int create_matrix(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
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

/* Seconds of so many calls one after another; -1 with an error. */
static double time_calls(struct compute *compute, const struct gemm_call *call, size_t calls) {
    const double start = progress_clock();
    for (size_t i = 0; i < calls; i++) {
        gemm_run(compute, call);
    }
    return compute_finish(compute) ? -1.0 : progress_clock() - start;
}

/* Takes the fastest of a few rounds, after two calls that compile and warm up. A round is as many calls as take 10
 * ms, but at least one and at most MOST_CALLS, one after another without waiting. */
int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second) {
    struct buffer a = {0}, b = {0}, c = {0};
    const struct gemm_call call = {.transpose_b = true,
                                   .a = matrix_of(&a, 0, m, k),
                                   .b = matrix_of(&b, 0, n, k),
                                   .c = matrix_of(&c, 0, m, n)};
    double seconds = -1.0, best = INFINITY;
    *flops_per_second = 0.0;
    if (!m || !n || !k) {
        return error_set("cannot measure the rate of an empty GEMM");
    }
    if (!create_matrix(compute, &a, type, m, k) && !create_matrix(compute, &b, type, n, k) &&
        !create_matrix(compute, &c, type, m, n) && time_calls(compute, &call, 1) >= 0.0) {
        seconds = time_calls(compute, &call, 1);
        const size_t calls = (size_t)fmin(fmax(ROUND / seconds, 1.0), MOST_CALLS);
        const double deadline = progress_clock() + SECONDS;
        for (int round = 0; seconds >= 0.0 && (round < ROUNDS || progress_clock() <= deadline); round++) {
            seconds = time_calls(compute, &call, calls);
            best = fmin(best, seconds / (double)calls);
        }
    }
    buffer_release(compute, &a);
    buffer_release(compute, &b);
    buffer_release(compute, &c);
    if (seconds < 0.0) {
        return error_prefix("measuring the rate of gemm");
    }
    *flops_per_second = 2.0 * (double)m * (double)n * (double)k / best;
    return 0;
}
