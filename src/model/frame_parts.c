#include "src/model/frame_parts.h"
#include "runtime/system/error.h"

void frame_add_norm(struct parameter_builder *builder, int64_t sublayer) {
    const bool is_top = sublayer == BRANCHES * builder->config->n_layer;
    parameters_add_norm(builder, is_top ? "ln_f" : branches[sublayer % BRANCHES]->norm,
                        &builder->parameters->sublayers[sublayer].norm);
}

int frame_check_equal_streams(const struct model_config *config) {
    return config->stream_expand == STREAM_EXPAND_COPY
               ? 0
               : error_set("stream_expand = scaled begins with other streams than a plain model's: leave it out");
}

bool frame_plan_streams(struct gpt *gpt, struct sublayer *sublayer) {
    const int64_t streams = gpt->config.n_streams;
    const bool is_top = !sublayer->branch, shared = sublayer->index >= BRANCHES && !is_top;
    if (shared && gpt_shares_streams(gpt)) {
        return false;
    }
    const bool inside = gpt->options.recompute && sublayer->index % BRANCHES > 0; /* a layer */
    if (!(shared && inside)) {
        sublayer->mix.streams = gpt_plan_activations(gpt, "streams", streams * gpt->config.n_embd);
    }
    sublayer->mix.squares = gpt_plan_floats(gpt, "streams", streams);
    return true;
}

const struct buffer *frame_single_leave_backward(struct gpt *gpt, const struct buffer *d_stream) {
    const size_t row = (size_t)gpt->config.n_embd * element_size(gpt->options.type);
    if (!gpt_drops(gpt)) {
        return d_stream;
    }
    buffer_copy(gpt->compute, d_stream, 0, gpt->scratch.d_output, 0, gpt_tokens(gpt) * row);
    return gpt->scratch.d_output;
}

void frame_single_enter_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_stream) {
    const struct buffer *d_normed = gpt->scratch.d_normed, *unread = d_normed;
    const size_t tokens = gpt_tokens(gpt);
    width_mix_backward(&gpt->operations, tokens, &sublayer->mix, d_normed, d_normed, unread,
                       gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
    stream_backward(&gpt->operations, tokens, &sublayer->mix, d_normed, unread, d_stream);
}
