/* tokenizer.json: tokens of small vocabularies of each family beside those that the tokenizers package gives
 * (tests/text/make_tokenizers.py), and files that are refused. */
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

/* At every place where a text may be cut, and where it is; every second text has no ASCII white space. */
UNIT_TEST(test_cuts) {
    enum { SPACES = 6 };
    static const char *const words[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "a \n b", /* SPACES of them */
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
                                        "\xe0\xa5\xa4" /* two characters in normal form C; a sign */};
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

/* ---- special cases */

/* Sets the value at a path such as "model/merges/0"; -1 is behind the last. */
static void set(json_t *json, char *path, const char *value) {
    char *rest = strchr(path, '/');
    json_t *parsed = json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (rest) {
        *rest = '\0';
        json_t *inner =
            json_is_array(json) ? json_array_get(json, (size_t)atoi(path)) : json_object_get(json, path);
        assert_non_null(inner);
        set(inner, rest + 1, value);
        json_decref(parsed);
    } else if (json_is_array(json) && *path == '-') {
        assert_int_equal(json_array_append_new(json, parsed), 0);
    } else if (json_is_array(json)) {
        assert_int_equal(json_array_set_new(json, (size_t)atoi(path), parsed), 0);
    } else {
        assert_int_equal(json_object_set_new(json, path, parsed), 0);
    }
}

/* Text with a byte that has no token loses it, as in the tokenizers package. */
UNIT_TEST(test_missing_byte) {
    json_t *json = load("gpt2"), *vocabulary = json_object_get(json_object_get(json, "model"), "vocab");
    struct token_list with = {0}, without = {0};
    json_object_set(vocabulary, "\xe4\xb8\xad", json_object_get(vocabulary, "~"));
    json_object_del(vocabulary, "~");
    const char *path = scratch_path("missing.json");
    assert_int_equal(json_file_write(path, json, 0), 0);
    struct tokenizer *tokenizer = open_file(path, false);
    assert_int_equal(tokenizer_encode(tokenizer, ".~.", 3, &with), 0);
    assert_int_equal(tokenizer_encode(tokenizer, "..", 2, &without), 0);
    assert_int_equal(with.count, without.count);
    assert_memory_equal(with.tokens, without.tokens, with.count * sizeof *with.tokens);
    token_list_free(&with);
    token_list_free(&without);
    tokenizer_close(tokenizer);
}

/* What the tokenizers package makes of files that contradict themselves, and of white space at added tokens. */
static const struct {
    const char *path, *value; /* of what is put into gpt2.json */
    const char *text;
    bool parse_special;
    uint32_t tokens[10]; /* up to the first 0 */
} odd_files[] = {
#define SPACED                                                                                                     \
    "[{\"id\":0,\"content\":\"<|endoftext|>\"},{\"id\":400,\"content\":\"<a>\",\"rstrip\":true},"                  \
    "{\"id\":401,\"content\":\" sp\"},{\"id\":402,\"content\":\"  \"},"                                            \
    "{\"id\":403,\"content\":\" x\",\"lstrip\":true}]"
    {"added_tokens", SPACED, "q<a> spx", true, {81, 400, 401, 88}},
    {"added_tokens", SPACED, "q<a>     sp", true, {81, 400, 402, 402, 401}},
    {"added_tokens", SPACED, "q<a>   x", true, {81, 400, 402, 403}},
    {"added_tokens", SPACED, "q<a>      x z", true, {81, 400, 402, 402, 402, 88, 221, 90}},
#define SPACES                                                                                                     \
    "[{\"id\":0,\"content\":\"<|endoftext|>\"},"                                                                   \
    "{\"id\":400,\"content\":\"\\n\\t\",\"lstrip\":true,\"rstrip\":true}]"
    {"added_tokens", SPACES, "q\n\t \n\tx", true, {81, 400, 88}},
#define TWICE                                                                                                      \
    "[{\"id\":0,\"content\":\"<|endoftext|>\"},{\"id\":400,\"content\":\"<a>\",\"special\":true},"                 \
    "{\"id\":401,\"content\":\"<a>\",\"rstrip\":true}]"
    {"added_tokens", TWICE, "q<a> b", false, {81, 28, 65, 30, 281}},
    {"added_tokens", TWICE, "q<a> b", true, {81, 400, 66}},
#define ANY_NUMBERS                                                                                                \
    "[{\"id\":7,\"content\":\"<|endoftext|>\"},{\"id\":405,\"content\":\"<b>\"},{\"id\":5,\"content\":\"<a>\"}]"
    {"added_tokens", ANY_NUMBERS, "q<a>b<b>", true, {81, 401, 66, 400}},
    {"model/vocab/ine", "450", "x in", true, {88, 304}},           /* a number without a token */
    {"model/merges/-1", "[\"h\", \"e\"]", "hes", true, {72, 263}}, /* the last of two places of a merge counts */
};

UNIT_TEST(test_odd_files) {
    for (size_t i = 0; i < COUNT(odd_files); i++) {
        json_t *json = load("gpt2"), *expected = json_array(), *text = json_string(odd_files[i].text);
        for (const uint32_t *token = odd_files[i].tokens; *token != 0; token++) {
            json_array_append_new(expected, json_integer(*token));
        }
        set(json, scratch_format("%s", odd_files[i].path), odd_files[i].value);
        const char *path = scratch_path("odd.json");
        assert_int_equal(json_file_write(path, json, 0), 0);
        struct tokenizer *tokenizer = open_file(path, odd_files[i].parse_special);
        check_case(tokenizer, odd_files[i].path, text, expected);
        tokenizer_close(tokenizer);
        json_decref(expected);
        json_decref(text);
    }
}

/* Added tokens beyond the rows of a model are accepted as long as the text has none of them. */
UNIT_TEST(test_rows) {
    json_t *json = load("gpt2");
    json_array_append_new(json_object_get(json, "added_tokens"),
                          json_pack("{s:i, s:s}", "id", 400, "content", "[PAD]"));
    assert_int_equal(json_file_write(scratch_path("padded.json"), json, 0), 0);
    struct tokenizer_source source = {.kind = TOKENIZER_FILE, .path = scratch_path("padded.json"), .rows = 400};
    struct tokenizer *tokenizer;
    struct token_list list = {0};
    assert_int_equal(tokenizer_open(&source, &tokenizer), 0);
    assert_int_equal(tokenizer_count(tokenizer), 400);
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

static uint32_t end_of(const char *family, const char *end_of_text) {
    const struct tokenizer_source source = {.kind = TOKENIZER_FILE,
                                            .path = scratch_format(FOLDER "/%s.json", family),
                                            .end_of_text = end_of_text};
    struct tokenizer *tokenizer;
    const int status = tokenizer_open(&source, &tokenizer);
    const uint32_t end = tokenizer_end_of_text(tokenizer);
    assert_int_equal(status == 0, end != UINT32_MAX);
    tokenizer_close(tokenizer);
    return end;
}

UNIT_TEST(test_end_of_text) {
    assert_int_equal(end_of("gpt2", NULL), 0);
    assert_int_equal(end_of("llama3", NULL), 401); /* <|end_of_text|> */
    assert_int_equal(end_of("qwen2", ""), 400);
    assert_int_equal(end_of("qwen2", "<|im_end|>"), 402);
    assert_int_equal(end_of("qwen2", "im_end"), UINT32_MAX);
    assert_error_text("added_tokens has no 'im_end' (--end-of-text)");
}

/* ---- refusals */

static void assert_refused(const char *path, const char *expected) {
    const struct tokenizer_source source = {.kind = TOKENIZER_FILE, .path = path};
    struct tokenizer *tokenizer;
    assert_error(tokenizer_open(&source, &tokenizer), expected);
    assert_error_text("bad.json");
    tokenizer_close(tokenizer);
}

#define KINDS "byte-level BPE, as of GPT-2, SmolLM2, Llama 3 and Qwen"

static const struct {
    const char *family, *path, *value, *expected;
} refusals[] = {
    {"gpt2", "model/type", "\"Unigram\"", "model.type is 'Unigram': hctrain reads " KINDS},
    {"gpt2", "model/type", "\"WordPiece\"", "model.type is 'WordPiece'"},
    {"gpt2", "model/byte_fallback", "true", "model.byte_fallback is set"},
    {"gpt2", "model/dropout", "0.1", "model.dropout is set"},
    {"gpt2", "model/continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix is set"},
    {"gpt2", "model/end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix is set"},
    {"gpt2", "model/vocab", "[]", "model.vocab is missing"},
    {"gpt2", "model/merges", "null", "model.merges is missing"},
    {"gpt2", "model", "[]", "it has no 'model'"},
    {"gpt2", "model/vocab/!", "-1", "model.vocab: the number of '!' is not a whole number"},
    {"gpt2", "model/vocab/!", "1.5", "model.vocab: the number of '!' is not a whole number"},
    {"gpt2", "model/vocab/!", "\"1\"", "model.vocab: the number of '!' is not a whole number"},
    {"gpt2", "model/vocab/!", "1048576", "model.vocab, '!': token 1048576: the numbers of tokens must be below"},
    {"gpt2", "model/vocab/!", "2", "two tokens have the number 2"},
    {"gpt2", "model/vocab/", "400", "token 400 is empty"},
    {"gpt2", "model/merges/3", "[\"a\", \"zzz\"]", "model.merges[3]: 'zzz' is not in the vocabulary"},
    {"gpt2", "model/merges/3", "\"zzz a\"", "model.merges[3]: 'zzz' is not in the vocabulary"},
    {"gpt2", "model/merges/3", "[\"!\", \"~\"]", "model.merges[3]: the two strings together are not in the vocab"},
    {"gpt2", "model/merges/3", "[\"a\"]", "model.merges[3]: it must be two strings"},
    {"gpt2", "model/merges/3", "\"ab\"", "model.merges[3]: it must be two strings"},
    {"gpt2", "model/merges/3", "5", "model.merges[3]: it must be two strings"},
    {"gpt2", "added_tokens", "5", "added_tokens is not a list"},
    {"gpt2", "added_tokens", "[]", "added_tokens has neither '<|endoftext|>' nor"},
    {"gpt2", "added_tokens/0/id", "-1", "added_tokens[0]: 'id' is -1: it must be a whole number from 0"},
    {"gpt2", "added_tokens/0/id", "\"0\"", "added_tokens[0]: 'id' is \"0\": it must be a whole number"},
    {"qwen2", "model/vocab/!", "400", "added_tokens[0]: two tokens have the number 400"},
    {"qwen2", "added_tokens/0/content", "\"\"", "added_tokens[0]: it must have an 'id', and a 'content' of 1 to"},
    {"qwen2", "added_tokens/0/content", "\"a\\u0000b\"", "it must be a string without NUL"},
    {"qwen2", "added_tokens/0/special", "\"yes\"", "'special' is \"yes\": it must be true or false"},
    {"qwen2", "added_tokens/0/lstrip", "1", "'lstrip' is 1: it must be true or false"},
    {"gpt2", "model/ignore_merges", "\"true\"", "'ignore_merges' is \"true\": it must be true or false"},
    {"llama3", "pre_tokenizer/pretokenizers/0/invert", "0", "pre_tokenizer: 'invert' is 0: it must be true or"},
    {"qwen2", "added_tokens/0/single_word", "true", "added_tokens[0]: '<|endoftext|>' has 'single_word'"},
    {"qwen2", "normalizer/type", "\"NFKC\"", "the normalizer 'NFKC' is not supported"},
    {"qwen2", "normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
     "'Lowercase'"},
    {"gpt2", "pre_tokenizer", "null", "the pre_tokenizer has 0 steps"},
    {"gpt2", "pre_tokenizer/type", "\"Metaspace\"", "the pre_tokenizer does not end with ByteLevel"},
    {"gpt2", "pre_tokenizer/add_prefix_space", "true", "add_prefix_space is not supported"},
    {"gpt2", "pre_tokenizer/use_regex", "false", "hctrain knows the expressions of GPT-2, SmolLM2"},
    {"smollm2", "pre_tokenizer/pretokenizers/0/individual_digits", "false", "Digits without individual_digits"},
    {"llama3", "pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"",
     "Split is supported with the behavior Isol"},
    {"llama3", "pre_tokenizer/pretokenizers/0/invert", "true", "Split is supported with the behavior Isolated"},
    {"llama3", "pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", "the pre_tokenizer 'Split' is not"},
    {"llama3", "pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\s+\"",
     "Llama 3, Qwen 2, 3 and 3.5, and o200k, but not '\\s+'"},
    {"gpt2", "decoder/type", "\"WordPiece\"", "the decoder 'WordPiece' is not supported"},
};

UNIT_TEST(test_refusals) {
    for (size_t i = 0; i < COUNT(refusals); i++) {
        json_t *json = load(refusals[i].family);
        set(json, scratch_format("%s", refusals[i].path), refusals[i].value);
        const char *path = scratch_path("bad.json");
        assert_int_equal(json_file_write(path, json, 0), 0);
        assert_refused(path, refusals[i].expected);
    }
}

UNIT_TEST(test_broken_files) {
    char deep[100000];
    memset(deep, '[', sizeof deep);
    assert_refused(scratch_write("bad.json", deep, sizeof deep), "bad.json:1: maximum parsing depth");
    assert_refused(scratch_put("bad.json", "{"), "bad.json:1");
    assert_refused(scratch_put("bad.json", "[]"), "it has no 'model'");
    assert_refused(scratch_put("bad.json", "{\"a\":1,\"a\":2}"), "duplicate");
    assert_refused(scratch_path("no-bad.json"), "No such file");
}

UNIT_TEST_MAIN(scratch_begin, scratch_end)
