/* The frame of the residual connections around a branch (paper's Eq. 1): streams -> branch input, branch output ->
 * streams, and back. rc is the frame with one stream and nothing learned. */
#pragma once

#include "src/model/gpt_state.h"

/* Projections, map, width mix and layer norm: sublayer->streams -> z, h, normed. */
void hyper_connection_enter(struct gpt *gpt, const struct sublayer *sublayer);

/* Depth mix: streams, h, output -> the next sublayer's streams (or the top's). */
void hyper_connection_leave(struct gpt *gpt, const struct sublayer *sublayer);

/* Backward of leave: scratch.d_streams -> d_output, returned, and d_h's post and res parts. */
const struct buffer *hyper_connection_leave_backward(struct gpt *gpt, const struct sublayer *sublayer);

/* Backward of enter: scratch.d_normed and d_h -> scratch.d_streams (in place) and parameter gradients. */
void hyper_connection_enter_backward(struct gpt *gpt, const struct sublayer *sublayer);
