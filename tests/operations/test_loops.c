/* Devices that leave long loops are found out, and others are not. `test_loops DEVICE` opens that one, without it
 * PoCL; exit status 77: there is no such device. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "src/operations/kernels.h"
#include "tests/support/test.h"
#include <stdio.h>
#include <string.h>

#define SKIPPED 77

static struct compute *compute;

static int check_shape(const struct operation_shape *shape, struct token_shape tokens) {
    struct operations operations;
    operations_describe(compute, shape, &operations);
    const int status = operations_check_loops(&operations, tokens, 1000);
    operations_release(&operations);
    return status;
}

static int check(const char *residual, int64_t streams, int64_t tokens) {
    const struct operation_shape shape = {
        .streams = streams, .channels = 8, .heads = 2, .vocabulary = 3, .residual = residual_find(residual)};
    return check_shape(&shape, (struct token_shape){1, tokens});
}

/* Mesa 22.3 leaves loops, and gradients of mhc_lite with 6 streams and more than 128 tokens are wrong there. */
static bool leaves_loops(void) {
    return strstr(compute->device.name, "llvmpipe") && !strncmp(compute->device.driver, "22.", 3);
}

UNIT_TEST(long_loops_are_tried_where_a_model_has_some) {
    assert_int_equal(check("rc", 1, 254), 0);
    assert_int_equal(check("shc", 4, 254), 0);
    assert_int_equal(check("mhc_lite", 6, 254), leaves_loops() ? -1 : 0);
    if (leaves_loops()) {
        assert_error_text("driver 22.");
        assert_error_text("end all loops of a work-item after 65535");
    }
    assert_int_equal(compute_check(compute), 0);
}

UNIT_TEST(attention_of_long_rows_has_long_loops) {
    struct operation_shape shape = {
        .streams = 1, .channels = 128, .heads = 2, .vocabulary = 3, .residual = residual_find("rc")};
    const bool is_long = leaves_loops() && (compute->lanes == 1 || compute->device.max_work_group <
                                                                       64); /* one work-item for a block of keys */
    assert_int_equal(check_shape(&shape, (struct token_shape){2, 128}), is_long ? -1 : 0);
    shape.heads = 32;
    assert_int_equal(check_shape(&shape, (struct token_shape){2, 128}), 0);
}

/* By the vocabulary, over which the head sums its input's gradient. */
UNIT_TEST(portable_gemm_has_long_loops) {
    const struct operation_shape shape = {
        .streams = 1, .channels = 8, .heads = 2, .vocabulary = 20000, .residual = residual_find("rc")};
    const bool is_long = gemm_iterations(compute, 20000) > 20000;
    assert_int_equal(is_long, compute->lanes == 1);
    assert_int_equal(check_shape(&shape, (struct token_shape){1, 16}), is_long && leaves_loops() ? -1 : 0);
}

int main(int count, char **arguments) {
    const struct compute_options options = {.device = count > 1 ? arguments[1] : "pocl",
                                            .gemm = "portable",
                                            .cache_dir = ""};
    device_prepare_environment();
    if (gemm_compute_open(&compute, &options)) {
        printf("%s\n", error_text());
        return SKIPPED;
    }
    const int failures = unit_tests_run(NULL, NULL);
    compute_close(compute);
    return failures;
}
