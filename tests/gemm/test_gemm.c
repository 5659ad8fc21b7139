/* Every GEMM backend on every device against sums in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_tune.h"
#include "runtime/system/error.h"
#include "tests/support/operation_bench.h"
#include "tests/support/rounding.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    size_t m, n, k;
    size_t pad_a, pad_b, pad_c; /* stride less width */
    size_t offset_a, offset_b, offset_c;
    float alpha, beta;
};

static const struct shape shapes[] = {
    {1, 1, 1, 0, 0, 0, 0, 0, 0, 1.0f, 0.0f},      {4, 8, 16, 0, 0, 0, 0, 0, 0, 1.0f, 0.0f},
    {5, 3, 7, 2, 1, 3, 0, 0, 0, 1.0f, 1.0f},      {17, 13, 29, 0, 0, 0, 3, 5, 11, -0.5f, 0.0f},
    {33, 31, 65, 1, 7, 5, 1, 0, 2, 0.75f, -1.5f}, {1, 24, 100, 0, 0, 8, 0, 9, 4, 1.0f, 1.0f},
    {64, 24, 1, 0, 0, 0, 0, 0, 0, 2.0f, 0.5f},    {6, 5, 0, 0, 0, 2, 0, 0, 3, 1.0f, 0.25f},
    {6, 5, 0, 0, 0, 2, 0, 0, 3, 1.0f, 0.0f},      {3, 4, 5, 0, 0, 1, 0, 0, 0, 0.0f, 2.0f},
};
/* Large enough for CLBlast's indirect kernels, too large for slow devices. */
static const struct shape large_shapes[] = {
    {257, 130, 190, 3, 5, 7, 2, 1, 9, 1.0f, 0.0f},
    {512, 512, 256, 0, 0, 0, 0, 0, 0, 1.5f, 1.0f},
    {400, 640, 640, 0, 0, 16, 0, 0, 0, 1.0f, 0.0f},
};

/* What A, B and C are stored as. */
typedef const enum element_type types_of_three[3];
static types_of_three all_fp32 = {ELEMENT_FP32, ELEMENT_FP32, ELEMENT_FP32};
static types_of_three mixtures[] = {
    {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_BF16},
    {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_FP32},
    {ELEMENT_FP16, ELEMENT_FP16, ELEMENT_FP16},
    {ELEMENT_FP32, ELEMENT_FP16, ELEMENT_FP32},
};

struct operand {
    struct buffer buffer;
    struct matrix matrix;
    double *values;
    size_t count;
};

static float next_value(void) {
    static uint32_t state = 12345;
    state = state * 1664525U + 1013904223U;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* A matrix whose surroundings in the buffer are NaN, so that reading or writing outside shows. */
static void operand_create(struct compute *compute, struct operand *operand, enum element_type type, size_t rows,
                           size_t columns, size_t pad, size_t offset, bool fill) {
    size_t stride = columns + pad;
    operand->count = offset + (rows ? (rows - 1) * stride : 0) + columns + 2;
    operand->values = malloc(operand->count * sizeof(*operand->values));
    assert_non_null(operand->values);
    for (size_t i = 0; i < operand->count; i++) {
        operand->values[i] = NAN;
    }
    for (size_t i = 0; i < rows && fill; i++) {
        for (size_t j = 0; j < columns; j++) {
            operand->values[offset + i * stride + j] = rounding_nearest(type, (double)next_value());
        }
    }
    assert_int_equal(buffer_create(compute, &operand->buffer, operand->count * element_size(type)), 0);
    operand->buffer.type = type;
    assert_int_equal(support_upload(compute, &operand->buffer, 0, operand->values, operand->count), 0);
    operand->matrix = (struct matrix){&operand->buffer, offset, stride};
}

static void operand_release(struct compute *compute, struct operand *operand) {
    buffer_release(compute, &operand->buffer);
    free(operand->values);
}

static double element(const struct operand *operand, bool transpose, size_t row, size_t column) {
    size_t i = transpose ? column : row, j = transpose ? row : column;
    return operand->values[operand->matrix.offset + i * operand->matrix.stride + j];
}

static void check_result(const struct shape *shape, bool ta, bool tb, const struct operand *a,
                         const struct operand *b, const struct operand *c, const double *result) {
    for (size_t at = 0; at < c->count; at++) {
        size_t inside = at - c->matrix.offset, row = inside / c->matrix.stride, column = inside % c->matrix.stride;
        if (at < c->matrix.offset || row >= shape->m || column >= shape->n) {
            assert_true(isnan(result[at])); /* untouched */
            continue;
        }
        double sum = 0.0, magnitude = 1.0;
        for (size_t p = 0; p < shape->k && shape->alpha != 0.0f; p++) {
            double product = element(a, ta, row, p) * element(b, tb, p, column);
            sum += product;
            magnitude += fabs(product);
        }
        double expected = shape->alpha * sum;
        if (shape->beta != 0.0f) {
            expected += shape->beta * c->values[at];
        }
        /* sums in fp32, then rounded to what C is stored as */
        const double rounding = rounding_unit(c->buffer.type) * fabs(expected);
        if (!(fabs(result[at] - expected) <= 1e-6 * magnitude + rounding)) {
            fail_msg("%c%c %zux%zux%zu: element %zu, %zu is %g, not %g", ta ? 't' : 'n', tb ? 't' : 'n', shape->m,
                     shape->n, shape->k, row, column, result[at], expected);
        }
    }
}

static void check_shape(struct compute *compute, const struct shape *shape, bool ta, bool tb,
                        types_of_three types) {
    struct operand a, b, c;
    operand_create(compute, &a, types[0], ta ? shape->k : shape->m, ta ? shape->m : shape->k, shape->pad_a,
                   shape->offset_a, shape->alpha != 0.0f);
    operand_create(compute, &b, types[1], tb ? shape->n : shape->k, tb ? shape->k : shape->n, shape->pad_b,
                   shape->offset_b, shape->alpha != 0.0f);
    operand_create(compute, &c, types[2], shape->m, shape->n, shape->pad_c, shape->offset_c, shape->beta != 0.0f);
    double *result = malloc(c.count * sizeof(*result));
    assert_non_null(result);
    gemm_run(compute, ta, tb, shape->m, shape->n, shape->k, shape->alpha, a.matrix, b.matrix, shape->beta,
             c.matrix);
    if (support_download(compute, &c.buffer, 0, result, c.count)) {
        fail_msg("%s", error_text());
    }
    check_result(shape, ta, tb, &a, &b, &c, result);
    free(result);
    operand_release(compute, &a);
    operand_release(compute, &b);
    operand_release(compute, &c);
}

static void check_shapes(struct compute *compute, const struct shape *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (int transposes = 0; transposes < 4; transposes++) {
            check_shape(compute, &list[i], transposes & 1, transposes & 2, all_fp32);
        }
    }
}

/* The shapes with operands of 16 bits, each with another mixture. */
static void check_types(struct compute *compute) {
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        for (size_t t = 0; t < sizeof(mixtures) / sizeof(*mixtures); t++) {
            check_shape(compute, &shapes[i], (i + t) & 1, (i + t) & 2, mixtures[t]);
        }
    }
}

/* Opens device `index` with this backend; NULL where the device cannot use it. */
static struct compute *open_backend(size_t index, const char *gemm, bool profile) {
    char word[32];
    struct compute *compute;
    snprintf(word, sizeof(word), "%zu", index);
    struct compute_options options = {.device = word, .gemm = gemm, .cache_dir = "", .profile = profile};
    if (gemm_compute_open(&compute, &options) == 0) {
        return compute;
    }
    if (strcmp(gemm, "cblas")) {
        fail_msg("%s", error_text());
    }
    return NULL;
}

static size_t device_count(void) {
    struct device *devices;
    size_t count;
    assert_int_equal(device_list(&devices, &count), 0);
    free(devices);
    return count;
}

static void check_backend(const char *gemm) {
    size_t count = device_count();
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        struct compute *compute = open_backend(i, gemm, i % 2 == 0);
        if (!compute) {
            continue;
        }
        assert_string_equal(gemm_name(compute), gemm);
        check_shapes(compute, shapes, sizeof(shapes) / sizeof(*shapes));
        check_types(compute);
        if (compute->device.native_kernels) {
            check_shapes(compute, large_shapes, sizeof(large_shapes) / sizeof(*large_shapes));
        }
        compute_close(compute);
    }
}

static void test_cblas(void **state) {
    (void)state;
    check_backend("cblas");
}

static void test_clblast(void **state) {
    (void)state;
    check_backend("clblast");
}

/* The folder's parameters are those in force, also where CLBlast would take its direct kernel. */
static const struct gemm_parameters tuned = {
    .value = {0, 1, 8, 2, 2, 4, 32, 2, 2, 12, 0, 1, 1, 0, 4, 2},
    .direct_below = 0,
};

/* Device `word` with the parameters that the file of the scratch folder has; NULL when they are refused. */
static struct compute *open_tuned(const char *word) {
    struct compute *compute;
    const struct compute_options options = {.device = word, .gemm = "clblast", .cache_dir = scratch_path("tuned")};
    return gemm_compute_open(&compute, &options) ? NULL : compute;
}

static void write_parameters(const char *word, const struct gemm_parameters *parameters) {
    struct device device;
    assert_int_equal(device_choose(word, 0, &device), 0);
    char *path = gemm_parameters_path(scratch_path("tuned"), &device);
    assert_non_null(path);
    assert_int_equal(gemm_parameters_write(path, &device, parameters), 0);
    free(path);
}

static void test_clblast_tuned(void **state) {
    (void)state;
    struct compute *compute = open_tuned("0");
    assert_non_null(compute);
    assert_false(gemm_is_tuned(compute));
    const bool fast = compute->device.native_kernels;
    compute_close(compute);
    write_parameters("0", &tuned);
    compute = open_tuned("0");
    assert_non_null(compute);
    assert_true(gemm_is_tuned(compute));
    check_shapes(compute, shapes, sizeof(shapes) / sizeof(*shapes));
    if (fast) {
        check_shapes(compute, large_shapes, 1);
    }
    compute_close(compute);
    struct gemm_parameters wrong = tuned;
    wrong.value[GEMM_VWM] = 5;
    write_parameters("0", &wrong);
    assert_null(open_tuned("0"));
    assert_non_null(strstr(error_text(), "hc_bench --tune"));
}

/* No time at all: the first candidate is tried all the same, from parameters that are known. */
static void test_tune(void **state) {
    (void)state;
    struct compute *compute;
    struct gemm_tune_result result;
    const struct compute_options options = {.device = "0", .gemm = "clblast", .cache_dir = "", .untuned = true};
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    assert_int_equal(gemm_tune(compute, 40, 30, 20, 0.0, &tuned, &result), 0);
    assert_true(result.tried == 1 && result.refused == 0);
    assert_true(result.stock > 0.0 && result.rate >= result.stock);
    assert_true(result.improved == (result.rate > result.stock));
    assert_true(!result.improved || !memcmp(result.best.value, tuned.value, sizeof tuned.value));
    assert_int_equal(gemm_tune(compute, 0, 30, 20, 0.0, NULL, &result), -1);
    assert_int_equal(gemm_tune(compute, SIZE_MAX / 2, 30, 20, 0.0, NULL, &result), -1);
    compute_close(compute);
}

static void test_portable(void **state) {
    (void)state;
    check_backend("portable");
}

/* A, B and C in one buffer, as parameters and gradients are. */
static void test_one_buffer(void **state) {
    (void)state;
    struct compute *compute;
    struct compute_options options = {.cache_dir = ""};
    struct buffer buffer;
    float values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0};
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    assert_int_equal(buffer_create(compute, &buffer, sizeof(values)), 0);
    assert_int_equal(buffer_write(compute, &buffer, 0, values, sizeof(values)), 0);
    gemm_run(compute, false, false, 2, 2, 2, 1.0f, (struct matrix){&buffer, 0, 2}, (struct matrix){&buffer, 4, 2},
             0.0f, (struct matrix){&buffer, 8, 2});
    assert_int_equal(buffer_read(compute, &buffer, 0, values, sizeof(values)), 0);
    assert_true(values[8] == 19 && values[9] == 22 && values[10] == 43 && values[11] == 50);
    buffer_release(compute, &buffer);
    compute_close(compute);
}

static void test_empty(void **state) {
    (void)state;
    struct compute *compute;
    struct compute_options options = {.cache_dir = ""};
    struct buffer buffer;
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    assert_int_equal(buffer_create(compute, &buffer, 0), 0);
    struct matrix matrix = {&buffer, 0, 0};
    gemm_run(compute, false, false, 0, 5, 5, 1.0f, matrix, matrix, 0.0f, matrix);
    gemm_run(compute, false, false, 5, 0, 5, 1.0f, matrix, matrix, 0.0f, matrix);
    assert_int_equal(compute_finish(compute), 0);
    buffer_release(compute, &buffer);
    compute_close(compute);
}

/* One product with wrong extents on a fresh compute; the failure must name the matrix. */
static void check_refused(size_t m, size_t n, size_t k, struct matrix a, struct matrix b, struct matrix c,
                          const char *letter) {
    struct compute *compute;
    struct compute_options options = {.cache_dir = ""};
    struct buffer buffer;
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    assert_int_equal(buffer_create(compute, &buffer, 100 * sizeof(float)), 0);
    a.buffer = b.buffer = c.buffer = &buffer;
    gemm_run(compute, false, false, m, n, k, 1.0f, a, b, 0.0f, c);
    assert_int_equal(compute_finish(compute), -1);
    if (!strstr(error_text(), letter)) {
        fail_msg("\"%s\" does not name \"%s\"", error_text(), letter);
    }
    buffer_release(compute, &buffer);
    compute_close(compute);
}

static void test_refused(void **state) {
    (void)state;
    const struct matrix good = {NULL, 0, 10};
    check_refused(10, 10, 10, (struct matrix){NULL, 1, 10}, good, good, ": A [10, 10]");
    check_refused(10, 10, 10, good, (struct matrix){NULL, 0, 11}, good, ": B [10, 10]");
    check_refused(10, 10, 10, good, good, (struct matrix){NULL, 101, 10}, ": C [10, 10]");
    check_refused(10, 10, 10, (struct matrix){NULL, 0, 9}, good, good, ": A [10, 10]");
    check_refused(11, 10, 10, good, good, good, ": C [11, 10]");
    check_refused(10, 10, 10, (struct matrix){NULL, SIZE_MAX, 10}, good, good, ": A [10, 10]");
    check_refused(10, 10, 10, good, good, (struct matrix){NULL, 0, SIZE_MAX / 9 + 10}, ": C [10, 10]");
    check_refused(SIZE_MAX, 10, 10, good, good, good, ": C [");
}

static void test_unknown_backend(void **state) {
    (void)state;
    struct compute *compute;
    struct compute_options options = {.gemm = "abacus", .cache_dir = ""};
    assert_int_equal(gemm_compute_open(&compute, &options), -1);
    assert_null(compute);
    assert_non_null(strstr(error_text(), "abacus"));
    assert_non_null(strstr(error_text(), "clblast"));
}

static void test_rate(void **state) {
    (void)state;
    struct compute *compute;
    struct compute_options options = {.cache_dir = ""};
    double rate = 0.0;
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    assert_int_equal(gemm_measure_rate(compute, ELEMENT_FP32, 64, 64, 64, &rate), 0);
    assert_true(rate > 0.0); /* a simulator makes less than a megaflop */
    assert_int_equal(compute->allocated_bytes, 0);
    rate = 0.0;
    assert_int_equal(gemm_measure_rate(compute, ELEMENT_BF16, 64, 64, 64, &rate), 0);
    assert_true(rate > 0.0);
    assert_int_equal(gemm_measure_rate(compute, ELEMENT_FP32, 64, 0, 64, &rate), -1);
    assert_int_equal(gemm_measure_rate(compute, ELEMENT_FP32, SIZE_MAX / 2, 1, 8, &rate), -1);
    compute_close(compute);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cblas),           cmocka_unit_test(test_clblast),
        cmocka_unit_test(test_portable),        cmocka_unit_test(test_one_buffer),
        cmocka_unit_test(test_empty),           cmocka_unit_test(test_refused),
        cmocka_unit_test(test_unknown_backend), cmocka_unit_test(test_rate),
        cmocka_unit_test(test_clblast_tuned),   cmocka_unit_test(test_tune),
    };
    device_prepare_environment();
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
