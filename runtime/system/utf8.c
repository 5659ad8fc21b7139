#include "runtime/system/utf8.h"
#include <string.h>

/* The length of the character that begins with this byte; 0: no character does. */
static size_t announced(unsigned char first) {
    if (first < 0x80) {
        return 1;
    }
    return first < 0xc2 || first > 0xf4 ? 0 : (size_t)__builtin_clz(~((unsigned)first << 24)); /* leading ones */
}

/* How many of the first bytes could be those of one character of `length` bytes; `length` if it is whole. */
static size_t matching(const unsigned char *text, size_t bytes, size_t length) {
    if (length < 2 || bytes < 2) {
        return length > 0;
    }
    const unsigned char first = text[0];
    const unsigned char low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;  /* shortest forms */
    const unsigned char high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf; /* surrogates, U+10FFFF */
    if (text[1] < low || text[1] > high) {
        return 1;
    }
    size_t count = 2;
    while (count < length && count < bytes && text[count] >> 6 == 2) {
        count++;
    }
    return count;
}

size_t utf8_decode(const char *text, size_t bytes, uint32_t *character) {
    const unsigned char *at = (const unsigned char *)text;
    const size_t length = announced(*at);
    if (length == 0 || matching(at, bytes, length) < length) {
        return 0;
    }
    *character = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        *character = *character << 6 | (at[i] & 0x3f);
    }
    return length;
}

size_t utf8_prefix(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080U) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        uint32_t character;
        const size_t length = utf8_decode(text + at, bytes - at, &character);
        if (length == 0) {
            break;
        }
        at += length;
    }
    return at;
}

size_t utf8_part(const char *text, size_t bytes) {
    const unsigned char *at = (const unsigned char *)text;
    const size_t count = matching(at, bytes, announced(*at));
    return count > 0 ? count : 1;
}

size_t utf8_complete(const char *text, size_t bytes) {
    if (bytes == 0) {
        return 0;
    }
    const size_t last = utf8_last(text, bytes), left = bytes - last;
    const unsigned char *at = (const unsigned char *)text + last;
    const size_t length = announced(*at);
    return left < length && matching(at, left, length) == left ? last : bytes;
}

bool utf8_is_space(uint32_t character) {
    return (character >= '\t' && character <= '\r') || character == ' ' || character == 0x85 || character == 0xa0 ||
           character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
           character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

size_t utf8_last(const char *text, size_t bytes) {
    size_t last = bytes - 1;
    while (last > 0 && bytes - last < 4 && (unsigned char)text[last] >> 6 == 2) {
        last--;
    }
    return last;
}

bool utf8_is_control(uint32_t character) {
    return character < 0x20 || (character >= 0x7f && character < 0xa0) ||
           (character >= 0x200b && character <= 0x200f) || (character >= 0x2028 && character <= 0x202e) ||
           (character >= 0x2060 && character <= 0x206f) || character == 0xfeff;
}
