/* The model on a device: GPT-2 with a residual variant, forward and backward. The order of its parts is in gpt.c.
 */
#pragma once

#include "src/model/gpt_state.h"

/* Plans the model: table, sizes, memory. Nothing is allocated on the device yet. The config is copied. */
int gpt_plan(struct compute *compute, const struct model_config *config, const struct gpt_options *options,
             struct gpt *gpt);

/* Checks the plan against the device, allocates, compiles. Weights are zero: initialise or load them. */
int gpt_create(struct gpt *gpt);
void gpt_release(struct gpt *gpt);

/* How many sequences of this length, 1 to the planned one, fit into the memory of the plan: more short ones. */
int64_t gpt_batch_room(const struct gpt *gpt, int64_t sequence);

/* Sets the batch: x [batch, sequence] with ids < vocab_size, y with ids < V (it may have -1; NULL when there are no
 * targets). Smaller shapes than planned are fine, and more sequences that are shorter: see gpt_batch_room. Ids out
 * of range are errors. */
int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y);

/* Tokens to the normalised top. A launch. */
void gpt_forward(struct gpt *gpt, struct gpt_pass pass);

/* Head and loss, in blocks of tokens: loss += scale * mean loss over valid targets. With `gradient` also the
 * gradients of the head and of the top, for the loss times scale and times gpt->loss_scale. */
void gpt_loss(struct gpt *gpt, float scale, bool gradient);

/* Told during gpt_backward, after the launches that complete the gradients of the final norm (2 n_layer) and of a sublayer
 * (2 n_layer - 1 down to 0), and after the last ones (-1). Where rows are kept apart (row_gradients.h) the token embedding's own
 * gradient is complete with the final norm's. */
struct gpt_listener {
    void (*gradients_launched)(void *context, int64_t sublayer);
    void *context;
};

/* The rest of the backward pass. The first one after gpt_zero, with the gpt_loss before it, leaves its gradients in the
 * arena, whatever was there; later ones add theirs. listener may be NULL. */
void gpt_backward(struct gpt *gpt, const struct gpt_listener *listener);

/* The start of a step: the loss is zero, and gradients are nothing yet. The arena is not cleared for that, which
 * would be a pass over all of it: the next backward pass writes instead of adding. */
void gpt_zero(struct gpt *gpt);
void gpt_zero_loss(struct gpt *gpt);

/* Sum of losses since gpt_zero, and the last step's gradient norm (may be NULL). Waits. */
int gpt_read_results(struct gpt *gpt, float *loss, float *gradient_norm);

/* Losses of tokens [first, first + count) of the batch, as the last gpt_loss found them: -log of the target's
 * probability, 0 where the target is -1. Waits. */
int gpt_read_losses(struct gpt *gpt, size_t first, size_t count, float *losses);

/* Logits of tokens [first, first + rows) of the last forward pass to host memory [rows, V]. Waits. */
int gpt_read_logits(struct gpt *gpt, size_t first, size_t rows, float *logits);

/* FLOPs of training on one token (forward and backward): 6 per weight used in products + 12 n_layer C T of
 * attention. */
double gpt_flops_per_token(const struct gpt *gpt);
