#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/text/pieces.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/text/bpe.h"
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unictype.h>
#include <uninorm.h>

/* ---- normal form C */

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

void text_normalize(const char **text, size_t *bytes, struct text_buffer *buffer) {
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

/* ---- pieces */

/* White space as Unicode defines it; PCRE2's \s also contains U+180E. */
#define SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* Characters of Unicode 15 and 16: tiktoken and Oniguruma know them, older versions of PCRE2 do not. Letters are
 * upper case with title case, lower case, and others. */
#define NEW_UPPER "\\x{1c89}\\x{a7cb}-\\x{a7cc}\\x{a7da}\\x{a7dc}\\x{10d50}-\\x{10d65}"
#define NEW_LOWER "\\x{1c8a}\\x{a7cd}\\x{a7db}\\x{10d70}-\\x{10d85}\\x{1df25}-\\x{1df2a}"
#define NEW_OTHERS                                                                                                 \
    "\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d4f}\\x{10d6f}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}"               \
    "\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}"                 \
    "\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}"     \
    "\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}"                \
    "\\x{1e030}-\\x{1e06d}\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}"     \
    "\\x{31350}-\\x{323af}"
#define NEW_MARKS                                                                                                  \
    "\\x{897}\\x{cf3}\\x{ece}\\x{10d69}-\\x{10d6d}\\x{10efc}-\\x{10eff}\\x{11241}\\x{113b8}-\\x{113c0}"            \
    "\\x{113c2}\\x{113c5}\\x{113c7}-\\x{113ca}\\x{113cc}-\\x{113d0}\\x{113d2}\\x{113e1}-\\x{113e2}"                \
    "\\x{11f00}-\\x{11f01}\\x{11f03}\\x{11f34}-\\x{11f3a}\\x{11f3e}-\\x{11f42}\\x{11f5a}\\x{13440}"                \
    "\\x{13447}-\\x{13455}\\x{1611e}-\\x{1612f}\\x{1e08f}\\x{1e4ec}-\\x{1e4ef}\\x{1e5ee}-\\x{1e5ef}"
#define NEW_NUMBERS                                                                                                \
    "\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}\\x{16130}-\\x{16139}"    \
    "\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}\\x{1e5f1}-\\x{1e5fa}"
#define LETTER "\\p{L}" NEW_UPPER NEW_LOWER NEW_OTHERS
#define NUMBER "\\p{N}" NEW_NUMBERS
#define MARK   "\\p{M}" NEW_MARKS

/* The step "Digits" of tokenizer.json takes its numbers from Rust, which knows Unicode 17. */
#define DIGIT NUMBER "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}"

/* Contractions; words, numbers and other signs, each with an optional space before it; white space without its last
 * character, which may belong to the next word. Only that last case backtracks. */
#define GPT2                                                                                                       \
    "'(?:[sdmt]|ll|ve|re)"                                                                                         \
    "| ?[" LETTER "]++"                                                                                            \
    "| ?[" NUMBER "]++"                                                                                            \
    "| ?[^" SPACE LETTER NUMBER "]++"                                                                              \
    "|[" SPACE "]++\\z"                                                                                            \
    "|[" SPACE "]+(?=[" SPACE "])"                                                                                 \
    "|[" SPACE "]"

/* The same within the parts between digits, which are pieces of their own: white space before a digit stands at the
 * end of its part. */
#define GPT2_DIGITS                                                                                                \
    "'(?:[sdmt]|ll|ve|re)"                                                                                         \
    "| ?[" LETTER "]++"                                                                                            \
    "|[" DIGIT "]"                                                                                                 \
    "| ?[^" SPACE LETTER DIGIT "]++"                                                                               \
    "|[" SPACE "]++(?=[" DIGIT "]|\\z)"                                                                            \
    "|[" SPACE "]+(?=[" SPACE "])"                                                                                 \
    "|[" SPACE "]"

/* Words begin with any character that is neither a letter, a number nor a line end; numbers have a few characters;
 * line ends belong to the signs or the white space before them. */
#define CONTRACTION   "'(?i:[sdmt]|ll|ve|re)"
#define WORD(letters) "[^\\r\\n" LETTER NUMBER "]?" letters
#define NO_WORD(numbers, no_signs, ends)                                                                           \
    "|[" NUMBER "]" numbers "| ?[^" SPACE LETTER NUMBER no_signs "]++[" ends "]*+"                                 \
    "|[" SPACE "]*[\\r\\n]++"                                                                                      \
    "|[" SPACE "]++\\z"                                                                                            \
    "|[" SPACE "]+(?=[" SPACE "])"                                                                                 \
    "|[" SPACE "]"
#define NO_WORD_FILE(numbers, no_signs, ends)                                                                      \
    "|\\p{N}" numbers "| ?[^\\s\\p{L}" no_signs "\\p{N}]+[" ends "]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CONTRACTION_FILE "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

#define LLAMA(numbers)      CONTRACTION "|" WORD("[" LETTER "]++") NO_WORD(numbers, "", "\\r\\n")
#define LLAMA_FILE(numbers) CONTRACTION_FILE "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+" NO_WORD_FILE(numbers, "", "\\r\\n")

/* Words have combining marks, too. */
#define QWEN35      CONTRACTION "|" WORD("[" LETTER MARK "]++") NO_WORD("", MARK, "\\r\\n")
#define QWEN35_FILE CONTRACTION_FILE "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+" NO_WORD_FILE("", "\\p{M}", "\\r\\n")

/* Words are capitals, then small letters, then a contraction. */
#define CAPITAL      "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}" NEW_UPPER NEW_OTHERS MARK "]"
#define SMALL        "[\\p{Ll}\\p{Lm}\\p{Lo}" NEW_LOWER NEW_OTHERS MARK "]"
#define CAPITAL_FILE "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL_FILE   "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K                                                                                                      \
    WORD(CAPITAL "*" SMALL "+(?:" CONTRACTION ")?|")                                                               \
    WORD(CAPITAL "+" SMALL "*(?:" CONTRACTION ")?") NO_WORD("{1,3}+", "", "\\r\\n/")
#define O200K_FILE                                                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" CAPITAL_FILE "*" SMALL_FILE "+" CONTRACTION_FILE "?"                                  \
    "|[^\\r\\n\\p{L}\\p{N}]?" CAPITAL_FILE "+" SMALL_FILE "*" CONTRACTION_FILE                                     \
    "?" NO_WORD_FILE("{1,3}", "", "\\r\\n/")

struct piece_rule {
    struct piece_steps steps;
    const char *pattern;   /* for PCRE2 */
    bool signs_take_lines; /* line ends belong to the signs before them */
};

static const struct piece_rule rules[] = {
    {{"", false, true}, GPT2, false},
    {{"", true, true}, GPT2_DIGITS, false},
    {{LLAMA_FILE("{1,3}"), false, false}, LLAMA("{1,3}+"), true},
    {{LLAMA_FILE(""), false, false}, LLAMA(""), true},
    {{QWEN35_FILE, false, false}, QWEN35, true},
    {{O200K_FILE, false, false}, O200K, true},
};

const char pieces_names[] = "GPT-2, SmolLM2 (single digits), Llama 3, Qwen 2, 3 and 3.5, and o200k";

struct pieces {
    const struct piece_rule *rule;
    pcre2_code *code;
    bool compiled; /* to machine code */
};

const struct piece_rule *pieces_find(const struct piece_steps *steps) {
    for (const struct piece_rule *rule = rules; rule < rules + COUNT(rules); rule++) {
        if (strcmp(rule->steps.expression, steps->expression) == 0 && rule->steps.digits == steps->digits &&
            rule->steps.gpt2 == steps->gpt2) {
            return rule;
        }
    }
    return NULL;
}

int pieces_open(const struct piece_rule *rule, struct pieces **opened) {
    struct pieces *pieces = *opened = memory_zeroed(1, sizeof *pieces);
    int code;
    PCRE2_SIZE at;
    pieces->rule = rule;
    pieces->code =
        pcre2_compile((PCRE2_SPTR)rule->pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!pieces->code) {
        return error_set("PCRE2 refuses the tokenizer's pattern at %zu (error %d): it must be built with Unicode",
                         at, code);
    }
    /* not every processor has a compiler: interpreting the pattern gives the same pieces */
    pieces->compiled = pcre2_jit_compile(pieces->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

void pieces_close(struct pieces *pieces) {
    if (pieces) {
        pcre2_code_free(pieces->code);
        free(pieces);
    }
}

int pieces_each(const struct pieces *pieces, const char *text, size_t bytes, piece_visit *visit, void *context) {
    const PCRE2_SPTR subject = (PCRE2_SPTR)text;
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    int status = 0;
    if (!match) {
        memory_refused(0);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(match);
    for (size_t at = 0; at < bytes && status == 0; at = range[1]) {
        const int result = pieces->compiled
                               ? pcre2_jit_match(pieces->code, subject, bytes, at, 0, match, NULL)
                               : pcre2_match(pieces->code, subject, bytes, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (result < 0 || range[0] != at || range[1] <= at || range[1] - at > BPE_MOST_BYTES) {
            status =
                error_set("cannot divide the text at byte %zu of %zu into pieces (PCRE2: %d)", at, bytes, result);
        } else {
            visit(context, text + at, range[1] - at);
        }
    }
    pcre2_match_data_free(match);
    return status;
}

/* Whether the letter stays a letter in normal form C, where some become a letter and a mark. */
static bool stays_letter(uint32_t character) {
    ucs4_t parts[UC_DECOMPOSITION_MAX_LENGTH];
    const int count = uc_canonical_decomposition(character, parts);
    return uc_is_general_category_withtable(character, UC_CATEGORY_MASK_L) &&
           (count <= 1 || (count == 2 && uc_composition(parts[0], parts[1]) == character));
}

bool pieces_is_cut(const struct pieces *pieces, const char *text, size_t at) {
    const char after = text[at];
    if (after != ' ' && (after < '\t' || after > '\r')) {
        return false;
    }
    const size_t before = utf8_last(text, at);
    uint32_t character;
    if (utf8_decode(text + before, at - before, &character) != at - before || utf8_is_space(character)) {
        return false;
    }
    /* letters and numbers never take line ends into their piece; the newest ones may count as signs here */
    const bool joins = pieces->rule->signs_take_lines && (after == '\n' || after == '\r');
    return !joins || stays_letter(character) || uc_is_general_category_withtable(character, UC_CATEGORY_MASK_N);
}

bool pieces_is_wide_cut(const char *text, size_t bytes, size_t at) {
    const size_t last = utf8_last(text, at);
    uint32_t before, after;
    if (utf8_decode(text + last, at - last, &before) != at - last ||
        utf8_decode(text + at, bytes - at, &after) == 0) {
        return false;
    }
    if (after >= 0x80 && utf8_is_space(after)) {
        return !utf8_is_space(before);
    }
    /* these never join the letter before them in a normal form; an apostrophe may begin a contraction */
    return after != '\'' && stays_letter(before) &&
           uc_is_general_category_withtable(after, UC_CATEGORY_MASK_P | UC_CATEGORY_MASK_S | UC_CATEGORY_MASK_N);
}
