/* The frame of the residual connections around a branch (paper's Eq. 1): streams -> branch input, branch output ->
 * streams, and back. rc is the frame with one stream and nothing learned. */
#pragma once

#include "src/model/gpt_state.h"

/* At the beginning of a forward pass: the projections of all sublayers as products read them. Steps of generation use
 * what the pass over the prompt has packed. */
void hyper_connection_pack(struct gpt *gpt);

/* Projections, map, width mix and layer norm: sublayer->streams -> z, h, normed. */
void hyper_connection_enter(struct gpt *gpt, const struct sublayer *sublayer);

/* Behind the branch, the depth mix: streams, h, output -> the next sublayer's streams, and what enter makes of them; at
 * the top, which has no branch, the streams alone. */
void hyper_connection_pass(struct gpt *gpt, const struct sublayer *sublayer);

/* The branch's part of the way back: scratch.d_streams -> d_output, returned. */
const struct buffer *hyper_connection_output_gradient(struct gpt *gpt, const struct sublayer *sublayer);

/* All the rest: scratch.d_normed -> scratch.d_streams (in place) and parameter gradients. */
void hyper_connection_backward(struct gpt *gpt, const struct sublayer *sublayer);
