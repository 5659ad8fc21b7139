#include "runtime/gemm/gemm_measure.h"
#include "runtime/device/convert.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include <math.h>
#include <stdlib.h>

#define CALLS   3   /* at least */
#define SECONDS 0.3 /* of calls for a rate */

/* ---- matrices */

/* Fills with values in [-0.5, 0.5). */
static int fill_buffer(struct compute *compute, const struct buffer *buffer) {
    size_t count = buffer->bytes / sizeof(float);
    float *values = malloc(buffer->bytes);
    if (!values) {
        return error_set("out of memory");
    }
    uint32_t state = 1;
    for (size_t i = 0; i < count; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)(state >> 8) / 16777216.0f - 0.5f;
    }
    int result = buffer_write(compute, buffer, 0, values, buffer->bytes);
    free(values);
    return result;
}

/* Creates a buffer of 16-bit elements with what is in another of floats, which is released. */
static int narrow(struct compute *compute, struct buffer *buffer, enum element_type type) {
    struct buffer wide = *buffer;
    const size_t count = wide.bytes / sizeof(float);
    int result = buffer_create(compute, buffer, count * element_size(type));
    buffer->type = type;
    if (!result) {
        convert_elements(compute, (struct span){&wide, 0}, (struct span){buffer, 0}, count);
        result = compute_check(compute);
    }
    buffer_release(compute, &wide);
    return result;
}

int gemm_measure_create(struct compute *compute, struct buffer *buffer, enum element_type type, size_t rows,
                        size_t columns) {
    size_t bytes;
    if (__builtin_mul_overflow(rows, columns, &bytes) || __builtin_mul_overflow(bytes, sizeof(float), &bytes)) {
        return error_set("a matrix of %zu x %zu is too large", rows, columns);
    }
    if (buffer_create(compute, buffer, bytes) || fill_buffer(compute, buffer)) {
        return -1;
    }
    return type == ELEMENT_FP32 ? 0 : narrow(compute, buffer, type);
}

/* ---- time */

double gemm_measure_call(struct compute *compute, const struct gemm_call *call, double seconds, double limit) {
    double best = INFINITY, deadline = 0.0;
    for (int round = 0;; round++) {
        const double start = progress_clock();
        gemm_run(compute, call);
        if (compute_finish(compute)) {
            return -1.0;
        }
        const double end = progress_clock();
        if (round == 0) {
            deadline = end + seconds;
            continue;
        }
        best = end - start < best ? end - start : best;
        if (best > limit || (round >= CALLS && end > deadline)) {
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
        return error_set("cannot measure the rate of an empty product");
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
