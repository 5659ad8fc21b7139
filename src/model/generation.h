/* Generation with a cache of keys and values on the device: a new token costs one query of attention and one row
 * of every GEMM.
 *
 *
 * The model is planned with GPT_GENERATION; options.batch is the number of sequences (rows of the cache),
 * options.sequence their greatest length. A row's results do not depend on the other rows; with at most FEW_ROWS
 * of them not even in the last bit. */
#pragma once

#include "src/model/gpt.h"

/* Fills a row of the cache with tokens [count], 1 <= count <= options.sequence, in one forward pass. logits [V]
 * follow the last token. Waits. Returns -1 with an error for arguments out of range. */
int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits);

/* Appends tokens [rows], one to each of the first `rows` rows. All of these have `position` tokens, 1 <= position <
 * options.sequence. logits [rows, V] follow the new tokens. Waits. */
int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits);

/* Copies row `from` of the cache to row `to`. A launch. */
void generation_copy(struct gpt *gpt, int64_t from, int64_t to);
