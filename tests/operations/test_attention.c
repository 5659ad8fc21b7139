/* Attention in 16 bits by its self-test: on matrix cores, through an emulation of NVIDIA's that runs on any device,
 * and on the portable kernels for CPUs and for GPUs; and faults that it finds. test_operations compares the
 * portable kernels with a reference of its own. `test_attention DEVICE` is what runs on any device, on that one;
 * without it PoCL is taken. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "src/operations/attention.h"
#include "tests/support/lanes.h"
#include "tests/support/planted_fault.h"
#include "tests/support/test.h"
#include <string.h>

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

/* ---- both passes against the sums on the host of attention_check.c */

struct attention_case {
    struct token_shape tokens;
    float dropout, spread;
    uint64_t first_row;
};

static void check_case(struct operations *operations, const struct attention_case *wanted) {
    const struct dropout dropout = {wanted->dropout, 0x123456789abcdef0U, wanted->first_row};
    if (attention_check_case(operations, wanted->tokens, dropout, wanted->spread)) {
        fail_msg("%s, D %d, type %d, T %d, B %d, dropout %g: %s",
                 operations->attention_matrix_cores     ? "matrix_cores"
                 : attention_is(operations, "gpu")      ? "gpu"
                 : attention_is(operations, "cpu_bf16") ? "cpu_bf16"
                                                        : "cpu",
                 (int)head_shape(&operations->shape).size, (int)operations->shape.type,
                 (int)wanted->tokens.sequence, (int)wanted->tokens.batch, (double)wanted->dropout, error_text());
    }
}

/* Nothing else is to be run. */
static void build_attention(struct operations *operations) {
    require(operations_build(operations, "attention"));
}

/* Query heads for each key head, and the scale of scores, 0 being 1 / sqrt(D); of all cases that follow. */
static int64_t kv_group = 1;
static double attn_scale;

static struct operations describe_operations(size_t heads, size_t head_size, enum element_type type) {
    struct operations operations;
    const struct operation_shape wanted = {
        .streams = 1,
        .channels = 16,
        .heads = (int64_t)heads,
        .kv_heads = (int64_t)heads / kv_group,
        .head_size = (int64_t)head_size,
        .attn_scale = attn_scale,
        .vocabulary = 8,
        .type = type,
        .residual = residual_find("rc"),
    };
    operations_describe(compute, &wanted, &operations);
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

static void open_emulation(struct operations *operations, bool wide_fragments) {
    struct matrix_cores unit = matrix_cores_emulated();
    unit.wide_fragments = wide_fragments;
    require(attention_matrix_cores_open(operations, &unit));
}

static void check_all(struct operations *operations, const struct attention_case *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        check_case(operations, &cases[i]);
    }
}

/* On the portable kernels, and on those for matrix cores. */
static void check_cases(size_t heads, size_t head_size, enum element_type type, bool wide_fragments,
                        const struct attention_case *cases, size_t count) {
    struct operations operations = make_operations(heads, head_size, type);
    check_all(&operations, cases, count);
    open_emulation(&operations, wide_fragments);
    check_all(&operations, cases, count);
    require(attention_check(&operations));
    operations_release(&operations);
}

/* Every edge of the blocks, with and without dropout. */
static const struct attention_case all_cases[] = {
    {{1, 1}, 0.0f, 1.0f, 0},
    {{3, 1}, 0.2f, 1.0f, 0},
    {{2, 15}, 0.2f, 1.0f, 0},
    {{1, 16}, 0.0f, 1.0f, 0},
    {{2, 17}, 0.2f, 1.0f, UINT32_MAX - 3U},
    {{1, 64}, 0.2f, 1.0f, 0},
    {{2, 65}, 0.0f, 1.0f, 0},
    {{1, 130}, 0.2f, 1.0f, 1},
    {{1, 70}, 0.0f, 2.0f, 0},
};

static const struct attention_case few_cases[] = {{{2, 17}, 0.2f, 1.0f, 0}, {{1, 130}, 0.0f, 1.0f, 0}};

static const struct attention_case whole_cases[] = {{{4, 128}, 0.0f, 1.0f, 0}, {{2, 256}, 0.0f, 2.0f, 0}};

UNIT_TEST(test_head_16_bf16) {
    check_cases(3, 16, ELEMENT_BF16, false, all_cases, COUNT(all_cases));
}

LONG_TEST(test_head_64_fp16) {
    check_cases(2, 64, ELEMENT_FP16, false, few_cases, COUNT(few_cases));
}

/* As for AMD's WMMA. Tiles of panels, 16 columns wide; all that is otherwise kept or turned in registers goes
 * through local memory. */
UNIT_TEST(test_head_80_wide_fragments) {
    check_cases(1, 80, ELEMENT_BF16, true, few_cases, COUNT(few_cases));
}

LONG_TEST(test_head_128_bf16_with_a_scale) {
    attn_scale = 0.12;
    check_cases(1, 128, ELEMENT_BF16, false, few_cases, COUNT(few_cases));
    attn_scale = 0.0;
}

/* Query heads that share a key head. */
UNIT_TEST(test_grouped_heads) {
    kv_group = 3;
    check_cases(6, 16, ELEMENT_BF16, false, all_cases, COUNT(all_cases));
    if (test_is_whole()) {
        check_cases(3, 64, ELEMENT_FP16, true, few_cases, COUNT(few_cases));
    }
    kv_group = 1;
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
        operations.policy.attention_head_cores = i % 2;
        check_case(&operations, &cases[i / 2]);
    }
    operations_release(&operations);
}

static bool has_bf16(void) {
    struct operations operations = describe_operations(1, 16, ELEMENT_BF16);
    const bool has = attention_is(&operations, "cpu_bf16");
    operations_release(&operations);
    return has;
}

UNIT_TEST(test_cpu) {
    check_cpu(3, 16, ELEMENT_BF16, FP32, all_cases, COUNT(all_cases));
    check_cpu(2, 5, ELEMENT_BF16, FP32, few_cases, COUNT(few_cases));
    check_cpu(2, 64, ELEMENT_FP16, FP32, few_cases, COUNT(few_cases));
    for (int products = has_bf16() ? BF16 : BF16_EMULATED; products <= BF16_EMULATED; products++) {
        check_cpu(3, 16, ELEMENT_BF16, products, all_cases, COUNT(all_cases));
        if (products == BF16_EMULATED && has_bf16() && !test_is_whole()) {
            break;
        }
        check_cpu(2, 64, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
        check_cpu(4, 32, ELEMENT_BF16, products, whole_cases, COUNT(whole_cases));
        check_cpu(1, 80, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
        attn_scale = 0.12;
        check_cpu(1, 128, ELEMENT_BF16, products, few_cases, COUNT(few_cases));
        attn_scale = 0.0;
        kv_group = 2;
        check_cpu(4, 16, ELEMENT_BF16, products, all_cases, COUNT(all_cases));
        kv_group = 1;
    }
    kv_group = 3;
    check_cpu(3, 5, ELEMENT_BF16, FP32, few_cases, COUNT(few_cases));
    kv_group = 1;
}

/* Kernels for bf16 that compute anything wrong, or do not compile, are left for those in fp32, which are right.
 * PoCL is asked twice to compile what it refuses. */
static void check_without_bf16(enum products products, const char *right, const char *wrong) {
    struct operations operations = describe_cpu(2, 16, ELEMENT_BF16, products);
    const unsigned refused = compute->programs_refused;
    programs_release(compute);
    planted_fault_set(right, wrong);
    build_attention(&operations);
    assert_int_equal(planted_fault_programs(), 1 + compute->programs_refused - refused);
    planted_fault_set(NULL, NULL);
    assert_int_equal(attention_open(&operations), 0);
    assert_true(attention_is(&operations, "cpu"));
    assert_int_equal(strncmp(operations.attention_by, "portable kernels", 16), 0);
    check_case(&operations, &few_cases[1]);
    operations_release(&operations);
    programs_release(compute);
}

UNIT_TEST(test_wrong_bf16) {
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
    struct operations operations = make_operations(heads, head_size, type);
    check_all(&operations, cases, count);
    operations_release(&operations);
    compute->lanes = lanes;
}

/* One and two quads of a row that is added up for each work-item, groups of all forms, and heads that are not whole
 * quads. */
UNIT_TEST(test_gpu) {
    check_gpu(3, 16, ELEMENT_BF16, all_cases, COUNT(all_cases));
    check_gpu(1, 96, ELEMENT_BF16, few_cases, COUNT(few_cases));
    attn_scale = 0.12;
    check_gpu(1, 33, ELEMENT_FP16, few_cases, COUNT(few_cases));
    attn_scale = 0.0;
}

LONG_TEST(test_gpu_with_other_heads) {
    kv_group = 3;
    check_gpu(6, 16, ELEMENT_BF16, all_cases, COUNT(all_cases));
    kv_group = 1;
    check_gpu(2, 64, ELEMENT_FP16, few_cases, COUNT(few_cases));
    attn_scale = 0.12;
    check_gpu(1, 128, ELEMENT_BF16, few_cases, COUNT(few_cases));
    attn_scale = 0.0;
    check_gpu(2, 5, ELEMENT_BF16, few_cases, COUNT(few_cases));
    kv_group = 3;
    check_gpu(3, 10, ELEMENT_FP16, few_cases, COUNT(few_cases));
    kv_group = 1;
}

/* Devices whose groups have fewer work-items than the tiles ask for. */
UNIT_TEST(test_small_groups) {
    const size_t most = compute->device.max_work_group;
    compute->device.max_work_group = 64;
    check_gpu(1, 128, ELEMENT_BF16, few_cases, COUNT(few_cases));
    if (test_is_whole()) {
        check_gpu(1, 16, ELEMENT_BF16, few_cases, COUNT(few_cases));
    }
    compute->device.max_work_group = most;
}

/* ---- the check, and choosing */

static void check_planted(struct operations *operations, const char *right, const char *wrong, const char *where) {
    planted_fault_set(right, wrong);
    programs_release(operations->compute);
    open_emulation(operations, false);
    assert_int_equal(planted_fault_programs(), 1);
    planted_fault_set(NULL, NULL);
    programs_release(operations->compute);
    assert_int_equal(attention_check(operations), 1);
    if (!strstr(error_text(), where)) {
        fail_msg("\"%s\" does not say \"%s\"", error_text(), where);
    }
    assert_int_equal(compute_check(compute), 0);
    attention_matrix_cores_close(operations);
}

/* Faults that change few numbers, or change them little. */
UNIT_TEST(test_planted_faults) {
    struct operations operations = make_operations(3, 16, ELEMENT_BF16);
    check_planted(&operations, "(dropout.element + key) % 4", "(dropout.element + key + 1) % 4", " of y is ");
    if (test_is_whole()) {
        check_planted(&operations, "- at.delta[query])", "- 0.0f)", " of d_qkv is ");
        check_planted(&operations, "(int)(at.key - at.query)", "1 + (int)(at.key - at.query)", " of d_qkv is ");
    }
    operations_release(&operations);
}

static void assert_refused(size_t head_size, enum element_type type, const char *reason) {
    const struct matrix_cores unit = matrix_cores_emulated();
    struct operations operations = describe_operations(2, head_size, type);
    assert_int_equal(attention_matrix_cores_open(&operations, &unit), -1);
    assert_null(operations.attention_matrix_cores);
    assert_non_null(strstr(error_text(), reason));
    operations_release(&operations);
}

UNIT_TEST(test_refused) {
    assert_refused(64, ELEMENT_FP32, "fp32");
    assert_refused(24, ELEMENT_BF16, "24");
    assert_refused(144, ELEMENT_BF16, "144");
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

UNIT_TEST(test_choice) {
    error_clear();
    check_choice("portable", ELEMENT_BF16, 16, "portable kernels");
    check_choice("mma", ELEMENT_BF16, 24, "portable kernels (attention on matrix cores takes heads of");
    check_choice("mma", ELEMENT_BF16, 16, "portable kernels (");
}

int main(int count, char **arguments) {
    const struct CMUnitTest on_any_device[] = {
        cmocka_unit_test(test_head_16_bf16),  cmocka_unit_test(test_head_64_fp16),   cmocka_unit_test(test_gpu),
        cmocka_unit_test(test_grouped_heads), cmocka_unit_test(test_planted_faults), cmocka_unit_test(test_refused),
    };
    device_prepare_environment();
    if (count > 1) {
        device = arguments[1];
        return cmocka_run_group_tests(on_any_device, set_up, tear_down);
    }
    if (!lanes_can_be_tried_on_pocl()) {
        return LANES_SKIPPED;
    }
    return unit_tests_run(set_up, tear_down);
}
