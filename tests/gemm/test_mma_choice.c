/* Which tiles the GEMMs of a model get on a GPU, and in how many parts: by an estimate of the time that is
 * not the one that the choice goes by. Prints both for what was chosen, and for the tiles without parts that a
 * rule by the number of blocks would take. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/array.h"
#include "tests/support/test.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* An RTX A6000, by its data sheet. */
#define COMPUTE_UNITS 84
#define RATE          154.8e12 /* FLOP/s of bf16 */
#define BANDWIDTH     768e9    /* bytes/s */
#define LAUNCH        2.5e-6   /* s */

/* Model M (768 channels, vocabulary of 50304) on 8 x 1024 tokens; shc with four streams has 24 projections of
 * 3072. */
enum { TOKENS = 8192, WIDTH = 768, VOCABULARY = 50304, STREAMS = 4 * WIDTH, COLUMNS = 24 };

static const struct named_gemm {
    const char *name;
    size_t m, n, k;
    bool transpose_a, transpose_b;
    enum element_type type_c;
    float beta;
    enum gemm_epilogue epilogue;
} gemms[] = {
    {"qkv", TOKENS, 3 * WIDTH, WIDTH, false, true, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"qkv, d_x", TOKENS, WIDTH, 3 * WIDTH, false, false, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"qkv, d_w", 3 * WIDTH, WIDTH, TOKENS, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
    {"attention out", TOKENS, WIDTH, WIDTH, false, true, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"attention out, d_x", TOKENS, WIDTH, WIDTH, false, false, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"attention out, d_w", WIDTH, WIDTH, TOKENS, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
    {"MLP in, GELU", TOKENS, 4 * WIDTH, WIDTH, false, true, ELEMENT_BF16, 0, EPILOGUE_ACTIVATION},
    {"MLP in, d_x", TOKENS, WIDTH, 4 * WIDTH, false, false, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"MLP in, d_w", 4 * WIDTH, WIDTH, TOKENS, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
    {"MLP out", TOKENS, WIDTH, 4 * WIDTH, false, true, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"MLP out, d_x, GELU'", TOKENS, 4 * WIDTH, WIDTH, false, false, ELEMENT_BF16, 0, EPILOGUE_DERIVATIVE},
    {"gated MLP out, d_x", TOKENS, 2048, WIDTH, false, false, ELEMENT_BF16, 0, EPILOGUE_GATES},
    {"MLP out, d_w", WIDTH, 4 * WIDTH, TOKENS, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
    {"MLP out, d_w, beta 0", WIDTH, 4 * WIDTH, TOKENS, true, false, ELEMENT_FP32, 0, EPILOGUE_NONE},
    {"projections", TOKENS, COLUMNS, STREAMS, false, true, ELEMENT_FP32, 0, EPILOGUE_NONE},
    {"projections, d_x", TOKENS, STREAMS, COLUMNS, false, false, ELEMENT_BF16, 1, EPILOGUE_NONE},
    {"projections, d_w", COLUMNS, STREAMS, TOKENS, true, false, ELEMENT_FP32, 0, EPILOGUE_NONE},
    {"head", TOKENS, VOCABULARY, WIDTH, false, true, ELEMENT_FP32, 0, EPILOGUE_NONE},
    {"head, d_x", TOKENS, WIDTH, VOCABULARY, false, false, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"head, d_w", VOCABULARY, WIDTH, TOKENS, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
    {"head, 328 rows", 328, VOCABULARY, WIDTH, false, true, ELEMENT_FP32, 0, EPILOGUE_NONE},
    {"head, d_x, 328 rows", 328, WIDTH, VOCABULARY, false, false, ELEMENT_BF16, 0, EPILOGUE_NONE},
    {"head, d_w, 328 rows", VOCABULARY, WIDTH, 328, true, false, ELEMENT_FP32, 1, EPILOGUE_NONE},
};
#define GEMMS COUNT(gemms)

static const struct buffer operand = {.type = ELEMENT_BF16}, sum = {.type = ELEMENT_FP32};

static struct gemm_call call_of(const struct named_gemm *gemm) {
    struct gemm_call call = {
        .transpose_a = gemm->transpose_a,
        .transpose_b = gemm->transpose_b,
        .m = gemm->m,
        .n = gemm->n,
        .k = gemm->k,
        .a = {&operand, 0, gemm->transpose_a ? gemm->m : gemm->k},
        .b = {&operand, 0, gemm->transpose_b ? gemm->k : gemm->n},
        .c = {gemm->type_c == ELEMENT_FP32 ? &sum : &operand, 0, gemm->n},
        .beta = gemm->beta,
    };
    call.epilogue = gemm->epilogue;
    call.side = call.c;
    return call;
}

/* Its matrix cores. */
static struct matrix_cores a6000(void) {
    const struct device device = {.is_gpu = true, .compute_capability = 86};
    struct matrix_cores cores;
    assert_int_equal(matrix_cores_find(&device, &cores), 0);
    return cores;
}

/* ---- another estimate: a roofline of what is done, with the padding of tiles, and of how much of the device
 * does it */

static double memory_seconds(double bytes, double groups) {
    return bytes / (0.85 * BANDWIDTH * fmin(1.0, groups / (2.0 * COMPUTE_UNITS)));
}

static double padded(size_t size, size_t block) {
    return (double)((size + block - 1) / block * block);
}

static double slots_of(const struct mma_tiles *tiles) {
    const size_t items = mma_tiles_warps(tiles) * 32;
    return COMPUTE_UNITS * (double)(items < 512 ? 512 / items : 1);
}

static double slots_filled(double groups, double slots) {
    return groups > 0.0 ? groups / (ceil(groups / slots) * slots) : 1.0;
}

static double seconds(const struct gemm_call *call, const struct mma_division *choice) {
    const struct mma_tiles *tiles = &choice->tiles;
    const double groups = (double)choice->groups, slots = slots_of(tiles), whole = (double)choice->whole;
    const double block = 2.0 * (double)tiles->block_m * (double)tiles->block_n; /* FLOP of a step of k */
    const double flops =
        whole * block * padded(call->k, tiles->block_k) / slots_filled(whole, slots) +
        (groups - whole) * block * padded(choice->depth, tiles->block_k) / slots_filled(groups - whole, slots);
    double each = (double)element_size(call->c.buffer->type) * (call->beta != 0.0f ? 2.0 : 1.0);
    each += call->epilogue == EPILOGUE_GATES ? 6.0 : call->epilogue != EPILOGUE_NONE ? 2.0 : 0.0;
    const double partial = (double)choice->bytes, result = (double)call->m * (double)call->n * each;
    const double share = whole / (double)choice->blocks;
    const double bytes = 2.0 * (double)(call->m + call->n) * (double)call->k + partial + share * result;
    const double blocks = fmax(memory_seconds(bytes, groups), flops / (0.75 * RATE)) + LAUNCH;
    const double adding = memory_seconds(partial + (1.0 - share) * result, INFINITY) + LAUNCH;
    return blocks + (choice->parts > 1 ? adding : 0.0);
}

/* ---- what is chosen */

/* Large tiles where there are as many blocks as compute units, else small ones. */
static struct mma_division by_blocks(const struct matrix_cores *cores, const struct gemm_call *call) {
    const bool enough = mma_blocks(call, &cores->tiles[MMA_LARGE]) >= COMPUTE_UNITS;
    return mma_divide(cores, COMPUTE_UNITS, call, &cores->tiles[enough ? MMA_LARGE : MMA_SMALL], SIZE_MAX, 1);
}

/* Every block once, every part some of k, and the memory bounded. */
static void check_whole(const struct gemm_call *call, const struct mma_division *choice) {
    assert_int_equal(choice->blocks, mma_blocks(call, &choice->tiles));
    assert_true(choice->whole <= choice->blocks && (choice->parts > 1) == (choice->whole < choice->blocks));
    assert_true(choice->depth % choice->tiles.block_k == 0);
    assert_true((choice->parts - 1) * choice->depth < call->k);
    assert_true(choice->parts == 1 || choice->parts * choice->depth >= call->k);
    assert_true(choice->bytes <= MMA_PARTS_BYTES);
}

/* Sizes of all kinds, on devices of all sizes. */
UNIT_TEST(test_sizes) {
    static const size_t sizes[] = {1, 31, 32, 33, 768, 4099, 50257, 1 << 20};
    enum { SIZES = COUNT(sizes) };
    const struct matrix_cores cores = a6000();
    for (size_t i = 0; i < 3 * SIZES * SIZES * SIZES; i++) {
        const struct named_gemm gemm = {.m = sizes[i % SIZES],
                                        .n = sizes[i / SIZES % SIZES],
                                        .k = sizes[i / SIZES / SIZES % SIZES],
                                        .type_c = ELEMENT_FP32};
        const struct gemm_call call = call_of(&gemm);
        const unsigned units = (unsigned[]){1, 16, 132}[i / SIZES / SIZES / SIZES];
        const struct mma_division choice = mma_choose(&cores, units, &call);
        check_whole(&call, &choice);
        const struct mma_division divided =
            mma_divide(&cores, units, &call, &cores.tiles[i % MMA_SHAPES], i % 7, 1 + i % 20);
        assert_true(divided.parts <= 1 + i % 20 && (divided.parts - 1) * divided.depth < call.k);
    }
}

UNIT_TEST(test_model) {
    const struct matrix_cores cores = a6000();
    double before = 0.0, after = 0.0;
    printf("| GEMM | m x n x k | tiles before | us | tiles | whole | divided | us | us at 75 %% of the rate |\n"
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (size_t i = 0; i < GEMMS; i++) {
        const struct gemm_call call = call_of(&gemms[i]);
        const struct mma_division old = by_blocks(&cores, &call), new = mma_choose(&cores, COMPUTE_UNITS, &call);
        const double old_us = 1e6 * seconds(&call, &old), new_us = 1e6 * seconds(&call, &new);
        printf("| %s | %zu x %zu x %zu | %zu x %zu | %.0f | %zu x %zu | %zu | %zu x %zu | %.0f | %.0f |\n",
               gemms[i].name, call.m, call.n, call.k, old.tiles.block_m, old.tiles.block_n, old_us,
               new.tiles.block_m, new.tiles.block_n, new.whole, new.blocks - new.whole, new.parts, new_us,
               1e6 * gemm_call_flops(&call) / (0.75 * RATE));
        before += old_us;
        after += new_us;
        assert_true(new.cost <= old.cost &&new_us <= 1.02 * old_us);
        check_whole(&call, &new);
    }
    printf("sum: %.0f before, %.0f now\n", before, after);
    assert_true(after < before);
}

UNIT_TEST_MAIN(NULL, NULL)
