/* The backend "onednn" with the library that is here: on the host's cores, and with tests/support/intel_opencl.c
 * preloaded through oneDNN's OpenCL runtime, on a device that says it is Intel's. Exit status 77: there is no such
 * library. */
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED 77

/* Whether this is the run with intel_opencl.c. */
static bool is_mocked(void) {
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, HC_PRELOADED);
}

static struct compute *open_device(const char *gemm, enum element_type operands, bool profile) {
    struct compute *compute;
    const struct compute_options options = {.device = is_mocked() ? "gpu" : "pocl",
                                            .gemm = gemm,
                                            .operands = operands,
                                            .cache_dir = "",
                                            .profile = profile};
    return gemm_compute_open(&compute, &options) ? NULL : compute;
}

static struct compute *open_onednn(enum element_type operands) {
    struct compute *compute = open_device("onednn", operands, true);
    require(!compute);
    assert_string_equal(gemm_facts(compute).name, "onednn");
    return compute;
}

static void check(struct compute *compute, struct gemm_case wanted, unsigned transposes) {
    wanted.transpose_a = transposes & 1;
    wanted.transpose_b = transposes & 2;
    require(gemm_verify_case(compute, gemm_run, &wanted));
}

/* Odd sizes, rows with gaps, offsets where a part of a buffer may begin (128 bytes) and where not. */
static void check_type(struct compute *compute, enum element_type operands, enum element_type result,
                       unsigned transposes) {
    const struct gemm_case cases[] = {
        {.m = 1, .n = 1, .k = 1},
        {.m = 5, .n = 3, .k = 7, .pads = {2, 1, 3}, .beta = 1},
        {.m = 33, .n = 31, .k = 65, .pads = {1, 7, 5}, .offsets = {128, 64, 192}, .beta = -1.5f},
        {.m = 17, .n = 13, .k = 29, .offsets = {3, 5, 11}},
        {.m = 64, .n = 96, .k = 80, .pads = {0, 0, 32}, .offsets = {0, 0, 64}, .beta = 1},
        {.m = 6, .n = 5, .k = 0, .pads = {0, 0, 2}, .offsets = {0, 0, 3}, .beta = 0.25f},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct gemm_case wanted = cases[i];
        wanted.types[0] = wanted.types[1] = operands;
        wanted.types[2] = result;
        check(compute, wanted, transposes + (unsigned)i);
    }
}

UNIT_TEST(gemms_of_fp32_are_right) {
    struct compute *compute = open_onednn(ELEMENT_FP32);
    check_type(compute, ELEMENT_FP32, ELEMENT_FP32, 0);
    compute_close(compute);
}

/* Memory plans count fp32 copies exactly where GEMMs of bf16 make some. */
static void check_copies(struct compute *compute) {
    const struct gemm_state *state = gemm_state(compute);
    check(compute,
          (struct gemm_case){.m = 64, .n = 32, .k = 16, .types = {ELEMENT_BF16, ELEMENT_BF16, ELEMENT_BF16}}, 0);
    assert_int_equal(gemm_copies(compute, ELEMENT_BF16), state->copies[0].bytes > 0);
}

/* On a CPU without instructions for bf16 the library has no such GEMMs: they become fp32. */
UNIT_TEST(gemms_of_bf16_are_right) {
    struct compute *compute = open_onednn(ELEMENT_BF16);
    check_copies(compute);
    check_type(compute, ELEMENT_BF16, ELEMENT_BF16, 2);
    check_type(compute, ELEMENT_BF16, ELEMENT_FP32, 3);
    /* types that the library has no GEMM of become fp32 */
    check(compute,
          (struct gemm_case){
              .m = 9, .n = 17, .k = 11, .types = {ELEMENT_FP32, ELEMENT_FP16, ELEMENT_FP32}, .beta = 1},
          2);
    check(compute,
          (struct gemm_case){.m = 9, .n = 17, .k = 11, .types = {ELEMENT_FP16, ELEMENT_FP16, ELEMENT_FP16}}, 1);
    assert_false(gemm_fuses(compute, ELEMENT_BF16)); /* what follows the sums is left to others */
    assert_true(strstr(gemm_facts(compute).description, "onednn on the ") == gemm_facts(compute).description);
    const struct gemm_facts cores = gemm_facts(compute); /* of a CPU: used, or said why not */
    assert_int_equal(cores.matrix_cores || cores.refusal,
                     *compute->device.matrix_cores.names[ELEMENT_BF16] != '\0');
    compute_close(compute);
}

/* GEMMs of bf16 that fail the self-test run on fp32 copies, also where the library was asked for by name. */
UNIT_TEST(wrong_gemms_of_bf16_are_not_used) {
    if (!is_mocked()) {
        skip(); /* tests/gemm/test_cpu_instructions.c has a library that is wrong on CPUs */
    }
    setenv("HC_WRONG_BF16", "1", 1);
    struct compute *compute = open_onednn(ELEMENT_BF16);
    const struct gemm_facts cores = gemm_facts(compute);
    assert_null(cores.matrix_cores);
    assert_non_null(cores.refusal);
    assert_non_null(strstr(cores.refusal, "self-test with bf16"));
    check_copies(compute);
    assert_true(gemm_copies(compute, ELEMENT_BF16));
    compute_close(compute);
    unsetenv("HC_WRONG_BF16");
}

/* Large GEMMs that begin where the library takes none are another backend's, whose code for them is verified,
 * too. */
UNIT_TEST(what_is_left_to_others_is_verified) {
    struct compute *compute = open_onednn(ELEMENT_FP32);
    const struct gemm_state *gemm = gemm_state(compute);
    assert_int_equal(gemm_verify(compute, ELEMENT_FP32, false), 0);
    if (is_mocked()) {
        assert_true(gemm->scratch.bytes > 0); /* for CLBlast's copies of large matrices */
    } else {
        assert_true(gemm->fp32->large_edge(compute) > 0);
    }
    compute_close(compute);
}

/* More shapes than are kept, twice: the first ones again after they were forgotten. */
UNIT_TEST(any_number_of_shapes_can_come) {
    struct compute *compute = open_onednn(ELEMENT_FP32);
    for (size_t round = 0; round < 2 && !is_mocked(); round++) { /* which compiles a program for each */
        for (size_t m = 1; m <= 300; m++) {
            check(compute, (struct gemm_case){.m = m, .n = 3, .k = 2}, 0);
        }
    }
    compute_close(compute);
}

/* On a GPU "auto" tries the library, and says why it does without: this device's GEMMs are plain loops. */
UNIT_TEST(auto_takes_no_plain_loops) {
    struct compute *compute = open_device("auto", ELEMENT_FP32, false);
    assert_non_null(compute);
    assert_string_not_equal(gemm_facts(compute).name, "onednn");
    const char *reason = strstr(gemm_facts(compute).description, "; without oneDNN: oneDNN ");
    assert_int_equal(reason != NULL, is_mocked());
    assert_true(!reason || strstr(reason, " has only plain loops for this device"));
    compute_close(compute);
}

UNIT_TEST(other_drivers_are_refused) {
    const struct device intel = {.platform_name = "Intel(R) OpenCL HD Graphics"};
    struct gemm_state gemm = {0};
    struct compute compute = {.device = {.platform_name = "rusticl"}, .attached = &gemm};
    assert_true(device_by_intel(&intel));
    assert_int_equal(gemm_backend_onednn.open(&compute), -1);
    assert_null(gemm.onednn);
    assert_string_equal(error_text(), "oneDNN needs Intel's own OpenCL driver, and this is rusticl");
}

static bool library_is_here(void) {
    struct compute *compute = open_device("onednn", ELEMENT_FP32, false);
    if (!compute) {
        printf("%s\n", error_text());
        return strstr(error_text(), "no oneDNN that can be used") == NULL;
    }
    printf("%s on %s\n", gemm_facts(compute).description, compute->device.name);
    compute_close(compute);
    return true;
}

int main(void) {
    device_prepare_environment();
    setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "0", 1); /* what one test spoils is not for the others */
    return library_is_here() ? unit_tests_run(NULL, NULL) : SKIPPED;
}
