/* The embedding's part of the token embedding's gradient, kept apart for a backward pass. With tied weights the head's part is
 * done first and is most of it; the embedding's part comes last and is a few rows. Ranks that keep it apart can send each other the
 * one while they still compute the other. */
#pragma once

#include "src/model/gpt_state.h"

/* Words that have a bit for each token of the vocabulary. */
size_t row_gradients_words(const struct gpt *gpt);

/* Puts it on the model's plan. Room for no more rows than half of the vocabulary has: beyond that it would not pay. */
void row_gradients_plan(struct gpt *gpt, size_t most);

/* When the plan has its memory. */
int row_gradients_create(struct gpt *gpt);
void row_gradients_release(struct gpt *gpt);

/* Sets the bits of the tokens of the batch. */
void row_gradients_mark(const struct gpt *gpt, uint32_t *words);

/* Before gpt_backward: it keeps the rows of these tokens apart, among which all of the batch's are; where there is no room for
 * them it does not. A launch. */
void row_gradients_begin(struct gpt *gpt, const uint32_t *words);

/* After it: adds the rows to the gradient, which is in one piece again. A launch. */
void row_gradients_join(struct gpt *gpt);
