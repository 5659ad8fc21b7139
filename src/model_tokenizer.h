/* The tokenizer that a model or a corpus names. */
#ifndef HC_SRC_MODEL_TOKENIZER_H
#define HC_SRC_MODEL_TOKENIZER_H

#include "src/tokenizer.h"

/* Where data/gpt2/ranks.sh puts GPT-2's vocabulary, from the repository's folder. */
#define TOKENIZER_RANKS "data/corpus/gpt2.tiktoken"

/* For tables of options. */
#define RANKS_HELP                                                                                                 \
    "GPT-2's vocabulary, as data/gpt2/ranks.sh gets it; default: $HCTRAIN_RANKS, else " TOKENIZER_RANKS

/* Opens the tokenizer of this name, as config.json and meta.json have it: "byte", or "gpt2" with the vocabulary in
 * the file `ranks`; NULL or empty: $HCTRAIN_RANKS, and without that TOKENIZER_RANKS. The error says how to get the
 * file where there is none. */
int tokenizer_open_named(const char *name, const char *ranks, struct tokenizer **opened);

#endif
