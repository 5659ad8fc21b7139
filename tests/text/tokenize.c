/* Text from standard input to tokens on standard output, 32 bits each, and the seconds that it took on standard
 * error; or, with "pieces", to the places where GPT-2's pieces end: for tests/compare_tiktoken.py and
 * tests/compare_tokenizers.py. */
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include "src/text/pieces.h"
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

static void write_number(size_t number) {
    const uint32_t stored = (uint32_t)number;
    fwrite(&stored, sizeof stored, 1, stdout);
}

static void write_end(void *text, const char *piece, size_t bytes) {
    write_number((size_t)(piece - ((const struct text_buffer *)text)->bytes) + bytes);
}

static int write_pieces(struct text_buffer *text) {
    struct pieces *pieces;
    const int status = pieces_open(pieces_find(&(struct piece_steps){.gpt2 = true}), &pieces) ||
                       pieces_each(pieces, text->bytes, text->size, write_end, text);
    pieces_close(pieces);
    return status;
}

static int write_tokens(const struct tokenizer *tokenizer, const struct text_buffer *text) {
    struct token_list list = {0};
    const double start = progress_clock();
    if (tokenizer_encode(tokenizer, text->bytes, text->size, &list)) {
        return -1;
    }
    fprintf(stderr, "%.6f\n", progress_clock() - start);
    for (size_t i = 0; i < list.count; i++) {
        write_number(list.tokens[i]);
    }
    token_list_free(&list);
    return 0;
}

static int run(const char *path, const char *word) {
    const size_t length = strlen(path);
    const bool is_json = length > 5 && strcmp(path + length - 5, ".json") == 0;
    const struct tokenizer_source source = {.kind = is_json ? TOKENIZER_FILE : TOKENIZER_GPT2,
                                            .path = path,
                                            .parse_special = strcmp(word, "parse") == 0};
    struct tokenizer *tokenizer;
    struct text_buffer text = {0};
    if (tokenizer_open(&source, &tokenizer) || read_all(&text)) {
        return -1;
    }
    if (strcmp(word, "pieces") == 0 ? write_pieces(&text) : write_tokens(tokenizer, &text)) {
        return -1;
    }
    text_free(&text);
    tokenizer_close(tokenizer);
    return fflush(stdout) || ferror(stdout) ? error_set_errno("cannot write") : 0;
}

int main(int argc, char **argv) {
    const char *word = argc == 3 ? argv[2] : "text";
    if (argc < 2 || argc > 3 || (strcmp(word, "text") && strcmp(word, "parse") && strcmp(word, "pieces"))) {
        fprintf(stderr, "usage: tokenize VOCABULARY|TOKENIZER.json [text|parse|pieces] <TEXT >RESULT\n");
        return 2;
    }
    if (run(argv[1], word)) {
        fprintf(stderr, "tokenize: %s\n", error_text());
        return 1;
    }
    return 0;
}
