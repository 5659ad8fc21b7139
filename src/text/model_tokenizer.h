/* What a model's tokens mean. */
#pragma once

#include "src/model/model_config.h"
#include "src/text/tokenizer.h"

/* --tokenizer of programs that read a model */
#define TOKENIZER_WORDS "auto|byte|gpt2"
enum tokenizer_word { TOKENIZER_OF_MODEL /* what config.json says */, TOKENIZER_BYTE, TOKENIZER_GPT2 };

struct tokenizer_settings {
    int word;         /* enum tokenizer_word */
    char *vocabulary; /* GPT-2's vocabulary, see tokenizer_find_vocabulary; may be NULL */
};

/* Rows for tables of options, see runtime/options/option_rows.h. */
#define TOKENIZER_OPTIONS(settings)                                                                                \
    CHOICE("tokenizer", &(settings)->word, "auto", TOKENIZER_WORDS,                                                \
           "what the model's tokens are; auto: as the checkpoint says"),                                           \
        TEXT("vocab_file", &(settings)->vocabulary, NULL, VOCAB_FILE_HELP, .former = "ranks")

/* Opens the tokenizer of a model. Where nothing names it, 256 tokens are bytes, and 50257 and some more GPT-2's.
 * Fails where neither is so, where GPT-2's vocabulary is missing, and where the model has fewer tokens than the
 * tokenizer. */
int model_tokenizer_open(const struct model_config *config, const struct tokenizer_settings *settings,
                         struct tokenizer **opened);
