/* The model on a device: GPT-2 with a residual connection of the table in src/variants/residual.c, forward and
 * backward.
 *
 * A function that "launches" puts kernels into the device's queue and returns at once; the first failure is kept in
 * the compute (runtime/device/compute.h). A function that "waits" returns when the device has done all that was
 * launched. */
#pragma once

#include "src/model/gpt_state.h"

/* Plans the model: table of parameters, sizes, memory. Allocates nothing on the device. Copies the config. */
int gpt_plan(struct compute *compute, const struct model_config *config, const struct gpt_options *options,
             struct gpt *gpt);

/* Checks the plan against the device, allocates, and compiles kernels. The weights are zero: initialise or load
 * them. */
int gpt_create(struct gpt *gpt);
void gpt_release(struct gpt *gpt);

/* Returns how many sequences of this length (1 .. options.sequence) fit into the plan's memory: more short ones
 * than long ones. */
int64_t gpt_batch_capacity(const struct gpt *gpt, int64_t sequence);

/* Sets the batch: x [batch, sequence] of ids < vocab_size; targets y of the same shape, ids < V or -1, or NULL. The
 * shape may be smaller than planned, or have more and shorter sequences: see gpt_batch_capacity. Ids out of range
 * are errors. */
int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y);

/* The forward pass, from tokens to the final norm. Launches. */
void gpt_forward(struct gpt *gpt, struct gpt_pass pass);

/* Logits and loss, in blocks of tokens: loss += scale * mean, over this micro-batch's targets that are not -1. In
 * training `scale` is 1 / micro-batches of the step on all ranks together, so that losses and gradients only need
 * to be summed. With `gradient` it also runs the backward pass of the output layer, whose gradients are those of
 * scale * mean * gpt->loss_scale (not 1 in fp16 only; the optimizer divides by it). Launches. */
void gpt_loss(struct gpt *gpt, float scale, bool gradient);

/* gpt_backward calls gradients_launched after the launches that complete the gradients of the final norm (sublayer
 * = 2 n_layer), of each sublayer (2 n_layer - 1 .. 0), and of the embeddings (-1). Where row_gradients_begin keeps
 * rows apart, the output layer's part of the token embedding's gradient is complete with the final norm's. */
struct gpt_listener {
    void (*gradients_launched)(void *context, int64_t sublayer);
    void *context;
};

/* The backward pass from the final norm to the embeddings, after a gpt_loss with `gradient`. In the first
 * micro-batch after gpt_zero, gpt_loss and gpt_backward together overwrite the gradients in the arena; in later
 * ones they add to them. So only the last micro-batch of a step completes gradients: several ranks pass a listener
 * there, elsewhere NULL. Launches. */
void gpt_backward(struct gpt *gpt, const struct gpt_listener *listener);

/* Starts a step: the loss becomes zero, and the next backward pass overwrites the gradients. (Clearing the arena
 * instead would cost a pass over it.) gpt_zero_loss does the former only. */
void gpt_zero(struct gpt *gpt);
void gpt_zero_loss(struct gpt *gpt);

/* Reads the sum of losses since gpt_zero, and the last optimizer step's gradient norm unless that is NULL. Waits.
 */
int gpt_read_results(struct gpt *gpt, float *loss, float *gradient_norm);

/* Reads the losses of tokens [first, first + count) of the batch from the last gpt_loss: -log of the target's
 * probability, 0 where the target is -1. Waits. */
int gpt_read_losses(struct gpt *gpt, size_t first, size_t count, float *losses);

/* Computes the logits [rows, V] of tokens [first, first + rows) of the last forward pass, and reads them. Waits. */
int gpt_read_logits(struct gpt *gpt, size_t first, size_t rows, float *logits);

/* Returns the FLOPs of training on one token, forward and backward: 6 for each weight in a GEMM, or 4 if it has no
 * gradient (parameter.without_gradient), and 12 n_layer C T for attention. */
double gpt_flops_per_token(const struct gpt *gpt);

/* ---- rows of token gradients that are kept apart
 *
 * A backward pass can keep the embedding's part of the token embedding's gradient apart from the head's. With tied
 * weights the head's part is complete first and covers all rows; the embedding's part is complete last and covers
 * few. So ranks can sum the head's part while they still compute. */

/* Returns the number of 32-bit words that hold a bit for each token of the vocabulary. */
size_t row_gradients_words(const struct gpt *gpt);

/* Sets the bits of the tokens of the current batch. */
void row_gradients_mark(const struct gpt *gpt, uint32_t *words);

/* Call before gpt_backward, which then keeps the rows of these tokens apart if they fit. `words` includes all
 * tokens of the batch. Launches. */
void row_gradients_begin(struct gpt *gpt, const uint32_t *words);

/* Call after gpt_backward: adds the rows to the token embedding's gradient. Launches. */
void row_gradients_join(struct gpt *gpt);

/* ---- generation with a cache of keys and values on the device
 *
 * A new token costs one query of attention and one row of every GEMM. The model is planned with GPT_GENERATION;
 * options.batch is the number of sequences (rows of the cache), options.sequence their greatest length. A row's
 * results are those that it would have alone: to the bit in steps of at most FEW_ROWS rows, else up to rounding. */

/* Fills a row of the cache with tokens [count], 1 <= count <= options.sequence, in one forward pass. logits [V]
 * follow the last token. Waits. Returns -1 with an error for arguments out of range. */
int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits);

/* Appends tokens [rows], one to each of the first `rows` rows. All of these have `position` tokens, 1 <= position <
 * options.sequence. logits [rows, V] follow the new tokens. Waits. */
int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits);

/* Copies row `from` of the cache to row `to`. Launches. */
void generation_copy(struct gpt *gpt, int64_t from, int64_t to);
