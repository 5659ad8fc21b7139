/* What several frames share. */
#pragma once

#include "src/model/gpt.h"
#include "src/model/linear.h"

/* Adds the norm of the branch, ln_1 or ln_2, or of the top, ln_f. */
void frame_add_norm(struct parameter_builder *builder, int64_t sublayer);

/* Refuses to upcycle to streams that do not begin as the embedding: see frame.check_upcycling. */
int frame_check_equal_streams(const struct model_config *config);

/* Plans mix.streams [N, S, C] and mix.squares [N, S]. Layers share them unless the mode keeps streams; with
 * recompute, the streams inside of layers are shared. True if mix.squares is new, so that other values of the same
 * life are, too. */
bool frame_plan_streams(struct gpt *gpt, struct sublayer *sublayer);

static inline bool is_last_pre(const struct gpt *gpt) {
    return gpt->config.stream_reduce == STREAM_REDUCE_LAST_PRE;
}

/* The sublayer that stands for the top. */
static inline const struct sublayer *frame_top(const struct gpt *gpt) {
    return &gpt->sublayers[BRANCHES * gpt->config.n_layer];
}

/* Tells whether the next sublayer begins a layer with x0_lambdas. */
static inline bool frame_lambdas_follow(const struct sublayer *sublayer) {
    return sublayer[1].arriving;
}

/* Where a sublayer leaves the streams. */
static inline const struct buffer *frame_next(const struct sublayer *sublayer) {
    return frame_lambdas_follow(sublayer) ? sublayer[1].arriving : sublayer[1].mix.streams;
}

/* A row of a buffer for each token. */
static inline struct matrix frame_rows(const struct gpt *gpt, const struct buffer *buffer, size_t columns) {
    return matrix_of(buffer, 0, gpt_tokens(gpt), columns);
}

/* Plans the stream of a connection that has a single one, whose kernels do not read z and H. */
void frame_plan_single(struct gpt *gpt, struct sublayer *sublayer);

/* enter and enter_backward of frames with one stream x [N, C]: normed = norm(x). The second adds to
 * scratch.d_streams [N, C]. */
void frame_single_enter(struct gpt *gpt, const struct sublayer *sublayer);
void frame_stream_enter_backward(struct gpt *gpt, const struct sublayer *sublayer);

/* Backward passes around a branch that reads a single stream x through its norm and is added to it, with d_stream
 * [N, C], the gradient of the sum. The first returns d_output, a copy where dropout will write to it; the second
 * adds what comes through the norm to d_stream, which then is the gradient of x. */
const struct buffer *frame_single_leave_backward(struct gpt *gpt, const struct buffer *d_stream);
void frame_single_enter_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_stream);

/* ---- what becomes of several streams at the top (`stream_reduce`): the norm of their sum, the sum of their norms,
 * or the norm of a sum with weights: those that depend on the streams (head), the H_pre of the last sublayer
 * (last_pre), or learned ones that nothing changes (read) */

/* Adds the parameters of transformer.hc_head, if there are any. */
void stream_reduce_add_parameters(struct parameter_builder *builder);

/* Plans what the top keeps beside gpt->final. With last_pre the frame sets its mix.h. */
void stream_reduce_plan(struct gpt *gpt, struct sublayer *top);

/* The streams of the top -> gpt->final. Launches. */
void stream_reduce_forward(struct gpt *gpt);

/* gpt->d_final -> scratch.d_streams, and the gradients of the top's parameters; with last_pre also the pre part of
 * scratch.d_h, the gradient of that H_pre. Launches. */
void stream_reduce_backward(struct gpt *gpt);
