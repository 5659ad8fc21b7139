/* UTF-8 by RFC 3629: every character there is, and what is none. */
#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"
#include "tests/support/test.h"
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

UNIT_TEST(test_all_characters) {
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

/* By the definition: decode, and see whether encoding gives the same bytes. */
static size_t decode_plainly(const unsigned char *text, size_t bytes) {
    const size_t length = text[0] < 0x80       ? 1
                          : text[0] >> 5 == 6  ? 2
                          : text[0] >> 4 == 14 ? 3
                          : text[0] >> 3 == 30 ? 4
                                               : 0;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t character = length == 1 ? text[0] : text[0] & (0x7fU >> length);
    if (length == 0 || length > bytes) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
        character = character << 6 | (text[i] & 0x3f);
    }
    const bool valid = character >= least[length] && character <= 0x10ffff && character >> 11 != 0x1b;
    return valid ? length : 0;
}

UNIT_TEST(test_boundary_bytes) {
    static const unsigned char interesting[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                                0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
                                                0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    const size_t count = sizeof interesting;
    for (size_t i = 0; i < count * count * count * count; i++) {
        unsigned char text[13] = "12345678"; /* eight at a time, too */
        size_t rest = i, expected = 8;
        for (int k = 0; k < 4; k++, rest /= count) {
            text[8 + k] = interesting[rest % count];
        }
        for (size_t length; expected < 12 && (length = decode_plainly(text + expected, 12 - expected)) > 0;) {
            expected += length;
        }
        assert_int_equal(utf8_prefix((const char *)text, 12), expected);
    }
    assert_int_equal(utf8_prefix("\xe2\x82", 2), 0);
    assert_int_equal(utf8_prefix("", 0), 0);
}

static void check_replaced(const char *text, const char *expected) {
    struct text_buffer out = {0};
    text_append_utf8(&out, text, strlen(text));
    assert_int_equal(out.size, strlen(expected));
    assert_memory_equal(out.bytes, expected, out.size);
    text_free(&out);
}

#define R "\xef\xbf\xbd"

UNIT_TEST(test_replace) {
    check_replaced("plain \xc3\xa4", "plain \xc3\xa4");
    check_replaced("y\xffz", "y" R "z");
    check_replaced("\xf1\x80\x80\xe1\x80\xc2z\x80y\x80\xbfz", R R R "z" R "y" R R "z");
    check_replaced("\xed\xa0\x80", R R R);             /* a surrogate: three bytes that begin nothing */
    check_replaced("\xc0\xaf\xe0\x80\xbf", R R R R R); /* not the shortest forms */
    check_replaced("\xf0\x91\x92\xf1\xbfZ", R R "Z");
    check_replaced("end \xe2\x82", "end " R);
}

UNIT_TEST(test_spaces) {
    unsigned count = 0;
    for (uint32_t character = 0; character < 0x110000; character++) {
        count += utf8_is_space(character);
    }
    assert_int_equal(count, 25); /* of White_Space in Unicode since 6.3 */
    assert_true(utf8_is_space(0x3000) && utf8_is_space(0x85) && !utf8_is_space(0x200b) && !utf8_is_space(0x180e));
}

UNIT_TEST_MAIN(NULL, NULL)
