/* Text from standard input to tokens on standard output, 32 bits each, and the seconds that it took on standard
 * error, for tests/compare_tokenizers.py. */
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include "src/text/text_buffer.h"
#include "src/text/tokenizer.h"
#include <stdio.h>
#include <string.h>

static int read_all(struct text_buffer *text) {
    size_t got;
    do {
        text_reserve(text, 1 << 20);
        got = fread(text->bytes + text->size, 1, 1 << 20, stdin);
        text->size += got;
    } while (got > 0);
    return ferror(stdin) ? error_set_errno("cannot read standard input") : 0;
}

static int run(const char *path, bool parse) {
    const size_t length = strlen(path);
    const bool is_json = length > 5 && strcmp(path + length - 5, ".json") == 0;
    const struct tokenizer_source source = {.kind = is_json ? TOKENIZER_FILE : TOKENIZER_GPT2,
                                            .path = path,
                                            .parse_special = parse};
    struct tokenizer *tokenizer;
    struct text_buffer text = {0};
    struct token_list list = {0};
    if (tokenizer_open(&source, &tokenizer) || read_all(&text)) {
        return -1;
    }
    const double start = progress_clock();
    if (tokenizer_encode(tokenizer, text.bytes, text.size, &list)) {
        return -1;
    }
    fprintf(stderr, "%.6f\n", progress_clock() - start);
    for (size_t i = 0; i < list.count; i++) {
        const uint32_t stored = (uint32_t)list.tokens[i];
        fwrite(&stored, sizeof stored, 1, stdout);
    }
    token_list_free(&list);
    text_free(&text);
    tokenizer_close(tokenizer);
    return fflush(stdout) || ferror(stdout) ? error_set_errno("cannot write") : 0;
}

int main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[2], "text") && strcmp(argv[2], "parse"))) {
        fprintf(stderr, "usage: tokenize VOCABULARY|TOKENIZER.json text|parse <TEXT >TOKENS\n");
        return 2;
    }
    if (run(argv[1], strcmp(argv[2], "parse") == 0)) {
        fprintf(stderr, "tokenize: %s\n", error_text());
        return 1;
    }
    return 0;
}
