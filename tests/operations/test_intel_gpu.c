/* What differs on a GPU that Intel's own driver runs: what it counts as compute units, and how its compiler is
 * asked for more registers. Played on PoCL by functions of OpenCL that stand in front of the library's. */
#include "runtime/gemm/gemm_backend.h"
#include "runtime/system/error.h"
#include "src/operations/attention.h"
#include "src/operations/kernels.h"
#include "tests/support/preloaded_opencl.h"
#include "tests/support/test.h"

#define INTEL       "Intel(R) OpenCL Graphics"
#define MANY        " -cl-intel-256-GRF-per-thread"
#define AS_NEEDED   " -cl-intel-enable-auto-large-GRF-mode"
#define EUS_OF_CORE 0x4254 /* CL_DEVICE_NUM_EUS_PER_SUB_SLICE_INTEL */

static cl_device_type type; /* that devices say they have; 0: their own */
static cl_uint engines, engines_of_core;

cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t room, void *value, size_t *bytes) {
    NEXT(clGetDeviceInfo);
    if (type && what == CL_DEVICE_TYPE) {
        return answer(&type, sizeof type, room, value, bytes);
    }
    if (type && what == CL_DEVICE_MAX_COMPUTE_UNITS) {
        return answer(&engines, sizeof engines, room, value, bytes);
    }
    return what == EUS_OF_CORE && engines_of_core
               ? answer(&engines_of_core, sizeof engines_of_core, room, value, bytes)
               : next(id, what, room, value, bytes);
}

/* No program compiles, and the error has its options. */
cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void (*notify)(cl_program, void *), void *context) {
    (void)program, (void)count, (void)devices, (void)options, (void)notify, (void)context;
    return CL_BUILD_PROGRAM_FAILURE;
}

UNIT_TEST(compute_units_are_cores) {
    static const struct {
        cl_device_type type;
        cl_uint engines, engines_of_core;
        unsigned cores;
    } cases[] = {
        {CL_DEVICE_TYPE_GPU, 512, 16, 32}, /* Arc A770 */
        {CL_DEVICE_TYPE_GPU, 160, 8, 20},  /* Arc B580 */
        {CL_DEVICE_TYPE_GPU, 23, 8, 3},    /* one is broken */
        {CL_DEVICE_TYPE_GPU, 84, 0, 84},   /* another driver */
        {CL_DEVICE_TYPE_CPU, 64, 16, 64},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct device *devices;
        size_t count;
        type = cases[i].type;
        engines = cases[i].engines;
        engines_of_core = cases[i].engines_of_core;
        assert_int_equal(device_list(false, &devices, &count), 0);
        assert_true(count > 0);
        assert_int_equal(devices[0].compute_units, cases[i].cores);
        free(devices);
    }
    type = 0;
    engines_of_core = 0;
}

static struct device device_of(const char *platform, bool is_gpu) {
    struct device device = {.is_gpu = is_gpu};
    snprintf(device.platform_name, sizeof device.platform_name, "%s", platform);
    return device;
}

UNIT_TEST(option_is_for_intels_compiler) {
    struct device gpu = device_of(INTEL, true), older = device_of("Intel(R) OpenCL HD Graphics", true);
    gpu.sub_group = 16;
    older.sub_group = 8;
    assert_string_equal(device_sub_group_option(&gpu), " -DSUB_GROUP=16");
    assert_string_equal(device_sub_group_option(&older), "");
    assert_string_equal(device_registers_option(&gpu, REGISTERS_MANY), MANY);
    assert_string_equal(device_registers_option(&gpu, REGISTERS_AS_NEEDED), AS_NEEDED);
    assert_string_equal(device_registers_option(&older, REGISTERS_MANY), MANY);
    struct device others[] = {
        device_of("Intel(R) OpenCL", false),
        device_of("rusticl", true),
        device_of("NVIDIA CUDA", true),
        device_of("AMD Accelerated Parallel Processing", true),
        device_of("Portable Computing Language", false),
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        others[i].sub_group = 16;
        assert_string_equal(device_sub_group_option(&others[i]), "");
        assert_string_equal(device_registers_option(&others[i], REGISTERS_MANY), "");
        assert_string_equal(device_registers_option(&others[i], REGISTERS_AS_NEEDED), "");
    }
}

/* That the last program was refused, with the option or, where the driver is another one, without it. */
static void assert_option(const char *file, const char *option, bool expected) {
    if (!strstr(error_text(), file) || (strstr(error_text(), option) != NULL) != expected) {
        fail_msg("'%s' %sexpected for %s in: %s", option, expected ? "" : "un", file, error_text());
    }
}

/* Attention on Intel's matrix cores: blocks that registers bear, by the size of sub-groups. */
static void check_attention(struct compute *compute, unsigned sub_group, const char *tiles) {
    const struct device gpu = {.is_gpu = true, .has_intel_matrix = true, .sub_group = sub_group};
    struct operations operations = {.compute = compute,
                                    .shape = {.heads = 2, .channels = 64, .type = ELEMENT_BF16}};
    struct matrix_cores unit;
    assert_int_equal(matrix_cores_find(&gpu, &unit), 0);
    assert_int_equal(attention_matrix_cores_open(&operations, &unit), -1);
    assert_option("attention_matrix_cores.cl", tiles, true);
    assert_option("attention_matrix_cores.cl", MANY, device_by_intel(&compute->device));
}

static void check_programs(struct compute *compute, bool expected) {
    const struct operation_shape shape = {.streams = 4,
                                          .channels = 64,
                                          .heads = 2,
                                          .vocabulary = 64,
                                          .sublayers = 2,
                                          .residual = residual_find("shc"),
                                          .settings = residual_settings_default()};
    struct operations operations;
    operations_describe(compute, &shape, &operations);
    assert_int_equal(operations_build(&operations, "frame.cl"), -1);
    assert_option("frame.cl", MANY, expected);
    assert_int_equal(operations_build(&operations, "attention_gpu.cl"), -1);
    assert_option("attention_gpu.cl", AS_NEEDED, expected);
    operations_release(&operations);

    check_attention(compute, 8, "-DWARPS=16 -DSHARES=1 -DKEYS=32 -DBLOCK=16 -DSTRIP=16 -DKEEP=0");
    check_attention(compute, 16, "-DWARPS=8 -DSHARES=1 -DKEYS=32 -DBLOCK=32 -DSTRIP=16 -DKEEP=0");

    struct gemm_state state = {.mma = {.cores = matrix_cores_emulated()}};
    compute->attached = &state;
    const struct buffer buffer = {.type = ELEMENT_FP32};
    const struct matrix matrix = matrix_of(&buffer, 0, 32, 32);
    const struct gemm_call call = {
        .name = "blocks", .a = matrix, .b = matrix, .c = matrix, .m = 32, .n = 32, .k = 32};
    gemm_backend_portable.run(compute, &call);
    assert_int_equal(compute_check(compute), -1);
    assert_option("gemm_blocks.cl", MANY, expected);
    compute_forget(compute);

    assert_int_equal(mma_self_test(compute, ELEMENT_BF16), -1);
    compute->attached = NULL;
    assert_option("mma_gemm.cl", MANY, expected);
}

UNIT_TEST(programs_that_need_them_ask_for_registers) {
    struct compute *compute;
    const struct compute_options options = {.device = "pocl", .cache_dir = ""};
    require(compute_open(&compute, &options));
    compute->device.is_gpu = true;
    compute->device.native_kernels = false;
    compute->lanes = 64;
    compute->vector = 4;
    check_programs(compute, false);
    strcpy(compute->device.platform_name, INTEL);
    check_programs(compute, true);
    compute_close(compute);
}

DEVICE_TEST_MAIN(NULL, NULL)
