#include "src/text/nfc.h"
#include "runtime/system/array.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unictype.h>
#include <uninorm.h>

enum {
    FIRST = 0x300, /* characters before it are normal, whatever stands around them */
    END = 0x30000, /* and so are those from here on */
    HANGUL = 0xac00,
    HANGUL_END = 0xd7a4,
    VOWELS = 0x1161, /* of Hangul, and the final consonants, which compose with what stands before them */
    VOWELS_END = 0x1176,
    FINALS = 0x11a8,
    FINALS_END = 0x11c3,
};

/* Characters that Unicode 10 to 18 normalize and Unicode 9 does not, and new ones of which they are composed. */
static const uint32_t new_characters[][2] = {
    {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1af0},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x105c9, 0x105c9}, {0x105d2, 0x105d2}, {0x105da, 0x105da},
    {0x105e4, 0x105e4}, {0x10d24, 0x10d27}, {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf},
    {0x10ef0, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x1133b, 0x1133b}, {0x11382, 0x11385}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x11391},
    {0x113b8, 0x113b8}, {0x113bb, 0x113bb}, {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113c9},
    {0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935},
    {0x11938, 0x11938}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
    {0x11f41, 0x11f42}, {0x1611e, 0x16129}, {0x1612f, 0x1612f}, {0x16d63, 0x16d63}, {0x16d67, 0x16d6a},
    {0x16ff0, 0x16ff1}, {0x1d127, 0x1d128}, {0x1d250, 0x1d252}, {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f},
    {0x1d280, 0x1d281}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3}, {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef},
    {0x1e6f5, 0x1e6f5},
};

/* A character is active if it is not normal by itself, or may change with those before it. The others are
 * starters, and normalization never reaches beyond the last of them. */
static uint8_t active_characters[END / 8];

static bool is_new(uint32_t character) {
    for (size_t i = 0; i < COUNT(new_characters); i++) {
        if (character >= new_characters[i][0] && character <= new_characters[i][1]) {
            return true;
        }
    }
    return false;
}

static void set_active(uint32_t from, uint32_t end) {
    for (uint32_t character = from; character < end; character++) {
        active_characters[character / 8] |= (uint8_t)(1u << character % 8);
    }
}

/* A composed character is normal, and the last part of it may change with those before. */
static void find_active_characters(void) {
    for (uint32_t character = 0xa0; character < END; character++) {
        ucs4_t parts[UC_DECOMPOSITION_MAX_LENGTH];
        if ((character >= HANGUL && character < HANGUL_END) || is_new(character)) {
            continue;
        }
        const int count = uc_canonical_decomposition(character, parts);
        const bool composed = count == 2 && uc_composition(parts[0], parts[1]) == character;
        if (composed && parts[1] >= FIRST && parts[1] < END) {
            set_active(parts[1], parts[1] + 1);
        }
        if ((count > 0 && !composed) || uc_combining_class(character) != UC_CCC_NR) {
            set_active(character, character + 1);
        }
    }
    set_active(VOWELS, VOWELS_END);
    set_active(FINALS, FINALS_END);
}

/* The place of the next character from `at` on that is active, or is not; `bytes`: none. */
static size_t find(const char *text, size_t bytes, size_t at, bool active) {
    while (at < bytes) {
        uint64_t eight;
        uint32_t character;
        if (active && bytes - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080U) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        const size_t length = utf8_decode(text + at, bytes - at, &character);
        const bool is_active =
            character >= FIRST && character < END && (active_characters[character / 8] >> character % 8 & 1);
        if (is_active == active) {
            break;
        }
        at += length;
    }
    return at;
}

void nfc_normalize(const char **text, size_t *bytes, struct text_buffer *buffer) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_active_characters);
    size_t active = find(*text, *bytes, 0, true), at = 0;
    if (active == *bytes) {
        return;
    }
    buffer->size = 0;
    while (active < *bytes) {
        const size_t end = find(*text, *bytes, active, false);
        size_t start = active, length = 0;
        if (active > at) { /* the starter before it changes with it, but nothing composes with a new character */
            const size_t before = utf8_last(*text, active);
            uint32_t character;
            utf8_decode(*text + before, active - before, &character);
            start = is_new(character) ? active : before;
        }
        uint8_t *normal = u8_normalize(UNINORM_NFC, (const uint8_t *)*text + start, end - start, NULL, &length);
        if (!normal) {
            memory_refused(0);
        }
        text_append(buffer, *text + at, start - at);
        text_append(buffer, normal, length);
        free(normal);
        at = end;
        active = find(*text, *bytes, at, true);
    }
    text_append(buffer, *text + at, *bytes - at);
    *text = buffer->bytes;
    *bytes = buffer->size;
}
