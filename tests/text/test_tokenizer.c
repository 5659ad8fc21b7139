/* GPT-2's byte-pair encoding: pieces of text, merges against a plain reading of the rule, vocabularies from
 * files. */
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/text/pieces.h"
#include "src/text/tokenizer.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, MERGES = 500, MOST_BYTES = 40 };

/* A vocabulary of all bytes and strings made of those before them, over a few letters so that merges abound. */
struct string {
    char bytes[MOST_BYTES];
    size_t count;
};

static struct string strings[BYTES + MERGES];
static size_t string_count;
static uint64_t draws;

static size_t draw(size_t bound) {
    return (size_t)random_below(random_key(1, "tokenizer"), draws++, bound);
}

static size_t find(const char *bytes, size_t count) {
    for (size_t i = 0; i < string_count; i++) {
        if (strings[i].count == count && memcmp(strings[i].bytes, bytes, count) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

static const char letters[] = "ab c";

static void make_strings(void) {
    for (string_count = 0; string_count < BYTES; string_count++) {
        strings[string_count] = (struct string){{(char)(BYTES - 1 - string_count)}, 1};
    }
    while (string_count < BYTES + MERGES) {
        struct string parts[2], both;
        for (int i = 0; i < 2; i++) {
            const char letter = letters[draw(4)];
            parts[i] = draw(3) == 0 || string_count == BYTES ? (struct string){{letter}, 1}
                                                             : strings[BYTES + draw(string_count - BYTES)];
        }
        both = parts[0];
        if (parts[0].count + parts[1].count > MOST_BYTES) {
            continue;
        }
        memcpy(both.bytes + both.count, parts[1].bytes, parts[1].count);
        both.count += parts[1].count;
        if (find(both.bytes, both.count) == SIZE_MAX) {
            strings[string_count++] = both;
        }
    }
}

static const char *write_vocabulary(void) {
    FILE *file = fopen(scratch_path("vocabulary"), "w");
    assert_non_null(file);
    for (size_t i = 0; i < string_count; i++) {
        unsigned char text[2 * MOST_BYTES];
        EVP_EncodeBlock(text, (const unsigned char *)strings[i].bytes, (int)strings[i].count);
        fprintf(file, "%s %zu\n", text, i);
    }
    assert_int_equal(fclose(file), 0);
    return scratch_path("vocabulary");
}

static struct tokenizer *tokenizer;
static struct bpe *vocabulary;

static int begin(void **state) {
    const int result = scratch_begin(state);
    make_strings();
    assert_int_equal(bpe_open(write_vocabulary(), &vocabulary), 0);
    const struct tokenizer_source source = {.kind = TOKENIZER_GPT2, .path = scratch_path("vocabulary")};
    assert_int_equal(tokenizer_open(&source, &tokenizer), 0);
    return result;
}

static int end(void **state) {
    bpe_close(vocabulary);
    tokenizer_close(tokenizer);
    return scratch_end(state);
}

/* The rule itself: as long as two neighbours are a string, join those of the lowest rank, the first ones. */
static size_t encode_plainly(const char *piece, size_t bytes, struct string *parts) {
    size_t count = bytes;
    for (size_t i = 0; i < bytes; i++) {
        parts[i] = (struct string){{piece[i]}, 1};
    }
    for (;;) {
        size_t lowest = SIZE_MAX, where = 0;
        for (size_t i = 0; i + 1 < count; i++) {
            char both[2 * MOST_BYTES];
            memcpy(both, parts[i].bytes, parts[i].count);
            memcpy(both + parts[i].count, parts[i + 1].bytes, parts[i + 1].count);
            const size_t rank = find(both, parts[i].count + parts[i + 1].count);
            where = rank < lowest ? i : where;
            lowest = rank < lowest ? rank : lowest;
        }
        if (lowest == SIZE_MAX) {
            return count;
        }
        parts[where] = strings[lowest];
        memmove(parts + where + 1, parts + where + 2, (count - where - 2) * sizeof *parts);
        count--;
    }
}

static void check_piece(const char *piece, size_t bytes) {
    struct string *parts = calloc(bytes, sizeof *parts);
    struct token_list list = {0};
    assert_non_null(parts);
    bpe_encode(vocabulary, piece, bytes, &list);
    const size_t whole = find(piece, bytes), count = whole != SIZE_MAX ? 1 : encode_plainly(piece, bytes, parts);
    assert_int_equal(list.count, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(list.tokens[i], whole != SIZE_MAX ? whole : find(parts[i].bytes, parts[i].count));
    }
    token_list_free(&list);
    free(parts);
}

/* Short and long pieces. */
UNIT_TEST(test_merges) {
    assert_int_equal(bpe_count(vocabulary), BYTES + MERGES);
    for (int i = 0; i < 600; i++) {
        char piece[300];
        const size_t bytes = 1 + draw(i % 10 == 0 ? 300 : 70);
        for (size_t at = 0; at < bytes; at++) {
            piece[at] = draw(40) == 0 ? (char)draw(256) : letters[draw(4)];
        }
        check_piece(piece, bytes);
    }
    char same[300];
    memset(same, 'a', sizeof same);
    for (size_t bytes = 1; bytes <= sizeof same; bytes += 13) {
        check_piece(same, bytes);
    }
}

/* Encoding a million bytes without white space must not take quadratic time. */
UNIT_TEST(test_long_piece) {
    struct token_list list = {0};
    const size_t bytes = 1000000;
    char *piece = malloc(bytes);
    assert_non_null(piece);
    for (size_t i = 0; i < bytes; i++) {
        piece[i] = letters[draw(4)];
    }
    bpe_encode(vocabulary, piece, bytes, &list);
    size_t at = 0;
    for (size_t i = 0; i < list.count; i++) {
        size_t length;
        const char *string = bpe_bytes(vocabulary, list.tokens[i], &length);
        assert_true(length <= bytes - at && memcmp(string, piece + at, length) == 0);
        at += length;
    }
    assert_int_equal(at, bytes);
    token_list_free(&list);
    free(piece);
}

/* ---- pieces; a | stands between them */

struct expected_pieces {
    const char *text, *expected;
    const bool *ends;
};

static void check_one_piece(void *context, const char *piece, size_t bytes) {
    const struct expected_pieces *all = context;
    const size_t at = (size_t)(piece - all->text);
    for (size_t i = 1; i <= bytes; i++) {
        if (all->ends[at + i] != (i == bytes)) {
            fail_msg("'%s': a piece from %zu to %zu", all->expected, at, at + bytes);
        }
    }
}

static void check_pieces(const char *expected) {
    char text[200];
    bool ends[200] = {false};
    size_t bytes = 0;
    for (const char *at = expected; *at; at++) {
        if (*at == '|') {
            ends[bytes] = true;
        } else {
            text[bytes++] = *at;
        }
    }
    ends[bytes] = true;
    struct expected_pieces context = {text, expected, ends};
    struct pieces *pieces;
    assert_int_equal(pieces_open(pieces_find(&(struct piece_steps){"", false, true}), &pieces), 0);
    assert_int_equal(pieces_each(pieces, text, bytes, check_one_piece, &context), 0);
    pieces_close(pieces);
}

UNIT_TEST(test_pieces) {
    static const char *const cases[] = {
        "Hello| world|!",
        "it|'s| they|'ll| I|'d| you|'ve| we|'re| I|'m| don|'t",
        "it|'|S| o|'|clock",
        "a| | b",
        "a|  | b",
        "a|\n\n|\n|b",
        "a|\n| b",
        "a|  ",
        "   ",
        " 123|abc| 4",
        "1|,|000|.|5",
        " ?!|a",
        "na\xc3\xafve| \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e|\xe3\x80\x82",
        "a|\xc2\xa0|b",                  /* no-break space */
        "a|\xe2\x80\x83|\xe2\x80\x83|b", /* em spaces */
        "a|\xe1\xa0\x8e|b",              /* U+180E is a format character, not white space */
        "\xc2\xbd|x| \xe2\x85\xa3",      /* one half, Roman four: numbers */
        "\xf0\x9f\x98\x80\xf0\x9f\x98\x80|a",
        "e|\xcc\x81", /* a combining accent is no letter */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        check_pieces(cases[i]);
    }
}

/* ---- whole texts */

UNIT_TEST(test_end_of_text) {
    struct token_list list = {0};
    size_t bytes;
    assert_int_equal(tokenizer_count(tokenizer), BYTES + MERGES + 1);
    assert_int_equal(tokenizer_end_of_text(tokenizer), BYTES + MERGES);
    assert_memory_equal(tokenizer_bytes(tokenizer, BYTES + MERGES, &bytes), "<|endoftext|>", 13);
    assert_int_equal(bytes, 13);
    assert_int_equal(tokenizer_encode(tokenizer, "<|endoftext|>", 13, &list), 0);
    for (size_t i = 0; i < list.count; i++) {
        assert_true(list.tokens[i] < BYTES + MERGES);
    }
    assert_error(tokenizer_encode(tokenizer, "a\xff", 2, &list), "byte 1");
    token_list_free(&list);
}

/* ---- files */

static void refused(const char *text, size_t bytes, const char *expected) {
    struct bpe *bpe;
    assert_error(bpe_open(scratch_write("bad", text, bytes), &bpe), expected);
    assert_error_text("bad");
    bpe_close(bpe);
}

/* The file with line `line` (from 1) replaced. */
static void refused_with(const char *line, size_t number, const char *expected) {
    char *whole = scratch_text(write_vocabulary(), NULL), *at = whole;
    for (size_t i = 1; i < number; i++) {
        at = strchr(at, '\n') + 1;
    }
    const char *text = scratch_format("%.*s%s%s", (int)(at - whole), whole, line, strchr(at, '\n'));
    refused(text, strlen(text), expected);
}

UNIT_TEST(test_bad_files) {
    static const struct {
        const char *text;
        size_t bytes;
        const char *expected;
    } cases[] = {
#define CASE(text, expected) {text, sizeof(text) - 1, expected}
        CASE("", "0x00"),
        CASE("a\n", "bad:1: a line must be"),
        CASE("YQ== x\n", "bad:1: the rank is not a number"),
        CASE("YQ== -1\n", "bad:1: the rank is not a number"),
        CASE("YQ==  1\n", "bad:1: the rank is not a number"),
        CASE("YQ== 1 \n", "bad:1: the rank is not a number"),
        CASE("YQ== 1\0\n", "bad:1: the rank is not a number"),
        CASE("Y*== 1\n", "bad:1: the token is not base64"),
        CASE("YQ= 1\n", "bad:1: a line must be"),
        CASE("YQ== 1048576\n", "bad:1: token 1048576: the numbers of tokens must be below"),
        CASE("YQ== 99999999999999999999\n", "bad:1: token 18446744073709551615"),
        CASE("YQ== 1\nYg== 1\n", "bad:2: two tokens have the number 1"),
        CASE("YQ== 1\n", "no token 0, but a token 1"),
        CASE("YQ== 0\nYQ== 1\n", "the tokens 0 and 1 are the same string"),
        CASE("==== 0\n", "bad"), /* OpenSSL takes it for zeros */
        CASE("#version: 0.2\na\n", "bad:2: a line must be two strings"),
        CASE("#version: 0.2\na b c\n", "bad:2: a line must be two strings"),
        CASE("#version: 0.2\n a\n", "bad:2: a line must be two strings"),
        CASE("#version: 0.2\na \n", "bad:2: a line must be two strings"),
        CASE("#version: 0.2\na \x01\n", "bad:2: a character"),
        CASE("#version: 0.2\na \xc5\x84\n", "bad:2: a character"), /* U+0144, the first without a byte */
        CASE("#version: 0.2\na \xc4\n", "bad:2: a character"),
    };
    struct bpe *bpe;
    assert_int_equal(bpe_open(scratch_path("none"), &bpe), -1);
    bpe_close(bpe);
    assert_error_text("none");
    for (size_t i = 0; i < COUNT(cases); i++) {
        refused(cases[i].text, cases[i].bytes, cases[i].expected);
    }
    refused_with("AA== 65000", 256, "no token 255, but a token 65000");
    refused_with("AGFh 255", 256, "no token for the byte 0x00");
}

static void check_token(const struct bpe *bpe, uint32_t token, const char *expected) {
    size_t bytes;
    const char *string = bpe_bytes(bpe, token, &bytes);
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(string, expected, bytes);
}

/* GPT-2's own file: the bytes in its order, then merges. U+0120 stands for a space. */
UNIT_TEST(test_vocab_bpe) {
    static const char text[] = "#version: 0.2\n\xc4\xa0 t\nh e\r\n\xc4\xa0t he\n";
    struct bpe *bpe;
    size_t bytes;
    assert_int_equal(bpe_open(scratch_put("vocab.bpe", text), &bpe), 0);
    assert_int_equal(bpe_count(bpe), BYTES + 3);
    check_token(bpe, 0, "!");
    check_token(bpe, 93, "~");
    check_token(bpe, 94, "\xa1");
    check_token(bpe, 187, "\xff");
    assert_int_equal(bpe_bytes(bpe, 188, &bytes)[0], 0);
    check_token(bpe, 220, " ");
    check_token(bpe, 255, "\xad");
    check_token(bpe, 256, " t");
    check_token(bpe, 258, " the");
    bpe_close(bpe);
}

UNIT_TEST_MAIN(begin, end)
