/* JSON files: written whole, read with the line of what is wrong. */
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

UNIT_TEST(test_round_trip) {
    const char *path = scratch_path("numbers.json");
    json_t *json = json_pack("{s:i, s:f}", "whole", 3, "third", 1.0 / 3.0), *read;
    assert_int_equal(json_file_write(path, json_incref(json), JSON_INDENT(1) | JSON_REAL_PRECISION(17)), 0);
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

UNIT_TEST(test_what_is_refused) {
    refused("", "bad.json:1: ");
    refused("{\n\"a\": x}", "bad.json:2: ");
    refused("{} {}", "bad.json:1: ");
    refused("{\"a\": 1,\n\"a\": 2}", "bad.json:2: duplicate");
    refused_by(-1, "{\"a\": \"0123456789\"}  ", "bad.json: it has 21 bytes, more than the 20");
    json_t *json;
    assert_error(json_file_read(scratch_path("none"), 20, &json), "none: No such file");
}

UNIT_TEST(test_failed_writing) {
    json_t *json = json_object();
    assert_error(json_file_write(scratch_path("no/such.json"), json_incref(json), 0), "no/such.json");
    json_t *no_text = json_pack("{s:s}", "name", "\xff");
    assert_error(json_file_write(scratch_path("name.json"), json_incref(no_text), 0),
                 "name.json: JSON cannot hold");
    json_decref(json);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
