#include "src/text/byte_alphabet.h"
#include "runtime/system/utf8.h"

/* The two ranges of bytes that do not print, and the characters that stand for them. 0xad is the last one. */
enum { CONTROLS = 0x21, FIRST_HIGH = 0x7f, LAST_HIGH = 0xa0, SOFT_HYPHEN = 0xad, BYTES = 256 };
enum { CHARACTERS = 0x100, HIGH = CHARACTERS + CONTROLS, LAST = HIGH + LAST_HIGH + 1 - FIRST_HIGH };

int byte_alphabet_find(uint32_t character) {
    if (character < BYTES) {
        const bool prints = character >= CONTROLS && (character < FIRST_HIGH || character > LAST_HIGH);
        return prints && character != SOFT_HYPHEN ? (int)character : -1;
    }
    return character < HIGH    ? (int)character - CHARACTERS
           : character < LAST  ? (int)character - HIGH + FIRST_HIGH
           : character == LAST ? SOFT_HYPHEN
                               : -1;
}

unsigned char byte_alphabet_at(unsigned index) {
    for (uint32_t character = 0; character <= LAST; character++) {
        const int byte = byte_alphabet_find(character);
        if (byte >= 0 && index-- == 0) {
            return (unsigned char)byte;
        }
    }
    return 0;
}

bool byte_alphabet_decode(char *text, size_t *bytes) {
    uint32_t character;
    for (size_t at = 0, length; at < *bytes; at += length) {
        length = utf8_decode(text + at, *bytes - at, &character);
        if (length == 0 || byte_alphabet_find(character) < 0) {
            return false;
        }
    }
    size_t written = 0;
    for (size_t at = 0; at < *bytes; written++) {
        at += utf8_decode(text + at, *bytes - at, &character);
        text[written] = (char)byte_alphabet_find(character);
    }
    *bytes = written;
    return true;
}
