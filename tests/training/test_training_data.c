/* Token files that move, change or become shorter under a run. */
#include "runtime/files/token_file.h"
#include "runtime/system/random.h"
#include "tests/support/runs.h"
#include <openssl/evp.h>

RUN_TEST(name_of_the_data_may_be_any_bytes) {
    copy_data("data-\xff");
    assert_done(TRAIN("oddly-named", "--data-dir", scratch_path("data-\xff"), "--max-iters", "10"));
    assert_done(RESUME("oddly-named", "--max-iters", "20"));
    assert_done(TRAIN("plainly-named"));
    assert_same_run("oddly-named", "plainly-named", "ckpt-20");
}

RUN_TEST(exchanged_data_must_be_accepted) {
    copy_data("changing");
    assert_done(TRAIN("exchanged", "--data-dir", scratch_path("changing"), "--max-iters", "10"));
    corpus_write_over("changing/train.bin", "changing/train.bin", true);
    assert_failed(RESUME("exchanged", "--max-iters", "15"), FAILED, "--accept-new-data");
    assert_true(has("exchanged", "ckpt-10"));
    assert_int_equal(count_lines("exchanged/metrics.jsonl"), 10);
    assert_done(RESUME("exchanged", "--max-iters", "15", "--accept-new-data"));
    assert_done(RESUME("exchanged", "--max-iters", "20"));
    assert_true(has("exchanged", "ckpt-20"));
    corpus_write_over("changing/train.bin", "changing/train.bin",
                      true); /* back: no longer what it trained on last */
    assert_failed(RESUME("exchanged", "--max-iters", "25"), FAILED, "--accept-new-data");
}

RUN_TEST(data_may_move) {
    copy_data("data-here");
    assert_done(TRAIN("data-moved", "--data-dir", scratch_path("data-here"), "--max-iters", "10"));
    assert_int_equal(rename(scratch_path("data-here"), scratch_path("data-there")), 0);
    assert_done(RESUME("data-moved", "--data-dir", scratch_path("data-there"), "--max-iters", "15"));
    assert_done(RESUME("data-moved", "--max-iters", "20"));
    assert_done(TRAIN("data-stayed"));
    assert_same_run("data-moved", "data-stayed", "ckpt-20");
}

RUN_TEST(data_that_becomes_shorter_ends_the_run_with_a_checkpoint) {
    struct stat status;
    copy_data("shrinking");
    start(TRAIN_ARGUMENTS("shortened", "--data-dir", scratch_path("shrinking"), "--max-iters", "100000",
                          "--checkpoint-interval", "100000"));
    wait_for(more_lines, "shortened", 2);
    assert_int_equal(stat(scratch_path("shrinking/train.bin"), &status), 0);
    assert_int_equal(truncate(scratch_path("shrinking/train.bin"), status.st_size / 4 * 2), 0);
    assert_failed(finish(), FAILED, "became shorter");
    const long at = newest("shortened", 1); /* not a periodic one */
    assert_int_equal(count_lines("shortened/metrics.jsonl"), at);
    copy("data/train.bin", "shrinking/train.bin");
    assert_done(RESUME("shortened", "--max-iters", decimal(at + 3)));
    assert_done(TRAIN("unshortened", "--max-iters", decimal(at + 3)));
    assert_same_run("shortened", "unshortened", checkpoint(at + 3));
}

/* No step is made with what was written, so that the run goes on as if nothing had happened once the file is back.
 * Times alone do not matter. */
RUN_TEST(data_that_is_written_over_ends_the_run_with_a_checkpoint) {
    copy_data("rewritten");
    start(TRAIN_ARGUMENTS("overwritten", "--data-dir", scratch_path("rewritten"), "--max-iters", "100000",
                          "--checkpoint-interval", "100000"));
    wait_for(more_lines, "overwritten", 2);
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    assert_int_equal(link(scratch_path("rewritten/val.bin"), scratch_path("rewritten/link")), 0);
    wait_for(more_lines, "overwritten", count_lines("overwritten/metrics.jsonl") + 2);
    corpus_write_over("rewritten/train.bin", "data/train.bin", true);
    assert_failed(finish(), FAILED, "was changed while it was in use");
    const long at = newest("overwritten", 1);
    assert_int_equal(count_lines("overwritten/metrics.jsonl"), at);
    assert_failed(RESUME("overwritten", "--max-iters", decimal(at + 3)), FAILED, "--accept-new-data");
    corpus_write_over("rewritten/train.bin", "data/train.bin", false);
    assert_done(RESUME("overwritten", "--max-iters", decimal(at + 3)));
    assert_done(TRAIN("not-overwritten", "--max-iters", decimal(at + 3)));
    assert_same_run("overwritten", "not-overwritten", checkpoint(at + 3));
}

/* ---- 4 bytes a token: a vocabulary that needs them is trained on, scored and sampled from; and tokens that fit
 * into 2 bytes give the same bits from files of either kind */

enum { TOKENS = 2000 };

static void write_tokens(const char *name, unsigned token_bytes, uint32_t vocab_size) {
    unsigned char *stored = malloc(TOKENS * TOKEN_MOST_BYTES);
    for (uint64_t i = 0; i < TOKENS; i++) {
        const uint32_t token = (uint32_t)random_below(random_key(1, name), i, vocab_size);
        token_store(stored + i * token_bytes, token_bytes, i % 2 ? vocab_size - 1 - token % 20 : token % 20);
    }
    scratch_write(name, stored, TOKENS * token_bytes);
    free(stored);
}

/* A folder of token files, whose content depends on the vocabulary alone. */
static void make_data(const char *folder, unsigned token_bytes, uint32_t vocab_size) {
    char meta[80];
    static const char *const names[] = {"train.bin", "val.bin"};
    const int length =
        snprintf(meta, sizeof meta, "{\"vocab_size\": %u, \"token_bytes\": %u}", vocab_size, token_bytes);
    scratch_write(scratch_format("%s/meta.json", folder), meta, (size_t)length);
    for (size_t i = 0; i < 2; i++) {
        write_tokens(names[i], token_bytes, vocab_size);
        assert_int_equal(rename(scratch_path(names[i]), scratch_path(scratch_format("%s/%s", folder, names[i]))),
                         0);
    }
}

#define TRAIN_ON(data, ...) "--data-dir", scratch_path(data), "--max-iters", "4", "--eval-iters", "2", ##__VA_ARGS__
#define EVAL(checkpoint, data)                                                                                     \
    CHILD_RUN(HC_PROGRAMS "/hc_eval", "--checkpoint", scratch_path(checkpoint), "--device", "pocl", "--data",      \
              scratch_path(data))

RUN_TEST(vocabulary_of_70000) {
    make_data("large", 4, 70000);
    assert_done(TRAIN("run", TRAIN_ON("large")));
    assert_done(TRAIN("run", TRAIN_ON("large", "--init-from", "resume", "--max-iters", "6")));
    assert_done(EVAL("run/ckpt-6", "large"));
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_sample", "--checkpoint", scratch_path("run/ckpt-6"), "--device", "pocl",
                          "--tokenizer", "byte", "--prompt", "a", "--max-new-tokens", "4"));
    /* lines 0 and 5 are evaluations; uniform at first, then the 40 tokens that come are learned */
    json_t *lines = metrics("run");
    assert_true(loss_at(lines, 1) > 11 && loss_at(lines, 1) < 11.4); /* log 70000 = 11.16 */
    assert_true(loss_at(lines, 6) < loss_at(lines, 1) - 1);
    json_decref(lines);
}

/* Writes a vocabulary of all single bytes and all pairs of bytes: with the end of text 65793 tokens. */
static const char *write_vocabulary(void) {
    enum { SINGLE = 256, TOKENS_OF_ALL = SINGLE + SINGLE * SINGLE, MOST_LINE = 16 };
    char *text = malloc((size_t)TOKENS_OF_ALL * MOST_LINE), *at = text;
    for (int rank = 0; rank < TOKENS_OF_ALL; rank++) {
        const int pair = rank - SINGLE;
        const unsigned char bytes[] = {(unsigned char)(rank < SINGLE ? rank : pair >> 8), (unsigned char)pair};
        at += EVP_EncodeBlock((unsigned char *)at, bytes, rank < SINGLE ? 1 : 2);
        at += sprintf(at, " %d\n", rank);
    }
    const char *path = scratch_write("pairs.tiktoken", text, (size_t)(at - text));
    free(text);
    return path;
}

/* From text to text. Each two bytes of a word are a token. */
RUN_TEST(text_of_a_large_vocabulary) {
    static const char line[] = "abcdefgh\n";
    char text[200 * (sizeof line - 1) + 1] = "";
    const char *vocabulary = write_vocabulary();
    unsigned tokens[2] = {0};
    size_t bytes;
    for (size_t i = 0; i < 200; i++) {
        memcpy(text + i * (sizeof line - 1), line, sizeof line);
    }
    const char *source = scratch_write("lines.txt", text, sizeof text - 1);
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_prepare", "--out", scratch_path("pairs"), "--tokenizer", "gpt2",
                          "--vocab-file", vocabulary, "--documents", "files", "--val-fraction", "0", source));
    assert_non_null(strstr(scratch_text(scratch_path("pairs/meta.json"), NULL), "\"token_bytes\": 4"));
    const unsigned char *stored = (unsigned char *)scratch_text(scratch_path("pairs/train.bin"), &bytes);
    assert_int_equal(bytes, 4 * (200 * 5 + 1)); /* four pairs and a newline, and the end of text */
    for (size_t i = 0; i < 2; i++) {
        tokens[i] = token_load(stored + (i ? bytes - 4 : 0), 4);
    }
    assert_int_equal(tokens[0], 256 + 'a' * 256 + 'b');
    assert_int_equal(tokens[1], 256 + 65536);
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_prepare", "--out", scratch_path("shards"), "--tokenizer", "gpt2",
                          "--vocab-file", vocabulary, "--documents", "files", "--val-fraction", "0", "--shards",
                          "600", source));
    struct token_file *shards;
    int32_t read[1001];
    assert_int_equal(token_file_open_split(scratch_path("shards"), SPLIT_TRAIN, &shards), 0);
    assert_int_equal(shards->count, COUNT(read));
    assert_int_equal(shards->shards[1].first, 600);
    assert_int_equal(token_file_read(shards, 0, COUNT(read), 65793, read), 0);
    for (size_t i = 0; i < COUNT(read); i++) {
        assert_int_equal(read[i], token_load(stored + 4 * i, 4));
    }
    token_file_close(shards);
    assert_done(TRAIN("of-pairs", "--data-dir", scratch_path("pairs"), "--max-iters", "2"));
    assert_done(CHILD_RUN(HC_PROGRAMS "/hc_sample", "--checkpoint", scratch_path("of-pairs/ckpt-2"), "--device",
                          "pocl", "--vocab-file", vocabulary, "--prompt", "abcd", "--max-new-tokens", "4"));
}

RUN_TEST(two_and_four_bytes_are_the_same) {
    make_data("two", 2, 300);
    make_data("four", 4, 300);
    assert_done(TRAIN("of-two", TRAIN_ON("two")));
    assert_done(TRAIN("of-four", TRAIN_ON("four")));
    assert_same_metrics("of-two", "of-four");
    assert_same_file("of-two/ckpt-4/model.safetensors", "of-four/ckpt-4/model.safetensors");
}

static void write_meta(const char *text) {
    scratch_put("wrong/meta.json", text);
}

RUN_TEST(wrong_files) {
    make_data("wrong", 4, 70000);
    write_meta("{\"vocab_size\": 69999, \"token_bytes\": 4}");
    assert_failed(TRAIN("beyond", TRAIN_ON("wrong")), FAILED, "wrong/train.bin: token 69999 at position ");
    write_meta("{\"vocab_size\": 70000, \"token_bytes\": 8}");
    assert_failed(TRAIN("eight", TRAIN_ON("wrong")), FAILED, "wrong/meta.json: 'token_bytes' is neither 2 nor 4");
    write_meta("{\"vocab_size\": 70000}");
    assert_failed(TRAIN("unsaid", TRAIN_ON("wrong")), FAILED, "say so with \"token_bytes\": 4");
    write_meta("{\"vocab_size\": 70000, \"token_bytes\": 4}");
    scratch_put("wrong/train.bin", "123456");
    assert_failed(TRAIN("cut", TRAIN_ON("wrong")), FAILED, "wrong/train.bin has a wrong size (6 bytes)");
}

UNIT_TEST_MAIN(run_control_begin, scratch_end)
