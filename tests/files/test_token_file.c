/* token_file: what is read, and what is refused. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_reading(void **state) {
    (void)state;
    const unsigned char bytes[] = {1, 0, 0x34, 0x12, 0xFF, 0xFF, 0, 0};
    struct token_file *file;
    int32_t tokens[4];
    assert_int_equal(token_file_open(scratch_write("t.bin", bytes, sizeof bytes), &file), 0);
    assert_int_equal(token_file_count(file), 4);
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

static void test_ranges_and_vocabulary(void **state) {
    (void)state;
    const unsigned char bytes[] = {1, 0, 0x34, 0x12};
    struct token_file *file;
    int32_t tokens[4];
    assert_int_equal(token_file_open(scratch_write("t.bin", bytes, sizeof bytes), &file), 0);
    assert_int_equal(token_file_read(file, 1, 2, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, 3, 0, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, UINT64_MAX, 2, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, 1, UINT64_MAX, 65536, tokens), -1);
    assert_int_equal(token_file_read(file, 0, 2, 256, tokens), -1);
    assert_non_null(strstr(error_text(), "t.bin"));
    assert_non_null(strstr(error_text(), "token 4660 at position 1"));
    assert_non_null(strstr(error_text(), "256"));
    token_file_close(file);
}

static void refused(const char *path, const char *expected) {
    struct token_file *file = (struct token_file *)1;
    assert_int_equal(token_file_open(path, &file), -1);
    assert_null(file);
    assert_non_null(strstr(error_text(), path));
    if (strstr(error_text(), expected) == NULL) {
        fail_msg("'%s' is not in '%s'", expected, error_text());
    }
}

static void test_refused_files(void **state) {
    (void)state;
    refused(scratch_path("missing.bin"), "No such file");
    refused(scratch_write("empty.bin", "", 0), "empty");
    refused(scratch_write("odd.bin", "abc", 3), "odd size");
    refused(scratch_path("."), "folder");
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    refused(scratch_path("pipe"), "not a regular file");
}

static void test_link_is_followed(void **state) {
    (void)state;
    struct token_file *file;
    assert_int_equal(symlink(scratch_write("target.bin", "ab", 2), scratch_path("link.bin")), 0);
    assert_int_equal(token_file_open(scratch_path("link.bin"), &file), 0);
    token_file_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_ranges_and_vocabulary),
        cmocka_unit_test(test_refused_files),
        cmocka_unit_test(test_link_is_followed),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
