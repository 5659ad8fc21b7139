/* What a CPU multiplies 16 bits with, and "auto" on a CPU that has units for them: by a library that stands in for
 * oneDNN (tests/support/plain_onednn.c), on a device that is told that it has some. */
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

/* ---- what the system says */

#define FLAGS "processor\t: 0\nflags\t\t: "

UNIT_TEST(features_of_the_systems_file_have_names) {
    static const struct {
        const char *file, *bf16, *fp16;
    } cases[] = {
        {FLAGS "\n", "", ""},
        {FLAGS "fpu avx2 avx512f avx512vl avx512_vnni\n", "", ""},
        {FLAGS " fpu avx512_bf16 avx512_vnni\n\n", "AVX512_BF16", ""},
        {FLAGS "amx_bf16 amx_tile avx512_bf16 avx512_fp16\n", "AMX_BF16, AVX512_BF16", "AVX512_FP16"},
        {FLAGS "avx512_fp16\tamx_fp16\n", "", "AMX_FP16, AVX512_FP16"},
        {FLAGS "avx512_bf16x xavx512_bf16 avx512\n", "", ""},
        {FLAGS "fp asimd fphp asimdhp bf16 i8mm\n", "NEON BF16", ""},
        {FLAGS "asimd svebf16 bf16\n", "SVE BF16, NEON BF16", ""},
        {"processor\t: 0\nmodel name\t: EPYC bf16\nflags\t\t: fpu avx512_bf16\nbugs\t: x\n", "AVX512_BF16", ""},
        {"processor\t: 0\nFeatures\t: fp bf16\n\nprocessor\t: 1\nFeatures\t: fp svebf16\n", "NEON BF16", ""},
        {"flags avx512_bf16\nbugs : amx_bf16\n", "", ""},
        {"", "", ""},
    };
    struct cpu_instructions units;
    for (size_t i = 0; i < COUNT(cases); i++) {
        cpu_instructions_read(scratch_write("cpuinfo", cases[i].file, strlen(cases[i].file)), &units);
        assert_string_equal(units.names[ELEMENT_FP32], "");
        assert_string_equal(units.names[ELEMENT_BF16], cases[i].bf16);
        assert_string_equal(units.names[ELEMENT_FP16], cases[i].fp16);
    }
    cpu_instructions_read("/nowhere/cpuinfo", &units);
    assert_string_equal(units.names[ELEMENT_BF16], "");
}

/* ---- what "auto" makes of it */

static struct compute *open_told(const char *gemm, const char *bf16) {
    struct compute *compute;
    const struct compute_options options = {.device = "pocl"};
    assert_int_equal(compute_open(&compute, &options), 0);
    memset(&compute->device.matrix_cores, 0, sizeof compute->device.matrix_cores);
    snprintf(compute->device.matrix_cores.names[ELEMENT_BF16], CPU_INSTRUCTIONS_NAME, "%s", bf16);
    require(gemm_open(compute, gemm, ELEMENT_BF16));
    return compute;
}

static int check(struct compute *compute, enum element_type operands, enum element_type result) {
    for (unsigned form = 0; form < 4; form++) {
        const struct gemm_case wanted = {.transpose_a = form & 1,
                                         .transpose_b = form & 2,
                                         .m = 33,
                                         .n = 31,
                                         .k = 65,
                                         .types = {operands, operands, result},
                                         .pads = {1, 7, 5},
                                         .offsets = {3, 64, 192},
                                         .beta = form ? 1.0f : 0.0f};
        if (gemm_verify_case(compute, gemm_run, &wanted)) {
            return -1;
        }
    }
    return 0;
}

/* fp32 is left to the host's BLAS: the library would spoil it. */
UNIT_TEST(units_multiply_16_bits_and_nothing_else) {
    unsetenv("PLAIN_ONEDNN");
    struct compute *compute = open_told("auto", "AVX512_BF16");
    assert_string_equal(gemm_facts(compute).description, "onednn on the CPU, library 3.9.0");
    assert_string_equal(gemm_facts(compute).matrix_cores, "AVX512_BF16");
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), 0);
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_FP32), 0);
    assert_int_equal(check(compute, ELEMENT_FP32, ELEMENT_FP32), 0);
    setenv("PLAIN_ONEDNN", "wrong", 1);
    assert_int_equal(check(compute, ELEMENT_FP32, ELEMENT_FP32), 0);
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), -1);
    compute_close(compute);
}

static void check_refused(const char *how, const char *reason) {
    setenv("PLAIN_ONEDNN", how, 1);
    struct compute *compute = open_told("auto", "AVX512_BF16");
    assert_string_equal(gemm_facts(compute).name, "cblas");
    assert_non_null(strstr(gemm_facts(compute).description, "cblas; 16 bits in fp32: "));
    assert_non_null(strstr(gemm_facts(compute).description, reason));
    assert_null(gemm_facts(compute).matrix_cores);
    assert_non_null(strstr(gemm_facts(compute).refusal, reason));
    assert_false(gemm_facts(compute).failed);
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), 0);
    compute_close(compute);
}

UNIT_TEST(a_library_that_does_not_do_is_not_taken) {
    check_refused("ref", "oneDNN 3.9.0 has only plain loops for this device");
    check_refused("wrong", "self-test with bf16");
    check_refused("lacking", "no such GEMM for this device");
}

UNIT_TEST(without_units_there_is_no_library) {
    struct compute *compute = open_told("auto", "");
    assert_string_equal(gemm_facts(compute).description, "cblas");
    assert_null(gemm_facts(compute).refusal);
    compute_close(compute);
}

/* Where the library has no GEMMs of bf16, or wrong ones, memory plans have fp32 copies, whatever the CPU has
 * instructions for. */
UNIT_TEST(copies_are_planned_where_the_library_lacks_a_type) {
    const struct {
        const char *how;
        bool copies;
    } cases[] = {{"lacking", true}, {"wrong 16", true}, {"right", false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        setenv("PLAIN_ONEDNN", cases[i].how, 1);
        struct compute *compute = open_told("onednn", i % 2 ? "AVX512_BF16" : "");
        assert_string_equal(gemm_facts(compute).name, "onednn");
        assert_int_equal(gemm_copies(compute, ELEMENT_BF16), cases[i].copies);
        assert_true(gemm_copies(compute, ELEMENT_FP16)); /* nobody has tested those */
        assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), 0);
        compute_close(compute);
    }
}

/* Asked for by name it does fp32, too, and says what it has no units for. */
UNIT_TEST(by_name_the_library_does_everything) {
    setenv("PLAIN_ONEDNN", "lacking", 1);
    struct compute *compute = open_told("onednn", "AVX512_BF16");
    assert_non_null(strstr(gemm_facts(compute).refusal, "no such GEMM for this device"));
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), 0);
    setenv("PLAIN_ONEDNN", "wrong", 1);
    assert_int_equal(check(compute, ELEMENT_FP32, ELEMENT_FP32), -1);
    compute_close(compute);
    setenv("PLAIN_ONEDNN", "wrong 16", 1);
    compute = open_told("onednn", "AVX512_BF16");
    assert_non_null(strstr(gemm_facts(compute).refusal, "self-test with bf16"));
    assert_int_equal(check(compute, ELEMENT_BF16, ELEMENT_BF16), 0); /* in fp32 */
    compute_close(compute);
}

DEVICE_TEST_MAIN(scratch_begin, scratch_end)
