/* batch_sampler: rows depend on seed, iteration and row only, up to the largest numbers that options allow. */
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/training/batch_sampler.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
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
    return scratch_begin(state) || token_file_open(scratch_write("tokens.bin", bytes, sizeof bytes), 2, &file);
}

static int end(void **state) {
    token_file_close(file);
    return scratch_end(state);
}

static struct batch_sampler make_sampler(int64_t rows, int64_t global_rows) {
    struct batch_sampler sampler;
    const struct token_shape shape = {rows, SEQUENCE};
    assert_int_equal(batch_sampler_create(&sampler, file, SEED, "test", shape, global_rows, TOKENS), 0);
    return sampler;
}

/* Reads one row, which must be row `index` of the run. */
static void assert_row(int64_t global_rows, int64_t iteration, int64_t first, uint64_t index) {
    struct batch_sampler sampler = make_sampler(1, global_rows);
    assert_int_equal(batch_sampler_read(&sampler, iteration, first), 0);
    const uint64_t start = random_below(random_key(SEED, "test"), index, TOKENS - SEQUENCE);
    for (int i = 0; i < SEQUENCE; i++) {
        assert_int_equal(sampler.x[i], start + (uint64_t)i);
        assert_int_equal(sampler.y[i], start + (uint64_t)i + 1);
    }
    batch_sampler_release(&sampler);
}

UNIT_TEST(test_rows_are_counted_over_the_run) {
    assert_row(8, 0, 0, 0);
    assert_row(8, 0, 7, 7);
    assert_row(8, 3, 2, 26);
    assert_row((int64_t)1 << 40, (int64_t)1 << 23, 5, ((uint64_t)1 << 63) + 5);
    assert_row((int64_t)1 << 40, ((int64_t)1 << 24) - 1, ((int64_t)1 << 40) - 2, UINT64_MAX - 1);
}

UNIT_TEST(test_rows_that_cannot_be_counted_are_refused) {
    struct batch_sampler one = make_sampler(1, (int64_t)1 << 40), two = make_sampler(2, (int64_t)1 << 40);
    assert_int_equal(batch_sampler_read(&one, (int64_t)1 << 24, 0), -1);
    assert_non_null(strstr(error_text(), "iteration 16777216 of 1099511627776 sequences each"));
    assert_int_equal(batch_sampler_read(&one, INT64_MAX, 0), -1);
    assert_int_equal(batch_sampler_read(&two, ((int64_t)1 << 24) - 1, ((int64_t)1 << 40) - 1), -1);
    batch_sampler_release(&one);
    batch_sampler_release(&two);
}

UNIT_TEST(test_too_few_tokens_are_refused) {
    struct batch_sampler sampler;
    assert_int_equal(batch_sampler_create(&sampler, file, SEED, "test", (struct token_shape){1, TOKENS}, 1, TOKENS),
                     -1);
    assert_non_null(strstr(error_text(), "too few for block_size = 1000"));
}

UNIT_TEST_MAIN(begin, end)
