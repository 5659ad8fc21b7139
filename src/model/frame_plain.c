/* rc: one stream; x' = x + branch(norm(x)). */
#include "src/model/frame_parts.h"

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, frame_next(sublayer),
                      sublayer[1].mix.squares);
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    (void)sublayer;
    return frame_single_leave_backward(gpt, gpt->scratch.d_streams);
}

const struct frame frame_plain = {
    .name = "plain",
    .add_norm = frame_add_norm,
    .plan_sublayer = frame_plan_single,
    .enter = frame_single_enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = frame_stream_enter_backward,
};
