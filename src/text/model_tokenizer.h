/* The tokenizer of a model, and the options that name one. */
#pragma once

#include "src/text/tokenizer.h"

struct tokenizer_settings {
    char *tokenizer;   /* "auto", "byte", "gpt2", or the path of a tokenizer.json */
    char *vocabulary;  /* path of GPT-2's vocabulary file, see tokenizer_find_vocabulary; may be NULL */
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

/* Says which tokenizer the settings name; "auto" is that of bytes. Fails if GPT-2's vocabulary file is missing. The
 * source refers to the settings. */
int tokenizer_choose(const struct tokenizer_settings *settings, struct tokenizer_source *source);

/* Opens the tokenizer of a model in `folder`. With "auto" it is the one that config.json names, where "file" is the
 * tokenizer.json of the folder. If config.json names none, it is the tokenizer.json of the folder, or bytes for a
 * model of 256 tokens, or GPT-2's for one of 50257 to 50304. Fails if none of these is the case, if the file is
 * missing, or if the model has too few rows for the tokenizer (see tokenizer_open). The caller closes *opened, also
 * on failure. */
int tokenizer_open_for(const struct model_config *config, const char *folder,
                       const struct tokenizer_settings *settings, struct tokenizer **opened);
