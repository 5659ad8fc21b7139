/* What frame_ahead.c has from frame_mixed.c: functions of its row that are the same, and steps of others. */
#pragma once

#include "src/model/frame.h"

void mixed_add_parameters(struct parameter_builder *builder, int64_t sublayer);
int mixed_check_upcycling(const struct model_config *config);
void mixed_plan(struct gpt *gpt);
void mixed_plan_sublayer(struct gpt *gpt, struct sublayer *sublayer);
void mixed_plan_scratch(struct gpt *gpt);
uint64_t mixed_largest_matrix(const struct gpt *gpt);
int mixed_create(struct gpt *gpt);
void mixed_begin(struct gpt *gpt);
void mixed_finish_backward(struct gpt *gpt, const struct sublayer *sublayer);
size_t mixed_values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]);

/* Whether the current pass runs the fused frame. Its kernels give a token the same bits whatever else is in the
 * batch, but not those of few_rows_multiply. */
bool mixed_is_fused(const struct gpt *gpt);

/* streams -> z and h */
void mixed_map(struct gpt *gpt, const struct sublayer *sublayer);

/* d_h [N, h_row] -> scratch.d_z, scratch.rms_scale, and the gradient of theta */
void mixed_map_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_h);

/* scratch.d_z -> its part of scratch.d_streams, and the gradients of the packed projections */
void mixed_projections_backward(struct gpt *gpt, const struct sublayer *sublayer);

/* Both halves of the backward pass with the fused frame. */
const struct buffer *mixed_leave_backward_fused(struct gpt *gpt, const struct sublayer *sublayer);
void mixed_enter_backward_fused(struct gpt *gpt, const struct sublayer *sublayer);
