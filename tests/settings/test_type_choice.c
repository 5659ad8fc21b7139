/* What --dtype auto stands for, on devices that are here and on others. */
#include "runtime/device/device.h"
#include "runtime/system/error.h"
#include "src/settings/type_choice.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

#define CORES_WORK    {.matrix_cores = "mma.sync"}
#define CORES_FAIL    {.refusal = "WMMA: wrong; MFMA: unknown", .failed = true}
#define CORES_UNKNOWN {.refusal = "hctrain knows no matrix cores of this device"}

#define CPU_WORKS {.matrix_cores = "AVX512_BF16"}
#define CPU_LACKS {.refusal = "no oneDNN"}

/* ---- one rank */

struct decision {
    struct type_facts facts;
    enum element_type type;
    const char *reason; /* what it contains; "" for none */
};

static void check_text(const char *text, const char *expected) {
    if (*expected ? !strstr(text, expected) : *text != '\0') {
        fail_msg("'%s' expected in '%s'", expected, text);
    }
}

UNIT_TEST(decisions_are_those_of_the_table) {
    static const struct decision table[] = {
        /* a GPU, by what its matrix cores do */
        {{TYPE_AUTO, GEMM_AUTO, "A6000", true, CORES_WORK, false, 128}, ELEMENT_BF16, "GEMMs on mma.sync passed"},
        {{TYPE_AUTO, GEMM_MMA, "A6000", true, CORES_WORK, false, 128}, ELEMENT_BF16, "GEMMs on mma.sync passed"},
        {{TYPE_AUTO, GEMM_AUTO, "A6000", true, CORES_WORK, true, 128}, ELEMENT_BF16, "GEMMs on mma.sync are taken"},
        {{TYPE_AUTO, GEMM_AUTO, "gfx1030", true, CORES_FAIL, false, 768}, ELEMENT_FP32, "gfx1030 would multiply"},
        {{TYPE_AUTO, GEMM_AUTO, "Mali", true, CORES_UNKNOWN, false, 768}, ELEMENT_FP32, "fp32: hctrain knows"},
        {{TYPE_AUTO, GEMM_AUTO, "Mali", true, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "Mali would multiply"},
        /* a CPU, also where it emulates matrix cores */
        {{TYPE_AUTO, GEMM_AUTO, "EPYC", false, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "EPYC would multiply"},
        {{TYPE_AUTO, GEMM_MMA, "EPYC", false, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "EPYC would multiply"},
        /* a CPU with bf16 instructions, by the model's width */
        {{TYPE_AUTO, GEMM_AUTO, "EPYC", false, CPU_WORKS, false, 768}, ELEMENT_BF16, "GEMMs on AVX512_BF16 passed"},
        {{TYPE_AUTO, GEMM_AUTO, "EPYC", false, CPU_WORKS, false, 256}, ELEMENT_BF16, "GEMMs on AVX512_BF16"},
        {{TYPE_AUTO, GEMM_ONEDNN, "EPYC", false, CPU_WORKS, false, 0}, ELEMENT_BF16, "GEMMs on AVX512_BF16"},
        {{TYPE_AUTO, GEMM_AUTO, "EPYC", false, CPU_WORKS, false, 255}, ELEMENT_FP32, "a model of 255 channels"},
        {{TYPE_AUTO, GEMM_AUTO, "EPYC", false, CPU_LACKS, false, 768},
         ELEMENT_FP32,
         "multiply bf16 in fp32: no oneDNN"},
        /* GEMMs that are in fp32 in any case */
        {{TYPE_AUTO, GEMM_CLBLAST, "A6000", true, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "--gemm clblast multiplies"},
        {{TYPE_AUTO, GEMM_CBLAS, "EPYC", false, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "--gemm cblas multiplies"},
        {{TYPE_AUTO, GEMM_PORTABLE, "EPYC", false, {.matrix_cores = NULL}, false, 768},
         ELEMENT_FP32,
         "--gemm portable"},
        /* what is given is given */
        {{ELEMENT_FP32, GEMM_AUTO, "A6000", true, {.matrix_cores = NULL}, false, 768}, ELEMENT_FP32, ""},
        {{ELEMENT_BF16, GEMM_AUTO, "EPYC", false, {.matrix_cores = NULL}, false, 768}, ELEMENT_BF16, ""},
        {{ELEMENT_FP16, GEMM_AUTO, "A6000", true, CORES_WORK, false, 128}, ELEMENT_FP16, ""},
        {{ELEMENT_BF16, GEMM_AUTO, "gfx1030", true, CORES_FAIL, false, 768}, ELEMENT_BF16, ""},
    };
    for (size_t i = 0; i < COUNT(table); i++) {
        struct type_choice choice;
        type_choice_make(&table[i].facts, &choice);
        assert_int_equal(choice.type, table[i].type);
        check_text(choice.reason, table[i].reason);
        check_text(choice.warning,
                   table[i].facts.backend.failed
                       ? "GEMMs on gfx1030 take several times as long without matrix cores: WMMA: wrong"
                       : "");
    }
}

UNIT_TEST(narrow_models_are_told_the_limit) {
    const struct type_facts facts = {TYPE_AUTO, GEMM_AUTO, "EPYC", false, CPU_WORKS, false, 255};
    struct type_choice choice;
    type_choice_make(&facts, &choice);
    check_text(choice.reason, "too narrow to gain from AVX512_BF16; bf16 is chosen from 256 channels on");
}

/* ---- several */

static const struct rank_choice in_bf16 = {ELEMENT_BF16, false, "node-a", "cblas"};
static const struct rank_choice in_fp32 = {ELEMENT_FP32, true, "node-b", "cblas"};
static const struct rank_choice given_fp32 = {ELEMENT_FP32, false, "node-c", "cblas"};
static const struct rank_choice by_clblast = {ELEMENT_BF16, false, "node-f", "clblast"};
static const struct type_choice chose_bf16 = {ELEMENT_BF16, "cores work", ""},
                                given_slow = {ELEMENT_BF16, "", "slow: WMMA"};

#define CHECK_MERGED(type, reason, warning, ...)                                                                   \
    check_merged((type), (reason), (warning), (const struct rank_choice[]){__VA_ARGS__},                           \
                 sizeof((const struct rank_choice[]){__VA_ARGS__}) / sizeof(struct rank_choice))

/* What a rank that chose bf16 takes. */
static void check_merged(enum element_type type, const char *reason, const char *warning,
                         const struct rank_choice *all, size_t count) {
    struct type_choice merged = chose_bf16;
    type_choice_merge(all, (int)count, &merged);
    assert_int_equal(merged.type, type);
    check_text(merged.reason, reason);
    check_text(merged.warning, warning);
}

UNIT_TEST(other_gemms_are_warned_of) {
    const struct rank_choice all[] = {in_bf16, in_bf16, by_clblast};
    struct type_choice choice = chose_bf16;
    type_choice_compare(all, 2, &choice);
    assert_string_equal(choice.warning, "");
    type_choice_compare(all, 3, &choice);
    check_text(choice.warning, "rank 2 on node-f multiplies by clblast and rank 0 by cblas");
    choice = given_slow;
    type_choice_compare(all, 3, &choice);
    assert_string_equal(choice.warning, "slow: WMMA");
}

UNIT_TEST(all_ranks_take_one_type) {
    struct type_choice slow = given_slow;
    CHECK_MERGED(ELEMENT_BF16, "cores work", "", in_bf16, in_bf16);
    CHECK_MERGED(ELEMENT_BF16, "cores work", "", in_bf16, given_fp32);
    CHECK_MERGED(ELEMENT_BF16, "cores work", "", in_fp32, in_fp32);
    CHECK_MERGED(ELEMENT_FP32, "rank 2 on node-b chose it", "because of rank 2 on node-b", in_bf16, in_bf16,
                 in_fp32);
    CHECK_MERGED(ELEMENT_FP32, "rank 1 on node-b chose it", "--dtype bf16 uses those", in_bf16, in_fp32, in_fp32);
    type_choice_merge((const struct rank_choice[]){in_bf16, in_fp32}, 2, &slow);
    assert_int_equal(slow.type, ELEMENT_FP32);
    assert_string_equal(slow.warning, "slow: WMMA");
}

/* ---- what is here */

static struct ranks alone;

/* Opens PoCL for a model that is too small for bf16 instructions; the number of programs that it needed. */
static unsigned open_pocl(enum gemm_word gemm, int wanted, struct type_choice *choice, char description[256]) {
    const struct device_settings settings = {.device = "pocl", .gemm = (int)gemm};
    struct compute *compute;
    require(type_choice_open(&settings, wanted, 64, &alone, &compute, choice));
    snprintf(description, 256, "%s", gemm_facts(compute).description);
    assert_null(gemm_facts(compute).matrix_cores);
    assert_null(gemm_facts(compute).refusal);
    assert_false(gemm_facts(compute).failed);
    const unsigned programs = compute->programs_compiled + compute->programs_cached;
    compute_close(compute);
    return programs;
}

UNIT_TEST(cpus_are_opened_as_for_fp32) {
    struct type_choice choice;
    char chosen[256], given_type[256];
    static const enum gemm_word words[] = {GEMM_AUTO, GEMM_CBLAS, GEMM_PORTABLE, GEMM_CLBLAST};
    const size_t count = test_is_whole() ? COUNT(words) : COUNT(words) - 1; /* clblast's self-test is long */
    for (size_t i = 0; i < count; i++) {
        const enum gemm_word gemm = words[i];
        open_pocl(gemm, ELEMENT_FP32, &choice, chosen); /* the first time a device is compared with the host */
        const unsigned programs = open_pocl(gemm, TYPE_AUTO, &choice, chosen);
        assert_int_equal(choice.type, ELEMENT_FP32);
        assert_true(*choice.reason != '\0');
        assert_string_equal(choice.warning, "");
        assert_int_equal(programs, open_pocl(gemm, ELEMENT_FP32, &choice, given_type));
        assert_int_equal(choice.type, ELEMENT_FP32);
        assert_string_equal(choice.reason, "");
        assert_string_equal(chosen, given_type);
    }
}

static struct compute *open_gemm(const char *gemm) {
    const struct compute_options options = {.device = "pocl",
                                            .gemm = gemm,
                                            .operands = ELEMENT_BF16,
                                            .cache_dir = ""};
    struct compute *compute;
    require(gemm_compute_open(&compute, &options));
    return compute;
}

/* What muon_dtype becomes that was `asked`, with this optimizer of the table. */
static int muon_dtype(struct compute *compute, enum element_type type, int asked, int optimizer) {
    struct optimizer_settings settings = {.optimizer = optimizer, .muon_dtype = asked};
    require(type_choice_optimizer(compute, type, &alone, &settings));
    return settings.muon_dtype;
}

/* In bf16 on matrix cores, which PoCL emulates; in fp32 elsewhere. */
UNIT_TEST(muon_iterates_in_bf16_on_matrix_cores) {
    enum { ADAMW, MUON };
    struct compute *cores = open_gemm("mma"), *plain = open_gemm("cblas");
    assert_int_equal(muon_dtype(cores, ELEMENT_BF16, MUON_AUTO, MUON), MUON_BF16);
    assert_int_equal(muon_dtype(cores, ELEMENT_FP16, MUON_AUTO, MUON), MUON_FP32);
    assert_int_equal(muon_dtype(plain, ELEMENT_BF16, MUON_AUTO, MUON), MUON_FP32);
    assert_int_equal(muon_dtype(cores, ELEMENT_BF16, MUON_FP32, MUON), MUON_FP32);
    assert_int_equal(muon_dtype(cores, ELEMENT_BF16, MUON_AUTO, ADAMW), MUON_AUTO);
    compute_close(cores);
    compute_close(plain);
}

UNIT_TEST(device_that_is_not_there_is_an_error) {
    const struct device_settings settings = {.device = "no-such-device"};
    struct compute *compute;
    struct type_choice choice;
    assert_int_equal(type_choice_open(&settings, TYPE_AUTO, 768, &alone, &compute, &choice), -1);
    assert_null(compute);
    assert_error_text("no-such-device");
}

UNIT_TEST(line_is_printed_unless_the_type_was_given) {
    char *text;
    size_t size;
    FILE *lines = open_memstream(&text, &size);
    assert_non_null(lines);
    type_choice_print(&chose_bf16, lines);
    type_choice_print(&(struct type_choice){ELEMENT_BF16, "", ""}, lines);
    type_choice_print(&chose_bf16, NULL);
    type_choice_print(&(struct type_choice){ELEMENT_FP32, "EPYC is no GPU", ""}, lines);
    fclose(lines);
    assert_string_equal(text, "dtype    bf16: cores work\ndtype    fp32: EPYC is no GPU\n");
    free(text);
}

static int set_up(void **state) {
    alone = ranks_alone;
    return scratch_begin(state) || setenv("XDG_CACHE_HOME", scratch_path("cache"), 1);
}

DEVICE_TEST_MAIN(set_up, scratch_end)
