#include "tests/support/tensors.h"
#include "runtime/system/memory.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct safetensors *tensors_open(const char *folder, const char *name) {
    char path[512];
    struct safetensors *file = NULL;
    snprintf(path, sizeof path, *name ? "%s/%s" : "%s", folder, name);
    require(safetensors_open(path, &file));
    return file;
}

float *tensors_read(const struct safetensors *file, const struct tensor_info *info) {
    float *values = memory_allocate(info->elements, sizeof *values);
    require(safetensors_read_f32(file, info, 0, info->elements, values));
    return values;
}

const struct tensor_info *tensors_need(const struct safetensors *file, const char *prefix, const char *name) {
    char whole[160];
    snprintf(whole, sizeof whole, "%s%s", prefix, name);
    const struct tensor_info *info = safetensors_find(file, whole);
    require(info ? 0 : error_set("there is no tensor '%s'", whole));
    return info;
}

double tensors_norm(const float *x, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sqrt(sum);
}

double tensors_distance(const float *a, const float *b, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double difference = (double)a[i] - (double)b[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

double tensors_largest(const float *x, size_t count) {
    double largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double size = fabs((double)x[i]); // compared by hand: gcc 12.2 for arm64 fails on a loop of fmax
        largest = size > largest ? size : largest;
    }
    return largest;
}

double tensors_largest_difference(const float *a, const float *b, size_t count) {
    double largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        const double difference = fabs((double)a[i] - (double)b[i]);
        if (isnan(difference)) {
            return NAN;
        }
        largest = fmax(largest, difference);
    }
    return largest;
}

int tensors_take(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const float *const *all = context;
    memcpy(values, all[tensor] + first, count * sizeof *values);
    return 0;
}
