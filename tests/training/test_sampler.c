/* sampler: rows depend on seed, iteration and row only, up to the largest numbers that options allow. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/training/sampler.h"
#include "tests/support/scratch.h"
#include <string.h>

enum { TOKENS = 1000, SEQUENCE = 4, SEED = 7 };

static struct token_file *file;

/* Token i of the file is i. */
static int begin(void **state) {
    unsigned char bytes[2 * TOKENS];
    for (int i = 0; i < TOKENS; i++) {
        bytes[2 * i] = (unsigned char)i;
        bytes[2 * i + 1] = (unsigned char)(i >> 8);
    }
    return scratch_begin(state) || token_file_open(scratch_write("tokens.bin", bytes, sizeof bytes), &file);
}

static int end(void **state) {
    token_file_close(file);
    return scratch_end(state);
}

static struct sampler make_sampler(int64_t global_rows) {
    struct sampler sampler;
    assert_int_equal(sampler_create(&sampler, file, SEED, "test", global_rows, SEQUENCE, TOKENS), 0);
    return sampler;
}

/* Reads one row, which must be row `index` of the run. */
static void assert_row(int64_t global_rows, int64_t iteration, int64_t first, uint64_t index) {
    struct sampler sampler = make_sampler(global_rows);
    int32_t x[SEQUENCE], y[SEQUENCE];
    assert_int_equal(sampler_read(&sampler, iteration, first, 1, x, y), 0);
    const uint64_t start = random_below(random_key(SEED, "test"), index, TOKENS - SEQUENCE);
    for (int i = 0; i < SEQUENCE; i++) {
        assert_int_equal(x[i], start + (uint64_t)i);
        assert_int_equal(y[i], start + (uint64_t)i + 1);
    }
    sampler_release(&sampler);
}

static void test_rows_are_counted_over_the_run(void **state) {
    (void)state;
    assert_row(8, 0, 0, 0);
    assert_row(8, 0, 7, 7);
    assert_row(8, 3, 2, 26);
    assert_row((int64_t)1 << 40, (int64_t)1 << 23, 5, ((uint64_t)1 << 63) + 5);
    assert_row((int64_t)1 << 40, ((int64_t)1 << 24) - 1, ((int64_t)1 << 40) - 2, UINT64_MAX - 1);
}

static void test_rows_that_cannot_be_counted_are_refused(void **state) {
    (void)state;
    struct sampler sampler = make_sampler((int64_t)1 << 40);
    int32_t x[2 * SEQUENCE], y[2 * SEQUENCE];
    assert_int_equal(sampler_read(&sampler, (int64_t)1 << 24, 0, 1, x, y), -1);
    assert_non_null(strstr(error_text(), "iteration 16777216 of 1099511627776 sequences each"));
    assert_int_equal(sampler_read(&sampler, INT64_MAX, 0, 1, x, y), -1);
    assert_int_equal(sampler_read(&sampler, ((int64_t)1 << 24) - 1, ((int64_t)1 << 40) - 1, 2, x, y), -1);
    sampler_release(&sampler);
}

static void test_too_few_tokens_are_refused(void **state) {
    (void)state;
    struct sampler sampler;
    assert_int_equal(sampler_create(&sampler, file, SEED, "test", 1, TOKENS, TOKENS), -1);
    assert_non_null(strstr(error_text(), "too few for block_size = 1000"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_counted_over_the_run),
        cmocka_unit_test(test_rows_that_cannot_be_counted_are_refused),
        cmocka_unit_test(test_too_few_tokens_are_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
