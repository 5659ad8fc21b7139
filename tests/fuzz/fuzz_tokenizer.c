/* Any bytes as a vocabulary, up to the first NUL, and a text after it; without a vocabulary a small one, and after
 * a brace a tokenizer.json. Decoding must give the text back. */
#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include "tests/fuzz/fuzz_file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_text(const struct tokenizer *tokenizer, const struct token_list *list, const char *text,
                       size_t bytes) {
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        size_t length;
        const char *string = tokenizer_bytes(tokenizer, list->tokens[i], &length);
        fuzz_require(string && length <= bytes - at && memcmp(string, text + at, length) == 0,
                     "another text came back");
        at += length;
    }
    fuzz_require(at == bytes, "less text came back");
}

/* A tokenizer.json may change the text: by its normal form, white space around tokens, bytes without a token. */
static void check_tokens(const struct tokenizer *tokenizer, const struct token_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        size_t length;
        fuzz_require(tokenizer_bytes(tokenizer, list->tokens[i], &length) && length > 0,
                     "a token that is not there");
    }
}

static void encode(const struct tokenizer *tokenizer, const char *text, size_t bytes) {
    struct token_list list = {0}, parts = {0};
    const size_t valid = utf8_prefix(text, bytes), cut = tokenizer_cut(tokenizer, text, valid);
    fuzz_require(tokenizer_encode(tokenizer, text, valid, &list) == 0, "valid text is refused");
    fuzz_require(valid == bytes || tokenizer_encode(tokenizer, text, bytes, &parts) != 0,
                 "invalid text is encoded");
    parts.count = 0;
    if (strcmp(tokenizer_name(tokenizer), "file") == 0) {
        check_tokens(tokenizer, &list);
    } else {
        check_text(tokenizer, &list, text, valid);
    }
    fuzz_require(tokenizer_encode(tokenizer, text, cut, &parts) == 0 &&
                     tokenizer_encode(tokenizer, text + cut, valid - cut, &parts) == 0 &&
                     parts.count == list.count &&
                     (list.count == 0 || memcmp(parts.tokens, list.tokens, list.count * sizeof *list.tokens) == 0),
                 "parts of a text have other tokens");
    token_list_free(&list);
    token_list_free(&parts);
}

/* A token for every byte. */
static void encode_bytes(const struct tokenizer *tokenizer, const char *text, size_t bytes) {
    struct token_list list = {0};
    fuzz_require(tokenizer_encode(tokenizer, text, bytes, &list) == 0 && list.count == bytes,
                 "bytes are not tokens");
    check_text(tokenizer, &list, text, bytes);
    token_list_free(&list);
}

/* Text that must be UTF-8: it is refused, or wrong bytes are replaced. */
static void require_utf8(const char *text, size_t bytes, bool replace) {
    struct text_buffer buffer = {0};
    const size_t complete = utf8_complete(text, bytes);
    const bool valid = utf8_prefix(text, bytes) == bytes;
    fuzz_require(complete <= bytes && bytes - complete < 4, "a character of more than four bytes is cut");
    fuzz_require((text_require_utf8(&text, &bytes, "text", 1, replace, &buffer) == 0) == (valid || replace),
                 "text that is not UTF-8 is accepted");
    fuzz_require(!(valid || replace) || utf8_prefix(text, bytes) == bytes, "accepted text is not UTF-8");
    text_free(&buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t first = end ? (size_t)(end - data) : bytes;
    const char *text = (const char *)data + first + (end != NULL);
    struct tokenizer *tokenizer;
    const char *path = first > 0 ? fuzz_file(data, first) : fuzz_vocabulary();
    const size_t count = bytes - first - (end != NULL);
    const bool is_json = first > 0 && *data == '{';
    const struct tokenizer_source source = {.kind = is_json ? TOKENIZER_FILE : TOKENIZER_GPT2,
                                            .path = path,
                                            .parse_special = bytes % 2 == 0},
                                  byte = {.kind = TOKENIZER_BYTE};
    if (tokenizer_open(&source, &tokenizer) == 0) {
        encode(tokenizer, text, count);
    }
    tokenizer_close(tokenizer);
    fuzz_require(tokenizer_open(&byte, &tokenizer) == 0 && strcmp(tokenizer_name(tokenizer), "byte") == 0,
                 "there are no bytes");
    size_t length;
    fuzz_require(!tokenizer_bytes(tokenizer, tokenizer_count(tokenizer), &length), "a token too many");
    encode_bytes(tokenizer, text, count);
    tokenizer_close(tokenizer);
    require_utf8(text, count, bytes % 2 == 0);
    return 0;
}
