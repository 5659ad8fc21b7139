/* Any bytes as a vocabulary, up to the first NUL, and a text after it; without a vocabulary a small one. Decoding
 * must give the text back. */
#include "runtime/system/array.h"
#include "runtime/system/utf8.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include "tests/fuzz/fuzz_file.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All bytes, and what English merges first. */
static size_t small_vocabulary(char *text) {
    static const char *const merges[] = {" t", "he", " a", "in", "re", " the", "on", "\n\n", "  ", "    "};
    size_t bytes = 0;
    for (unsigned rank = 0; rank < 256 + COUNT(merges); rank++) {
        const char byte = (char)rank;
        const char *string = rank < 256 ? &byte : merges[rank - 256];
        bytes += (size_t)EVP_EncodeBlock((unsigned char *)text + bytes, (const unsigned char *)string,
                                         rank < 256 ? 1 : (int)strlen(string));
        bytes += (size_t)sprintf(text + bytes, " %u\n", rank);
    }
    return bytes;
}

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

static void encode(const struct tokenizer *tokenizer, const char *text, size_t bytes) {
    struct token_list list = {0}, parts = {0};
    const size_t valid = utf8_prefix(text, bytes), cut = tokenizer_cut(text, valid);
    fuzz_require(tokenizer_encode(tokenizer, text, valid, &list) == 0, "valid text is refused");
    fuzz_require(valid == bytes || tokenizer_encode(tokenizer, text, bytes, &parts) != 0,
                 "invalid text is encoded");
    parts.count = 0;
    check_text(tokenizer, &list, text, valid);
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
    static char vocabulary[8192];
    const uint8_t *end = bytes > 0 ? memchr(data, 0, bytes) : NULL;
    const size_t first = end ? (size_t)(end - data) : bytes;
    const char *text = (const char *)data + first + (end != NULL);
    struct tokenizer *tokenizer;
    const char *path =
        first > 0 ? fuzz_file(data, first) : fuzz_file((uint8_t *)vocabulary, small_vocabulary(vocabulary));
    const size_t count = bytes - first - (end != NULL);
    if (tokenizer_open(path, &tokenizer) == 0) {
        encode(tokenizer, text, count);
    }
    tokenizer_close(tokenizer);
    fuzz_require(tokenizer_open(NULL, &tokenizer) == 0 && strcmp(tokenizer_name(tokenizer), "byte") == 0,
                 "there are no bytes");
    size_t length;
    fuzz_require(!tokenizer_bytes(tokenizer, tokenizer_count(tokenizer), &length), "a token too many");
    encode_bytes(tokenizer, text, count);
    tokenizer_close(tokenizer);
    require_utf8(text, count, bytes % 2 == 0);
    return 0;
}
