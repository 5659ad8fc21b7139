/* JSON files: written whole, read with the line of what is wrong. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static void test_round_trip(void **state) {
    (void)state;
    const char *path = scratch_path("numbers.json");
    json_t *json = json_pack("{s:i, s:f}", "whole", 3, "third", 1.0 / 3.0), *read;
    assert_int_equal(json_file_write(path, json, JSON_INDENT(1) | JSON_REAL_PRECISION(17)), 0);
    assert_int_equal(json_file_read(path, 100, &read), 0);
    assert_true(json_equal(json, read));
    json_decref(read);
    json_decref(json);
    size_t bytes;
    char *text = scratch_read(path, &bytes);
    assert_non_null(text);
    assert_string_equal(text, "{\n \"whole\": 3,\n \"third\": 0.33333333333333331\n}");
    free(text);
}

static void refused_by(int result, const char *content, const char *expected) {
    json_t *json = (json_t *)1;
    assert_int_equal(json_file_read(scratch_write("bad.json", content, strlen(content)), 20, &json), result);
    assert_null(json);
    if (strstr(error_text(), expected) == NULL) {
        fail_msg("'%s' is not in '%s'", expected, error_text());
    }
}

static void refused(const char *content, const char *expected) {
    refused_by(JSON_FILE_INVALID, content, expected);
}

static void test_what_is_refused(void **state) {
    (void)state;
    refused("", "bad.json:1: ");
    refused("{\n\"a\": x}", "bad.json:2: ");
    refused("{} {}", "bad.json:1: ");
    refused("{\"a\": 1,\n\"a\": 2}", "bad.json:2: duplicate");
    refused_by(-1, "{\"a\": \"0123456789\"}  ", "bad.json: it has 21 bytes, more than the 20");
    json_t *json;
    assert_int_equal(json_file_read(scratch_path("none"), 20, &json), -1);
    assert_non_null(strstr(error_text(), "none: No such file"));
}

static void test_failed_writing(void **state) {
    (void)state;
    json_t *json = json_object();
    assert_int_equal(json_file_write(scratch_path("no/such.json"), json, 0), -1);
    assert_non_null(strstr(error_text(), "no/such.json"));
    assert_int_equal(json_file_write(scratch_path("memory.json"), NULL, 0), -1);
    assert_non_null(strstr(error_text(), "memory.json: out of memory"));
    json_decref(json);
}

enum { LARGE_BYTES = 1 << 24 };

/* A string as JSON has it, of that many bytes with its quotes; made before memory is taken away. */
static char *large_text(void) {
    char *text = malloc(LARGE_BYTES + 1);
    assert_non_null(text);
    memset(text, 'x', LARGE_BYTES);
    text[0] = text[LARGE_BYTES - 1] = '"';
    text[LARGE_BYTES] = '\0';
    return text;
}

static struct rlimit take_memory_away(void) {
    struct rlimit old, none;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    none = old;
    none.rlim_cur = 1;
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    return old;
}

/* Memory that runs out while an object is put together is told once, and what comes after it is written. */
static void test_missing_memory(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* its allocator ends the process instead */
#endif
    json_file_watch_memory();
    assert_false(json_file_lacked_memory());
    json_t *json = json_pack("{s:i}", "a", 1);
    char *large = large_text();
    const struct rlimit old = take_memory_away();
    const int set = json_object_set_new(json, "large", json_string(large));
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(set, -1);
    assert_int_equal(json_file_write(scratch_path("lacking.json"), json, 0), -1);
    assert_non_null(strstr(error_text(), "lacking.json: out of memory"));
    assert_int_equal(json_file_write(scratch_path("whole.json"), json, 0), 0);
    free(large);
    json_decref(json);
}

/* jansson reads past the end of a text for which its buffer could not grow, if it gets memory afterwards. */
static void test_parsing_without_memory(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    json_file_watch_memory();
    char *large = large_text();
    json_t *json = NULL;
    json_error_t error;
    const struct rlimit old = take_memory_away();
    const int lacking = json_file_parse(large, LARGE_BYTES, JSON_DECODE_ANY, &json, &error);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(lacking, -1);
    assert_null(json);
    assert_string_equal(error_text(), "out of memory");
    assert_int_equal(json_file_parse(large, LARGE_BYTES, JSON_DECODE_ANY, &json, &error), 0);
    assert_int_equal(json_string_length(json), LARGE_BYTES - 2);
    json_decref(json);
    assert_int_equal(json_file_parse(large, LARGE_BYTES - 1, JSON_DECODE_ANY, &json, &error), JSON_FILE_INVALID);
    assert_null(json);
    free(large);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_failed_writing),
        cmocka_unit_test(test_missing_memory),
        cmocka_unit_test(test_parsing_without_memory),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
