/* Matrix cores of GPUs that are not there: the kernels that run on them, with the tiles of production, on the
 * emulated GPU (emulated_gpu.c), against sums in double on the host.
 *
 *   test_emulated_gpu DEVICE [PATTERN]     tests whose names match, 'quick_*' for every day */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "src/operations/attention.h"
#include "tests/support/test.h"

static const char *device;

static struct compute *open_compute(const char *gemm, enum element_type operands) {
    struct compute *compute;
    const struct compute_options options = {.device = device, .gemm = gemm, .operands = operands, .cache_dir = ""};
    require(gemm_compute_open(&compute, &options));
    return compute;
}

/* ---- GEMM */

static void run(struct compute *compute, const struct gemm_call *call) {
    assert_true(mma_takes(compute, call));
    mma_run(compute, call);
}

/* C [m, n] with all edges inside the tile, or with edges that it does not fill. */
static struct gemm_case case_of(const struct mma_tiles *tiles, bool ta, bool tb, bool whole,
                                enum element_type type) {
    struct gemm_case wanted = {.transpose_a = ta,
                               .transpose_b = tb,
                               .m = tiles->block_m,
                               .n = tiles->block_n,
                               .k = 4 * tiles->block_k,
                               .types = {type, type, type},
                               .offsets = {16, 8, 16}};
    if (!whole) {
        wanted.m -= 9;
        wanted.n += 10;
        wanted.k -= 5;
        wanted.types[2] = ELEMENT_FP32;
        wanted.beta = 0.5f;
        wanted.offsets[2] = 3;
        wanted.pads[0] = (8 - (ta ? wanted.m : wanted.k) % 8) % 8;
        wanted.pads[1] = (8 - (tb ? wanted.k : wanted.n) % 8) % 8;
    }
    return wanted;
}

/* One block in all four transpositions: whole ones, and with edges. */
static void check_shape(enum mma_shape shape, enum element_type type) {
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct mma *mma = &gemm_state(compute)->mma;
    require(matrix_cores_find(&compute->device, &mma->cores));
    mma->only = &mma->cores.tiles[shape];
    mma->parts = 1;
    for (int way = 0; way < 8; way++) {
        const struct gemm_case wanted = case_of(mma->only, way & 1, way & 2, way & 4, type);
        require(gemm_verify_case(compute, run, &wanted));
    }
    compute_close(compute);
}

UNIT_TEST(quick_gemm) {
    check_shape(MMA_LARGE, ELEMENT_BF16);
}

UNIT_TEST(gemm_small) {
    check_shape(MMA_SMALL, ELEMENT_FP16);
}

UNIT_TEST(gemm_narrow) {
    check_shape(MMA_NARROW, ELEMENT_BF16);
}

/* What the program itself tests at its start: all tiles in all ways. */
UNIT_TEST(gemm_self_test_bf16) {
    compute_close(open_compute("mma", ELEMENT_BF16));
}

UNIT_TEST(gemm_self_test_fp16) {
    compute_close(open_compute("mma", ELEMENT_FP16));
}

/* ---- attention */

static void check_attention(int64_t heads, int64_t kv_heads, int64_t head_size, enum element_type type, bool all) {
    static const struct {
        struct token_shape tokens;
        float dropout;
    } cases[] = {{{2, 17}, 0.2f}, {{1, 130}, 0.0f}, {{1, 64}, 0.2f}, {{1, 70}, 0.0f}};
    struct compute *compute = open_compute("portable", ELEMENT_FP32);
    struct operations operations;
    const struct operation_shape shape = {.streams = 1,
                                          .channels = heads * head_size,
                                          .heads = heads,
                                          .kv_heads = kv_heads,
                                          .vocabulary = 8,
                                          .type = type,
                                          .drops = true,
                                          .residual = residual_find("rc")};
    operations_describe(compute, &shape, &operations);
    require(operations_build(&operations, "attention"));
    require(attention_matrix_cores_open(&operations, NULL));
    for (size_t i = 0; i < (all ? COUNT(cases) : 2); i++) {
        const struct dropout dropout = {cases[i].dropout, 0x123456789abcdef0U, 7};
        require(attention_check_case(&operations, cases[i].tokens, dropout, 1.0f));
    }
    operations_release(&operations);
    compute_close(compute);
}

UNIT_TEST(quick_attention) {
    check_attention(2, 1, 64, ELEMENT_BF16, false);
}

UNIT_TEST(attention_128) {
    check_attention(1, 1, 128, ELEMENT_BF16, false);
}

UNIT_TEST(attention_16) {
    check_attention(3, 3, 16, ELEMENT_BF16, true);
}

UNIT_TEST(attention_80_fp16) {
    check_attention(1, 1, 80, ELEMENT_FP16, true);
}

int main(int count, char **arguments) {
    device = count > 1 ? arguments[1] : "sm_80";
    if (count > 2) {
        cmocka_set_test_filter(arguments[2]);
    }
    device_prepare_environment();
    return unit_tests_run(NULL, NULL);
}
