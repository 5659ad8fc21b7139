#include "src/model/frame_parts.h"
#include "runtime/system/error.h"
#include <math.h>
#include <string.h>

#define FRAME_ADDRESS(name) &frame_##name,
static const struct frame *const frames[] = {FRAMES(FRAME_ADDRESS)};

const struct frame *frame_of(const struct model_config *config) {
    const struct residual_variant *residual = config->residual;
    const bool reads_early = config->read_delay || residual_reads_early(residual, !config->hc_dynamic);
    const char *name = residual->frame;
    if (!name) {
        name = reads_early ? "early" : "mixed";
    }
    for (size_t i = 0; i < COUNT(frames); i++) {
        if (strcmp(frames[i]->name, name) == 0) {
            return frames[i];
        }
    }
    return NULL;
}

void frame_add_norm(struct parameter_builder *builder, int64_t sublayer) {
    const bool is_top = sublayer == BRANCHES * builder->config->n_layer;
    parameters_add_norm(builder, is_top ? "ln_f" : branches[sublayer % BRANCHES]->norm,
                        &builder->parameters->sublayers[sublayer].norm);
}

int frame_check_equal_streams(const struct model_config *config) {
    if (config->stream_expand != STREAM_EXPAND_COPY) {
        return error_set("stream_expand = scaled begins with other streams than a plain model's: leave it out");
    }
    return 0;
}

bool frame_plan_streams(struct gpt *gpt, struct sublayer *sublayer) {
    const int64_t streams = gpt->config.n_streams;
    const bool is_top = !sublayer->branch, shared = sublayer->index >= BRANCHES && !is_top;
    if (shared && gpt_shares_streams(gpt)) {
        return false;
    }
    const bool inside = gpt->options.recompute && sublayer->index % BRANCHES > 0; /* a layer */
    if (!(shared && inside)) {
        sublayer->mix.streams = gpt_plan_activations(gpt, "streams", gpt_stream_row(gpt));
    }
    sublayer->mix.squares = gpt_plan_floats(gpt, "streams", streams);
    return true;
}

/* ---- single streams */

void frame_plan_single(struct gpt *gpt, struct sublayer *sublayer) {
    frame_plan_streams(gpt, sublayer);
    sublayer->mix.z = sublayer->mix.h = sublayer->mix.squares; /* handed to kernels that do not read them */
}

void frame_single_enter(struct gpt *gpt, const struct sublayer *sublayer) {
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

void frame_stream_enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    frame_single_enter_backward(gpt, sublayer, gpt->scratch.d_streams);
}

const struct buffer *frame_single_leave_backward(struct gpt *gpt, const struct buffer *d_stream) {
    if (!gpt_drops(gpt)) {
        return d_stream;
    }
    buffer_copy(gpt->compute, d_stream, 0, gpt->scratch.d_output, 0, gpt_activation_bytes(gpt, gpt->config.n_embd));
    return gpt->scratch.d_output;
}

void frame_single_enter_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_stream) {
    const struct buffer *d_normed = gpt->scratch.d_normed, *unread = d_normed;
    const size_t tokens = gpt_tokens(gpt);
    width_mix_backward(&gpt->operations, tokens, &sublayer->mix, d_normed, d_normed, unread,
                       gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
    stream_backward(&gpt->operations, tokens, &sublayer->mix, d_normed, unread, d_stream);
}

/* ---- the top of several streams */

/* As transformers initialises DeepseekV4HyperHead. */
void stream_reduce_add_parameters(struct parameter_builder *builder) {
    struct sublayer_offsets *at = &builder->parameters->sublayers[builder->sublayer];
    const uint64_t streams = (uint64_t)builder->config->n_streams;
    const uint64_t shape[] = {streams * (uint64_t)builder->config->n_embd, streams};
    const bool is_read = builder->config->stream_reduce == STREAM_REDUCE_READ;
    const bool is_head = builder->config->stream_reduce == STREAM_REDUCE_HEAD;
    if (is_read || (is_head && !builder->config->hc_dynamic)) {
        struct parameter *b = parameters_add(builder, "b_pre", 1, &streams, &at->theta);
        b->constant = is_read ? (float)-log((double)(streams - 1)) : 0.0f; /* the weights of read are 1 / streams */
        b->upcycled = residual_equal_logit;
    } else if (is_head) {
        struct parameter *w = parameters_add(builder, "w_pre", 2, shape, &at->projections[0]);
        w->decayed = true;
        w->deviation = 0.02;
        w->upcycled = residual_zero;
        parameters_add(builder, "b_pre", 1, &streams, &at->theta)->upcycled = residual_equal_logit;
        struct parameter *alpha = parameters_add(builder, "alpha_pre", 0, NULL, NULL);
        alpha->constant = 1.0f;
        alpha->joined = true;
    }
}

void stream_reduce_plan(struct gpt *gpt, struct sublayer *top) {
    const char *const group = "head";
    if (gpt->operations.shape.collapsed) {
        top->mix.packed = (struct span){gpt->parameters.weights, top->at->projections[0]};
        top->mix.theta = (struct span){gpt->parameters.weights, top->at->theta};
        top->mix.z = gpt_plan_floats(gpt, group, gpt->config.n_streams);
        top->mix.h = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.h_row);
        gpt->d_collapse_z =
            gpt->options.mode == GPT_TRAINING ? gpt_plan_activations(gpt, group, gpt->config.n_streams) : NULL;
    }
}

void stream_reduce_forward(struct gpt *gpt) {
    const struct stream_mix *mix = &frame_top(gpt)->mix;
    if (gpt->operations.shape.collapsed) {
        collapse_forward(&gpt->operations, gpt_tokens(gpt), mix);
    }
    if (gpt->operations.shape.collapsed || is_last_pre(gpt)) {
        width_mix_forward(&gpt->operations, gpt_tokens(gpt), mix);
    } else {
        final_norm_forward(&gpt->operations, gpt_tokens(gpt), mix);
    }
}

void stream_reduce_backward(struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct sublayer_offsets *at = frame_top(gpt)->at;
    const struct stream_mix *mix = &frame_top(gpt)->mix;
    const struct layer_norm d_norm = gpt_norm(parameters->gradients, at->norm);
    const size_t tokens = gpt_tokens(gpt), streams = (size_t)gpt->config.n_streams;
    const size_t row = (size_t)gpt_stream_row(gpt);
    if (!gpt->operations.shape.collapsed && !is_last_pre(gpt)) {
        final_norm_backward(&gpt->operations, tokens, mix, gpt->d_final, scratch->d_streams, d_norm,
                            parameters->accumulate);
        return;
    }
    width_mix_backward(&gpt->operations, tokens, mix, gpt->d_final, scratch->d_normed, scratch->d_h, d_norm,
                       parameters->accumulate);
    if (is_last_pre(gpt)) { /* d_streams of zero, since nothing else comes to the streams of the top */
        buffer_zero(gpt->compute, scratch->d_streams, 0, gpt_activation_bytes(gpt, gpt_stream_row(gpt)));
        buffer_zero(gpt->compute, scratch->rms_scale, 0, tokens * gpt->operations.norm_groups * sizeof(float));
        stream_backward(&gpt->operations, tokens, mix, scratch->d_normed, scratch->rms_scale, scratch->d_streams);
        return;
    }
    collapse_backward(&gpt->operations, tokens, mix, scratch->d_normed, scratch->d_h,
                      &(struct collapse_gradients){gpt->d_collapse_z,
                                                   scratch->d_streams,
                                                   {parameters->gradients, at->theta}},
                      parameters->accumulate);
    if (!gpt->operations.shape.fixed_top) {
        linear_matrix_backward(gpt->compute, matrix_of(mix->streams, 0, tokens, row),
                               matrix_of(gpt->d_collapse_z, 0, tokens, streams),
                               matrix_of(parameters->gradients, at->projections[0], row, streams),
                               parameters->accumulate);
    }
}
