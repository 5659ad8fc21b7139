/* rc: one stream; x' = x + branch(norm(x)). */
#include "runtime/device/compute.h"
#include "src/model/frame_parts.h"
#include "src/model/stream_reduce.h"

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    frame_plan_streams(gpt, sublayer);
    sublayer->mix.z = sublayer->mix.h = sublayer->mix.squares; /* handed to kernels that do not read them */
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    compute_set_module(gpt->compute, "hyper-connections");
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    compute_set_module(gpt->compute, "hyper-connections");
    depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, sublayer[1].mix.streams,
                      sublayer[1].mix.squares);
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    (void)sublayer;
    if (!gpt_drops(gpt)) {
        return scratch->d_streams;
    }
    const size_t row = (size_t)gpt->config.n_embd * element_size(gpt->options.type);
    compute_set_module(gpt->compute, "hyper-connections");
    buffer_copy(gpt->compute, scratch->d_streams, 0, scratch->d_output, 0, gpt_tokens(gpt) * row);
    return scratch->d_output; /* dropout will write to it */
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *unread = scratch->d_normed;
    compute_set_module(gpt->compute, "hyper-connections");
    width_mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_normed, scratch->d_normed,
                       unread, gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
    stream_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_normed, unread,
                    scratch->d_streams);
}

const struct frame frame_plain = {
    .name = "plain",
    .add_norm = frame_add_norm,
    .plan_sublayer = plan_sublayer,
    .enter = enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
};
