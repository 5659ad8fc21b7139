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

/* The tokens that heads are tried with. */
enum tokens { ALL, FEW, WHOLE };

struct heads {
    size_t count, size;
    enum element_type type;
    enum tokens tokens;
    size_t group; /* query heads for each key head; 0: 1 */
    double scale; /* of scores; 0: 1 / sqrt(D) */
};

static struct operations describe_operations(const struct heads *heads) {
    struct operations operations;
    const struct operation_shape wanted = {
        .streams = 1,
        .channels = 16,
        .heads = (int64_t)heads->count,
        .kv_heads = (int64_t)(heads->count / (heads->group ? heads->group : 1)),
        .head_size = (int64_t)heads->size,
        .attn_scale = heads->scale,
        .drops = true,
        .vocabulary = 8,
        .type = heads->type,
        .residual = residual_find("rc"),
    };
    operations_describe(compute, &wanted, &operations);
    return operations;
}

static struct operations make_operations(const struct heads *heads) {
    struct operations operations = describe_operations(heads);
    if (attention_is(&operations, "cpu_bf16")) {
        require(attention_next(&operations));
    }
    require(operations_build(&operations, "attention")); /* nothing else is to be run */
    return operations;
}

static void open_emulation(struct operations *operations, bool as_amd) {
    struct matrix_cores unit = matrix_cores_emulated();
    unit.wide_fragments = unit.transposed_load = as_amd;
    require(attention_matrix_cores_open(operations, &unit));
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

static void check_all(struct operations *operations, enum tokens tokens) {
    static const struct {
        const struct attention_case *cases;
        size_t count;
    } lists[] = {[ALL] = {all_cases, COUNT(all_cases)},
                 [FEW] = {few_cases, COUNT(few_cases)},
                 [WHOLE] = {whole_cases, COUNT(whole_cases)}};
    for (size_t i = 0; i < lists[tokens].count; i++) {
        check_case(operations, &lists[tokens].cases[i]);
    }
}

/* ---- on the portable kernels, and on those for matrix cores */

static void check_cases(struct heads heads, bool as_amd) {
    struct operations operations = make_operations(&heads);
    check_all(&operations, heads.tokens);
    open_emulation(&operations, as_amd);
    check_all(&operations, heads.tokens);
    require(attention_check(&operations));
    operations_release(&operations);
}

LONG_TEST(test_head_16_bf16) {
    check_cases((struct heads){.count = 3, .size = 16, .type = ELEMENT_BF16}, false);
}

LONG_TEST(test_head_64_fp16) {
    check_cases((struct heads){.count = 2, .size = 64, .type = ELEMENT_FP16, .tokens = FEW}, false);
}

/* As for AMD's WMMA: rows that stay are in local memory, and those that are read across pass through registers. */
UNIT_TEST(test_head_80_wide_fragments) {
    check_cases((struct heads){.count = 1, .size = 80, .type = ELEMENT_BF16, .tokens = FEW}, true);
}

LONG_TEST(test_head_128_bf16_with_a_scale) {
    check_cases((struct heads){.count = 1, .size = 128, .type = ELEMENT_BF16, .tokens = FEW, .scale = 0.12}, false);
}

/* Query heads that share a key head. */
UNIT_TEST(test_grouped_heads) {
    check_cases((struct heads){.count = 6, .size = 16, .type = ELEMENT_BF16, .group = 3}, false);
    if (test_is_whole()) {
        check_cases((struct heads){.count = 3, .size = 64, .type = ELEMENT_FP16, .tokens = FEW, .group = 3}, true);
    }
}

/* ---- the kernels for CPUs, backward by blocks and by whole heads */

enum products { FP32, BF16, BF16_EMULATED };

static struct operations describe_cpu(const struct heads *heads, enum products products) {
    struct operations operations = describe_operations(heads);
    if (products == BF16_EMULATED) {
        operations.emulates_bf16 = true;
        operations.attention = NULL; /* chosen once more */
        require(attention_next(&operations));
    } else if (products == FP32 && attention_is(&operations, "cpu_bf16")) {
        require(attention_next(&operations));
    }
    return operations;
}

static void check_cpu(const struct heads *heads, enum products products) {
    struct operations operations = describe_cpu(heads, products);
    require(operations_build(&operations, "attention"));
    assert_int_equal(attention_is(&operations, "cpu"), products == FP32);
    for (int whole = 0; whole < 2; whole++) {
        operations.policy.attention_head_cores = whole;
        check_all(&operations, heads->tokens);
    }
    operations_release(&operations);
}

static bool has_bf16(void) {
    struct operations operations =
        describe_operations(&(struct heads){.count = 1, .size = 16, .type = ELEMENT_BF16});
    const bool has = attention_is(&operations, "cpu_bf16");
    operations_release(&operations);
    return has;
}

UNIT_TEST(test_cpu) {
    static const struct heads in_fp32[] = {{3, 16, ELEMENT_BF16, .tokens = ALL},
                                           {2, 5, ELEMENT_BF16, .tokens = FEW},
                                           {2, 64, ELEMENT_FP16, .tokens = FEW},
                                           {3, 5, ELEMENT_BF16, .tokens = FEW, .group = 3}},
                              in_bf16[] = {{3, 16, ELEMENT_BF16, .tokens = ALL},
                                           {2, 64, ELEMENT_BF16, .tokens = FEW},
                                           {4, 32, ELEMENT_BF16, .tokens = WHOLE},
                                           {1, 80, ELEMENT_BF16, .tokens = FEW},
                                           {1, 128, ELEMENT_BF16, .tokens = FEW, .scale = 0.12},
                                           {4, 16, ELEMENT_BF16, .tokens = ALL, .group = 2}};
    for (size_t i = 0; i < COUNT(in_fp32); i++) {
        check_cpu(&in_fp32[i], FP32);
    }
    for (enum products products = has_bf16() ? BF16 : BF16_EMULATED; products <= BF16_EMULATED; products++) {
        const bool thorough = products == BF16 || !has_bf16() || test_is_whole();
        for (size_t i = 0; i < (thorough ? COUNT(in_bf16) : 1); i++) {
            check_cpu(&in_bf16[i], products);
        }
    }
}

/* Kernels for bf16 that compute anything wrong, or do not compile, are left for those in fp32, which are right.
 * PoCL is asked twice to compile what it refuses. */
static void check_without_bf16(enum products products, const char *right, const char *wrong) {
    const struct heads heads = {.count = 2, .size = 16, .type = ELEMENT_BF16};
    struct operations operations = describe_cpu(&heads, products);
    const unsigned refused = compute->programs_refused;
    programs_release(compute);
    planted_fault_set(right, wrong);
    require(operations_build(&operations, "attention"));
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
    check_without_bf16(BF16_EMULATED, "return act_encode16(v)", "return act_encode16(v + 0x1p-4f)");
    check_without_bf16(BF16, "__asm__(\"vdp", "no assembler(\"vdp");
    if (has_bf16()) {
        check_without_bf16(BF16, "vdpbf16ps %2, %1, %0", "vmovaps %1, %0");
    }
}

/* ---- the kernels for GPUs, wherever several lanes share a row */

static void check_gpu(const struct heads *heads, size_t count) {
    const unsigned lanes = compute->lanes;
    compute->lanes = lanes > 1 ? lanes : 8;
    for (size_t i = 0; i < count; i++) {
        struct operations operations = make_operations(&heads[i]);
        check_all(&operations, heads[i].tokens);
        operations_release(&operations);
    }
    compute->lanes = lanes;
}

/* One and two quads of a row that is added up for each work-item, groups of all forms, and heads that are not whole
 * quads. */
UNIT_TEST(test_gpu) {
    static const struct heads heads[] = {{3, 16, ELEMENT_BF16, .tokens = ALL},
                                         {1, 96, ELEMENT_BF16, .tokens = FEW},
                                         {1, 33, ELEMENT_FP16, .tokens = FEW, .scale = 0.12}};
    check_gpu(heads, COUNT(heads));
}

LONG_TEST(test_gpu_with_other_heads) {
    static const struct heads heads[] = {{6, 16, ELEMENT_BF16, .tokens = ALL, .group = 3},
                                         {2, 64, ELEMENT_FP16, .tokens = FEW},
                                         {1, 128, ELEMENT_BF16, .tokens = FEW, .scale = 0.12},
                                         {2, 5, ELEMENT_BF16, .tokens = FEW},
                                         {3, 10, ELEMENT_FP16, .tokens = FEW, .group = 3}};
    check_gpu(heads, COUNT(heads));
}

/* Devices whose groups have fewer work-items than the tiles ask for. */
UNIT_TEST(test_small_groups) {
    static const struct heads heads[] = {{1, 128, ELEMENT_BF16, .tokens = FEW},
                                         {1, 16, ELEMENT_BF16, .tokens = FEW}};
    const size_t most = compute->device.max_work_group;
    compute->device.max_work_group = 64;
    check_gpu(heads, test_is_whole() ? 2 : 1);
    compute->device.max_work_group = most;
}

/* ---- the check, and choosing */

static void check_planted(struct operations *operations, const char *right, const char *wrong, const char *where) {
    planted_fault_set(right, wrong);
    programs_release(operations->compute);
    open_emulation(operations, false);
    assert_int_equal(planted_fault_programs(), 2); /* without dropout and with it */
    planted_fault_set(NULL, NULL);
    programs_release(operations->compute);
    assert_int_equal(attention_check(operations), 1);
    assert_error_text(where);
    assert_int_equal(compute_check(compute), 0);
    attention_matrix_cores_close(operations);
}

/* Faults that change few numbers, or change them little. */
UNIT_TEST(test_planted_faults) {
    struct operations operations = make_operations(&(struct heads){.count = 3, .size = 16, .type = ELEMENT_BF16});
    check_planted(&operations, "(dropout.element + key) % 4", "(dropout.element + key + 1) % 4", " of y is ");
    if (test_is_whole()) {
        check_planted(&operations, "d_p[n].v[i] - delta)", "d_p[n].v[i])", " of d_qkv is ");
        check_planted(&operations, "(int)(at->key - at->query)", "1 + (int)(at->key - at->query)", " of d_qkv is ");
    }
    operations_release(&operations);
}

UNIT_TEST(test_refused) {
    static const struct {
        struct heads heads;
        const char *reason;
    } cases[] = {{{2, 64, ELEMENT_FP32, .tokens = FEW}, "fp32"},
                 {{2, 24, ELEMENT_BF16, .tokens = FEW}, "24"},
                 {{2, 144, ELEMENT_BF16, .tokens = FEW}, "144"}};
    const struct matrix_cores unit = matrix_cores_emulated();
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct operations operations = describe_operations(&cases[i].heads);
        assert_error(attention_matrix_cores_open(&operations, &unit), cases[i].reason);
        assert_null(operations.attention_matrix_cores);
        operations_release(&operations);
    }
    assert_int_equal(compute_check(compute), 0);
}

/* Products by the emulation are no reason to have attention by it. */
static void check_choice(const char *gemm, enum element_type type, size_t head_size, const char *reason) {
    struct compute *own, *shared = compute;
    const struct compute_options options = {.device = device, .gemm = gemm, .operands = type, .cache_dir = ""};
    assert_int_equal(gemm_compute_open(&own, &options), 0);
    compute = own;
    struct operations operations = make_operations(&(struct heads){.count = 1, .size = head_size, .type = type});
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
