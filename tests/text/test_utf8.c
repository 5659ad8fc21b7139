/* UTF-8 by RFC 3629: every character there is, and what is none. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>
#include <stdint.h>

#include <cmocka.h>

#include "src/text/utf8.h"
#include <string.h>

static size_t encode(uint32_t character, char *text) {
    if (character < 0x80) {
        text[0] = (char)character;
        return 1;
    }
    const size_t length = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = length; i-- > 1; character >>= 6) {
        text[i] = (char)(0x80 | (character & 0x3f));
    }
    text[0] = (char)((0xf00u >> length) | character);
    return length;
}

static void test_all_characters(void **state) {
    (void)state;
    for (uint32_t character = 0; character < 0x120000; character++) {
        char text[8] = {0};
        uint32_t decoded = 0;
        const size_t length = encode(character, text);
        const int valid = (character < 0xd800 || character > 0xdfff) && character <= 0x10ffff;
        assert_int_equal(utf8_decode(text, length, &decoded), valid ? length : 0);
        assert_int_equal(utf8_prefix(text, length), valid ? length : 0);
        assert_true(!valid || decoded == character);
        for (size_t part = 1; part < length; part++) {
            assert_int_equal(utf8_decode(text, part, &decoded), 0);
        }
    }
}

/* Any three bytes: what a table of the well-formed sequences says. */
static void test_all_triples(void **state) {
    (void)state;
    for (unsigned n = 0; n < 1u << 24; n++) {
        const unsigned char a = n >> 16 & 255, b = n >> 8 & 255, c = n & 255;
        const int two = a >= 0xc2 && a <= 0xdf && b >> 6 == 2;
        const int three =
            c >> 6 == 2 && ((a == 0xe0 && b >= 0xa0 && b <= 0xbf) || (a == 0xed && b >= 0x80 && b <= 0x9f) ||
                            (a >= 0xe1 && a <= 0xef && a != 0xed && b >> 6 == 2));
        const char text[3] = {(char)a, (char)b, (char)c};
        uint32_t character;
        const size_t expected = a < 0x80 ? 1 : two ? 2 : three ? 3 : 0;
        if (utf8_decode(text, 3, &character) != expected) {
            fail_msg("%02x %02x %02x", a, b, c);
        }
    }
}

static void check_replaced(const char *text, const char *expected) {
    struct text_buffer out = {0};
    assert_int_equal(utf8_replace(text, strlen(text), &out), 0);
    assert_int_equal(out.size, strlen(expected));
    assert_memory_equal(out.bytes, expected, out.size);
    text_free(&out);
}

#define R "\xef\xbf\xbd"

static void test_replace(void **state) {
    (void)state;
    check_replaced("plain \xc3\xa4", "plain \xc3\xa4");
    check_replaced("a\xff"
                   "b",
                   "a" R "b");
    check_replaced("\xf1\x80\x80\xe1\x80\xc2"
                   "b\x80"
                   "c\x80\xbf"
                   "d",
                   R R R "b" R "c" R R "d");
    check_replaced("\xed\xa0\x80", R R R);             /* a surrogate: three bytes that begin nothing */
    check_replaced("\xc0\xaf\xe0\x80\xbf", R R R R R); /* not the shortest forms */
    check_replaced("\xf0\x91\x92\xf1\xbf"
                   "A",
                   R R "A");
    check_replaced("end \xe2\x82", "end " R);
}

static void test_spaces(void **state) {
    (void)state;
    unsigned count = 0;
    for (uint32_t character = 0; character < 0x110000; character++) {
        count += utf8_is_space(character);
    }
    assert_int_equal(count, 25); /* of White_Space in Unicode since 6.3 */
    assert_true(utf8_is_space(0x3000) && utf8_is_space(0x85) && !utf8_is_space(0x200b) && !utf8_is_space(0x180e));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_characters),
        cmocka_unit_test(test_all_triples),
        cmocka_unit_test(test_replace),
        cmocka_unit_test(test_spaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
