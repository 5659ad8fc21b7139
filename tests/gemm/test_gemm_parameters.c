/* CLBlast's parameters: which are allowed, and the file that keeps them. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/gemm/gemm.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_parameters.h"
#include "runtime/gemm/gemm_verify.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include <stdlib.h>
#include <string.h>

static const struct device device = {
    .name = "test", .driver = "1", .max_work_group = 256, .local_bytes = 32768, .compute_units = 1};

static const struct tuned_target target = {&gemm_parameters, &device, NULL};

/* 16 x 16 work-items, 4 x 4 elements each, both tiles in local memory: 16 KiB */
static const union tuned_values good = {{0, 1, 32, 2, 16, 16, 64, 16, 16, 64, 1, 1, 0, 0, 4, 2, 129}};

static bool allowed_with(enum gemm_parameter parameter, size_t value) {
    union tuned_values other = good;
    other.at[parameter] = value;
    return gemm_parameters.allowed(&target, &other);
}

static void test_allowed(void **state) {
    (void)state;
    assert_true(gemm_parameters.allowed(&target, &good));
    assert_true(allowed_with(GEMM_MWG, 128)); /* 24 KiB */
    assert_true(allowed_with(GEMM_VWN, 4));
    assert_true(allowed_with(GEMM_STRM, 1));
}

static void test_not_allowed(void **state) {
    (void)state;
    assert_false(allowed_with(GEMM_GEMMK, 1));
    assert_false(allowed_with(GEMM_KREG, 2));
    assert_false(allowed_with(GEMM_KWI, 3));    /* KWG is no multiple */
    assert_false(allowed_with(GEMM_MWG, 96));   /* nor is MWG of MDIMC VWM */
    assert_false(allowed_with(GEMM_NWG, 48));   /* nor is NWG of NDIMC VWN */
    assert_false(allowed_with(GEMM_MDIMA, 32)); /* nor is MWG of MDIMA VWM */
    assert_false(allowed_with(GEMM_MDIMA, 5));  /* nor are the work-items of MDIMA */
    assert_false(allowed_with(GEMM_KWG, 8));    /* rows of A that a pass of the work-items loads: 16 */
    assert_false(allowed_with(GEMM_MWG, 256));  /* 40 KiB */
    assert_false(allowed_with(GEMM_VWM, 3));
    assert_false(allowed_with(GEMM_VWM, 32));
    assert_false(allowed_with(GEMM_SA, 2));
    assert_false(allowed_with(GEMM_NWG, SIZE_MAX / 2 + 1));
    for (int i = GEMM_KREG; i < GEMM_PARAMETERS; i++) {
        if (i != GEMM_SA && i != GEMM_SB && i != GEMM_STRM && i != GEMM_STRN) {
            assert_false(allowed_with((enum gemm_parameter)i, 0));
        }
    }
    struct device small = device;
    small.max_work_group = 128;
    assert_false(gemm_parameters.allowed(&(struct tuned_target){&gemm_parameters, &small, NULL}, &good));
}

static void test_round_trip(void **state) {
    (void)state;
    union tuned_values read;
    bool found = true;
    char *path = tuned_path(&target, scratch_path("new/cache"));
    assert_non_null(path);
    assert_int_equal(tuned_read(&target, path, &read, &found), 0);
    assert_false(found);
    assert_int_equal(tuned_write(&target, path, &good), 0);
    assert_int_equal(tuned_read(&target, path, &read, &found), 0);
    assert_true(found);
    assert_memory_equal(&read, &good, sizeof read);
    free(path);
}

/* Another driver may do best with other parameters. */
static void test_a_file_for_each_driver(void **state) {
    (void)state;
    struct device newer = device;
    strcpy(newer.driver, "2");
    const struct tuned_target other = {&gemm_parameters, &newer, NULL};
    char *first = tuned_path(&target, "f"), *second = tuned_path(&other, "f");
    assert_non_null(first);
    assert_non_null(second);
    assert_string_not_equal(first, second);
    free(first);
    free(second);
}

static void refused(const char *content, const char *expected) {
    union tuned_values read;
    bool found;
    const char *path = scratch_write("clblast.json", content, strlen(content));
    assert_int_equal(tuned_read(&target, path, &read, &found), -1);
    if (!strstr(error_text(), path) || !strstr(error_text(), expected) ||
        !strstr(error_text(), "hc_bench --tune")) {
        fail_msg("'%s' does not name the file, '%s' and what to do", error_text(), expected);
    }
}

#define FIRST_13                                                                                                   \
    "{\"GEMMK\":0,\"KREG\":1,\"KWG\":32,\"KWI\":2,\"MDIMA\":16,\"MDIMC\":16,\"MWG\":64,\"NDIMB\":16,"              \
    "\"NDIMC\":16,\"NWG\":64,\"SA\":1,\"SB\":1,\"STRM\":0,"

static void test_hostile_files(void **state) {
    (void)state;
    refused("", "clblast.json");
    refused("{\"parameters\"", "clblast.json:1");
    refused("[]", "no parameters");
    refused("{}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":[]}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4}}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":\"2\"}}",
            "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":-2}}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":3}}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":2,\"X\":0}}",
            "no parameters");
    refused("{\"direct_below\":-1,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":2}}", "no parameters");
    refused("{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":9223372036854775807}}",
            "no parameters");
    union tuned_values read;
    bool found;
    const char whole[] = "{\"direct_below\":129,\"parameters\":" FIRST_13 "\"STRN\":0,\"VWM\":4,\"VWN\":2}}";
    const char *path = scratch_write("clblast.json", whole, sizeof whole - 1);
    assert_int_equal(tuned_read(&target, path, &read, &found), 0);
    assert_true(found);
}

static void test_no_folder(void **state) {
    (void)state;
    const char *file = scratch_write("file", "x", 1);
    char *path = tuned_path(&target, file);
    assert_non_null(path);
    assert_int_equal(tuned_write(&target, path, &good), -1);
    assert_non_null(strstr(error_text(), file));
    free(path);
}

/* Opens CLBlast on PoCL with these numbers in the cache folder; whether its GEMMs had to be verified. */
static bool is_verified(const union tuned_values *values) {
    const char *cache = scratch_path("tuned");
    const struct compute_options options = {.device = "pocl", .gemm = "clblast", .cache_dir = cache};
    struct device pocl;
    struct compute *compute;
    assert_int_equal(device_choose("pocl", 0, &pocl), 0);
    const struct tuned_target of_pocl = {&gemm_parameters, &pocl, NULL};
    char *path = tuned_path(&of_pocl, cache);
    assert_non_null(path);
    assert_int_equal(tuned_write(&of_pocl, path, values), 0);
    free(path);
    assert_int_equal(gemm_compute_open(&compute, &options), 0);
    const struct gemm_state *gemm = gemm_state(compute);
    assert_true(gemm->tuned);
    gemm_state(compute)->backend = &gemm_backend_portable; /* whose kernels are compiled soon */
    assert_int_equal(gemm_verify(compute, ELEMENT_FP32), 0);
    const bool verified = compute->programs_compiled + compute->programs_cached > 0;
    compute_close(compute);
    return verified;
}

/* Once for each set of numbers. */
static void test_tuned_devices_are_verified_once(void **state) {
    (void)state;
    union tuned_values other = good;
    other.at[GEMM_KWG] = 16;
    assert_true(is_verified(&good));
    assert_false(is_verified(&good));
    assert_true(is_verified(&other));
}

int main(void) {
    device_prepare_environment();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_not_allowed),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_a_file_for_each_driver),
        cmocka_unit_test(test_hostile_files),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_tuned_devices_are_verified_once),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
