/* Keeps the embedding's part of the token embedding's gradient apart from the head's for a backward pass. With tied
 * weights the head's part is complete first and covers all rows; the embedding's part is complete last and covers
 * few. So ranks can sum the head's part while they still compute. */
#pragma once

#include "src/model/gpt_state.h"

/* Returns the number of 32-bit words that hold a bit for each token of the vocabulary. */
size_t row_gradients_words(const struct gpt *gpt);

/* Puts buffers for `most` rows on the model's memory plan, but for no more than half of the vocabulary. */
void row_gradients_plan(struct gpt *gpt, size_t most);

/* Fills the buffers once the plan is allocated. */
int row_gradients_create(struct gpt *gpt);
void row_gradients_release(struct gpt *gpt);

/* Sets the bits of the tokens of the current batch. */
void row_gradients_mark(const struct gpt *gpt, uint32_t *words);

/* Call before gpt_backward, which then keeps the rows of these tokens apart if they fit. `words` includes all
 * tokens of the batch. Launches. */
void row_gradients_begin(struct gpt *gpt, const uint32_t *words);

/* Call after gpt_backward: adds the rows to the token embedding's gradient. Launches. */
void row_gradients_join(struct gpt *gpt);
