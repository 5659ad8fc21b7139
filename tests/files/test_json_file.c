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
    char *text = scratch_text(path, NULL);
    assert_string_equal(text, "{\n \"whole\": 3,\n \"third\": 0.33333333333333331\n}");
}

static json_t *parse(const char *text, size_t flags, bool replace) {
    json_error_t error;
    json_t *json = json_file_parse(text, strlen(text), flags, replace, &error);
    if (!json) {
        error_set("%s", error.text);
    }
    return json;
}

/* What others write that is not JSON does not hinder reading the rest, and is no number. */
UNIT_TEST(test_beyond_json) {
    json_t *json =
        parse("{\"a\": NaN, \"b\":[-Infinity,Infinity], \"c\":1e999,\"d\":-99999999999999999999, \"NaN\": "
              "\"NaN \\\" 1e999\", \"e\": 7, \"f\": \"x\\u0000y\"}",
              0, false);
    double real = 5;
    int64_t whole = 5;
    const char *text = "before";
    assert_non_null(json);
    assert_error(json_file_get_real(json, "a", &real), "'a' is NaN: it must be a number");
    assert_error(json_file_get_real(json, "c", &real), "'c' is 1e999: it must be a number");
    assert_error(json_file_get_whole(json, "d", 0, 9, &whole), "'d' is -99999999999999999999: it must");
    assert_error(json_file_get_text(json, "a", &text), "'a' is NaN: it must be a string");
    assert_true(json_is_array(json_array_get(json_object_get(json, "b"), 0)));
    assert_int_equal(json_file_get_text(json, "NaN", &text), 0);
    assert_string_equal(text, "NaN \" 1e999");
    assert_error(json_file_get_text(json, "f", &text), "it must be a string without NUL");
    assert_int_equal(json_file_get_whole(json, "e", 0, 9, &whole), 0);
    assert_true(real == 5 && whole == 7);
    json_decref(json);
    assert_null(parse("{\"a\": NaN", 0, false));
    assert_null(parse("{\"a\": nan}", 0, false));
    assert_null(parse("{\"a\": 1e999x}", 0, false));
    assert_null(parse("{\"a\": \"NaN", 0, false));
    assert_null(parse("NaN \"\\", JSON_DECODE_ANY, true));
    json = parse("[123456789012345678901, NaN]", JSON_DECODE_INT_AS_REAL, false);
    assert_true(json_is_real(json_array_get(json, 0)));
    json_decref(json);
}

UNIT_TEST(test_half_surrogates) {
    static const char text[] = "[\"\\ud83d\\ude00 \\ud83d \\ude00\\ud83dx\\\\ud83d\"]";
    assert_null(parse(text, 0, false));
    json_t *json = parse(text, 0, true);
    assert_string_equal(json_string_value(json_array_get(json, 0)),
                        "\xf0\x9f\x98\x80 \xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbdx\\ud83d");
    json_decref(json);
    assert_null(parse("[\"\\ud83d", 0, true));
    assert_null(parse("[\"\\ud8", 0, true));
}

/* A value of another type is an error that names it, and is not read as nothing. */
UNIT_TEST(test_types) {
    json_t *json =
        parse("{\"flag\": true, \"whole\": 3, \"real\": 2.5, \"text\": \"word\", \"none\": null}", 0, false);
    bool flag = false;
    int64_t whole = 0;
    double real = 0;
    const char *text = NULL;
    assert_int_equal(json_file_get_flag(json, "flag", &flag) | json_file_get_whole(json, "whole", 3, 3, &whole) |
                         json_file_get_real(json, "real", &real) | json_file_get_text(json, "text", &text),
                     0);
    assert_true(flag && whole == 3 && real == 2.5);
    assert_string_equal(text, "word");
    assert_int_equal(json_file_get_real(json, "whole", &real), 0);
    assert_true(real == 3.0);
    assert_error(json_file_get_flag(json, "text", &flag), "'text' is \"word\": it must be true or false");
    assert_error(json_file_get_whole(json, "real", 0, 9, &whole), "'real' is 2.5: it must be a whole number");
    assert_error(json_file_get_whole(json, "whole", 4, 9, &whole),
                 "'whole' is 3: it must be a whole number from 4 to 9");
    assert_error(json_file_get_real(json, "flag", &real), "'flag' is true: it must be a number");
    assert_error(json_file_get_text(json, "whole", &text), "'whole' is 3: it must be a string");
    assert_int_equal(json_file_get_flag(json, "none", &flag) | json_file_get_text(json, "absent", &text), 0);
    assert_true(flag && whole == 3);
    json_decref(json);
}

static void refused_by(int result, const char *content, const char *expected) {
    json_t *json = (json_t *)1;
    assert_int_equal(json_file_read(scratch_put("bad.json", content), 20, &json), result);
    assert_null(json);
    assert_error_text(expected);
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
