/* Documents to token files: the files have what was given, in the order and split that were asked for. */
#include "runtime/files/files.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include "tests/support/prepared.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* train.bin has these documents and no others, in their order; removes it. */
static void assert_prepared_texts(const char *const *expected, size_t count) {
    struct prepared_documents train;
    prepared_read("train.bin", &train);
    assert_int_equal(train.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(train.texts[i], expected[i]);
    }
    prepared_release(&train);
    prepared_remove();
}

UNIT_TEST(test_shuffled) {
    struct prepare_settings settings = prepared_from(prepared_lines);
    const struct prepare_report report = prepared_run(&settings);
    assert_int_equal(report.documents, DOCUMENTS);
    assert_all_documents(DOCUMENTS / 100);
    const struct prepared_digests first = prepared_digests();
    /* few documents are at their place */
    struct prepared_documents train;
    size_t at_home = 0;
    prepared_read("train.bin", &train);
    for (size_t i = 0; i < train.count; i++) {
        at_home += strcmp(train.texts[i], prepared_texts[i]) == 0;
    }
    assert_true(at_home < DOCUMENTS / 20);
    assert_int_equal(report.train_tokens, train.tokens);
    prepared_release(&train);
    /* whatever the number of threads */
    settings.threads = 1;
    prepared_run(&settings);
    assert_same_results(&first);
    settings.seed = 6;
    prepared_run(&settings);
    assert_string_not_equal(first.train, prepared_digests().train);
    assert_all_documents(DOCUMENTS / 100);
    prepared_remove();
}

UNIT_TEST(test_kept_order) {
    struct prepare_settings settings = prepared_from(prepared_lines);
    settings.shuffle = false;
    settings.val_fraction = 0;
    prepared_run(&settings);
    assert_false(files_exist(prepared_path("val.bin")));
    assert_prepared_texts((const char *const *)prepared_texts, DOCUMENTS);
}

/* The same documents from a file, from standard input (with many buckets instead of one), and from several
 * compressed files. */
UNIT_TEST(test_sources) {
    const char *const lines[] = {prepared_lines}, *const standard_input[] = {"-"};
    const char *const several[] = {scratch_path("p0"), scratch_path("p1"), scratch_path("p2")};
    struct prepare_settings settings = prepared_settings(lines, 1);
    prepared_run(&settings);
    const struct prepared_digests first = prepared_digests();
    const int kept = dup(STDIN_FILENO), file = open(prepared_lines, O_RDONLY);
    assert_true(kept >= 0 && file >= 0);
    assert_true(dup2(file, STDIN_FILENO) == STDIN_FILENO);
    settings.sources = standard_input;
    prepared_run(&settings);
    assert_true(dup2(kept, STDIN_FILENO) == STDIN_FILENO);
    close(kept);
    close(file);
    assert_same_results(&first);
    for (size_t i = 0; i < 3; i++) {
        prepared_write_lines(several[i], DOCUMENTS * i / 3, DOCUMENTS * (i + 1) / 3, true);
    }
    settings.sources = several;
    settings.source_count = 3;
    assert_int_equal(prepared_run(&settings).documents, DOCUMENTS);
    assert_same_results(&first);
    prepared_remove();
}

UNIT_TEST(test_listed_order) {
    struct prepare_settings settings = prepared_from(prepared_lines);
    enum { STEP = 1009, HELD_OUT = 31 /* ceil(0.0101 DOCUMENTS) */ };
    const char *order = scratch_path("order");
    prepared_write_order(order, DOCUMENTS, STEP);
    settings.order = order;
    settings.val_fraction = 0.0101;
    prepared_run(&settings);
    static struct prepared_documents parts[2];
    prepared_read("val.bin", &parts[0]);
    prepared_read("train.bin", &parts[1]);
    assert_int_equal(parts[0].count, HELD_OUT);
    for (size_t i = 0; i < DOCUMENTS; i++) {
        const char *got = i < HELD_OUT ? parts[0].texts[i] : parts[1].texts[i - HELD_OUT];
        assert_string_equal(got, prepared_texts[(i * STEP + 11) % DOCUMENTS]);
    }
    prepared_release(&parts[0]);
    prepared_release(&parts[1]);
    prepared_remove();
    prepared_write_order(order, DOCUMENTS - 1, 1);
    assert_prepare_fails(&settings, "lists 2999 documents, but the input has 3000");
    prepared_write_order(order, DOCUMENTS, 3); /* each third, three times */
    assert_prepare_fails(&settings, "each number below that once");
    assert_int_equal(truncate(order, 100), 0);
    assert_prepare_fails(&settings, "should have 8 for each document");
}

/* A file that is held out has its documents in val.bin, and no others. */
UNIT_TEST(test_val_source) {
    enum { TRAIN = DOCUMENTS / 10, VAL = DOCUMENTS - TRAIN };
    const char *train_lines = scratch_path("train.jsonl");
    const char *val_lines = scratch_path("val.jsonl");
    prepared_write_lines(train_lines, 0, TRAIN, false);
    prepared_write_lines(val_lines, TRAIN, DOCUMENTS, false);
    const char *const sources[] = {train_lines, val_lines};
    struct prepare_settings settings = prepared_settings(sources, 2);
    settings.val_source = true;
    settings.val_fraction = 0;
    prepared_run(&settings);
    assert_all_documents(VAL);
    struct prepared_documents val;
    static char *expected[VAL];
    prepared_read("val.bin", &val);
    assert_int_equal(val.count, VAL);
    memcpy(expected, prepared_texts + TRAIN, sizeof expected);
    prepared_sort(expected, VAL);
    prepared_sort(val.texts, VAL);
    for (size_t i = 0; i < VAL; i++) {
        assert_string_equal(val.texts[i], expected[i]);
    }
    prepared_release(&val);
    prepared_remove();
}

/* train.bin has these tokens, in 2 bytes each. */
static void assert_train_tokens(const uint32_t *tokens, size_t count) {
    size_t bytes;
    char *train = scratch_text(prepared_path("train.bin"), &bytes);
    assert_int_equal(bytes, 2 * count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(token_load((unsigned char *)train + 2 * i, 2), tokens[i]);
    }
}

/* A file of several MiB is one document, encoded in parts; its tokens are those of the whole. */
UNIT_TEST(test_files) {
    struct text_buffer large = {0};
    for (uint64_t i = 0; large.size < 5000000; i++) {
        const char *text = prepared_texts[i % DOCUMENTS];
        text_append(&large, text, strlen(text));
    }
    const char *const sources[] = {scratch_put("a", "in the"), scratch_write("b", large.bytes, large.size),
                                   scratch_put("c", "")};
    struct prepare_settings settings = prepared_settings(sources, 3);
    settings.kind = DOCUMENT_FILES;
    settings.val_fraction = 0;
    settings.shuffle = false;
    prepared_run(&settings);
    struct tokenizer *tokenizer;
    struct token_list tokens = {0};
    assert_int_equal(tokenizer_open(&settings.tokenizer, &tokenizer), 0);
    assert_int_equal(tokenizer_encode(tokenizer, "in the", 6, &tokens), 0);
    token_list_append(&tokens, END_OF_TEXT);
    assert_int_equal(tokenizer_encode(tokenizer, large.bytes, large.size, &tokens), 0);
    token_list_append(&tokens, END_OF_TEXT);
    token_list_append(&tokens, END_OF_TEXT);
    assert_train_tokens(tokens.tokens, tokens.count);
    prepared_remove();

    /* As running text it is cut into chunks, whose tokens are those of the whole, too. */
    const char *const running[] = {sources[1]};
    settings = prepared_settings(running, 1);
    settings.kind = DOCUMENT_CHUNKS;
    settings.val_fraction = 0;
    prepared_run(&settings);
    assert_train_tokens(tokens.tokens + 3, tokens.count - 4);
    settings.val_fraction = 0.1;
    const struct prepare_report report = prepared_run(&settings);
    assert_int_equal(report.train_tokens + report.val_tokens, tokens.count - 4);
    assert_true(fabs((double)report.val_tokens / (double)tokens.count - 0.1) < 0.02);
    tokenizer_close(tokenizer);
    token_list_free(&tokens);
    text_free(&large);
    prepared_remove();
}

/* Bytes as tokens: a blank line ends a document. */
UNIT_TEST(test_bytes) {
    /* a byte order mark, and a number that no machine has */
    static const char two[] =
        "\xef\xbb\xbf{\"id\":123456789012345678901,\"text\":\"one\"}\r\n{\"text\":\"two\\u0000\"}";
    struct prepare_settings settings = prepared_from(scratch_put("two.jsonl", two));
    settings.tokenizer = (struct tokenizer_source){.kind = TOKENIZER_BYTE};
    settings.val_fraction = 0;
    settings.shuffle = false;
    prepared_run(&settings);
    static const char expected[] = "one\n\ntwo\0\n\n";
    size_t bytes;
    char *train = scratch_text(prepared_path("train.bin"), &bytes);
    assert_int_equal(bytes, 2 * (sizeof expected - 1));
    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(train[i], i % 2 ? 0 : expected[i / 2]);
    }
    prepared_remove();
}

/* Words longer than a part, of characters of three bytes: cut between two of them. */
UNIT_TEST(test_no_white_space) {
    enum { CHARACTERS = 3000001 };
    char *text = malloc(3 * CHARACTERS);
    assert_non_null(text);
    for (size_t i = 0; i < CHARACTERS; i++) {
        memcpy(text + 3 * i, "\xe4\xb8\xad", 3);
    }
    struct prepare_settings settings = prepared_from(scratch_write("long", text, 3 * CHARACTERS));
    settings.val_fraction = 0;
    for (int chunks = 0; chunks < 2; chunks++) {
        settings.kind = chunks ? DOCUMENT_CHUNKS : DOCUMENT_FILES;
        prepared_run(&settings);
        size_t bytes;
        char *train = scratch_text(prepared_path("train.bin"), &bytes);
        assert_int_equal(bytes, 2 * (3 * CHARACTERS + 1));
        for (size_t i = 0; i < 3 * CHARACTERS; i++) {
            assert_int_equal((unsigned char)train[2 * i], (unsigned char)text[i]);
        }
        prepared_remove();
    }
    free(text);
}

UNIT_TEST(test_bad_input) {
    static const struct {
        const char *text;
        size_t bytes;
        const char *expected;
    } cases[] = {
#define CASE(text, expected) {text, sizeof(text) - 1, expected}
        CASE("{\"text\":\"a\"}\n\n{\"text\":\"b\"\n", ":3: not JSON at byte"),
        CASE("{\"body\":\"a\", \"url\":\"b\"}\n",
             ":1: no field 'text'; there is 'body', 'url' (choose with --field)"),
        CASE("{\"text\":5}\n", ":1: field 'text' is not a string"),
        CASE("\n\n[\"text\"]\n", ":3: not a JSON object"),
        CASE("{\"text\":\"a\"}\n{\"text\":\"\xff\"}\n", ":2: not UTF-8 (byte 0xff)"),
        CASE("{\"text\":\"\\ud800\"}\n", ":1: not JSON at byte"),
        CASE("{\"text\":\"\\ud800\"}\n", "(--invalid replace puts U+FFFD there)"),
        CASE("{\"text\":NaN}\n", ":1: field 'text' is not a string"),
        CASE("{\"text\":\"a\"} x\n", ":1: not JSON at byte"),
        CASE("\x1f\x8b\x08\0\0\0\0\0", ": its compressed data ends in the middle"),
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const sources[] = {prepared_lines, scratch_write("bad.jsonl", cases[i].text, cases[i].bytes)};
        const struct prepare_settings settings = prepared_settings(sources, 2);
        assert_prepare_fails(&settings, cases[i].expected);
    }
    struct prepare_settings settings = prepared_from(scratch_put("latin.txt", "one\ntwo \xe4\n"));
    settings.kind = DOCUMENT_FILES;
    assert_prepare_fails(&settings, "latin.txt:2: not UTF-8 (byte 0xe4)");
    settings.replace_invalid = true;
    settings.val_fraction = 0;
    prepared_run(&settings);
    assert_prepared_texts((const char *const[]){"one\ntwo \xef\xbf\xbd\n"}, 1);
}

/* What JSON does not have, in fields that are not read, and half a surrogate pair in the one that is. */
UNIT_TEST(test_beyond_json) {
    static const char lines[] = "{\"score\":NaN,\"text\":\"one\",\"size\":1e999,\"name\":\"\\u0000\"}\n"
                                "{\"text\":\"a\\ud83db\",\"score\":-Infinity}\n";
    struct prepare_settings settings = prepared_from(scratch_put("beyond.jsonl", lines));
    settings.val_fraction = 0;
    settings.shuffle = false;
    assert_prepare_fails(&settings, "beyond.jsonl:2: not JSON at byte");
    settings.replace_invalid = true;
    prepared_run(&settings);
    static const char *const replaced[] = {"one", "a\xef\xbf\xbd"
                                                  "b"};
    assert_prepared_texts(replaced, COUNT(replaced));
}

/* A byte order mark is no part of running text. */
UNIT_TEST(test_byte_order_mark) {
    struct prepare_settings settings = prepared_from(scratch_put("marked.txt", "\xef\xbb\xbfone\n"));
    settings.kind = DOCUMENT_FILES;
    settings.val_fraction = 0;
    prepared_run(&settings);
    assert_prepared_texts((const char *const[]){"one\n"}, 1);
    const char *const binary[] = {scratch_write("binary.txt", "one\0\xff\n", 6)};
    settings.sources = binary;
    assert_prepare_fails(&settings, "binary.txt is no text: it has NUL bytes");
}

UNIT_TEST_MAIN(prepared_begin, prepared_end)
