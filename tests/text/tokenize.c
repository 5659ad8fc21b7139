/* Text from standard input to GPT-2's tokens on standard output, 16 bits each, and the seconds that it took on
 * standard error; or, with "pieces", to the places where pieces end, 32 bits each: for
 * tests/compare_tiktoken.py. */
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

static int write_pieces(const struct tokenizer *tokenizer, const struct text_buffer *text) {
    for (size_t at = 0; at < text->size;) {
        if (tokenizer_piece(tokenizer, text->bytes, text->size, at, &at)) {
            return -1;
        }
        const uint32_t end = (uint32_t)at;
        fwrite(&end, sizeof end, 1, stdout);
    }
    return 0;
}

static int write_tokens(const struct tokenizer *tokenizer, const struct text_buffer *text) {
    struct token_list list = {0};
    const double start = progress_clock();
    if (tokenizer_encode(tokenizer, text->bytes, text->size, &list)) {
        return -1;
    }
    fprintf(stderr, "%.6f\n", progress_clock() - start);
    fwrite(list.tokens, sizeof *list.tokens, list.count, stdout);
    token_list_free(&list);
    return 0;
}

static int run(const char *vocabulary, bool pieces) {
    struct tokenizer *tokenizer;
    struct text_buffer text = {0};
    if (tokenizer_open(vocabulary, &tokenizer) || read_all(&text)) {
        return -1;
    }
    if ((pieces ? write_pieces : write_tokens)(tokenizer, &text)) {
        return -1;
    }
    text_free(&text);
    tokenizer_close(tokenizer);
    return fflush(stdout) || ferror(stdout) ? error_set_errno("cannot write") : 0;
}

int main(int argc, char **argv) {
    if (argc != 2 && (argc != 3 || strcmp(argv[2], "pieces") != 0)) {
        fprintf(stderr, "usage: tokenize VOCABULARY [pieces] <TEXT >RESULT\n");
        return 2;
    }
    if (run(argv[1], argc == 3)) {
        fprintf(stderr, "tokenize: %s\n", error_text());
        return 1;
    }
    return 0;
}
