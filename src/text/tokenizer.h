/* Text to tokens and back: bytes, GPT-2's byte-pair encoding, or that of a tokenizer.json. */
#pragma once

#include "src/text/bpe.h"

struct model_config; /* src/model/model_config.h */
struct ranks;        /* runtime/ranks/ranks.h */
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

/* The token's bytes; those of added tokens, such as the end of text, are their names. NULL: no such token. */
const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token, size_t *bytes);

/* Whether the text can be cut before text[at], at > 0, so that the tokens of both parts together are those of the
 * whole: ASCII white space begins there, after a character that is not white space, and both are not in one piece
 * or added token. Bytes can be cut anywhere. The text is UTF-8 up to there. */
bool tokenizer_is_cut(const struct tokenizer *tokenizer, const char *text, size_t at);

/* The last such position; if there is none, the last one before other white space, or before a sign or a number
 * that follows a letter, where tokens are those of the whole, too; 0: there is none. */
size_t tokenizer_cut(const struct tokenizer *tokenizer, const char *text, size_t bytes);

/* ---- the tokenizer of a model, and the options that name one */

struct tokenizer_settings {
    char *tokenizer;   /* "auto", "byte", "gpt2", or the path of a tokenizer.json */
    char *vocabulary;  /* path of GPT-2's vocabulary file; NULL or "": see TOKENIZER_OPTIONS */
    char *end_of_text; /* see struct tokenizer_source; may be NULL */
    int special;       /* enum special_tokens */
};

enum special_tokens { SPECIAL_TEXT, SPECIAL_PARSE };

/* Rows for tables of options, see runtime/options/option_rows.h. */
#define TOKENIZER_OPTIONS(settings, value, help)                                                                   \
    TEXT("tokenizer", &(settings)->tokenizer, value,                                                               \
         help "byte: each byte is a token; gpt2: GPT-2's byte-pair encoding; or the path of a tokenizer.json of "  \
              "byte-level BPE (SmolLM2, Llama 3, Qwen)"),                                                          \
        TEXT("vocab_file", &(settings)->vocabulary, NULL,                                                          \
             "GPT-2's vocabulary, a file like gpt2.tiktoken or vocab.bpe; default: HCTRAIN_VOCAB_FILE of the "     \
             "environment, else data/corpus/gpt2.tiktoken, where data/gpt2/vocabulary.sh puts it"),                \
        TEXT(                                                                                                      \
            "end_of_text", &(settings)->end_of_text, NULL,                                                         \
            "the token of a tokenizer.json that ends documents; default: <|endoftext|>, <|end_of_text|> or </s>, " \
            "whichever the file has first in this order"),                                                         \
        CHOICE("special_tokens", &(settings)->special, "text", "text|parse",                                       \
               "control tokens such as <|endoftext|> in the text: encode their names as any other text, or parse " \
               "them as tokens")

/* Says which tokenizer the settings name; "auto" is that of bytes. Fails, and says how to get it, if the file is
 * missing. The source refers to the settings and the environment. */
int tokenizer_choose(const struct tokenizer_settings *settings, struct tokenizer_source *source);

/* Opens the tokenizer of a model in `folder`. With "auto" it is the one that config.json names, where "file" is the
 * tokenizer.json of the folder. If config.json names none, it is the tokenizer.json of the folder, or bytes for a
 * model of 256 tokens, or GPT-2's for one of 50257 to 50304. Fails if none of these is the case, if the file is
 * missing, or if the model has too few rows for the tokenizer (see tokenizer_open). The caller closes *opened, also
 * on failure. */
int tokenizer_open_for(const struct model_config *config, const char *folder,
                       const struct tokenizer_settings *settings, struct tokenizer **opened);

/* Sets *bytes [config->vocab_size] to the bytes of text that each token stands for: 0 of control tokens, the end of
 * text, and numbers without a token. The tokenizer is rank 0's, see tokenizer_open_for; if "auto" finds none, all
 * are 0. The caller frees *bytes, also on failure. Collective. */
int tokenizer_share_bytes(struct ranks *ranks, const struct model_config *config, const char *folder,
                          const struct tokenizer_settings *settings, uint16_t **bytes);
