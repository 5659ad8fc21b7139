/* token_file: what is read, and what is refused. */
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static time_t time_of_change = 1000;

/* Opens the scratch folder's train.bin, which has tokens of so many bytes. */
static int open_tokens(unsigned token_bytes, struct token_file **file) {
    scratch_put("meta.json", token_bytes == 4 ? "{\"token_bytes\": 4}" : "{}");
    return token_file_open_split(scratch_path("."), SPLIT_TRAIN, file);
}

UNIT_TEST(test_reading) {
    const unsigned char bytes[] = {1, 0, 0x34, 0x12, 0xFF, 0xFF, 0, 0};
    struct token_file *file;
    int32_t tokens[4];
    scratch_write("train.bin", bytes, sizeof bytes);
    assert_int_equal(open_tokens(2, &file), 0);
    assert_int_equal(file->count, 4);
    assert_int_equal(token_file_read(file, 0, 4, 65536, tokens), 0);
    assert_int_equal(tokens[0], 1);
    assert_int_equal(tokens[1], 0x1234);
    assert_int_equal(tokens[2], 65535);
    assert_int_equal(tokens[3], 0);
    assert_int_equal(token_file_read(file, 3, 1, 1, tokens), 0);
    assert_int_equal(token_file_read(file, 4, 0, 1, tokens), 0);
    token_file_close(file);
    token_file_close(NULL);
}

/* The same tokens in 2 and in 4 bytes, and one that only 4 bytes can hold. */
UNIT_TEST(test_wide_tokens) {
    const unsigned char bytes[] = {1, 0, 0, 0, 0x34, 0x12, 0, 0, 0x70, 0x11, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF};
    const char *path = scratch_write("train.bin", bytes, sizeof bytes);
    struct token_file *file;
    int32_t tokens[4];
    char digest[CHECKSUM_SIZE];
    assert_int_equal(open_tokens(4, &file), 0);
    assert_int_equal(file->count, 4);
    assert_int_equal(token_file_read(file, 0, 3, 70001, tokens), 0);
    assert_int_equal(tokens[0], 1);
    assert_int_equal(tokens[1], 0x1234);
    assert_int_equal(tokens[2], 70000);
    assert_int_equal(token_file_read(file, 2, 1, 70001, tokens), 0);
    assert_int_equal(tokens[0], 70000);
    assert_error(token_file_read(file, 0, 3, 70000, tokens), "train.bin: token 70000 at position 2");
    assert_error(token_file_examine(file, 1 << 24, digest), "token 4294967295 at position 3");
    assert_int_equal(truncate(path, 15), 0);
    assert_error(token_file_check(file), "became shorter");
    token_file_close(file);
}

/* What meta.json says of the tokens' size. */
UNIT_TEST(test_meta) {
    static const struct {
        const char *meta, *error;
        uint64_t tokens; /* in a file of 8 bytes */
    } cases[] = {
        {"{}", NULL, 4},
        {"{\"vocab_size\": 65536}", NULL, 4},
        {"{\"vocab_size\": 50257, \"token_bytes\": 2}", NULL, 4},
        {"{\"vocab_size\": 50257, \"token_bytes\": 4}", NULL, 2},
        {"{\"vocab_size\": 65537, \"token_bytes\": 4}", NULL, 2},
        {"{\"vocab_size\": 65537}", "'vocab_size' is 65537, and such tokens do not fit into 2 bytes", 0},
        {"{\"vocab_size\": 65537, \"token_bytes\": 2}", "with \"token_bytes\": 4", 0},
        {"{\"token_bytes\": 3}", "meta.json: 'token_bytes' is neither 2 nor 4", 0},
        {"{\"token_bytes\": 0}", "neither 2 nor 4", 0},
        {"{\"token_bytes\": -2}", "neither 2 nor 4", 0},
        {"{\"token_bytes\": 4294967298}", "neither 2 nor 4", 0},
        {"{\"token_bytes\": \"4\"}", "meta.json: 'token_bytes' is \"4\": it must be a whole number", 0},
        {"{\"vocab_size\": \"70000\"}", "meta.json: 'vocab_size' is \"70000\": it must be a whole number", 0},
        {"{\"document_lengths\": \"true\"}", "'document_lengths' is \"true\": it must be true or false", 0},
        {"{\"token_bytes\": 4", "meta.json:1: ", 0},
    };
    scratch_write("train.bin", "\1\0\0\0\2\0\0\0", 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct token_file *file;
        scratch_put("meta.json", cases[i].meta);
        const int status = token_file_open_split(scratch_path("."), SPLIT_TRAIN, &file);
        if (cases[i].error) {
            assert_error(status, cases[i].error);
            assert_null(file);
        } else {
            assert_int_equal(status, 0);
            assert_int_equal(file->count, cases[i].tokens);
            token_file_close(file);
        }
    }
}

UNIT_TEST(test_ranges_and_vocabulary) {
    const unsigned char bytes[] = {1, 0, 0x34, 0x12};
    struct token_file *file;
    int32_t tokens[4];
    scratch_write("train.bin", bytes, sizeof bytes);
    assert_int_equal(open_tokens(2, &file), 0);
    assert_int_equal(token_file_read(file, 1, 2, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, 3, 0, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, UINT64_MAX, 2, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, 1, UINT64_MAX, 65536, tokens), -1);
    assert_error(token_file_read(file, 0, 2, 256, tokens), "train.bin");
    assert_error_text("token 4660 at position 1");
    assert_error_text("256");
    token_file_close(file);
}

/* Refuses train.bin with such an error. */
static void refused(unsigned token_bytes, const char *expected) {
    struct token_file *file = (struct token_file *)1;
    assert_int_equal(open_tokens(token_bytes, &file), -1);
    assert_null(file);
    assert_error_text("train.bin");
    assert_error_text(expected);
    remove(scratch_path("train.bin"));
}

UNIT_TEST(test_refused_files) {
    remove(scratch_path("train.bin"));
    refused(2, "does not exist");
    scratch_put("train.bin", "");
    refused(2, "empty");
    scratch_put("train.bin", "abc");
    refused(2, "odd size");
    scratch_put("train.bin", "abcdef");
    refused(4, "a wrong size (6 bytes), but tokens are 32-bit numbers");
    assert_int_equal(mkdir(scratch_path("train.bin"), 0700), 0);
    refused(2, "folder");
    assert_int_equal(mkfifo(scratch_path("train.bin"), 0600), 0);
    refused(2, "not a regular file");
}

UNIT_TEST(test_link_is_followed) {
    struct token_file *file;
    assert_int_equal(symlink(scratch_put("target.bin", "ab"), scratch_path("train.bin")), 0);
    assert_int_equal(open_tokens(2, &file), 0);
    token_file_close(file);
    remove(scratch_path("train.bin"));
}

/* Writes over the first token in place. */
static void write_over(const char *path, const char token[2]) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0 && write(file, token, 2) == 2);
    assert_int_equal(futimens(file, (const struct timespec[2]){{1, 0}, {time_of_change++, 0}}),
                     0); /* clocks may be coarse */
    close(file);
}

/* The content decides where it is known; the times where it is not. */
UNIT_TEST(test_changes) {
    struct token_file *file;
    char digest[CHECKSUM_SIZE];
    const char *path = scratch_write("train.bin", "a\0b\0c\0", 6);
    const char *link_path = scratch_path("changes-link");
    assert_int_equal(open_tokens(2, &file), 0);
    assert_int_equal(token_file_check(file), 0);
    assert_int_equal(token_file_examine(file, 256, digest), 0);
    write_over(path, "a");
    assert_int_equal(token_file_check(file), 0);
    assert_int_equal(link(path, link_path), 0);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(token_file_check(file), 0);
    write_over(path, "x");
    assert_error(token_file_check(file), "train.bin was changed while it was in use");
    write_over(path, "\xFF\xFF"); /* beyond the vocabulary */
    assert_error(token_file_check(file), "was changed while it was in use: ");
    write_over(path, "a");
    assert_int_equal(token_file_check(file), 0);
    assert_int_equal(truncate(path, 4), 0);
    assert_error(token_file_check(file), "became shorter");
    token_file_close(file);

    assert_int_equal(open_tokens(2, &file), 0);
    assert_int_equal(unlink(link_path), 0);
    scratch_write("changes-other", "z\0z\0", 4);
    assert_int_equal(token_file_examine(file, 256, digest), 0);
    assert_int_equal(rename(scratch_path("changes-other"), path), 0); /* the file in use is the old one */
    assert_int_equal(token_file_check(file), 0);
    token_file_close(file);

    assert_int_equal(open_tokens(2, &file), 0);
    write_over(path, "z"); /* never examined: nobody knows */
    assert_int_equal(token_file_check(file), -1);
    token_file_close(file);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
