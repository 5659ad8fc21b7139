/* Every GEMM backend on every device against sums in double. */
#include "runtime/device/compute.h"
#include "runtime/files/files.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

/* Of fp32 unless said otherwise. A matrix's surroundings in its buffer are NaN, so that reading or writing outside
 * shows; so is C where it is not read. */
static const struct gemm_case shapes[] = {
    {.m = 1, .n = 1, .k = 1},
    {.m = 4, .n = 8, .k = 16},
    {.m = 5, .n = 3, .k = 7, .pads = {2, 1, 3}, .beta = 1},
    {.m = 17, .n = 13, .k = 29, .offsets = {3, 5, 11}},
    {.m = 33, .n = 31, .k = 65, .pads = {1, 7, 5}, .offsets = {1, 0, 2}, .beta = -1.5f},
    {.m = 1, .n = 24, .k = 100, .pads = {0, 0, 8}, .offsets = {0, 9, 4}, .beta = 1},
    {.m = 64, .n = 24, .k = 1, .beta = 0.5f},
    {.m = 6, .n = 5, .k = 0, .pads = {0, 0, 2}, .offsets = {0, 0, 3}, .beta = 0.25f},
    {.m = 6, .n = 5, .k = 0, .pads = {0, 0, 2}, .offsets = {0, 0, 3}},
};
/* Large enough for CLBlast's indirect kernels, too large for slow devices. */
static const struct gemm_case large_shapes[] = {
    {.m = 257, .n = 130, .k = 190, .pads = {3, 5, 7}, .offsets = {2, 1, 9}},
    {.m = 100, .n = 65, .k = 600, .pads = {2, 3, 1}, .offsets = {1, 7, 2}, .beta = -1.5f},
    {.m = 512, .n = 512, .k = 256, .beta = 1},
    {.m = 400, .n = 640, .k = 640, .pads = {0, 0, 16}},
};

/* What A, B and C are stored as. */
static const enum element_type mixtures[][3] = {
    {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_BF16},
    {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_FP32},
    {ELEMENT_FP16, ELEMENT_FP16, ELEMENT_FP16},
    {ELEMENT_FP32, ELEMENT_FP16, ELEMENT_FP32},
};

static void check_shape(struct compute *compute, struct gemm_case wanted, bool transpose_a, bool transpose_b) {
    wanted.transpose_a = transpose_a;
    wanted.transpose_b = transpose_b;
    require(gemm_verify_case(compute, gemm_run, &wanted));
}

/* The kernels that compute half of C have edges at its diagonal. */
static void check_symmetric(struct compute *compute) {
    static const size_t sizes[][2] = {{1, 5}, {16, 4}, {40, 300}, {67, 70}, {250, 33}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        const struct gemm_case wanted = {.m = sizes[i][0],
                                         .n = sizes[i][0],
                                         .k = sizes[i][1],
                                         .pads = {1, 0, 2},
                                         .offsets = {5, 0, 3},
                                         .symmetric = true};
        check_shape(compute, wanted, i & 1, !(i & 1));
        check_shape(compute, wanted, !(i & 1), i & 1);
    }
}

static void check_shapes(struct compute *compute, const struct gemm_case *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (int transposes = 0; transposes < 4; transposes++) {
            check_shape(compute, list[i], transposes & 1, transposes & 2);
        }
    }
}

/* The shapes with operands of 16 bits, each with another mixture. */
static void check_types(struct compute *compute) {
    for (size_t i = 0; i < COUNT(shapes); i++) {
        for (size_t t = 0; t < COUNT(mixtures); t++) {
            struct gemm_case wanted = shapes[i];
            memcpy(wanted.types, mixtures[t], sizeof wanted.types);
            check_shape(compute, wanted, (i + t) & 1, (i + t) & 2);
        }
    }
}

/* The one device to test, NULL: all but those of our own driver for Vulkan. */
static const char *asked_device(void) {
    return getenv("HC_TEST_DEVICE");
}

/* Whether the device has hardware of its own, or is the host's cores: simulators (llvmpipe, oclgrind) get small
 * GEMMs only. */
static bool is_fast(const struct device *device) {
    return device->native_kernels || (device->is_gpu && !device->is_cpu);
}

/* Opens device `index`, or the one asked for, with this backend; NULL where the device cannot use it. */
static struct compute *open_backend(size_t index, const char *gemm, bool profile) {
    char word[32];
    struct compute *compute;
    snprintf(word, sizeof(word), "%zu", index);
    struct compute_options options = {.device = asked_device() ? asked_device() : word,
                                      .gemm = gemm,
                                      .cache_dir = "",
                                      .profile = profile};
    if (gemm_compute_open(&compute, &options) == 0) {
        return compute;
    }
    require(strcmp(gemm, "cblas") != 0);
    return NULL;
}

static size_t device_count(void) {
    struct device *devices;
    size_t count;
    if (asked_device()) {
        return 1;
    }
    assert_int_equal(device_list(false, &devices, &count), 0);
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
        assert_string_equal(gemm_facts(compute).name, gemm);
        check_shapes(compute, shapes, COUNT(shapes));
        check_types(compute);
        check_symmetric(compute);
        if (is_fast(&compute->device)) {
            check_shapes(compute, large_shapes, COUNT(large_shapes));
        }
        compute_close(compute);
    }
}

UNIT_TEST(test_cblas) {
    check_backend("cblas");
}

UNIT_TEST(test_clblast) {
    check_backend("clblast");
}

UNIT_TEST(test_own_plain) {
    check_backend("portable");
}

/* ---- the portable GEMM for GPUs, which works in blocks: wherever several work-items share a row */

/* A GEMM, how many work-groups it should have, and what it is divided into then. */
struct block_case {
    struct gemm_case gemm;
    size_t groups;
    size_t edge, parts;
    bool large; /* too large for slow devices */
};

static const struct block_case block_cases[] = {
    {{.m = 1, .n = 1, .k = 1}, 1, 32, 1, false},
    {{.m = 33, .n = 31, .k = 65, .pads = {1, 7, 5}, .offsets = {1, 0, 2}, .beta = -1.5f}, 1, 32, 1, false},
    {{.m = 64, .n = 92, .k = 20, .pads = {4, 0, 8}, .offsets = {4, 8, 16}, .beta = 1}, 9, 32, 1, false},
    {{.m = 60, .n = 64, .k = 36, .pads = {0, 12, 4}, .offsets = {0, 4, 0}, .beta = 0.5f}, 1, 64, 1, false},
    {{.m = 61, .n = 127, .k = 17, .pads = {3, 0, 1}}, 2, 64, 1, false},
    {{.m = 128, .n = 120, .k = 32, .pads = {0, 4, 8}, .offsets = {8, 0, 4}}, 1, 128, 1, false},
    {{.m = 125, .n = 126, .k = 19, .pads = {0, 1, 2}, .offsets = {3, 0, 1}, .beta = 1}, 1, 128, 1, false},
    {{.m = 20, .n = 12, .k = 516, .pads = {0, 0, 4}, .beta = 1}, 99, 32, 2, false},
    {{.m = 9, .n = 7, .k = 771, .offsets = {1, 2, 3}}, 99, 32, 3, false},
    {{.m = 60, .n = 64, .k = 1100}, 4, 64, 4, true},
    {{.m = 60, .n = 60, .k = 1400, .beta = 1}, 5, 64, 5, true},
    {{.m = 127, .n = 127, .k = 1281, .beta = -1}, 5, 128, 5, true},
    {{.m = 1300, .n = 200, .k = 40}, 1, 128, 1, true},
    {{.m = 256, .n = 384, .k = 100}, 1, 128, 1, true},
};

static const enum element_type block_types[][3] = {
    {ELEMENT_FP32, ELEMENT_FP32, ELEMENT_FP32}, {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_BF16},
    {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_FP32}, {ELEMENT_FP16, ELEMENT_FP16, ELEMENT_FP16},
    {ELEMENT_FP16, ELEMENT_FP16, ELEMENT_FP32},
};

/* In all layouts as fp32, in one of them as each mixture of types; on slow devices in one layout and one other
 * mixture. */
static void check_blocks(struct compute *compute, const struct block_case *wanted, size_t number) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_call sizes = {.m = wanted->gemm.m, .n = wanted->gemm.n, .k = wanted->gemm.k};
    const struct gemm_blocks_choice choice = gemm_blocks_choose(&compute->device, wanted->groups, &sizes);
    if (compute->device.max_work_group >= 256) {
        assert_int_equal(choice.edge, wanted->edge);
        assert_int_equal(choice.parts, wanted->parts);
    }
    state->groups_expected = wanted->groups;
    const bool thorough = is_fast(&compute->device);
    for (size_t i = 0; i < 4 + COUNT(block_types); i++) {
        if (!thorough && i != number % 4 && i != 5 + number % (COUNT(block_types) - 1)) {
            continue;
        }
        struct gemm_case gemm = wanted->gemm;
        const size_t layout = i < 4 ? i : number + i;
        memcpy(gemm.types, block_types[i < 4 ? 0 : i - 4], sizeof gemm.types);
        check_shape(compute, gemm, layout & 1, layout & 2);
    }
}

UNIT_TEST(test_own_blocks) {
    const size_t count = device_count();
    for (size_t i = 0; i < count; i++) {
        struct compute *compute = open_backend(i, "portable", i % 2 == 0);
        compute->lanes = 64;
        assert_false(gemm_copies(compute, ELEMENT_BF16));
        for (size_t j = 0; j < COUNT(block_cases); j++) {
            if (is_fast(&compute->device) || !block_cases[j].large) {
                check_blocks(compute, &block_cases[j], j);
            }
        }
        compute_close(compute);
    }
}

/* What GPUs of many and of few units, and one that has little, make of GEMMs. */
static const struct {
    unsigned units;
    size_t items, local;
    size_t m, n, k;
    size_t edge, blocks, parts, depth;
} choices[] = {
    /* many tokens: nothing is to be gained from small blocks */
    {100, 256, 32768, 8192, 768, 768, 128, 384, 1, 768},
    /* gradients of weights: enough blocks of 64; or few, and tokens to divide */
    {100, 256, 32768, 3072, 768, 8192, 64, 576, 1, 8192},
    {100, 256, 32768, 768, 768, 8192, 128, 36, 6, 1376},
    /* the gradient of what the logits are made of */
    {40, 256, 32768, 512, 128, 50304, 128, 4, 20, 2528},
    /* blocks of 128 would reach far over the edges */
    {4, 256, 32768, 17, 4096, 512, 32, 128, 1, 512},
    /* the least that Vulkan asks of a device has no room for 256 work-items; or another, for their tiles */
    {4, 128, 16384, 1024, 1024, 1024, 64, 256, 1, 1024},
    {4, 256, 16383, 1024, 1024, 1024, 64, 256, 1, 1024},
    /* parts have so much room and no more */
    {3000, 256, 32768, 1024, 1024, 16384, 32, 1024, 4, 4096},
};

UNIT_TEST(test_own_blocks_choice) {
    for (size_t i = 0; i < COUNT(choices); i++) {
        const struct device device = {.compute_units = choices[i].units,
                                      .max_work_group = choices[i].items,
                                      .local_bytes = choices[i].local};
        const struct gemm_call call = {.m = choices[i].m, .n = choices[i].n, .k = choices[i].k};
        const struct gemm_blocks_choice choice = gemm_blocks_choose(&device, 0, &call);
        if (choice.edge != choices[i].edge || choice.blocks != choices[i].blocks ||
            choice.parts != choices[i].parts || choice.depth != choices[i].depth) {
            fail_msg("case %zu: %zu blocks of %zu, %zu parts of %zu", i, choice.blocks, choice.edge, choice.parts,
                     choice.depth);
        }
    }
}

/* On our driver for Vulkan the portable GEMM is what "auto" takes; others are there by name. */
UNIT_TEST(test_own_blocks_on_vulkan) {
    if (!asked_device() || strcmp(asked_device(), "vulkan")) {
        skip();
    }
    static const char *const names[][2] = {{"auto", "portable"}, {"clblast", "clblast"}};
    for (size_t i = 0; i < COUNT(names); i++) {
        struct compute *compute = open_backend(0, names[i][0], false);
        assert_string_equal(gemm_facts(compute).name, names[i][1]);
        compute_close(compute);
    }
}

/* On the first device, with a buffer of so many floats. */
static struct compute *open_first(struct buffer *buffer, size_t count) {
    struct compute *compute;
    const struct compute_options options = {.cache_dir = ""};
    require(gemm_compute_open(&compute, &options));
    require(buffer_create(compute, buffer, count * sizeof(float)));
    return compute;
}

/* A, B and C in one buffer, as parameters and gradients are. */
UNIT_TEST(test_one_buffer) {
    struct buffer buffer;
    float values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0};
    struct compute *compute = open_first(&buffer, COUNT(values));
    require(buffer_write(compute, &buffer, 0, values, sizeof(values)));
    gemm_run(compute, &(struct gemm_call){.a = matrix_of(&buffer, 0, 2, 2),
                                          .b = matrix_of(&buffer, 4, 2, 2),
                                          .c = matrix_of(&buffer, 8, 2, 2)});
    require(buffer_read(compute, &buffer, 0, values, sizeof(values)));
    assert_true(values[8] == 19 && values[9] == 22 && values[10] == 43 && values[11] == 50);
    buffer_release(compute, &buffer);
    compute_close(compute);
}

UNIT_TEST(test_empty) {
    struct buffer buffer;
    struct compute *compute = open_first(&buffer, 0);
    const struct matrix wide = matrix_of(&buffer, 0, 0, 5), high = matrix_of(&buffer, 0, 5, 0);
    const struct matrix square = matrix_of(&buffer, 0, 5, 5);
    gemm_run(compute, &(struct gemm_call){.a = wide, .b = square, .c = wide});
    gemm_run(compute, &(struct gemm_call){.a = square, .b = high, .c = high});
    require(compute_finish(compute));
    buffer_release(compute, &buffer);
    compute_close(compute);
}

/* GEMMs of matrices in one buffer of 100 elements, each on a fresh compute, and what the failure must say. */
#define SQUARE           {NULL, 0, 10, 10, 10}
#define AT(offset)       {NULL, offset, 10, 10, 10}
#define STRIDE(elements) {NULL, 0, 10, 10, elements}
#define HIGH(rows)       {NULL, 0, rows, 10, 10}

UNIT_TEST(test_refused) {
    static const struct {
        struct matrix a, b, c, side;
        enum gemm_epilogue epilogue;
        const char *expected;
    } cases[] = {
        {AT(1), SQUARE, SQUARE, SQUARE, EPILOGUE_NONE, ": A [10, 10]"},
        {AT(SIZE_MAX), SQUARE, SQUARE, SQUARE, EPILOGUE_NONE, ": A [10, 10]"},
        {STRIDE(9), SQUARE, SQUARE, SQUARE, EPILOGUE_NONE, ": A [10, 10]"},
        {SQUARE, STRIDE(11), SQUARE, SQUARE, EPILOGUE_NONE, ": B [10, 10]"},
        {SQUARE, SQUARE, AT(101), SQUARE, EPILOGUE_NONE, ": C [10, 10]"},
        {SQUARE, SQUARE, STRIDE(SIZE_MAX / 9 + 10), SQUARE, EPILOGUE_NONE, ": C [10, 10]"},
        {HIGH(11), SQUARE, HIGH(11), SQUARE, EPILOGUE_NONE, ": C [11, 10]"},
        {HIGH(SIZE_MAX), SQUARE, HIGH(SIZE_MAX), SQUARE, EPILOGUE_NONE, ": C ["},
        {HIGH(SIZE_MAX), SQUARE, SQUARE, SQUARE, EPILOGUE_NONE, "do not agree"},
        {SQUARE, SQUARE, SQUARE, STRIDE(9), EPILOGUE_ACTIVATION, ": side [10, 10]"},
        {SQUARE, SQUARE, SQUARE, SQUARE, EPILOGUE_ACTIVATION, "cannot add a bias or activate"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct buffer buffer;
        struct compute *compute = open_first(&buffer, 100);
        struct gemm_call call = {.a = cases[i].a,
                                 .b = cases[i].b,
                                 .c = cases[i].c,
                                 .side = cases[i].side,
                                 .epilogue = cases[i].epilogue,
                                 .activation = "gelu"};
        call.a.buffer = call.b.buffer = call.c.buffer = call.side.buffer = &buffer;
        gemm_run(compute, &call);
        assert_error(compute_finish(compute), cases[i].expected);
        buffer_release(compute, &buffer);
        compute_close(compute);
    }
}

UNIT_TEST(test_unknown_backend) {
    struct compute *compute;
    struct compute_options options = {.gemm = "abacus", .cache_dir = ""};
    assert_error(gemm_compute_open(&compute, &options), "abacus");
    assert_null(compute);
    assert_error_text("clblast");
}

UNIT_TEST(test_rate) {
    struct buffer buffer;
    struct compute *compute = open_first(&buffer, 1);
    const uint64_t before = compute->allocated_bytes;
    for (enum element_type type = ELEMENT_FP32; type <= ELEMENT_BF16; type++) {
        double rate = 0.0;
        require(gemm_measure_rate(compute, type, 64, 64, 64, &rate));
        assert_true(rate > 0.0); /* a simulator makes less than a megaflop */
        assert_true(type != ELEMENT_FP32 || compute->allocated_bytes == before);
        assert_int_equal(gemm_measure_rate(compute, type, 64, 0, 64, &rate), -1);
        assert_int_equal(gemm_measure_rate(compute, type, SIZE_MAX / 2, 1, 8, &rate), -1);
    }
    buffer_release(compute, &buffer);
    compute_close(compute);
}

/* With an argument only the tests that it matches, or behind "not" the others: test_gemm not test_own_blocks */
int main(int count, char **words) {
    device_prepare_environment();
    if (count > 2 && !strcmp(words[1], "not")) {
        cmocka_set_skip_filter(words[2]);
    } else {
        cmocka_set_test_filter(count > 1 ? words[1] : NULL);
    }
    return unit_tests_run(scratch_begin, scratch_end);
}
