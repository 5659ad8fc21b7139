/* batch_sampler: rows depend on seed, iteration and row only, up to the largest numbers that options allow;
 * sequential rows go through the shards. */
#include "runtime/files/files.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/measuring/batch_sampler.h"
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
    if (scratch_begin(state)) {
        return -1;
    }
    scratch_write("train.bin", bytes, sizeof bytes);
    return token_file_open_split(scratch_path("."), SPLIT_TRAIN, &file);
}

static int end(void **state) {
    token_file_close(file);
    return scratch_end(state);
}

static int create(struct batch_sampler *sampler, const struct token_file *tokens, struct token_shape shape,
                  int64_t global_rows) {
    batch_sampler_create(sampler, SEED, "test", shape, global_rows, TOKENS);
    return batch_sampler_add(sampler, tokens, 1.0);
}

static struct batch_sampler make_sampler(int64_t rows, int64_t global_rows) {
    struct batch_sampler sampler;
    const struct token_shape shape = {rows, SEQUENCE};
    assert_int_equal(create(&sampler, file, shape, global_rows), 0);
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

/* ---- in sequence */

/* Shards of so many tokens; the tokens of all are 0, 1, 2, ... */
static struct token_file *open_shards(const char *folder, const unsigned *counts, size_t shards) {
    unsigned char bytes[TOKEN_SHARD_HEADER_BYTES + 2 * TOKENS];
    struct token_file *opened;
    unsigned token = 0;
    assert_int_equal(files_make_folder(scratch_path(folder)), 0);
    for (size_t i = 0; i < shards; i++) {
        token_shard_fill_header(bytes, 2, counts[i]);
        for (unsigned place = 0; place < counts[i]; place++) {
            token_store(bytes + TOKEN_SHARD_HEADER_BYTES + 2 * place, 2, token++);
        }
        scratch_write(scratch_format("%s/train_%zu.bin", folder, i), bytes,
                      TOKEN_SHARD_HEADER_BYTES + 2 * counts[i]);
    }
    assert_int_equal(token_file_open_split(scratch_path(folder), SPLIT_TRAIN, &opened), 0);
    return opened;
}

UNIT_TEST(test_too_few_tokens_are_refused) {
    struct batch_sampler sampler;
    assert_int_equal(create(&sampler, file, (struct token_shape){1, TOKENS}, 1), -1);
    assert_non_null(strstr(error_text(),
                           "too few for block_size = 1000: prepare more text or choose a block_size of "
                           "at most 999"));
    batch_sampler_release(&sampler);
    struct token_file *short_file = open_shards("short", (const unsigned[]){1}, 1);
    assert_int_equal(create(&sampler, short_file, (struct token_shape){1, 4}, 1), -1);
    assert_non_null(strstr(error_text(), " has 1 token, too few for block_size = 4: prepare more text"));
    batch_sampler_release(&sampler);
    token_file_close(short_file);
}

/* Reads the rows of an iteration in micro-batches of `rows`. The first must begin with token `start`, and each
 * other where the one before it ends. */
static void assert_sequence(struct token_file *shards, int64_t global_rows, int64_t rows, int64_t iteration,
                            int64_t start) {
    struct batch_sampler sampler;
    const struct token_shape shape = {rows, SEQUENCE};
    assert_int_equal(create(&sampler, shards, shape, global_rows), 0);
    assert_int_equal(batch_sampler_set_sequential(&sampler), 0);
    for (int64_t first = 0; first < global_rows; first += rows) {
        assert_int_equal(batch_sampler_read(&sampler, iteration, first), 0);
        for (int64_t i = 0; i < rows * SEQUENCE; i++) {
            assert_int_equal(sampler.x[i], start + first * SEQUENCE + i);
            assert_int_equal(sampler.y[i], start + first * SEQUENCE + i + 1);
        }
    }
    batch_sampler_release(&sampler);
}

/* Iterations of 16 tokens: 33 tokens are two and the target of the last one, 32 are one. */
UNIT_TEST(test_sequence) {
    static const unsigned counts[] = {33, 32, 5, 16, 1, 70, 3};
    static const int64_t starts[] = {0, 16, 33, 87, 103, 119, 135}; /* of a pass of seven iterations */
    struct token_file *shards = open_shards("shards", counts, COUNT(counts));
    for (int64_t iteration = 0; iteration < 21; iteration++) {
        for (int64_t rows = 1; rows <= 4; rows *= 2) { /* as 4, 2 and 1 ranks divide them */
            assert_sequence(shards, 4, rows, iteration, starts[iteration % 7]);
        }
    }
    assert_sequence(shards, 4, 4, 7 * ((int64_t)1 << 58) + 3, 87);
    assert_sequence(file, 4, 2, 61, 976);
    assert_sequence(file, 4, 2, 62, 0); /* of 1000 tokens 8 are left out */
    token_file_close(shards);
}

UNIT_TEST(test_iterations_beyond_all_files_are_refused) {
    static const unsigned counts[] = {16, 16, 8};
    static const int64_t rows[] = {4, (int64_t)1 << 40, INT64_MAX / SEQUENCE, INT64_MAX};
    static const char *const expected[] = {
        "no file has the 16 tokens of an iteration and one more, which train_batches = sequential takes from one "
        "file (the largest has 16 tokens)",
        "no file has the 4398046511104 tokens", "no file has the 9223372036854775804 tokens",
        "no file has the 18446744073709551615 tokens"};
    struct token_file *shards = open_shards("short", counts, COUNT(counts));
    struct batch_sampler sampler;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct token_shape shape = {1, SEQUENCE};
        assert_int_equal(create(&sampler, shards, shape, rows[i]), 0);
        assert_error(batch_sampler_set_sequential(&sampler), expected[i]);
        batch_sampler_release(&sampler);
    }
    token_file_close(shards);
}

/* ---- documents and mixtures */

/* A file of documents: numbers of tokens, and how many of them are a prompt. The tokens are 0, 1, 2, ... */
static struct token_file *open_documents(const unsigned (*documents)[2], size_t count) {
    unsigned char lengths[32 * TOKEN_DOCUMENT_BYTES], tokens[2 * TOKENS];
    struct token_file *opened;
    unsigned total = 0;
    assert_int_equal(files_make_folder(scratch_path("documents")), 0);
    for (size_t i = 0; i < count; i++) {
        token_documents_store(lengths + TOKEN_DOCUMENT_BYTES * i, documents[i][0], documents[i][1]);
        for (unsigned k = 0; k < documents[i][0]; k++, total++) {
            token_store(tokens + 2 * total, 2, total);
        }
    }
    scratch_write("documents/train.bin", tokens, 2 * total);
    scratch_write("documents/train.documents", lengths, TOKEN_DOCUMENT_BYTES * count);
    scratch_write("documents/meta.json", "{\"document_lengths\": true}", 26);
    assert_int_equal(token_file_open_split(scratch_path("documents"), SPLIT_TRAIN, &opened), 0);
    return opened;
}

/* A sampler of their rows, `rows` at a time. */
static struct batch_sampler sample_documents(const struct token_file *opened, int64_t rows, int64_t global_rows) {
    struct batch_sampler sampler;
    require(create(&sampler, opened, (struct token_shape){rows, SEQUENCE}, global_rows));
    require(batch_sampler_set_documents(&sampler));
    return sampler;
}

static const unsigned examples[][2] = {{2, 0}, {2, 1}, {3, 2}, {9, 6}, {2, 0},
                                       {1, 0}, {1, 1}, {1, 0}, {1, 0}, {1, 0}};

/* The rows of 4 tokens that these fill: the first token, how many there are, and the targets. */
static const struct packed {
    int first, count, targets[SEQUENCE];
} packed[] = {{0, 4, {1, -1, 3, -1}},    {4, 3, {-1, 6, -1, -1}},   {7, 4, {-1, -1, -1, -1}},
              {11, 4, {-1, 13, 14, 15}}, {15, 4, {16, 17, 18, -1}}, {19, 4, {20, 21, 22, -1}}};
enum { PACKED_TARGETS = 12 };

/* Row `row` of the batch that was read: which of `packed` it is, and how many targets it has. */
static size_t find_packed(const struct batch_sampler *sampler, size_t row, int *targets) {
    const int32_t *x = sampler->x + row * SEQUENCE, *y = sampler->y + row * SEQUENCE;
    for (size_t i = 0; i < COUNT(packed); i++) {
        if (x[0] != packed[i].first) {
            continue;
        }
        for (int k = 0; k < SEQUENCE; k++) {
            assert_int_equal(x[k], k < packed[i].count ? packed[i].first + k : 0);
            assert_int_equal(y[k], packed[i].targets[k]);
            *targets += y[k] >= 0;
        }
        return i;
    }
    fail_msg("a row begins with token %d", (int)x[0]);
    return 0;
}

/* Each row is there once in a pass, and batches weigh as much as they have targets. */
UNIT_TEST(test_rows_of_documents) {
    enum { ROWS = COUNT(packed), PASSES = 8 };
    struct token_file *opened = open_documents(examples, COUNT(examples));
    struct batch_sampler sampler = sample_documents(opened, 2, ROWS);
    size_t orders[PASSES][ROWS];
    bool differ = false;
    for (int64_t pass = 0; pass < PASSES; pass++) {
        unsigned seen = 0;
        for (int64_t first = 0; first < ROWS; first += 2) {
            int targets = 0;
            assert_int_equal(batch_sampler_read(&sampler, pass, first), 0);
            for (size_t row = 0; row < 2; row++) {
                orders[pass][(size_t)first + row] = find_packed(&sampler, row, &targets);
                seen |= 1u << orders[pass][(size_t)first + row];
            }
            assert_true(batch_sampler_weight(&sampler, pass) == (float)((double)targets / PACKED_TARGETS));
        }
        assert_int_equal(seen, (1u << ROWS) - 1);
        differ |= memcmp(orders[pass], orders[0], sizeof orders[0]) != 0;
    }
    assert_true(differ);
    batch_sampler_release(&sampler);
    token_file_close(opened);
}

/* A run that goes on with other batches reads what comes next. */
UNIT_TEST(test_rows_after_another_batch_size) {
    enum { ROWS = COUNT(packed), BEFORE = 5 };
    struct token_file *opened = open_documents(examples, COUNT(examples));
    struct batch_sampler single = sample_documents(opened, 1, 1), pairs = sample_documents(opened, 1, 2);
    batch_sampler_resume(&pairs, BEFORE, BEFORE);
    for (int64_t row = BEFORE; row < 3 * ROWS; row++) {
        assert_int_equal(batch_sampler_read(&single, row, 0), 0);
        assert_int_equal(batch_sampler_read(&pairs, BEFORE + (row - BEFORE) / 2, (row - BEFORE) % 2), 0);
        assert_memory_equal(single.x, pairs.x, SEQUENCE * sizeof *single.x);
    }
    batch_sampler_resume(&pairs, BEFORE, UINT64_MAX);
    assert_error(batch_sampler_read(&pairs, BEFORE, 0), "beyond 2^64 sequences");
    batch_sampler_release(&single);
    batch_sampler_release(&pairs);
    token_file_close(opened);
}

UNIT_TEST(test_sequences_without_targets_are_counted) {
    struct token_file *opened = open_documents(examples, COUNT(examples));
    struct batch_sampler sampler = sample_documents(opened, 1, 1);
    assert_int_equal(batch_sampler_count_empty(&sampler, 0), 1);
    for (int64_t row = 0, empty = 0; row < (int64_t)COUNT(packed); row++) {
        assert_int_equal(batch_sampler_read(&sampler, row, 0), 0);
        const bool weighs = batch_sampler_weight(&sampler, row) > 0.0f;
        assert_int_equal(weighs, batch_sampler_has_targets(&sampler));
        empty += !weighs;
        assert_int_equal(empty, row + 1 == COUNT(packed) ? 1 : empty);
    }
    batch_sampler_release(&sampler);
    token_file_close(opened);
}

UNIT_TEST(test_files_without_documents_have_no_rows_of_them) {
    struct batch_sampler sampler = make_sampler(1, 8);
    assert_error(batch_sampler_set_documents(&sampler), "has no lengths of documents beside it");
    batch_sampler_release(&sampler);
}

/* The source of a row depends on nothing but the row, and each has its share of them. */
UNIT_TEST(test_mixtures) {
    enum { ROWS = 10000, BATCH = 100 };
    unsigned char bytes[2 * TOKENS];
    struct token_file *nines;
    struct batch_sampler whole, single;
    int others = 0;
    for (size_t i = 0; i < TOKENS; i++) {
        token_store(bytes + 2 * i, 2, 999);
    }
    scratch_write("nines/train.bin", bytes, sizeof bytes);
    assert_int_equal(token_file_open_split(scratch_path("nines"), SPLIT_TRAIN, &nines), 0);
    struct batch_sampler *const samplers[] = {&whole, &single};
    for (size_t i = 0; i < 2; i++) {
        const struct token_shape shape = {i == 0 ? BATCH : 1, SEQUENCE};
        batch_sampler_create(samplers[i], SEED, "test", shape, ROWS, TOKENS);
        assert_int_equal(batch_sampler_add(samplers[i], file, 0.7), 0);
        assert_int_equal(batch_sampler_add(samplers[i], nines, 0.3), 0);
    }
    for (int64_t first = 0; first < ROWS; first += BATCH) {
        assert_int_equal(batch_sampler_read(&whole, 3, first), 0);
        assert_int_equal(batch_sampler_read(&single, 3, first + 42), 0);
        assert_memory_equal(single.x, whole.x + (size_t)42 * SEQUENCE, SEQUENCE * sizeof *single.x);
        assert_true(batch_sampler_weight(&whole, 3) == 0.01f);
        for (size_t row = 0; row < BATCH; row++) {
            others += whole.x[row * SEQUENCE] == 999 && whole.x[row * SEQUENCE + 1] == 999;
        }
    }
    assert_in_range(others, 2817, 3183); /* four standard deviations */
    batch_sampler_release(&whole);
    batch_sampler_release(&single);
    token_file_close(nines);
}

UNIT_TEST_MAIN(begin, end)
