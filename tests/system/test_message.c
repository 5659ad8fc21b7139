/* Messages with text of others in them: conversions as printf has them, and nothing that a terminal would obey. */
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include "tests/support/hostile.h"
#include "tests/support/test.h"
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As snprintf writes it. */
#define SAME(...)                                                                                                  \
    do {                                                                                                           \
        char expected[512], text[512];                                                                             \
        snprintf(expected, sizeof expected, __VA_ARGS__);                                                          \
        assert_int_equal(message_write(text, sizeof text, __VA_ARGS__), strlen(expected));                         \
        assert_string_equal(text, expected);                                                                       \
    } while (false)

UNIT_TEST(conversions_are_those_of_printf) {
    SAME("no conversion");
    SAME("%d %i %5d|%-5d|%05d|%+d|% d %.3d", 1, -2, 3, 4, 5, 6, 7, 8);
    SAME("%ld %lld %" PRId64 " %jd", -1L, -2LL, INT64_MIN, (intmax_t)4);
    SAME("%u %lu %llu %zu %" PRIu64 " %8zu|", 1u, 2ul, 3ull, (size_t)4, UINT64_MAX, (size_t)9);
    SAME("%x %02x %#x %X %o", 255u, 10u, 17u, 171u, 8u);
    SAME("%hhu %hd", (unsigned char)200, (short)-7);
    SAME("%f %.0f %.2f %9.1f|%-9.1f|%g %.9g %e %.*f", 1.5, 2.5, 3.14159, 4.0, 5.0, 6e20, 0.1, 7.0, 3, 8.0);
    SAME("%s %10s|%-10s|%.2s|%.*s|%*s|%*s|%-*s|", "a", "b", "c", "def", 1, "gh", 4, "i", -4, "j", 3, "k");
    SAME("%c%%%c %5c|", 'x', 'y', 'z');
    SAME("%s %d %s %g %s %zu", "many", 1, "of", 2.0, "them", (size_t)3);
    SAME("%s", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \ttab");
}

#define SHOWN(text, expected)                                                                                      \
    do {                                                                                                           \
        char written[512];                                                                                         \
        message_write(written, sizeof written, "%s", text);                                                        \
        assert_string_equal(written, expected);                                                                    \
        message_write(written, sizeof written, "%s", expected); /* as it is */                                     \
        assert_string_equal(written, expected);                                                                    \
    } while (false)

UNIT_TEST(arguments_are_shown_and_not_obeyed) {
    SHOWN("a\x1b[2Jb", "a\\x1b[2Jb");
    SHOWN("a\r\nb", "a\\r\\nb");
    SHOWN("\x07\x08\x7f", "\\x07\\x08\\x7f");
    SHOWN("\xc2\x9b"
          "2J",
          "\\x9b2J");
    SHOWN("\xff\xc3(", "\\xff\\xc3(");
    SHOWN("\xe2\x80\xae\xe2\x80\xa8\xef\xbb\xbf", "\\u202e\\u2028\\ufeff");
    char text[64];
    message_write(text, sizeof text, "%c|%10s|", '\x1b', "\n");
    assert_string_equal(text, "\\x1b|        \\n|");
    message_write(text, sizeof text, "ours\n%s\n", "theirs\n");
    assert_string_equal(text, "ours\ntheirs\\n\n");
}

UNIT_TEST(quoted_lines_can_be_told_from_others) {
    error_set("%s failed", "it" HOSTILE_TEXT);
    error_quote("first" HOSTILE_TEXT "\r\nlast");
    error_prefix("%s", "where" HOSTILE_TEXT);
    error_set("then (%s)", error_text());
    assert_shown(error_text());
    assert_non_null(strstr(error_text(), "\n" MESSAGE_QUOTE "forged: all is well\\x9b2J"));
    assert_non_null(strstr(error_text(), "\n" MESSAGE_QUOTE "last)"));
}

UNIT_TEST(long_text_loses_its_middle) {
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG + 1);
    assert_non_null(text);
    memset(text, 'm', LONG);
    memcpy(text, "first", 5);
    memcpy(text + LONG - 4, "last", 5);
    error_set("tensor '%s' is not there: export it again", text);
    assert_true(strlen(error_text()) < 2100);
    assert_error_text("'firstmmm");
    assert_error_text("mmm ... mmm");
    assert_error_text("mlast' is not there: export it again");
    for (int i = 0; i < LONG; i++) {
        text[i] = "\xe2\x82\xac"[i % 3];
    }
    text[LONG / 3 * 3] = '\0';
    error_set("%s", text);
    assert_null(strstr(error_text(), "\\x")); /* no character is cut */
    free(text);
}

UNIT_TEST(text_of_a_model_keeps_its_lines) {
    static const char text[] = "a\tb\nc\x1b[31m\r\xff\0d\n";
    char *printed = NULL;
    size_t bytes;
    FILE *file = open_memstream(&printed, &bytes);
    assert_int_equal(message_print_text(file, text, sizeof text - 1), 0);
    fclose(file);
    assert_string_equal(printed, "a\tb\nc\\x1b[31m\\r\\xff\\x00d\n");
    free(printed);
}

UNIT_TEST(nouns_agree_with_their_numbers) {
    assert_string_equal(message_count(1, "stream").text, "1 stream");
    assert_string_equal(message_count(0, "stream").text, "0 streams");
    assert_string_equal(message_count(INT64_MIN, "compute unit").text, "-9223372036854775808 compute units");
    assert_true(strlen(message_count(2, "a noun that is longer than any that there is").text) < 56);
}

UNIT_TEST(capacities_are_kept) {
    char text[9];
    memset(text, '#', sizeof text);
    for (size_t capacity = 1; capacity <= 8; capacity++) {
        message_write(text, capacity, "%s%10s%d%.2f", "\x1b\x1b\x1b", "x\n", 1234, 5.0);
        assert_true(strlen(text) < capacity);
        assert_int_equal(text[8], '#');
    }
    strcpy(text, "1234567");
    message_quote(text, 8, "more\nlines");
    assert_string_equal(text, "1234567");
}

UNIT_TEST_MAIN(NULL, NULL)
