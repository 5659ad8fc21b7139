/* Text from a model without computing what is before a token again: keys and values of all sequences that are being
 * written stay on the device, so that a token costs one column of attention and one row of everything else.
 *
 * The model is planned with GPT_GENERATION; options.batch is the number of sequences (rows of the cache) and
 * options.sequence how long they may become. A row's results do not depend on what other rows there are: with up to
 * FEW_ROWS of them to the bit. */
#pragma once

#include "src/model/gpt.h"

/* Begins a row anew with tokens [count], 1 <= count <= options.sequence, which go through the model side by side.
 * logits [V] are those after the last one. Waits. -1 with an error for what is out of range. */
int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits);

/* Adds tokens [rows], one to each of the first rows, all of which have `position` tokens so far, 1 <= position <
 * options.sequence; at least one prefill came before. logits [rows, V]. Waits. */
int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits);

/* Row `to` becomes what row `from` is. A launch. */
void generation_copy(struct gpt *gpt, int64_t from, int64_t to);
