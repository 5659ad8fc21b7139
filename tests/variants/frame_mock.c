/* No residual connection: x' = branch(norm(x)). */
#include "runtime/device/compute.h"
#include "src/model/frame_parts.h"

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    frame_plan_streams(gpt, sublayer);
    sublayer->mix.z = sublayer->mix.h = sublayer->mix.squares; /* handed to kernels that do not read them */
}

static void copy(struct gpt *gpt, const struct buffer *from, const struct buffer *to) {
    const size_t row = (size_t)gpt->config.n_embd * element_size(gpt->options.type);
    buffer_copy(gpt->compute, from, 0, to, 0, gpt_tokens(gpt) * row);
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    copy(gpt, sublayer->mix.output, sublayer[1].mix.streams);
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    (void)sublayer;
    copy(gpt, gpt->scratch.d_streams, gpt->scratch.d_output);
    return gpt->scratch.d_output;
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    width_mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_normed, scratch->d_streams,
                       scratch->d_normed, gpt_norm(gpt->parameters.gradients, sublayer->at->norm),
                       gpt->parameters.accumulate);
}

const struct frame frame_mock = {
    .name = "mock",
    .add_norm = frame_add_norm,
    .plan_sublayer = plan_sublayer,
    .enter = enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
};
