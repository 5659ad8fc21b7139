/* Attention on matrix units, through an emulation of NVIDIA's that runs on any device. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "src/operations/attention_check.h"
#include "src/operations/operations.h"
#include "tests/support/reference.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static struct compute *compute;

static int set_up(void **state) {
    (void)state;
    const struct compute_options options = {.device = "pocl"};
    device_prepare_environment();
    return gemm_compute_open(&compute, &options);
}

static int tear_down(void **state) {
    (void)state;
    compute_close(compute);
    return 0;
}

/* ---- the reference, against the tests' own */

static const struct attention_case small = {
    .batch = 2,
    .sequence = 9,
    .heads = 2,
    .head_size = 16,
    .type = ELEMENT_BF16,
    .dropout = 0.25f,
    .key = 0x123456789abcdef0U,
    .first_row = 0xfffffffcU,
    .spread = 1.0,
};

static size_t elements_of(const struct attention_case *shape) {
    return shape->batch * shape->sequence * shape->heads * shape->head_size;
}

static void forward(const struct attention_case *shape, const double *qkv, double *y, double *lse) {
    const struct reference_attention same = {shape->batch,   shape->sequence, shape->heads,    shape->head_size,
                                             shape->dropout, shape->key,      shape->first_row};
    reference_attention(&same, qkv, y, lse);
}

/* <d_y, y> */
static double loss(const struct attention_case *shape, const double *qkv, const double *d_y, double *y,
                   double *lse) {
    forward(shape, qkv, y, lse);
    return reference_dot(elements_of(shape), y, d_y);
}

static void test_reference(void **state) {
    (void)state;
    const size_t elements = elements_of(&small);
    struct attention_numbers numbers;
    struct attention_results results;
    double *y = calloc(elements, sizeof(*y)), *lse = calloc(elements, sizeof(*lse));
    assert_int_equal(attention_numbers_draw(&small, &numbers), 0);
    assert_int_equal(attention_reference(&small, numbers.qkv, numbers.d_y, &results), 0);
    forward(&small, numbers.qkv, y, lse);
    for (size_t i = 0; i < elements; i++) {
        assert_true(fabs(results.y[i].value - y[i]) < 1e-6); /* dropout's factor there is a float */
    }
    for (size_t i = 0; i < elements / small.head_size; i++) {
        assert_true(fabs(results.lse[i].value - lse[i]) < 1e-12);
    }
    for (size_t i = 0; i < 3 * elements; i++) {
        const double step = 1e-5, kept = numbers.qkv[i];
        numbers.qkv[i] = kept + step;
        const double above = loss(&small, numbers.qkv, numbers.d_y, y, lse);
        numbers.qkv[i] = kept - step;
        const double below = loss(&small, numbers.qkv, numbers.d_y, y, lse);
        numbers.qkv[i] = kept;
        assert_true(fabs((above - below) / (2.0 * step) - results.d_qkv[i].value) < 1e-6);
    }
    attention_results_free(&results);
    attention_numbers_free(&numbers);
    free(y);
    free(lse);
}

/* ---- the kernels, against the reference */

static struct attention_units *open_emulation(size_t heads, size_t head_size, enum element_type type,
                                              bool like_rdna) {
    const struct mma_unit unit = mma_unit_emulation();
    const struct attention_units_options options = {.unit = &unit, .like_rdna = like_rdna};
    const struct attention_units_shape shape = {(int64_t)heads, (int64_t)head_size, type};
    struct attention_units *units;
    if (attention_units_open(compute, &shape, &options, NULL, &units)) {
        fail_msg("%s", error_text());
    }
    return units;
}

static void check_cases(size_t heads, size_t head_size, enum element_type type, bool like_rdna,
                        const struct attention_case *cases, size_t count) {
    struct attention_units *units = open_emulation(heads, head_size, type, like_rdna);
    for (size_t i = 0; i < count; i++) {
        struct attention_case wanted = cases[i];
        double worst = 0.0;
        wanted.heads = heads;
        wanted.head_size = head_size;
        wanted.type = type;
        wanted.key = i + 1;
        if (attention_check(units, &wanted, &worst)) {
            fail_msg("D %zu, type %d, T %zu, B %zu, dropout %g: %s", head_size, (int)type, wanted.sequence,
                     wanted.batch, (double)wanted.dropout, error_text());
        }
        /* bounds far wider than the errors would hide errors */
        assert_true(wanted.sequence == 1 || worst > 0.1);
    }
    attention_units_close(units);
}

/* Every edge of the blocks, with and without dropout. */
static const struct attention_case all_cases[] = {
    {.batch = 1, .sequence = 1, .spread = 1.0},
    {.batch = 3, .sequence = 1, .spread = 1.0, .dropout = 0.2f},
    {.batch = 2, .sequence = 15, .spread = 1.0, .dropout = 0.2f},
    {.batch = 1, .sequence = 16, .spread = 1.0},
    {.batch = 2, .sequence = 17, .spread = 1.0, .dropout = 0.2f, .first_row = UINT32_MAX - 3U},
    {.batch = 1, .sequence = 64, .spread = 1.0, .dropout = 0.2f},
    {.batch = 2, .sequence = 65, .spread = 1.0},
    {.batch = 1, .sequence = 130, .spread = 1.0, .dropout = 0.2f, .first_row = 1},
    {.batch = 1, .sequence = 70, .spread = 3.0},
};

static const struct attention_case few_cases[] = {
    {.batch = 2, .sequence = 17, .spread = 1.0, .dropout = 0.2f},
    {.batch = 1, .sequence = 130, .spread = 1.0},
};

static void test_head_16_bf16(void **state) {
    (void)state;
    check_cases(3, 16, ELEMENT_BF16, false, all_cases, COUNT(all_cases));
}

static void test_head_64_fp16(void **state) {
    (void)state;
    check_cases(2, 64, ELEMENT_FP16, false, few_cases, COUNT(few_cases));
}

/* Tiles of panels, 16 columns wide; all that is otherwise kept or turned in registers goes through local memory. */
static void test_head_80_like_rdna(void **state) {
    (void)state;
    check_cases(1, 80, ELEMENT_BF16, true, few_cases, COUNT(few_cases));
}

static void test_head_128_bf16(void **state) {
    (void)state;
    check_cases(1, 128, ELEMENT_BF16, false, few_cases, COUNT(few_cases));
}

/* ---- beside the portable kernels, behind the same functions */

struct attention_buffers {
    struct buffer qkv, d_y, y, lse, keys_t, values_t, delta, d_qkv;
};

static void create_floats(struct buffer *buffer, const double *values, size_t count) {
    float *floats = calloc(count, sizeof(*floats));
    for (size_t i = 0; i < count && values; i++) {
        floats[i] = (float)values[i];
    }
    assert_int_equal(buffer_create(compute, buffer, count * sizeof(*floats)), 0);
    assert_int_equal(buffer_write(compute, buffer, 0, floats, count * sizeof(*floats)), 0);
    free(floats);
}

static void compare_floats(const struct buffer *buffer, const struct bounded *expected, size_t count,
                           double tolerance) {
    float *floats = calloc(count, sizeof(*floats));
    assert_int_equal(buffer_read(compute, buffer, 0, floats, count * sizeof(*floats)), 0);
    for (size_t i = 0; i < count; i++) {
        assert_true(fabs((double)floats[i] - expected[i].value) <= tolerance * (1.0 + fabs(expected[i].value)));
    }
    free(floats);
}

static void create_buffers(const struct attention_numbers *numbers, struct attention_buffers *buffers) {
    const size_t elements = elements_of(&small), rows = elements / small.head_size;
    const size_t scratch = rows / small.sequence * small.head_size * operations_padded(compute, 9);
    create_floats(&buffers->qkv, numbers->qkv, 3 * elements);
    create_floats(&buffers->d_y, numbers->d_y, elements);
    create_floats(&buffers->y, NULL, elements);
    create_floats(&buffers->lse, NULL, rows);
    create_floats(&buffers->keys_t, NULL, scratch);
    create_floats(&buffers->values_t, NULL, scratch);
    create_floats(&buffers->delta, NULL, rows);
    create_floats(&buffers->d_qkv, NULL, 3 * elements);
}

static void release_buffers(struct attention_buffers *buffers) {
    struct buffer *const all = (struct buffer *)buffers; /* the struct holds nothing else */
    for (size_t i = 0; i < sizeof(*buffers) / sizeof(*all); i++) {
        buffer_release(compute, &all[i]);
    }
}

static struct operations make_operations(void) {
    struct operations operations;
    const struct operation_shape wanted = {
        .streams = 1,
        .channels = (int64_t)(small.heads * small.head_size),
        .heads = (int64_t)small.heads,
        .vocabulary = 8,
        .residual = residual_find("rc"),
    };
    if (operations_create(compute, &wanted, &operations)) {
        fail_msg("%s", error_text());
    }
    return operations;
}

static const struct token_shape small_tokens = {2, 9};

static struct attention_values values_of(const struct attention_buffers *buffers) {
    return (struct attention_values){&buffers->qkv, &buffers->y, &buffers->lse};
}

static struct attention_scratch scratch_of(const struct attention_buffers *buffers) {
    return (struct attention_scratch){&buffers->keys_t, &buffers->values_t, &buffers->delta};
}

static void run_forward(struct operations *operations, const struct attention_buffers *buffers) {
    const struct dropout dropout = {small.dropout, small.key, small.first_row};
    const struct attention_values values = values_of(buffers);
    const struct attention_scratch scratch = scratch_of(buffers);
    attention_forward(operations, small_tokens, &values, &scratch, dropout);
}

/* The portable kernels compute what the reference does, from the same numbers and with the same dropout; and where
 * units are open they are what runs, on 16-bit numbers. */
static void test_operations(void **state) {
    (void)state;
    const struct dropout dropout = {small.dropout, small.key, small.first_row};
    const size_t elements = elements_of(&small), rows = elements / small.head_size;
    struct attention_numbers numbers;
    struct attention_results expected;
    struct attention_buffers buffers;
    struct operations operations = make_operations();
    operations.attention_units = open_emulation(small.heads, small.head_size, small.type, false);
    assert_int_equal(attention_numbers_draw(&small, &numbers), 0);
    assert_int_equal(attention_reference(&small, numbers.qkv, numbers.d_y, &expected), 0);
    create_buffers(&numbers, &buffers);
    operations.attention_share = ATTENTION_BLOCKS;
    run_forward(&operations, &buffers);
    const struct attention_values values = values_of(&buffers);
    const struct attention_scratch scratch = scratch_of(&buffers);
    attention_backward(&operations, small_tokens, &values, &scratch, dropout, &buffers.d_y, &buffers.d_qkv);
    compare_floats(&buffers.y, expected.y, elements, 1e-5);
    compare_floats(&buffers.lse, expected.lse, rows, 1e-5);
    compare_floats(&buffers.d_qkv, expected.d_qkv, 3 * elements, 1e-4);
    operations.attention_share = ATTENTION_AUTO;
    buffer_zero(compute, &buffers.lse, 0, rows * sizeof(float));
    assert_int_equal(buffer_write(compute, &buffers.qkv, 0, numbers.qkv_bits, 3 * elements * sizeof(uint16_t)), 0);
    run_forward(&operations, &buffers);
    compare_floats(&buffers.lse, expected.lse, rows, 1e-4);
    release_buffers(&buffers);
    operations_release(&operations);
    attention_results_free(&expected);
    attention_numbers_free(&numbers);
}

/* ---- choosing */

/* Opens with a self-test. */
static int open_planted(int planted, struct attention_units **units) {
    const struct mma_unit unit = mma_unit_emulation();
    const struct attention_units_options options = {.unit = &unit, .planted = planted};
    return attention_units_open(compute, &(struct attention_units_shape){1, 16, ELEMENT_BF16}, &options,
                                attention_check, units);
}

static void assert_planted_found(int planted, const char *where) {
    struct attention_units *units;
    assert_int_equal(open_planted(planted, &units), -1);
    assert_null(units);
    assert_non_null(strstr(error_text(), where));
    assert_int_equal(compute_check(compute), 0);
}

static void test_self_test(void **state) {
    (void)state;
    struct attention_units *units;
    if (open_planted(0, &units)) {
        fail_msg("%s", error_text());
    }
    attention_units_close(units);
    assert_planted_found(1, "of y is");
    assert_planted_found(2, "of d_qkv is");
}

static void assert_refused(struct attention_units_shape shape, const char *reason) {
    struct attention_units *units;
    assert_int_equal(attention_units_open(compute, &shape, NULL, attention_check, &units), -1);
    assert_null(units);
    assert_non_null(strstr(error_text(), reason));
}

static void test_refused(void **state) {
    (void)state;
    assert_refused((struct attention_units_shape){2, 64, ELEMENT_FP32}, "fp32");
    assert_refused((struct attention_units_shape){2, 24, ELEMENT_BF16}, "24");
    assert_refused((struct attention_units_shape){2, 144, ELEMENT_BF16}, "144");
    assert_refused((struct attention_units_shape){2, 64, ELEMENT_BF16}, "matrix units");
    assert_int_equal(compute_check(compute), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),     cmocka_unit_test(test_head_16_bf16),
        cmocka_unit_test(test_head_64_fp16),  cmocka_unit_test(test_head_80_like_rdna),
        cmocka_unit_test(test_head_128_bf16), cmocka_unit_test(test_operations),
        cmocka_unit_test(test_self_test),     cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
