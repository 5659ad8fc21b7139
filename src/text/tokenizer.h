/* Text to tokens and back: bytes, GPT-2's byte-pair encoding, or that of a tokenizer.json. */
#pragma once

#include "src/text/bpe.h"

struct model_config; /* src/model/model_config.h */
struct tokenizer;

enum { GPT2_TOKENS = 50257 }; /* of its vocabulary, the end of text included */

enum tokenizer_kind { TOKENIZER_BYTE, TOKENIZER_GPT2, TOKENIZER_FILE };

struct tokenizer_source {
    enum tokenizer_kind kind;
    const char *path; /* of GPT-2's vocabulary file (see bpe_open), or of the tokenizer.json; of bytes NULL */
    const char *end_of_text; /* the added token of a tokenizer.json that ends documents; NULL or "": a usual one */
    bool parse_special;      /* control tokens in text become tokens; else they are text like any other */
    int64_t rows;            /* of the model's embedding, which added tokens may exceed; 0: there is no model */
};

/* Fails if text or the end of text needs tokens that the model has no rows for. The caller closes *opened, also on
 * failure. */
int tokenizer_open(const struct tokenizer_source *source, struct tokenizer **opened);
void tokenizer_close(struct tokenizer *tokenizer);

/* Copies a tokenizer.json. */
int tokenizer_copy(const char *from, const char *to);

/* The path of GPT-2's vocabulary file: `given`, or, if that is NULL or empty, $HCTRAIN_VOCAB_FILE, or
 * data/corpus/gpt2.tiktoken, where data/gpt2/vocabulary.sh puts it. NULL with an error that says how to get it, if
 * there is no such file. */
const char *tokenizer_find_vocabulary(const char *given);

/* "byte", "gpt2" or "file", as in meta.json. */
const char *tokenizer_name(const struct tokenizer *tokenizer);

/* The number of tokens, the end of text included; of those that the model has rows for. */
uint32_t tokenizer_count(const struct tokenizer *tokenizer);

/* The token that ends documents, which text gives only with parse_special; UINT32_MAX if there is none (bytes). */
uint32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);

/* The token that a tokenizer.json puts before each text unless it is told not to (add_special_tokens in
 * transformers), such as Llama 3's <|begin_of_text|>; UINT32_MAX if there is none. tokenizer_encode does not add
 * it. */
uint32_t tokenizer_beginning(const struct tokenizer *tokenizer);

/* The token that stands before a text which nothing precedes: the beginning, else the end of text, else (bytes) a
 * newline. */
uint32_t tokenizer_prefix(const struct tokenizer *tokenizer);

/* Appends the tokens of a text: for "gpt2" those of tiktoken's encode_ordinary (with parse_special, of encode with
 * allowed_special="all"), for "file" those of tokenizers' encode with add_special_tokens=False. The text must be
 * UTF-8, unless tokens are bytes. Fails if the model has no row for one of the tokens. Threads may share the
 * tokenizer. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *list);

/* Text is divided into pieces, which are encoded one by one. Sets *end to the end of the piece that begins at `at`,
 * at < bytes. The text is UTF-8. */
int tokenizer_piece(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t at, size_t *end);

/* The token's bytes; those of added tokens, such as the end of text, are their names. NULL: no such token. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes);

/* Whether the text can be cut before text[at], at > 0, so that the tokens of both parts together are those of the
 * whole: ASCII white space begins there, after a character that is not white space, and both are not in one piece
 * or added token. Bytes can be cut anywhere. The text is UTF-8 up to there. */
bool tokenizer_is_cut(const struct tokenizer *tokenizer, const char *text, size_t at);

/* The last such position; if there is none, the last one before other white space, or before a sign or a number
 * that follows a letter, where tokens are those of the whole, too; 0: there is none. */
size_t tokenizer_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes);
