/* What becomes of the streams at the top, before the output layer (`stream_reduce`): the norm of their sum, the sum
 * of their norms, or the norm of a sum with weights: those that depend on the streams (head), the H_pre of the last
 * sublayer (last_pre), or learned ones that nothing changes (read). Frames that end this way call it.
 */
#pragma once

struct gpt;
struct parameter_builder;

/* Adds the parameters of transformer.hc_head, if there are any. */
void stream_reduce_add_parameters(struct parameter_builder *builder);

/* Plans what the top keeps beside gpt->final. */
void stream_reduce_plan(struct gpt *gpt);

/* The streams of the top -> gpt->final. Launches. */
void stream_reduce_forward(struct gpt *gpt);

/* gpt->d_final -> scratch.d_streams, and the gradients of the top's parameters; with last_pre also the pre part of
 * scratch.d_h, the gradient of that H_pre. Launches. */
void stream_reduce_backward(struct gpt *gpt);
