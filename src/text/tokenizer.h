/* Text to tokens and back: GPT-2's byte-pair encoding, or bytes. */
#pragma once

#include "src/text/bpe.h"

struct tokenizer;

enum { GPT2_TOKENS = 50257 }; /* of its vocabulary, the end of text included */

#define VOCAB_FILE_HELP                                                                                            \
    "GPT-2's vocabulary, a file like gpt2.tiktoken or vocab.bpe; default: HCTRAIN_RANKS of the environment, else " \
    "data/corpus/gpt2.tiktoken, where data/gpt2/ranks.sh puts it"

/* vocabulary: GPT-2's vocabulary (see bpe_open); NULL: a token is a byte. */
int tokenizer_open(const char *vocabulary, struct tokenizer **opened);
void tokenizer_close(struct tokenizer *tokenizer);

/* The path of GPT-2's vocabulary: `given`, or, if that is NULL or empty, what the environment's HCTRAIN_RANKS
 * names, or data/corpus/gpt2.tiktoken, where data/gpt2/ranks.sh puts it. NULL, with an error that says how to get
 * it, where there is none. */
const char *tokenizer_find_vocabulary(const char *given);

/* "gpt2" or "byte", as meta.json has it. */
const char *tokenizer_name(const struct tokenizer *tokenizer);

/* Tokens there are, the end of text included. */
uint32_t tokenizer_count(const struct tokenizer *tokenizer);

/* "<|endoftext|>", which text never gives; UINT32_MAX where there is none (bytes). */
uint32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);

/* What one thread needs to encode. NULL with an error when memory runs out. */
struct tokenizer_scratch *tokenizer_scratch_create(const struct tokenizer *tokenizer);
void tokenizer_scratch_free(struct tokenizer_scratch *scratch);

/* Appends the tokens of a text: those of tiktoken's encode_ordinary for "gpt2". The text must be UTF-8 (see
 * utf8_prefix); bytes may be anything. */
int tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch, const char *text,
                     size_t bytes, struct token_list *list);

/* GPT-2's division of text into pieces, which are encoded one by one: the end of the piece that begins at `at`,
 * with at < bytes. The text is UTF-8 and `at` the beginning of a piece. */
int tokenizer_piece(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch, const char *text,
                    size_t bytes, size_t at, size_t *end);

/* The token's bytes; those of the end of text are its name. NULL: no such token. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes);

/* Whether the text can be cut before text[at], at > 0, so that the tokens of both parts together are those of the
 * whole: ASCII's white space begins there, after something else. The text is UTF-8 up to there. */
bool tokenizer_is_cut(const char *text, size_t at);

/* The last such place; 0: there is none after the beginning. */
size_t tokenizer_cut(const char *text, size_t bytes);
