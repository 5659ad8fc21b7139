/* Attention on matrix units, through an emulation of NVIDIA's that runs on any device, and on the portable kernels
 * for CPUs and for GPUs: all held to attention in double, in 16 bits; and the self-test of both. `test_attention
 * DEVICE` is what runs on any device, on that one; without it PoCL is taken. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "src/operations/attention_matrix_cores.h"
#include "src/operations/kernels.h"
#include "tests/support/attention_reference.h"
#include "tests/support/lanes.h"
#include "tests/support/planted_fault.h"
#include "tests/support/reference.h"
#include "tests/support/rounding.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *device = "pocl";
static struct compute *compute;

static int set_up(void **state) {
    (void)state;
    const struct compute_options options = {.device = device, .cache_dir = ""}; /* faults are planted */
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

/* ---- both kinds of kernels, against the reference */

#define BEHIND 16     /* elements after a result that must stay as they are */
#define STALE  0x5a5a /* what they and the results hold before, a number that no result is near */

struct arena {
    struct buffer qkv, d_y, y, lse, delta, d_qkv, keys_t, values_t, d_queries;
};

/* A result: `bytes`, and those BEHIND it, stale. */
static void create_stale(struct buffer *buffer, size_t bytes) {
    const size_t all = bytes + BEHIND * sizeof(uint16_t);
    uint16_t *stale = malloc(all);
    assert_non_null(stale);
    for (size_t i = 0; i < all / sizeof(*stale); i++) {
        stale[i] = STALE;
    }
    assert_int_equal(buffer_create(compute, buffer, all), 0);
    assert_int_equal(buffer_write(compute, buffer, 0, stale, all), 0);
    free(stale);
}

static void create_input(struct buffer *buffer, const uint16_t *bits, size_t count) {
    const size_t bytes = count * sizeof(*bits);
    assert_int_equal(buffer_create(compute, buffer, bytes), 0);
    assert_int_equal(buffer_write(compute, buffer, 0, bits, bytes), 0);
}

static struct arena arena_create(const struct attention_case *shape, const struct attention_numbers *numbers) {
    const size_t elements = elements_of(shape), rows = elements / shape->head_size;
    const size_t padded = elements / shape->sequence * operations_transposed(compute, (int64_t)shape->sequence);
    struct arena arena;
    create_input(&arena.qkv, numbers->qkv_bits, 3 * elements);
    create_input(&arena.d_y, numbers->d_y_bits, elements);
    create_stale(&arena.y, elements * sizeof(uint16_t));
    create_stale(&arena.lse, rows * sizeof(float));
    create_stale(&arena.delta, rows * sizeof(float));
    create_stale(&arena.d_qkv, 3 * elements * sizeof(uint16_t));
    assert_int_equal(buffer_create(compute, &arena.keys_t, padded * sizeof(uint16_t)), 0);
    assert_int_equal(buffer_create(compute, &arena.values_t, padded * sizeof(uint16_t)), 0);
    assert_int_equal(buffer_create(compute, &arena.d_queries, elements * sizeof(float)), 0);
    return arena;
}

static void arena_release(struct arena *arena) {
    struct buffer *buffers = (struct buffer *)arena; /* the struct holds nothing else */
    for (size_t i = 0; i < sizeof(*arena) / sizeof(*buffers); i++) {
        buffer_release(compute, &buffers[i]);
    }
}

/* Elements of `type` against their bounds; in *worst the largest part of a bound that was used. */
static int compare(const char *name, const struct buffer *buffer, enum element_type type,
                   const struct bounded *expected, size_t count, double *worst) {
    const size_t size = element_size(type), bytes = count * size + BEHIND * sizeof(uint16_t);
    unsigned char *data = malloc(bytes);
    int status = buffer_read(compute, buffer, 0, data, bytes);
    for (size_t i = 0; i < count && status == 0; i++) {
        float single = 0.0f;
        uint16_t bits = 0;
        memcpy(type == ELEMENT_FP32 ? (void *)&single : (void *)&bits, data + i * size, size);
        const double value = type == ELEMENT_FP32 ? (double)single : rounding_decode(type, bits);
        const double part = fabs(value - expected[i].value) / expected[i].bound;
        *worst = fmax(*worst, part);
        if (!(part <= 1.0)) {
            status = error_set("element %zu of %s is %.9g, not %.9g +- %.2g", i, name, value, expected[i].value,
                               expected[i].bound);
        }
    }
    for (size_t i = 0; i < BEHIND && status == 0; i++) {
        uint16_t bits;
        memcpy(&bits, data + count * size + i * sizeof(bits), sizeof(bits));
        status = bits == STALE ? 0 : error_set("something was written behind %s", name);
    }
    free(data);
    return status;
}

/* One pass after the other, so that an error of the first one is not looked for in the second. */
static int run_and_compare(struct operations *operations, const struct attention_case *shape,
                           const struct arena *arena, const struct attention_results *expected, double *worst) {
    const size_t elements = elements_of(shape), rows = elements / shape->head_size;
    const struct token_shape tokens = {(int64_t)shape->batch, (int64_t)shape->sequence};
    const struct dropout dropout = {shape->dropout, shape->key, shape->first_row};
    const struct attention_values values = {&arena->qkv, &arena->y, &arena->lse};
    const struct attention_scratch scratch = {&arena->keys_t, &arena->values_t, &arena->delta, &arena->d_queries};
    attention_forward(operations, tokens, &values, &scratch, dropout);
    if (compare("y", &arena->y, shape->type, expected->y, elements, worst) ||
        compare("lse", &arena->lse, ELEMENT_FP32, expected->lse, rows, worst)) {
        return -1;
    }
    attention_backward(operations, tokens, &values, &scratch, dropout, &arena->d_y, &arena->d_qkv);
    return compare("d_qkv", &arena->d_qkv, shape->type, expected->d_qkv, 3 * elements, worst);
}

/* Runs both passes on numbers of the case and compares every element with attention_reference: y, lse, d_qkv, and
 * what lies behind them in memory. */
static void check_case(struct operations *operations, const struct attention_case *wanted) {
    const char *kind = operations->attention_matrix_cores     ? "matrix_cores"
                       : attention_is(operations, "gpu")      ? "gpu"
                       : attention_is(operations, "cpu_bf16") ? "cpu_bf16"
                                                              : "cpu";
    struct attention_numbers numbers;
    struct attention_results expected;
    double worst = 0.0;
    assert_int_equal(attention_numbers_draw(wanted, &numbers), 0);
    assert_int_equal(attention_reference(wanted, numbers.qkv, numbers.d_y, &expected), 0);
    struct arena arena = arena_create(wanted, &numbers);
    if (run_and_compare(operations, wanted, &arena, &expected, &worst)) {
        fail_msg("%s, D %zu, type %d, T %zu, B %zu, dropout %g: %s", kind, wanted->head_size, (int)wanted->type,
                 wanted->sequence, wanted->batch, (double)wanted->dropout, error_text());
    }
    /* bounds far wider than the errors would hide errors */
    assert_true(wanted->sequence == 1 || worst > 0.1);
    arena_release(&arena);
    attention_results_free(&expected);
    attention_numbers_free(&numbers);
}

/* Nothing else is to be run. */
static void build_attention(struct operations *operations) {
    if (operations_build(operations, "attention.cl")) {
        fail_msg("%s", error_text());
    }
}

static struct operations describe_operations(size_t heads, size_t head_size, enum element_type type) {
    struct operations operations;
    const struct operation_shape wanted = {
        .streams = 1,
        .channels = (int64_t)(heads * head_size),
        .heads = (int64_t)heads,
        .vocabulary = 8,
        .type = type,
        .residual = residual_find("rc"),
    };
    if (operations_describe(compute, &wanted, &operations)) {
        fail_msg("%s", error_text());
    }
    return operations;
}

static struct operations make_operations(size_t heads, size_t head_size, enum element_type type) {
    struct operations operations = describe_operations(heads, head_size, type);
    if (attention_is(&operations, "cpu_bf16")) {
        attention_use(&operations, "cpu");
    }
    build_attention(&operations);
    return operations;
}

static struct attention_matrix_cores *open_emulation(const struct operations *operations, bool wide_fragments) {
    struct matrix_cores unit = matrix_cores_emulated();
    const int64_t heads = operations->shape.heads;
    const struct attention_matrix_cores_shape shape = {heads, operations->shape.channels / heads,
                                                       operations->shape.type};
    struct attention_matrix_cores *cores;
    unit.wide_fragments = wide_fragments;
    if (attention_matrix_cores_open(compute, &shape, &unit, &cores)) {
        fail_msg("%s", error_text());
    }
    return cores;
}

/* The case with heads of this kind, and numbers drawn from the key. */
static struct attention_case case_of(const struct attention_case *kind, size_t heads, size_t head_size,
                                     enum element_type type, uint64_t key) {
    struct attention_case wanted = *kind;
    wanted.heads = heads;
    wanted.head_size = head_size;
    wanted.type = type;
    wanted.key = key;
    return wanted;
}

/* The portable kernels, and those for matrix cores, against the reference; and against each other. */
static void check_cases(size_t heads, size_t head_size, enum element_type type, bool wide_fragments,
                        const struct attention_case *cases, size_t count) {
    struct operations operations = make_operations(heads, head_size, type);
    struct attention_matrix_cores *cores = open_emulation(&operations, wide_fragments);
    for (size_t i = 0; i < 2 * count; i++) {
        const struct attention_case wanted = case_of(&cases[i / 2], heads, head_size, type, i / 2 + 1);
        operations.attention_matrix_cores = i % 2 ? cores : NULL;
        check_case(&operations, &wanted);
    }
    for (size_t i = 0; i < 2; i++) {
        operations.attention_matrix_cores = i ? cores : NULL;
        if (attention_check(&operations)) {
            fail_msg("%s", error_text());
        }
    }
    operations_release(&operations);
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

static const struct attention_case whole_cases[] = {
    {.batch = 4, .sequence = 128, .spread = 1.0},
    {.batch = 2, .sequence = 256, .spread = 2.0},
};

static void test_head_16_bf16(void **state) {
    (void)state;
    check_cases(3, 16, ELEMENT_BF16, false, all_cases, COUNT(all_cases));
}

static void test_head_64_fp16(void **state) {
    (void)state;
    check_cases(2, 64, ELEMENT_FP16, false, few_cases, COUNT(few_cases));
}

/* As for AMD's WMMA. Tiles of panels, 16 columns wide; all that is otherwise kept or turned in registers goes
 * through local memory. */
static void test_head_80_wide_fragments(void **state) {
    (void)state;
    check_cases(1, 80, ELEMENT_BF16, true, few_cases, COUNT(few_cases));
}

static void test_head_128_bf16(void **state) {
    (void)state;
    check_cases(1, 128, ELEMENT_BF16, false, few_cases, COUNT(few_cases));
}

/* ---- the kernels for CPUs, backward by blocks and by whole heads */

enum products { FP32, BF16, BF16_EMULATED };

static struct operations describe_cpu(size_t heads, size_t head_size, enum element_type type,
                                      enum products products) {
    struct operations operations = describe_operations(heads, head_size, type);
    attention_use(&operations, products == FP32 ? "cpu" : "cpu_bf16");
    operations.emulates_bf16 = products == BF16_EMULATED;
    return operations;
}

static void check_cpu(size_t heads, size_t head_size, enum element_type type, enum products products,
                      const struct attention_case *cases, size_t count) {
    struct operations operations = describe_cpu(heads, head_size, type, products);
    build_attention(&operations);
    assert_int_equal(attention_is(&operations, "cpu"), products == FP32);
    for (size_t i = 0; i < 2 * count; i++) {
        const struct attention_case wanted = case_of(&cases[i / 2], heads, head_size, type, i / 2 + 1);
        operations.policy.attention_head_cores = i % 2;
        check_case(&operations, &wanted);
    }
    operations_release(&operations);
}

static bool has_bf16(void) {
    struct operations operations = describe_operations(1, 16, ELEMENT_BF16);
    const bool has = attention_is(&operations, "cpu_bf16");
    operations_release(&operations);
    return has;
}

static void test_cpu(void **state) {
    (void)state;
    check_cpu(3, 16, ELEMENT_BF16, FP32, all_cases, COUNT(all_cases));
    check_cpu(2, 5, ELEMENT_BF16, FP32, few_cases, COUNT(few_cases));
    check_cpu(2, 64, ELEMENT_FP16, FP32, few_cases, COUNT(few_cases));
    for (int products = has_bf16() ? BF16 : BF16_EMULATED; products <= BF16_EMULATED; products++) {
        check_cpu(3, 16, ELEMENT_BF16, products, all_cases, COUNT(all_cases));
        check_cpu(2, 64, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
        check_cpu(4, 32, ELEMENT_BF16, products, whole_cases, COUNT(whole_cases));
        check_cpu(1, 80, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
        check_cpu(1, 128, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
    }
}

/* Kernels for bf16 that compute anything wrong, or do not compile, are left for those in fp32, which are right. */
static void check_without_bf16(enum products products, const char *right, const char *wrong) {
    const struct attention_case wanted = case_of(&few_cases[1], 2, 16, ELEMENT_BF16, 1);
    struct operations operations = describe_cpu(2, 16, ELEMENT_BF16, products);
    programs_release(compute);
    planted_fault_set(right, wrong);
    build_attention(&operations);
    assert_int_equal(planted_fault_programs(), 1);
    planted_fault_set(NULL, NULL);
    assert_int_equal(attention_open(&operations), 0);
    assert_true(attention_is(&operations, "cpu"));
    assert_int_equal(strncmp(operations.attention_by, "portable kernels", 16), 0);
    check_case(&operations, &wanted);
    operations_release(&operations);
    programs_release(compute);
}

static void test_wrong_bf16(void **state) {
    (void)state;
    check_without_bf16(BF16_EMULATED, "as_float16(b << 16), sum)", "as_float16(b << 15), sum)");
    check_without_bf16(BF16_EMULATED, "(bits >> 16 & 1u) + 0x7fffu", "0x200000u");
    check_without_bf16(BF16, "__asm__(\"vdp", "no assembler(\"vdp");
    if (has_bf16()) {
        check_without_bf16(BF16, "vdpbf16ps %2, %1, %0", "vmovaps %1, %0");
    }
}

/* ---- the kernels for GPUs, wherever several lanes share a row */

static void check_gpu(size_t heads, size_t head_size, enum element_type type, const struct attention_case *cases,
                      size_t count) {
    const unsigned lanes = compute->lanes;
    compute->lanes = lanes > 1 ? lanes : 8;
    assert_int_equal(operations_transposed(compute, 64), 0);
    struct operations operations = make_operations(heads, head_size, type);
    for (size_t i = 0; i < count; i++) {
        const struct attention_case wanted = case_of(&cases[i], heads, head_size, type, i + 1);
        check_case(&operations, &wanted);
    }
    operations_release(&operations);
    compute->lanes = lanes;
}

/* One and two quads of a row that is added up for each work-item, groups of all forms, and heads that are not whole
 * quads. */
static void test_gpu(void **state) {
    (void)state;
    check_gpu(3, 16, ELEMENT_BF16, all_cases, COUNT(all_cases));
    check_gpu(2, 64, ELEMENT_FP16, few_cases, COUNT(few_cases));
    check_gpu(1, 96, ELEMENT_BF16, few_cases, COUNT(few_cases));
    check_gpu(1, 128, ELEMENT_BF16, few_cases, COUNT(few_cases));
    check_gpu(1, 33, ELEMENT_FP16, few_cases, COUNT(few_cases));
    check_gpu(2, 5, ELEMENT_BF16, few_cases, COUNT(few_cases));
}

/* Devices whose groups have fewer work-items than the tiles ask for. */
static void test_small_groups(void **state) {
    (void)state;
    const size_t most = compute->device.max_work_group;
    compute->device.max_work_group = 64;
    check_gpu(1, 16, ELEMENT_BF16, few_cases, COUNT(few_cases));
    check_gpu(1, 128, ELEMENT_BF16, few_cases, COUNT(few_cases));
    compute->device.max_work_group = most;
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

static const struct token_shape small_tokens = {2, 9};

static struct attention_values values_of(const struct attention_buffers *buffers) {
    return (struct attention_values){&buffers->qkv, &buffers->y, &buffers->lse};
}

static struct attention_scratch scratch_of(const struct attention_buffers *buffers) {
    return (struct attention_scratch){&buffers->keys_t, &buffers->values_t, &buffers->delta, NULL};
}

static void run_forward(struct operations *operations, const struct attention_buffers *buffers) {
    const struct dropout dropout = {small.dropout, small.key, small.first_row};
    const struct attention_values values = values_of(buffers);
    const struct attention_scratch scratch = scratch_of(buffers);
    attention_forward(operations, small_tokens, &values, &scratch, dropout);
}

/* The portable kernels compute what the reference does, from the same numbers and with the same dropout; and where
 * matrix cores are open they are what runs, on 16-bit numbers. */
static void test_operations(void **state) {
    (void)state;
    const struct dropout dropout = {small.dropout, small.key, small.first_row};
    const size_t elements = elements_of(&small), rows = elements / small.head_size;
    struct attention_numbers numbers;
    struct attention_results expected;
    struct attention_buffers buffers;
    struct operations operations = make_operations(small.heads, small.head_size, ELEMENT_FP32);
    assert_int_equal(attention_numbers_draw(&small, &numbers), 0);
    assert_int_equal(attention_reference(&small, numbers.qkv, numbers.d_y, &expected), 0);
    create_buffers(&numbers, &buffers);
    operations.policy.attention_head_cores = 0;
    run_forward(&operations, &buffers);
    const struct attention_values values = values_of(&buffers);
    const struct attention_scratch scratch = scratch_of(&buffers);
    attention_backward(&operations, small_tokens, &values, &scratch, dropout, &buffers.d_y, &buffers.d_qkv);
    compare_floats(&buffers.y, expected.y, elements, 1e-5);
    compare_floats(&buffers.lse, expected.lse, rows, 1e-5);
    compare_floats(&buffers.d_qkv, expected.d_qkv, 3 * elements, 1e-4);
    operations.shape.type = small.type; /* that of the matrix cores; the portable kernels are not used any more */
    operations.attention_matrix_cores = open_emulation(&operations, false);
    buffer_zero(compute, &buffers.lse, 0, rows * sizeof(float));
    assert_int_equal(buffer_write(compute, &buffers.qkv, 0, numbers.qkv_bits, 3 * elements * sizeof(uint16_t)), 0);
    run_forward(&operations, &buffers);
    compare_floats(&buffers.lse, expected.lse, rows, 1e-4);
    release_buffers(&buffers);
    operations_release(&operations);
    attention_results_free(&expected);
    attention_numbers_free(&numbers);
}

/* ---- the check, and choosing */

static void check_planted(struct operations *operations, const char *right, const char *wrong, const char *where) {
    planted_fault_set(right, wrong);
    programs_release(operations->compute);
    operations->attention_matrix_cores = open_emulation(operations, false);
    assert_int_equal(planted_fault_programs(), 1);
    planted_fault_set(NULL, NULL);
    programs_release(operations->compute);
    assert_int_equal(attention_check(operations), 1);
    if (!strstr(error_text(), where)) {
        fail_msg("\"%s\" does not say \"%s\"", error_text(), where);
    }
    assert_int_equal(compute_check(compute), 0);
    attention_matrix_cores_close(operations->attention_matrix_cores);
    operations->attention_matrix_cores = NULL;
}

/* Faults that change few numbers, or change them little. */
static void test_planted_faults(void **state) {
    (void)state;
    struct operations operations = make_operations(3, 16, ELEMENT_BF16);
    check_planted(&operations, "(dropout.element + key) % 4", "(dropout.element + key + 1) % 4", " of y is ");
    check_planted(&operations, "- at.delta[query])", "- 0.0f)", " of d_qkv is ");
    check_planted(&operations, "(int)(at.key - at.query)", "1 + (int)(at.key - at.query)", " of d_qkv is ");
    operations_release(&operations);
}

static void assert_refused(struct attention_matrix_cores_shape shape, const char *reason) {
    const struct matrix_cores unit = matrix_cores_emulated();
    struct attention_matrix_cores *cores;
    assert_int_equal(attention_matrix_cores_open(compute, &shape, &unit, &cores), -1);
    assert_null(cores);
    assert_non_null(strstr(error_text(), reason));
    assert_int_equal(attention_matrix_cores_check_shape(&shape), -1);
}

static void test_refused(void **state) {
    (void)state;
    assert_refused((struct attention_matrix_cores_shape){2, 64, ELEMENT_FP32}, "fp32");
    assert_refused((struct attention_matrix_cores_shape){2, 24, ELEMENT_BF16}, "24");
    assert_refused((struct attention_matrix_cores_shape){2, 144, ELEMENT_BF16}, "144");
    assert_int_equal(compute_check(compute), 0);
}

/* Products by the emulation are no reason to have attention by it. */
static void check_choice(const char *gemm, enum element_type type, size_t head_size, const char *reason) {
    struct compute *own, *shared = compute;
    const struct compute_options options = {.device = device, .gemm = gemm, .operands = type, .cache_dir = ""};
    assert_int_equal(gemm_compute_open(&own, &options), 0);
    compute = own;
    struct operations operations = make_operations(1, head_size, type);
    assert_int_equal(attention_open(&operations), 0);
    assert_null(operations.attention_matrix_cores);
    if (strncmp(operations.attention_by, reason, strlen(reason)) != 0) {
        fail_msg("\"%s\" is not \"%s\"", operations.attention_by, reason);
    }
    assert_string_equal(error_text(), "");
    operations_release(&operations);
    compute_close(own);
    compute = shared;
}

static void test_choice(void **state) {
    (void)state;
    error_clear();
    check_choice("portable", ELEMENT_BF16, 16, "portable kernels");
    check_choice("mma", ELEMENT_BF16, 24, "portable kernels (attention on matrix cores takes heads of");
    check_choice("mma", ELEMENT_BF16, 16, "portable kernels (");
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_head_16_bf16),
        cmocka_unit_test(test_head_64_fp16),
        cmocka_unit_test(test_head_80_wide_fragments),
        cmocka_unit_test(test_head_128_bf16),
        cmocka_unit_test(test_operations),
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_wrong_bf16),
        cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_small_groups),
        cmocka_unit_test(test_planted_faults),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_choice),
    };
    const struct CMUnitTest on_any_device[] = {
        cmocka_unit_test(test_head_16_bf16),   cmocka_unit_test(test_head_64_fp16),
        cmocka_unit_test(test_operations),     cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_planted_faults), cmocka_unit_test(test_refused),
    };
    device_prepare_environment();
    if (count > 1) {
        device = arguments[1];
        return cmocka_run_group_tests(on_any_device, set_up, tear_down);
    }
    if (!lanes_can_be_tried_on_pocl()) {
        return LANES_SKIPPED;
    }
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
