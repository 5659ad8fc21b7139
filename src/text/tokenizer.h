/* Text to tokens and back: GPT-2's byte-pair encoding, or bytes. */
#pragma once

#include "src/text/bpe.h"

struct model_config; /* src/model/model_config.h */
struct tokenizer;

enum { GPT2_TOKENS = 50257 }; /* of its vocabulary, the end of text included */

/* vocabulary: the path of GPT-2's vocabulary file (see bpe_open); NULL: each byte is a token. The caller
 * closes *opened, also on failure. */
int tokenizer_open(const char *vocabulary, struct tokenizer **opened);
void tokenizer_close(struct tokenizer *tokenizer);

/* The path of GPT-2's vocabulary file: `given`, or, if that is NULL or empty, $HCTRAIN_VOCAB_FILE, or
 * data/corpus/gpt2.tiktoken, where data/gpt2/vocabulary.sh puts it. NULL with an error that says how to get it, if
 * there is no such file. */
const char *tokenizer_find_vocabulary(const char *given);

/* "gpt2" or "byte", as in meta.json. */
const char *tokenizer_name(const struct tokenizer *tokenizer);

/* The number of tokens, the end of text included. */
uint32_t tokenizer_count(const struct tokenizer *tokenizer);

/* "<|endoftext|>", which tokenizer_encode never gives; UINT32_MAX if there is none (bytes). */
uint32_t tokenizer_end_of_text(const struct tokenizer *tokenizer);

/* Appends the tokens of a text: for "gpt2" those of tiktoken's encode_ordinary, and the text must be UTF-8. Threads
 * may share the tokenizer. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t bytes, struct token_list *list);

/* GPT-2 divides text into pieces, which are encoded one by one. Sets *end to the end of the piece that begins at
 * `at`, at < bytes. The text is UTF-8. */
int tokenizer_piece(const struct tokenizer *tokenizer, const char *text, size_t bytes, size_t at, size_t *end);

/* The token's bytes; those of the end of text are its name. NULL: no such token. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes);

/* Whether the text can be cut before text[at], at > 0, so that the tokens of both parts together are those of the
 * whole: ASCII white space begins there, after a character that is not white space. The text is UTF-8 up to
 * there. */
bool tokenizer_is_cut(const char *text, size_t at);

/* The last such position; 0: there is none. */
size_t tokenizer_cut(const char *text, size_t bytes);

/* ---- the tokenizer of a model */

enum tokenizer_choice { TOKENIZER_OF_MODEL /* as config.json says */, TOKENIZER_BYTE, TOKENIZER_GPT2 };

struct tokenizer_settings {
    int choice;       /* enum tokenizer_choice */
    char *vocabulary; /* path of GPT-2's vocabulary file, see tokenizer_find_vocabulary; may be NULL */
};

/* Rows for tables of options, see runtime/options/option_rows.h. */
#define VOCABULARY_OPTION(path)                                                                                    \
    TEXT("vocab_file", path, NULL,                                                                                 \
         "GPT-2's vocabulary, a file like gpt2.tiktoken or vocab.bpe; default: HCTRAIN_VOCAB_FILE of the "         \
         "environment, else data/corpus/gpt2.tiktoken, where data/gpt2/vocabulary.sh puts it",                     \
         .former = "ranks")
#define TOKENIZER_OPTIONS(settings)                                                                                \
    CHOICE("tokenizer", &(settings)->choice, "auto", "auto|byte|gpt2",                                             \
           "the model's tokenizer; auto: as the checkpoint says"),                                                 \
        VOCABULARY_OPTION(&(settings)->vocabulary)

/* Opens the tokenizer of a model. If neither config.json nor the settings name it, a model of 256 tokens has bytes,
 * and one of 50257 to 50304 tokens GPT-2's. Fails if it is neither, if GPT-2's vocabulary file is missing, or if
 * the model has fewer tokens than the tokenizer. The caller closes *opened, also on failure. */
int tokenizer_open_for(const struct model_config *config, const struct tokenizer_settings *settings,
                       struct tokenizer **opened);
