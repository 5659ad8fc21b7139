/* What a model's tokens mean. */
#ifndef HC_SRC_MODEL_TOKENIZER_H
#define HC_SRC_MODEL_TOKENIZER_H

#include "src/model/model_config.h"
#include "src/text/tokenizer.h"

struct tokenizer_settings {
    char *name;       /* "byte" or "gpt2"; NULL or "auto": what the model's config.json says */
    char *vocabulary; /* GPT-2's vocabulary, see tokenizer_find_vocabulary; may be NULL */
};

/* Rows for tables of options. */
#define TOKENIZER_OPTIONS(settings)                                                                                \
    {.type = OPTION_CHOICE,                                                                                        \
     .name = "tokenizer",                                                                                          \
     .target = &(settings)->name,                                                                                  \
     .default_value = "auto",                                                                                      \
     .choices = "auto|byte|gpt2",                                                                                  \
     .help = "what the model's tokens are; auto: as the checkpoint says"},                                         \
    {                                                                                                              \
        .type = OPTION_TEXT, .name = "ranks", .target = &(settings)->vocabulary, .help = TOKENIZER_RANKS_HELP      \
    }

/* Opens the tokenizer of a model. Where nothing names it, 256 tokens are bytes, and 50257 and some more GPT-2's.
 * Fails where neither is so, where GPT-2's vocabulary is missing, and where the model has fewer tokens than the
 * tokenizer. */
int model_tokenizer_open(const struct model_config *config, const struct tokenizer_settings *settings,
                         struct tokenizer **opened);

#endif
