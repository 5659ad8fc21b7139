/* GEMMs on matrix cores, through their emulation: every transposition, type, alignment, edge and epilogue
 * against sums in double. `test_mma DEVICE` is a few small ones on that device. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *device = "pocl";

/* Two warps with two fragments of A each; two by two warps with two by two fragments and several steps per tile. */
static const struct mma_tiles two_warps = {32, 32, 16, 32, 16, 2}, streamed = {32, 32, 16, 32, 16, 3},
                              four_warps = {64, 64, 32, 32, 32, 2};

static struct compute *compute;
static struct mma *mma; /* what the tests run on, beside the compute's own backend */

static int begin(void **state) {
    const struct compute_options options = {.device = device, .gemm = "portable", .cache_dir = ""};
    require(gemm_compute_open(&compute, &options));
    return scratch_begin(state);
}

static int end(void **state) {
    compute_close(compute);
    return scratch_end(state);
}

static void emulate(const struct mma_tiles *tiles) {
    mma = &gemm_state(compute)->mma;
    buffer_release(compute, &gemm_state(compute)->partial);
    *mma = (struct mma){.cores = matrix_cores_emulated(), .only = tiles, .parts = 1};
}

static void run(struct compute *own, const struct gemm_call *call) {
    assert_true(mma_takes(own, call));
    mma_run(own, call);
}

static void check(const struct gemm_case *wanted) {
    require(gemm_verify_case(compute, run, wanted));
}

/* ---- sizes */

static const size_t sizes[][3] = {{1, 1, 1}, {15, 17, 16}, {16, 15, 33}, {33, 130, 17}, {130, 33, 15}};

/* Rows begin at multiples of 16 bytes; the self-test has others too. */
static struct gemm_case sized_case(const size_t size[3], bool ta, bool tb, enum element_type type) {
    const size_t a_width = ta ? size[0] : size[2], b_width = tb ? size[2] : size[1];
    return (struct gemm_case){.transpose_a = ta,
                              .transpose_b = tb,
                              .m = size[0],
                              .n = size[1],
                              .k = size[2],
                              .types = {type, type, ELEMENT_FP32},
                              .pads = {7 - (a_width + 7) % 8, 15 - (b_width + 7) % 8, 1},
                              .offsets = {16, 8, 3},
                              .beta = 0.5f};
}

UNIT_TEST(test_sizes) {
    static const struct mma_tiles *const tiles[] = {&four_warps, &streamed, &two_warps, &two_warps};
    for (unsigned form = 0; form < 4; form++) {
        emulate(tiles[form]);
        for (size_t i = 0; i < COUNT(sizes); i++) {
            const struct gemm_case wanted = sized_case(sizes[i], form & 2, form & 1, ELEMENT_FP16);
            check(&wanted);
        }
    }
}

/* Tiles transposed on their way into local memory, as for matrix cores that need it: two chunks of a work-item at a
 * time, and one. */
static void check_transposed_load(const struct mma_tiles *tiles) {
    emulate(tiles);
    mma->cores.transposed_load = true;
    struct gemm_case wanted = sized_case(sizes[3], true, false, ELEMENT_BF16);
    check(&wanted);
    wanted = sized_case((const size_t[]){66, 72, 80}, false, false, ELEMENT_BF16);
    check(&wanted);
    wanted = sized_case((const size_t[]){72, 66, 80}, true, true, ELEMENT_BF16);
    wanted.pads[0] = 3;
    check(&wanted);
}

UNIT_TEST(test_transposed_load) {
    check_transposed_load(&four_warps);
    check_transposed_load(&two_warps);
}

/* Bias and an epilogue, each with and without the other; C by elements, and in runs of 8. */
static const struct gemm_case epilogues[] = {
    {.bias = true},
    {.epilogue = EPILOGUE_ACTIVATION, .activation = "gelu_tanh"},
    {.bias = true, .epilogue = EPILOGUE_ACTIVATION, .activation = "gelu"},
    {.epilogue = EPILOGUE_DERIVATIVE, .activation = "gelu_tanh", .beta = 0.5f},
    {.bias = true, .epilogue = EPILOGUE_DERIVATIVE, .activation = "gelu"},
    {.epilogue = EPILOGUE_GATES, .activation = "gelu"},
    {.bias = true, .epilogue = EPILOGUE_GATES, .activation = "silu"},
};

static void check_epilogues(size_t parts, const size_t size[3], bool runs) {
    const size_t step = (runs ? 1 : 2) * (parts > 1 && !test_is_whole() ? 2 : 1);
    emulate(&two_warps);
    mma->parts = parts;
    mma->whole = parts - 1; /* so that blocks of both kinds end there */
    for (size_t i = 0; i < COUNT(epilogues); i += step) {
        struct gemm_case wanted = sized_case(size, false, true, i % 2 ? ELEMENT_FP16 : ELEMENT_BF16);
        wanted.bias = epilogues[i].bias;
        wanted.epilogue = epilogues[i].epilogue;
        wanted.activation = epilogues[i].activation;
        wanted.beta = epilogues[i].beta;
        wanted.types[2] = i == 4 ? ELEMENT_FP32 : wanted.types[0];
        wanted.pads[2] = runs ? 8 : 1;
        wanted.offsets[2] = runs ? 16 : 3;
        check(&wanted);
    }
}

UNIT_TEST(test_epilogues) {
    check_epilogues(1, (const size_t[]){33, 40, 17}, true);
    check_epilogues(1, (const size_t[]){15, 17, 16}, false);
}

/* ---- blocks in parts: all or some, the last part shorter, edges, and more parts asked for than k has steps */

UNIT_TEST(test_parts) {
    check_epilogues(3, (const size_t[]){33, 40, 75}, true);
    check_epilogues(2, (const size_t[]){15, 17, 33}, false);
    emulate(&streamed);
    for (int form = 0; form < 4; form++) {
        const struct gemm_case wanted =
            sized_case((const size_t[]){33, 24, 100}, form & 1, form & 2, form & 1 ? ELEMENT_FP16 : ELEMENT_BF16);
        mma->parts = form == 0 ? 16 : 3;
        mma->whole = form == 3;
        check(&wanted);
    }
    mma->parts = 4;
    mma->whole = 0;
    const struct gemm_case whole = {
        .transpose_a = true, .m = 64, .n = 32, .k = 128, .types = {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_FP32}};
    check(&whole);
    assert_int_equal(gemm_state(compute)->partial.bytes,
                     2 * 7 * 32 * 32 * sizeof(float)); /* the most: of the first one */
}

/* The same through gemm_run, on operands of 16 bits. */
UNIT_TEST(test_backend) {
    struct compute *own;
    const struct compute_options options = {.device = device,
                                            .gemm = "mma",
                                            .operands = ELEMENT_BF16,
                                            .cache_dir = ""};
    require(gemm_compute_open(&own, &options));
    struct gemm_case wanted = sized_case((const size_t[]){20, 24, 40}, false, true, ELEMENT_BF16);
    wanted.bias = true;
    wanted.epilogue = EPILOGUE_ACTIVATION;
    wanted.activation = "gelu";
    assert_true(gemm_fuses(own, ELEMENT_BF16));
    assert_null(gemm_facts(own).matrix_cores); /* of the device */
    assert_non_null(strstr(gemm_facts(own).description, "emulation for tests"));
    assert_int_equal(gemm_verify_case(own, gemm_run, &wanted), 0);
    compute_close(own);
}

/* ---- the self-test */

/* Confuses two fragments of A: the first 16 rows of C come from the second 16 rows of A, and these from the first.
 */
static void run_swapped(struct compute *own, const struct gemm_call *call) {
    struct gemm_call half = *call;
    const size_t rows = 16 * (call->transpose_a ? 1 : call->a.stride);
    assert_true(call->m >= 32);
    run(own, call);
    half.m = 16;
    half.a.offset += rows;
    run(own, &half);
    half.a.offset -= rows;
    half.c.offset += 16 * call->c.stride;
    run(own, &half);
}

UNIT_TEST(test_planted_error) {
    emulate(&two_warps);
    assert_int_equal(gemm_verify_tiles(compute, run, 32, 32, 16, ELEMENT_FP16), 0);
    assert_error(gemm_verify_tiles(compute, run_swapped, 32, 32, 16, ELEMENT_FP16), "nt 32x32x80: C[0, 0] is");
    /* a kernel that does not compile is a reason, too, and leaves the compute in order */
    buffer_release(compute, &gemm_state(compute)->partial);
    mma->cores.file = NULL; /* nothing defines what the kernel calls */
    assert_error(mma_self_test(compute, ELEMENT_BF16), "self-test with bf16: nt ");
    assert_error_text("cannot compile");
    assert_null(compute->failure);
    assert_int_equal(compute_finish(compute), 0);
}

/* ---- which matrix cores a device has */

#define ROCM "AMD Accelerated Parallel Processing"
#define NEO  "Intel(R) OpenCL Graphics"
#define NONE MATRIX_CORES_EMULATED /* no driver has it */

/* What drivers say of devices, and the unit that is theirs, with its warp. */
static const struct {
    const char *platform, *name;
    unsigned compute_capability, sub_group;
    bool has_intel_matrix;
    enum matrix_cores_kind kind;
    unsigned warp;
} devices[] = {
    {"NVIDIA CUDA", "NVIDIA RTX A6000", 86, 0, false, MATRIX_CORES_NVIDIA, 32},
    {"NVIDIA CUDA", "NVIDIA A100-SXM4-80GB", 80, 0, false, MATRIX_CORES_NVIDIA, 32},
    {"NVIDIA CUDA", "Tesla T4", 75, 0, false, NONE, 0},
    {"rusticl", "NVIDIA RTX A6000 (NVK GA102)", 0, 32, false, NONE, 0},
    {ROCM, "gfx1100", 0, 0, false, MATRIX_CORES_AMD_WMMA, 32},
    {ROCM, "gfx1151", 0, 0, false, MATRIX_CORES_AMD_WMMA, 32},
    {ROCM, "gfx1201", 0, 0, false, MATRIX_CORES_AMD_WMMA_GFX12, 32},
    {ROCM, "gfx1200", 0, 0, false, MATRIX_CORES_AMD_WMMA_GFX12, 32},
    {ROCM, "gfx942:sramecc+:xnack-", 0, 0, false, MATRIX_CORES_AMD_MFMA, 64},
    {ROCM, "gfx90a:sramecc+:xnack-", 0, 0, false, MATRIX_CORES_AMD_MFMA, 64},
    {ROCM, "gfx908:sramecc+:xnack-", 0, 0, false, MATRIX_CORES_AMD_MFMA_GFX908, 64},
    {ROCM, "gfx906:sramecc+:xnack-", 0, 0, false, NONE, 0},
    {ROCM, "gfx1030", 0, 0, false, NONE, 0},
    {ROCM, "gfx1250", 0, 0, false, NONE, 0},
    {ROCM, "gfx11", 0, 0, false, NONE, 0},
    {ROCM, "gfx11000", 0, 0, false, NONE, 0},
    {ROCM, "", 0, 0, false, NONE, 0},
    {"rusticl", "AMD Radeon RX 7900 XTX (radeonsi, navi31, ACO, DRM 3.57, 6.8.0)", 0, 32, false, NONE, 0},
    {"rusticl", "gfx1100", 0, 32, false, NONE, 0},
    {"Clover", "AMD Radeon RX 6800 (radeonsi, navi21)", 0, 0, false, NONE, 0},
    {NEO, "Intel(R) Arc(TM) A770 Graphics", 0, 8, true, MATRIX_CORES_INTEL, 8},
    {NEO, "Intel(R) Arc(TM) B580 Graphics", 0, 16, true, MATRIX_CORES_INTEL, 16},
    {NEO, "Intel(R) Data Center GPU Max 1550", 0, 16, true, MATRIX_CORES_INTEL, 16},
    {NEO, "Intel(R) Iris(R) Xe Graphics", 0, 8, false, NONE, 0},
    {NEO, "Intel(R) Arc(TM) of another kind", 0, 32, true, NONE, 0},
    {"rusticl", "Mesa Intel(R) Arc(tm) A770 Graphics (DG2)", 0, 8, false, NONE, 0},
};

static struct device device_of(size_t i) {
    struct device gpu = {.is_gpu = true,
                         .compute_capability = devices[i].compute_capability,
                         .sub_group = devices[i].sub_group,
                         .has_intel_matrix = devices[i].has_intel_matrix};
    snprintf(gpu.platform_name, sizeof gpu.platform_name, "%s", devices[i].platform);
    snprintf(gpu.name, sizeof gpu.name, "%s", devices[i].name);
    return gpu;
}

UNIT_TEST(test_devices) {
    for (size_t i = 0; i < COUNT(devices); i++) {
        struct device gpu = device_of(i);
        struct matrix_cores cores;
        const int status = matrix_cores_find(&gpu, &cores);
        if (status != (devices[i].kind == NONE ? -1 : 0) || (status == 0 && cores.kind != devices[i].kind)) {
            fail_msg("%s, %s: kind %d", devices[i].platform, devices[i].name, status ? 0 : (int)cores.kind);
        }
        assert_true(status || cores.warp == devices[i].warp);
        assert_true(status == 0 || strstr(error_text(), "matrix cores"));
        gpu.is_gpu = false;
        assert_int_equal(matrix_cores_find(&gpu, &cores), -1);
    }
}

/* ---- tiles */

/* What cl/mma_gemm.cl and the devices ask of tiles. */
static void check_tiles(const struct matrix_cores *cores, const struct mma_tiles *x) {
    const bool intel = cores->kind == MATRIX_CORES_INTEL, nvidia = cores->kind == MATRIX_CORES_NVIDIA;
    const size_t items = mma_tiles_warps(x) * cores->warp;
    assert_true(x->block_m % x->warp_m == 0 && x->block_n % x->warp_n == 0);
    assert_true(x->warp_m % cores->m == 0 && x->warp_n % cores->n == 0 && x->block_k % cores->k == 0);
    /* each work-item copies the same number of chunks of 8 elements of either tile */
    assert_true(x->block_m * x->block_k / 8 % items == 0 && x->block_n * x->block_k / 8 % items == 0);
    assert_true(x->warp_m * x->warp_n / cores->warp <= (intel ? 64 : 128));
    assert_true(items <= (nvidia ? 1024 : intel ? 512 : 256));
    assert_true(nvidia ? x->stages >= 2 && x->stages <= 4 : x->stages == 2);
}

UNIT_TEST(test_tiles) {
    static const size_t blocks[MMA_SHAPES][2] = {{128, 128}, {128, 64}, {64, 64}, {128, 32}, {32, 128}};
    for (size_t i = 0; i < COUNT(devices); i++) {
        struct device gpu = device_of(i);
        struct matrix_cores cores;
        if (matrix_cores_find(&gpu, &cores)) {
            continue;
        }
        for (int shape = 0; shape < MMA_SHAPES; shape++) {
            check_tiles(&cores, &cores.tiles[shape]);
            assert_int_equal(cores.tiles[shape].block_m, blocks[shape][0]);
            assert_int_equal(cores.tiles[shape].block_n, blocks[shape][1]);
        }
        gpu.local_bytes = 48 << 10;
        gpu.max_work_group = 256;
        assert_int_equal(matrix_cores_check_tiles(&cores, &gpu), 0);
        gpu.local_bytes = 1024;
        assert_int_equal(matrix_cores_check_tiles(&cores, &gpu), -1);
        gpu.local_bytes = 48 << 10;
        gpu.max_work_group = 16;
        assert_int_equal(matrix_cores_check_tiles(&cores, &gpu), -1);
    }
}

/* ---- small ones for slow devices */

static void test_small(void **state) {
    (void)state;
    emulate(&two_warps);
    struct gemm_case wanted = sized_case(sizes[1], false, true, ELEMENT_BF16);
    check(&wanted);
    mma->only = &streamed;
    wanted = sized_case((const size_t[]){17, 9, 49}, true, false, ELEMENT_FP16);
    wanted.types[2] = ELEMENT_FP16;
    check(&wanted);
    mma->only = &two_warps;
    mma->cores.transposed_load = true;
    mma->parts = 2;
    mma->whole = 1;
    wanted = sized_case((const size_t[]){33, 16, 40}, true, false, ELEMENT_BF16);
    wanted.pads[2] = wanted.offsets[2] = 8;
    check(&wanted);
}

int main(int count, char **arguments) {
    const struct CMUnitTest small[] = {cmocka_unit_test(test_small)};
    device_prepare_environment();
    if (count > 1) {
        device = arguments[1];
        return cmocka_run_group_tests(small, begin, end);
    }
    return unit_tests_run(begin, end);
}
