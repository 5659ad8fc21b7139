/* What a model's tokens mean. */
#ifndef HC_SRC_MODEL_TOKENIZER_H
#define HC_SRC_MODEL_TOKENIZER_H

#include "src/model_config.h"
#include "src/tokenizer.h"

/* Opens the tokenizer of a model: the one that its config.json names, or else the one that its vocab_size tells.
 * ranks is GPT-2's vocabulary, or NULL: see tokenizer_find_ranks. Fails, and says what to do, where that is missing
 * or the model has fewer tokens than the tokenizer. */
int model_tokenizer_open(const struct model_config *config, const char *ranks, struct tokenizer **opened);

#endif
