/* tokenizer.json: tokens of small vocabularies of each family beside those that the tokenizers package gives
 * (tests/text/make_tokenizers.py). test_odd_tokenizers.py has files that are refused. */
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/text/tokenizer.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include <stdlib.h>
#include <string.h>

#define FOLDER HC_TEST_DATA "/text/tokenizers"

static const char *const families[] = {"gpt2", "smollm2", "llama3", "qwen2", "qwen35", "o200k"};

static struct tokenizer *open_file(const char *path, bool parse_special) {
    const struct tokenizer_source source = {.kind = TOKENIZER_FILE, .path = path, .parse_special = parse_special};
    struct tokenizer *tokenizer;
    if (tokenizer_open(&source, &tokenizer)) {
        fail_msg("%s", error_text());
    }
    return tokenizer;
}

static struct tokenizer *open_family(const char *name, bool parse_special) {
    return open_file(scratch_format(FOLDER "/%s.json", name), parse_special);
}

static json_t *load(const char *name) {
    json_t *json;
    assert_int_equal(json_file_read(scratch_format(FOLDER "/%s.json", name), 1 << 20, &json), 0);
    return json;
}

/* ---- tokens */

static void check_case(const struct tokenizer *tokenizer, const char *name, const json_t *text,
                       const json_t *expected) {
    struct token_list list = {0};
    const char *string = json_string_value(text);
    assert_int_equal(tokenizer_encode(tokenizer, string, json_string_length(text), &list), 0);
    for (size_t i = 0; i < list.count || i < json_array_size(expected); i++) {
        const json_int_t token = i < list.count ? (json_int_t)list.tokens[i] : -1;
        const json_t *wanted = json_array_get(expected, i);
        if (!wanted || token != json_integer_value(wanted)) {
            fail_msg("%s, '%s': token %zu is %lld", name, string, i, (long long)token);
        }
    }
    token_list_free(&list);
}

UNIT_TEST(test_tokens) {
    json_t *cases;
    const json_t *entry;
    size_t i;
    char *text = scratch_text(FOLDER "/cases.json", NULL);
    cases = json_loads(text, JSON_ALLOW_NUL, NULL);
    assert_non_null(cases);
    for (size_t family = 0; family < COUNT(families); family++) {
        for (int parse = 0; parse < 2; parse++) {
            struct tokenizer *tokenizer = open_family(families[family], parse == 1);
            assert_string_equal(tokenizer_name(tokenizer), "file");
            assert_int_equal(json_array_size(json_object_get(cases, families[family])), 16);
            json_array_foreach(json_object_get(cases, families[family]), i, entry) {
                check_case(tokenizer, families[family], json_object_get(entry, "string"),
                           json_object_get(entry, parse ? "parse" : "text"));
            }
            tokenizer_close(tokenizer);
        }
    }
    json_decref(cases);
}

/* The vocabulary's texts come back. */
UNIT_TEST(test_bytes_of_tokens) {
    static const char text[] = "it's 1234 caf\xc3\xa9 \xf0\x9f\x98\x80\r\n<|im_end|>";
    for (size_t family = 0; family < COUNT(families); family++) {
        struct tokenizer *tokenizer = open_family(families[family], true);
        struct token_list list = {0};
        char back[100];
        size_t bytes = 0, length;
        assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, &list), 0);
        for (size_t i = 0; i < list.count; i++) {
            const char *string = tokenizer_bytes(tokenizer, list.tokens[i], &length);
            assert_true(string && bytes + length < sizeof back);
            memcpy(back + bytes, string, length);
            bytes += length;
        }
        assert_int_equal(bytes, sizeof text - 1);
        assert_memory_equal(back, text, bytes);
        assert_null(tokenizer_bytes(tokenizer, tokenizer_count(tokenizer), &length));
        token_list_free(&list);
        tokenizer_close(tokenizer);
    }
}

/* ---- places to cut */

static void check_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t cut) {
    struct token_list whole = {0}, parts = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text, bytes, &whole), 0);
    assert_int_equal(tokenizer_encode(tokenizer, text, cut, &parts), 0);
    assert_int_equal(tokenizer_encode(tokenizer, text + cut, bytes - cut, &parts), 0);
    if (whole.count != parts.count || memcmp(whole.tokens, parts.tokens, whole.count * sizeof *whole.tokens) != 0) {
        fail_msg("'%.*s' is cut at %zu", (int)bytes, text, cut);
    }
    token_list_free(&whole);
    token_list_free(&parts);
}

/* Also with added tokens that have white space in them or take it. */
static const char *write_spaced(void) {
    json_t *json = load("qwen2"), *added = json_object_get(json, "added_tokens");
    json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b}", "id", 406, "content", "a \n b", "normalized", 1,
                                           "special", 0));
    json_array_append_new(added,
                          json_pack("{s:i, s:s, s:b, s:b}", "id", 407, "content", "ab?", "rstrip", 1, "lstrip", 1));
    const char *path = scratch_path("spaced.json");
    assert_int_equal(json_file_write(path, json, 0), 0);
    return path;
}

/* At every place where a text may be cut, and where it is; every second text has no ASCII white space, which the
 * first SPACES words have. The last two words are two characters in normal form C, and a sign. */
UNIT_TEST(test_cuts) {
    enum { SPACES = 6 };
    static const char *const words[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "a \n b",
                                        "ab",
                                        "c",
                                        "'s",
                                        "12",
                                        "?!",
                                        ".",
                                        "ab?",
                                        "A",
                                        "/",
                                        "'",
                                        "\xc2\xa0",
                                        "\xe3\x80\x80",
                                        "\xe8\xaf\x8d",
                                        "\xef\xbc\x8c",
                                        "e\xcc\x81",
                                        "\xcc\x81",
                                        "<|im_end|>",
                                        "<think>",
                                        "\xe0\xa7\x9f",
                                        "\xe0\xa5\xa4"};
    const uint64_t key = random_key(1, "cuts");
    uint64_t draws = 0;
    for (size_t family = 0; family <= COUNT(families); family++) {
        struct tokenizer *tokenizer =
            family < COUNT(families) ? open_family(families[family], true) : open_file(write_spaced(), true);
        size_t cuts = 0, lines = 0, wide = 0;
        for (int i = 0; i < 4000; i++) {
            char text[200] = "";
            const size_t first = i % 2 ? SPACES : 0;
            for (int word = 0; word < 10; word++) {
                strcat(text, words[first + random_below(key, draws++, COUNT(words) - first)]);
            }
            const size_t bytes = strlen(text), cut = tokenizer_cut(tokenizer, text, bytes);
            if (cut > 0) {
                check_cut(tokenizer, text, bytes, cut);
                wide += i % 2;
            }
            for (size_t at = 1; i % 2 == 0 && at < bytes; at++) {
                if (tokenizer_is_cut(tokenizer, text, at)) {
                    check_cut(tokenizer, text, bytes, at);
                    cuts++;
                    lines += text[at] == '\n';
                }
            }
        }
        assert_true(cuts > 1500 && lines > 150 && (wide > 1000 || family == COUNT(families)));
        tokenizer_close(tokenizer);
    }
}

/* Added tokens beyond the rows of a model are accepted as long as the text has none of them. */
UNIT_TEST(test_rows) {
    json_t *json = load("gpt2");
    json_array_append_new(json_object_get(json, "added_tokens"),
                          json_pack("{s:i, s:s}", "id", 400, "content", "[PAD]"));
    assert_int_equal(json_file_write(scratch_path("padded.json"), json, 0), 0);
    struct tokenizer_source source = {.kind = TOKENIZER_FILE,
                                      .path = scratch_path("padded.json"),
                                      .rows = 400,
                                      .end_of_text = ""};
    struct tokenizer *tokenizer;
    struct token_list list = {0};
    assert_int_equal(tokenizer_open(&source, &tokenizer), 0);
    assert_int_equal(tokenizer_count(tokenizer), 400);
    assert_int_equal(tokenizer_end_of_text(tokenizer), 0);
    assert_int_equal(tokenizer_encode(tokenizer, "PAD", 3, &list), 0);
    assert_error(tokenizer_encode(tokenizer, "a [PAD]", 7, &list),
                 "'[PAD]', 400, and the model has only 400 tokens");
    token_list_free(&list);
    tokenizer_close(tokenizer);
    source.rows = 399;
    assert_error(tokenizer_open(&source, &tokenizer), "the model has 399 tokens and the tokenizer 'file' 401");
    tokenizer_close(tokenizer);
    source.rows = 400;
    source.end_of_text = "[PAD]";
    assert_error(tokenizer_open(&source, &tokenizer), "lacks token 400");
    assert_error_text("--end-of-text");
    tokenizer_close(tokenizer);
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
