/* llm.c's token shards: what is read of them, and what is refused. tests/training/test_training_data.py trains on
 * them. */
#include "runtime/files/files.h"
#include "runtime/files/token_shards.h"
#include "runtime/system/random.h"
#include "src/training/training_data.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <sys/resource.h>
#include <unistd.h>

enum { TOKENS = 2000, VOCABULARY = 300, GPT2 = 20240520, LLAMA3 = 20240801 };

static uint32_t token_at(const char *split, uint64_t i) {
    return (uint32_t)random_below(random_key(1, split), i, VOCABULARY);
}

/* Writes tokens [first, first + count) of a split behind a header, or without one if magic is 0. */
static const char *write_part(const char *name, const char *split, uint32_t magic, uint32_t version, uint64_t first,
                              uint32_t count) {
    const unsigned token_bytes = magic == LLAMA3 ? 4 : 2;
    const size_t header = magic ? TOKEN_SHARD_HEADER_BYTES : 0;
    unsigned char *bytes = calloc(1, header + (size_t)count * token_bytes + 1);
    if (magic) {
        token_store(bytes, 4, magic);
        token_store(bytes + 4, 4, version);
        token_store(bytes + 8, 4, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        token_store(bytes + header + (size_t)i * token_bytes, token_bytes, token_at(split, first + i));
    }
    const char *path = scratch_write(name, bytes, header + (size_t)count * token_bytes);
    free(bytes);
    return path;
}

/* Three shards of train, of unequal sizes, and one of val. */
static void make_shards(void) {
    write_part("shards/fineweb_train_000002.bin", "train", GPT2, 1, 700, 1);
    write_part("shards/fineweb_train_000001.bin", "train", GPT2, 1, 0, 700);
    write_part("shards/fineweb_train_000003.bin", "train", GPT2, 1, 701, TOKENS - 701);
    write_part("shards/fineweb_val_000000.bin", "val", GPT2, 1, 0, TOKENS);
}

UNIT_TEST(test_reading) {
    struct training_data data;
    int32_t tokens[TOKENS];
    char digest[CHECKSUM_SIZE];
    make_shards();
    assert_int_equal(training_data_open(scratch_path("shards"), true, &data), 0);
    assert_int_equal(data.vocabulary.size, 50257);
    assert_string_equal(data.vocabulary.tokenizer, "gpt2");
    assert_int_equal(data.folders->train->count, TOKENS);
    assert_int_equal(data.folders->val->count, TOKENS);
    for (uint64_t first = 695; first < 705; first++) { /* across two borders, and from each token on */
        assert_int_equal(token_file_read(data.folders->train, first, 100, VOCABULARY, tokens), 0);
        for (uint64_t i = 0; i < 100; i++) {
            assert_int_equal(tokens[i], token_at("train", first + i));
        }
    }
    assert_int_equal(token_file_read(data.folders->train, 0, TOKENS, VOCABULARY, tokens), 0);
    assert_int_equal(tokens[TOKENS - 1], token_at("train", TOKENS - 1));
    assert_int_equal(token_file_read(data.folders->train, TOKENS, 1, VOCABULARY, tokens), -1);
    assert_int_equal(token_file_examine(data.folders->train, VOCABULARY, digest), 0);
    assert_int_equal(training_data_check(&data), 0);
    assert_int_equal(truncate(scratch_path("shards/fineweb_train_000002.bin"), TOKEN_SHARD_HEADER_BYTES), 0);
    assert_error(training_data_check(&data), "fineweb_train_000002.bin became shorter");
    training_data_close(&data);
}

UNIT_TEST(test_llama_3) {
    struct training_data data;
    int32_t token;
    write_part("llama/train_1.bin", "train", LLAMA3, 7, 0, 20);
    assert_int_equal(training_data_open(scratch_path("llama"), false, &data), 0);
    assert_int_equal(data.vocabulary.size, 128256);
    assert_int_equal(token_file_read(data.folders->train, 19, 1, VOCABULARY, &token), 0);
    assert_int_equal(token, token_at("train", 19));
    training_data_close(&data);
    write_part("llama/train_2.bin", "train", GPT2, 1, 0, 20);
    assert_error(training_data_open(scratch_path("llama"), false, &data), "train_2.bin has tokens of 16 bits");
    write_part("llama/train_2.bin", "train", LLAMA3, 7, 0, 20);
    write_part("llama/val_1.bin", "val", GPT2, 1, 0, 20);
    assert_error(training_data_open(scratch_path("llama"), true, &data),
                 "has tokens of 32 bits to train on and of 16 bits to evaluate on");
    assert_error(token_shards_refuse_output(scratch_path("llama"), scratch_path("llama/val_1.bin")), "val_1.bin");
    assert_int_equal(token_shards_refuse_output(scratch_path("llama"), scratch_path("llama/other.bin")), 0);
}

static void refused(const char *expected) {
    struct training_data data;
    assert_error(training_data_open(scratch_path("bad"), false, &data), expected);
}

UNIT_TEST(test_refused_files) {
    const char *name = "bad/a_train.bin";
    scratch_put("bad/a_val_train.txt", "");
    refused("bad/train.bin does not exist");
    scratch_put(name, "abc");
    refused("a_train.bin has no whole header of 1024 bytes");
    write_part(name, "train", 20240522, 1, 0, 4);
    refused("does not begin as a token shard of llm.c (20240520 or 20240801, but 20240522)");
    write_part(name, "train", GPT2, 7, 0, 4);
    refused("has version 7, and only 1 is known for 20240520");
    write_part(name, "train", GPT2, 1, 0, 0);
    refused("has no tokens by its header");
    assert_int_equal(truncate(write_part(name, "train", GPT2, 1, 0, 4), TOKEN_SHARD_HEADER_BYTES + 7), 0);
    refused("has 1031 bytes, but 1032 by its header, which counts 4 tokens");
    assert_int_equal(truncate(write_part(name, "train", GPT2, 1, 0, 4), TOKEN_SHARD_HEADER_BYTES + 10), 0);
    refused("has 1034 bytes, but 1032");
    write_part(name, "train", GPT2, 1, 0, 4);
    assert_int_equal(files_make_folder(scratch_path("bad/.hc_prepare")), 0); /* as after a move that was cut off */
    refused(
        "unfinished work of hc_prepare (.hc_prepare), so shards may be missing: give the hc_prepare command again");
    assert_int_equal(rmdir(scratch_path("bad/.hc_prepare")), 0);
    write_part("bad/train.bin", "train", 0, 0, 0, 4);
    refused("bad has train.bin and token shards of llm.c, such as a_train.bin");
}

UNIT_TEST(test_a_number_of_files) {
    for (int i = 0; i <= TOKEN_SHARDS_MOST; i++) {
        scratch_put(scratch_format("bad/train_%d.bin", i), "");
    }
    refused("has more than 4096 token shards (*train*.bin)");
}

/* Both kinds as hc_prepare writes them. */
UNIT_TEST(test_headers) {
    static const struct {
        unsigned token_bytes;
        uint32_t magic, version;
    } cases[] = {{2, GPT2, 1}, {4, LLAMA3, 7}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        unsigned char header[TOKEN_SHARD_HEADER_BYTES];
        token_shard_fill_header(header, cases[i].token_bytes, 123456789);
        assert_int_equal(token_load(header, 4), cases[i].magic);
        assert_int_equal(token_load(header + 4, 4), cases[i].version);
        assert_int_equal(token_load(header + 8, 4), 123456789);
    }
}

/* The soft limit of open files is raised where shards need more. */
UNIT_TEST(test_more_shards_than_descriptors) {
    enum { SHARDS = 100, LIMIT = 64 };
    struct rlimit before, limit;
    struct training_data data;
    int32_t token;
    for (unsigned i = 0; i < SHARDS; i++) {
        write_part(scratch_format("many/train_%02u.bin", i), "train", GPT2, 1, i, 1);
    }
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = (struct rlimit){LIMIT, before.rlim_max};
    assert_true(before.rlim_max == RLIM_INFINITY || before.rlim_max > SHARDS + LIMIT);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(training_data_open(scratch_path("many"), false, &data), 0);
    assert_int_equal(data.folders->train->shard_count, SHARDS);
    assert_int_equal(token_file_read(data.folders->train, SHARDS - 1, 1, VOCABULARY, &token), 0);
    assert_int_equal(token, token_at("train", SHARDS - 1));
    training_data_close(&data);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
