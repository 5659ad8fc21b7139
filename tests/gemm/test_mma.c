/* Products on matrix units, through their emulation: every transposition, type, alignment, edge and epilogue
 * against sums in double. `test_mma DEVICE` is a few small ones on that device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/gemm/gemm.h"
#include "runtime/gemm/mma_check.h"
#include "runtime/gemm/mma_tune.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *device = "pocl";

/* Two warps with two fragments of A each; two by two warps with two by two fragments and several steps per tile. */
static const struct mma_tiles two_warps = {32, 32, 16, 32, 16, 2}, streamed = {32, 32, 16, 32, 16, 3},
                              four_warps = {64, 64, 32, 32, 32, 2};

static struct compute *open_compute(const char *gemm, enum element_type operands) {
    struct compute *compute;
    const struct compute_options options = {.device = device, .gemm = gemm, .operands = operands, .cache_dir = ""};
    if (gemm_compute_open(&compute, &options)) {
        fail_msg("%s", error_text());
    }
    return compute;
}

static struct mma emulation(struct compute *compute, const struct mma_tiles *tiles) {
    const struct mma_unit unit = mma_unit_emulation();
    assert_true(mma_tiles_allowed(tiles, &unit, mma_limits_of(&compute->device)));
    return (struct mma){.compute = compute, .unit = unit, .large = *tiles, .small = *tiles};
}

static void check(struct mma *mma, const struct mma_case *wanted) {
    if (mma_check(mma, wanted)) {
        fail_msg("%s", error_text());
    }
}

/* ---- sizes */

static const size_t sizes[][3] = {{1, 1, 1}, {15, 17, 16}, {16, 15, 33}, {33, 130, 17}, {130, 33, 15}};

/* Rows begin at multiples of 16 bytes; the self-test has others too. */
static struct mma_case sized_case(const size_t size[3], bool ta, bool tb, enum element_type type) {
    const size_t a_width = ta ? size[0] : size[2], b_width = tb ? size[2] : size[1];
    return (struct mma_case){.transpose_a = ta,
                             .transpose_b = tb,
                             .type = type,
                             .type_c = ELEMENT_FP32,
                             .m = size[0],
                             .n = size[1],
                             .k = size[2],
                             .batch = 3,
                             .pad_a = 7 - (a_width + 7) % 8,
                             .pad_b = 15 - (b_width + 7) % 8,
                             .pad_c = 1,
                             .offset_a = 16,
                             .offset_b = 8,
                             .offset_c = 3,
                             .alpha = -0.75f,
                             .beta = 0.5f};
}

static void check_sizes(const struct mma_tiles *tiles, bool ta, bool tb, enum element_type type) {
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct mma mma = emulation(compute, tiles);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct mma_case wanted = sized_case(sizes[i], ta, tb, type);
        check(&mma, &wanted);
    }
    mma_release(&mma);
    compute_close(compute);
}

static void test_sizes_nn(void **state) {
    (void)state;
    check_sizes(&four_warps, false, false, ELEMENT_FP16);
}

static void test_sizes_nt(void **state) {
    (void)state;
    check_sizes(&streamed, false, true, ELEMENT_FP16);
}

static void test_sizes_tn(void **state) {
    (void)state;
    check_sizes(&two_warps, true, false, ELEMENT_FP16);
}

static void test_sizes_tt(void **state) {
    (void)state;
    check_sizes(&two_warps, true, true, ELEMENT_FP16);
}

/* ---- the self-test */

/* The backend opens by its self-test; here it must find that two fragments are confused. */
static void test_planted_error(void **state) {
    (void)state;
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct mma mma = emulation(compute, &two_warps);
    mma.swapped = true;
    assert_int_equal(mma_self_test(&mma, ELEMENT_FP16), -1);
    assert_non_null(strstr(error_text(), "self-test with fp16: nt "));
    assert_null(compute->failure);
    /* a kernel that does not compile is a reason, too, and leaves the compute in order */
    mma_release(&mma);
    mma.unit.kind = 99;
    assert_int_equal(mma_self_test(&mma, ELEMENT_BF16), -1);
    assert_non_null(strstr(error_text(), "cannot compile"));
    assert_int_equal(compute_finish(compute), 0);
    mma_release(&mma);
    compute_close(compute);
}

/* ---- through gemm.h */

#define M 20
#define N 24
#define K 40

static float values_a[M * K], values_b[N * K], values_c[M * N], values_bias[N];

static void fill(float *values, size_t count) {
    static uint32_t random = 1;
    for (size_t i = 0; i < count; i++) {
        random = random * 1664525U + 1013904223U;
        values[i] = (float)(random >> 24) / 64.0f - 2.0f;
    }
}

/* All values that `fill` makes are exact in 16 bits. */
static void create(struct compute *compute, struct buffer *buffer, const float *values, size_t count,
                   enum element_type type) {
    assert_int_equal(buffer_create(compute, buffer, count * element_size(type)), 0);
    buffer->type = type;
    uint16_t *halves = malloc(count * sizeof *halves);
    assert_non_null(halves);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        halves[i] = (uint16_t)(bits >> 16);
    }
    assert_int_equal(buffer_write(compute, buffer, 0, type == ELEMENT_FP32 ? (const void *)values : halves,
                                  buffer->bytes),
                     0);
    free(halves);
}

static double expected(size_t row, size_t column) {
    double sum = (double)values_bias[column];
    for (size_t p = 0; p < K; p++) {
        sum += (double)values_a[row * K + p] * (double)values_b[column * K + p];
    }
    return sum;
}

static double gelu(double x) {
    return 0.5 * x * (1.0 + erf(x * sqrt(0.5)));
}

/* C = A B^T + bias, and GELU of it plus what was in C before. */
static void check_fused(const char *gemm, enum element_type type) {
    struct compute *compute = open_compute(gemm, type);
    struct buffer a, b, c, bias, activated;
    float kept[M * N], result[M * N];
    create(compute, &a, values_a, M * K, type);
    create(compute, &b, values_b, N * K, type);
    create(compute, &c, values_c, M * N, ELEMENT_FP32);
    create(compute, &bias, values_bias, N, ELEMENT_FP32);
    create(compute, &activated, values_c, M * N, ELEMENT_FP32);
    const struct gemm_epilogue epilogue = {.bias = {&bias, 0},
                                           .activation = GEMM_GELU,
                                           .activated = {&activated, 0, N},
                                           .residual = {&activated, 0, N}};
    gemm_run_fused(compute, false, true, M, N, K, 1.0f, (struct matrix){&a, 0, K}, (struct matrix){&b, 0, K}, 0.0f,
                   (struct matrix){&c, 0, N}, &epilogue);
    assert_int_equal(buffer_read(compute, &c, 0, kept, sizeof kept), 0);
    assert_int_equal(buffer_read(compute, &activated, 0, result, sizeof result), 0);
    for (size_t i = 0; i < M * N; i++) {
        const double value = expected(i / N, i % N), after = gelu(value) + (double)values_c[i];
        assert_true(fabs((double)kept[i] - value) <= 1e-5 * (1.0 + fabs(value)));
        assert_true(fabs((double)result[i] - after) <= 1e-5 * (1.0 + fabs(after)));
    }
    buffer_release(compute, &a);
    buffer_release(compute, &b);
    buffer_release(compute, &c);
    buffer_release(compute, &bias);
    buffer_release(compute, &activated);
    compute_close(compute);
}

static void test_fused(void **state) {
    (void)state;
    fill(values_a, M * K);
    fill(values_b, N * K);
    fill(values_c, M * N);
    fill(values_bias, N);
    check_fused("portable", ELEMENT_FP32);
    check_fused("cblas", ELEMENT_FP32);
    check_fused("mma", ELEMENT_BF16);
}

/* Four products of 2 x 2 blocks of one matrix, on a backend that takes them one by one. */
static void test_batch_in_pieces(void **state) {
    (void)state;
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    const float values[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    float result[16];
    struct buffer a, c;
    create(compute, &a, values, 16, ELEMENT_FP32);
    create(compute, &c, values, 16, ELEMENT_FP32);
    gemm_run_batched(compute, false, true, 2, 2, 2, 1.0f, (struct matrix){&a, 0, 2}, (struct matrix){&a, 0, 2},
                     1.0f, (struct matrix){&c, 0, 2}, (struct gemm_batch){4, 4, 0, 4});
    assert_int_equal(buffer_read(compute, &c, 0, result, sizeof result), 0);
    for (size_t i = 0; i < 16; i++) {
        const size_t row = i / 2, column = i % 2;
        const float sum = values[row * 2] * values[column * 2] + values[row * 2 + 1] * values[column * 2 + 1];
        assert_true(result[i] == values[i] + sum);
    }
    gemm_run_batched(compute, false, true, 2, 2, 2, 1.0f, (struct matrix){&a, 0, 2}, (struct matrix){&a, 0, 2},
                     1.0f, (struct matrix){&c, 0, 2}, (struct gemm_batch){4, 4, 0, 5});
    assert_int_equal(compute_finish(compute), -1);
    assert_non_null(strstr(error_text(), ": C [2, 2]"));
    buffer_release(compute, &a);
    buffer_release(compute, &c);
    compute_close(compute);
}

/* ---- tiles and their file */

static void test_tiles(void **state) {
    (void)state;
    const struct mma_unit unit = {MMA_NVIDIA, 32, 16, 16, 16, 4, 0, "mma.sync", false, false};
    const struct mma_limits limits = {49152, 1024};
    struct mma_tiles tiles;
    assert_int_equal(mma_tiles_default(&unit, limits, false, &tiles), 0);
    assert_int_equal(tiles.block_m * tiles.block_n, 128 * 128);
    assert_int_equal(mma_tiles_warps(&tiles), 8);
    static const struct mma_tiles wrong[] = {
        {0, 0, 0, 0, 0, 0},          {128, 128, 32, 64, 32, 4}, {128, 128, 32, 64, 32, 1},
        {128, 96, 32, 64, 32, 2},    {128, 128, 32, 0, 32, 2},  {128, 128, 32, 64, 24, 2},
        {128, 128, 32, 128, 128, 2}, {512, 16, 16, 64, 16, 2},  {32, 32, 16, 16, 16, 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(mma_tiles_allowed(&wrong[i], &unit, limits));
    }
    assert_int_equal(mma_tiles_default(&unit, (struct mma_limits){1024, 1024}, false, &tiles), -1);
    assert_int_equal(mma_tiles_default(&unit, (struct mma_limits){49152, 16}, true, &tiles), -1);
}

static void test_file(void **state) {
    (void)state;
    struct device chosen;
    const struct mma_unit unit = mma_unit_emulation();
    struct mma_tiles tiles;
    bool found = true;
    assert_int_equal(device_choose(device, 0, &chosen), 0);
    char *path = mma_tiles_path(scratch_path("mma"), &chosen, &unit);
    assert_non_null(path);
    assert_int_equal(mma_tiles_read(path, &chosen, &unit, &tiles, &found), 0);
    assert_false(found);
    assert_int_equal(mma_tiles_write(path, &chosen, &streamed), 0);
    assert_int_equal(mma_tiles_read(path, &chosen, &unit, &tiles, &found), 0);
    assert_true(found && !memcmp(&tiles, &streamed, sizeof tiles));
    assert_int_equal(mma_tiles_write(path, &chosen, &(struct mma_tiles){32, 32, 16, 32, 16, 9}), 0);
    assert_int_equal(mma_tiles_read(path, &chosen, &unit, &tiles, &found), -1);
    assert_non_null(strstr(error_text(), "hc_bench --tune"));
    free(path);
}

/* No time at all: tiles that are known are tried all the same. */
static void test_tune(void **state) {
    (void)state;
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct mma_tune_result result;
    assert_int_equal(mma_tune(compute, ELEMENT_BF16, 32, 32, 32, 0.0, NULL, &result), -1);
    assert_non_null(strstr(error_text(), "the backend is portable"));
    compute_close(compute);
    compute = open_compute("mma", ELEMENT_BF16);
    assert_string_equal(gemm_name(compute), "mma");
    assert_non_null(strstr(gemm_description(compute), "emulation for tests"));
    assert_int_equal(mma_tune(compute, ELEMENT_BF16, 32, 32, 32, 0.0, &two_warps, &result), 0);
    assert_true(result.tried == 1 && result.refused == 0);
    assert_true(result.stock > 0.0 && result.rate >= result.stock);
    assert_int_equal(mma_tune(compute, ELEMENT_BF16, 0, 32, 32, 0.0, NULL, &result), -1);
    assert_int_equal(mma_tune(compute, ELEMENT_BF16, SIZE_MAX / 2, 32, 32, 0.0, NULL, &result), -1);
    compute_close(compute);
}

/* ---- small ones for slow devices */

static void test_small(void **state) {
    (void)state;
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct mma mma = emulation(compute, &two_warps);
    struct mma_case wanted = sized_case(sizes[1], false, true, ELEMENT_BF16);
    wanted.batch = 1;
    check(&mma, &wanted);
    mma.large = mma.small = streamed;
    wanted = sized_case((const size_t[]){17, 9, 49}, true, false, ELEMENT_FP16);
    wanted.batch = 1;
    wanted.type_c = ELEMENT_FP16;
    check(&mma, &wanted);
    mma_release(&mma);
    compute_close(compute);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles),           cmocka_unit_test(test_file),
        cmocka_unit_test(test_sizes_nn),        cmocka_unit_test(test_sizes_nt),
        cmocka_unit_test(test_sizes_tn),        cmocka_unit_test(test_sizes_tt),
        cmocka_unit_test(test_fused),           cmocka_unit_test(test_planted_error),
        cmocka_unit_test(test_batch_in_pieces), cmocka_unit_test(test_tune),
    };
    const struct CMUnitTest small[] = {cmocka_unit_test(test_small)};
    device_prepare_environment();
    if (count > 1) {
        device = arguments[1];
        return cmocka_run_group_tests(small, scratch_begin, scratch_end);
    }
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
