/* The invariants of a residual connection that reads earlier states by weights over depth: those of a token and
 * sublayer sum to one, and none is negative. */
#pragma once

#include "src/measuring/h_measurement.h"

/* Finds the first invariant of the variant, in the order of residual_invariant_at, that is in `looked_for` and that
 * the weights of the last forward pass violate. Its sublayer is 2 n_layer at the top; invariant 0: none is
 * violated. The mode is GPT_TRAINING or GPT_ANALYSIS. Waits; -1 with an error. */
int depth_check(struct h_violation *violation, struct gpt *gpt, unsigned looked_for);
