/* The residual connection around a branch: streams X [N, S, C] to the branch's input, and the branch's output to
 * the next streams.
 *
 *     enter    H = map(X), u = sum_s H_pre[s] x_s, normed = LN(u)
 *     branch   output = branch(normed)
 *     leave    x'_i = sum_j H_res[i, j] x_j + H_post[i] output
 *
 * With plain residual connections (rc) there is one stream, H_res = H_pre = H_post = 1, and nothing to learn. */
#pragma once

#include "src/model/gpt_state.h"

/* Packs the projection matrices of all sublayers for GEMMs, once in a forward pass. Steps of generation use what
 * the pass over the prompt has packed. */
void hyper_connection_pack(struct gpt *gpt);

/* Computes z, h and normed from the sublayer's streams. On devices with the fused frame it first completes the
 * leave before it, which writes these streams. */
void hyper_connection_enter(struct gpt *gpt, const struct sublayer *sublayer);

/* Computes the streams of the next sublayer from streams, h and the branch's output. With the fused frame that
 * happens in the enter that follows, but for the last sublayer, which none follows. */
void hyper_connection_leave(struct gpt *gpt, const struct sublayer *sublayer);

/* Backward pass of leave, as far as the branch needs it: returns d_output, computed from scratch.d_streams, which
 * is the gradient of the next sublayer's streams. */
const struct buffer *hyper_connection_leave_backward(struct gpt *gpt, const struct sublayer *sublayer);

/* Backward pass of enter, and the rest of that of leave: scratch.d_normed and scratch.d_streams of the next
 * sublayer become scratch.d_streams of this one, in place; adds the gradients of parameters, but for the
 * projections, whose gradients stay packed. */
void hyper_connection_enter_backward(struct gpt *gpt, const struct sublayer *sublayer);

/* Adds the gradients of a sublayer's projections, or with NULL, in one launch, of all sublayers'. */
void hyper_connection_unpack(struct gpt *gpt, const struct sublayer *sublayer);
