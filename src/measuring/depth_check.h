/* What a residual connection that reads earlier states promises of its weights over depth: that those of a token
 * and sublayer sum to one, and that none is negative. */
#pragma once

#include "src/measuring/h_measurement.h"

/* Finds the first promise, in the order of residual_promise_at, that is in `looked_for`, that the variant makes and
 * that the weights of the last forward pass have broken. Its sublayer is 2 n_layer at the top; promise 0: all is
 * kept. The mode is GPT_TRAINING or GPT_ANALYSIS. Waits; -1 with an error. */
int depth_check(struct h_breach *breach, struct gpt *gpt, unsigned looked_for);
