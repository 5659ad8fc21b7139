/* The two branches of a layer: attention (even sublayers) and MLP (odd ones), from normed input to output. */
#ifndef HC_SRC_BRANCHES_H
#define HC_SRC_BRANCHES_H

#include "src/model/gpt_state.h"

/* sublayer->normed -> sublayer->output, dropout included. */
void branch_forward(struct gpt *gpt, int64_t index);

/* d_output [N, C] (overwritten where dropout applies) -> scratch.d_normed. */
void branch_backward(struct gpt *gpt, int64_t index, const struct buffer *d_output);

#endif
