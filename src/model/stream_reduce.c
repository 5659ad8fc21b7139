#include "src/model/stream_reduce.h"
#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "src/model/gpt_state.h"
#include <math.h>

static const struct sublayer *top_of(const struct gpt *gpt) {
    return &gpt->sublayers[BRANCHES * gpt->config.n_layer];
}

static void add_fixed_weights(struct parameter_builder *builder, uint64_t streams) {
    struct parameter *b =
        parameters_add(builder, "b_pre", 1, &streams, &builder->parameters->sublayers[builder->sublayer].theta);
    b->constant = (float)-log((double)(streams - 1)); /* the weights are 1 / streams */
    b->upcycled = residual_equal_logit;
}

/* As transformers initialises DeepseekV4HyperHead. */
void stream_reduce_add_parameters(struct parameter_builder *builder) {
    struct sublayer_offsets *at = &builder->parameters->sublayers[builder->sublayer];
    const uint64_t streams = (uint64_t)builder->config->n_streams;
    const uint64_t shape[] = {streams * (uint64_t)builder->config->n_embd, streams};
    if (builder->config->stream_reduce == STREAM_REDUCE_READ) {
        add_fixed_weights(builder, streams);
    }
    if (builder->config->stream_reduce != STREAM_REDUCE_HEAD) {
        return;
    }
    struct parameter *w = parameters_add(builder, "w_pre", 2, shape, &at->projections[0]);
    w->decayed = true;
    w->deviation = 0.02;
    w->upcycled = residual_zero;
    parameters_add(builder, "b_pre", 1, &streams, &at->theta)->upcycled = residual_equal_logit;
    struct parameter *alpha = parameters_add(builder, "alpha_pre", 0, NULL, NULL);
    alpha->constant = 1.0f;
    alpha->joined = true;
}

void stream_reduce_plan(struct gpt *gpt) {
    const char *const group = "head";
    if (gpt->operations.shape.collapsed) {
        gpt->collapse_z = gpt_plan_floats(gpt, group, gpt->config.n_streams);
        gpt->collapse_h = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.h_row);
        gpt->d_collapse_z =
            gpt->options.mode == GPT_TRAINING ? gpt_plan_activations(gpt, group, gpt->config.n_streams) : NULL;
    }
}

static struct final_norm final_norm_of(const struct gpt *gpt) {
    const struct sublayer *top = top_of(gpt);
    return (struct final_norm){top->mix.streams, gpt_norm(gpt->parameters.weights, top_of(gpt)->at->norm),
                               gpt->final, gpt->final_statistics};
}

/* The streams that are summed with weights, in two parts: the weights, and the sum with its norm. */
static struct collapse collapse_of(const struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const struct sublayer *top = top_of(gpt);
    return (struct collapse){top->mix.streams,
                             top->mix.squares,
                             {parameters->weights, top->at->projections[0]},
                             {parameters->weights, top->at->theta},
                             gpt->collapse_z,
                             gpt->collapse_h};
}

static bool is_last_pre(const struct gpt *gpt) {
    return gpt->config.stream_reduce == STREAM_REDUCE_LAST_PRE;
}

/* With last_pre the weights are those that the frame has set: mix.read. */
static struct stream_mix weighted_sum_of(const struct gpt *gpt) {
    struct stream_mix mix = top_of(gpt)->mix;
    mix.h = is_last_pre(gpt) ? mix.read : gpt->collapse_h;
    mix.read = mix.h;
    mix.norm = gpt_norm(gpt->parameters.weights, top_of(gpt)->at->norm);
    mix.normed = gpt->final;
    mix.statistics = gpt->final_statistics;
    return mix;
}

void stream_reduce_forward(struct gpt *gpt) {
    const struct final_norm final = final_norm_of(gpt);
    const struct collapse collapse = collapse_of(gpt);
    const struct stream_mix sum = weighted_sum_of(gpt);
    if (gpt->operations.shape.collapsed) {
        collapse_forward(&gpt->operations, gpt_tokens(gpt), &collapse);
    }
    if (gpt->operations.shape.collapsed || is_last_pre(gpt)) {
        width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sum);
    } else {
        final_norm_forward(&gpt->operations, gpt_tokens(gpt), &final);
    }
}

static void collapse_streams_backward(struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct collapse collapse = collapse_of(gpt);
    const struct stream_mix sum = weighted_sum_of(gpt);
    const size_t tokens = gpt_tokens(gpt), streams = (size_t)gpt->config.n_streams;
    const size_t row = streams * (size_t)gpt->config.n_embd;
    width_mix_backward(&gpt->operations, tokens, &sum, gpt->d_final, scratch->d_normed, scratch->d_h,
                       gpt_norm(parameters->gradients, top_of(gpt)->at->norm), parameters->accumulate);
    collapse_backward(&gpt->operations, tokens, &collapse, scratch->d_normed, scratch->d_h,
                      &(struct collapse_gradients){gpt->d_collapse_z,
                                                   scratch->d_streams,
                                                   {parameters->gradients, top_of(gpt)->at->theta}},
                      parameters->accumulate);
    if (gpt->operations.shape.fixed_top) {
        return;
    }
    gemm_run(gpt->compute, &(struct gemm_call){.transpose_a = true,
                                               .a = matrix_of(collapse.streams, 0, tokens, row),
                                               .b = matrix_of(gpt->d_collapse_z, 0, tokens, streams),
                                               .c = matrix_of(parameters->gradients,
                                                              top_of(gpt)->at->projections[0], row, streams),
                                               .beta = parameters->accumulate});
}

/* From d_streams of zero, since nothing else comes to the streams of the top. */
static void last_pre_backward(struct gpt *gpt) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct stream_mix sum = weighted_sum_of(gpt);
    const size_t tokens = gpt_tokens(gpt), streams = (size_t)gpt->config.n_streams;
    const size_t row = streams * (size_t)gpt->config.n_embd;
    width_mix_backward(&gpt->operations, tokens, &sum, gpt->d_final, scratch->d_normed, scratch->d_h,
                       gpt_norm(gpt->parameters.gradients, top_of(gpt)->at->norm), gpt->parameters.accumulate);
    buffer_zero(gpt->compute, scratch->d_streams, 0, tokens * row * element_size(gpt->options.type));
    buffer_zero(gpt->compute, scratch->rms_scale, 0, tokens * gpt->operations.norm_groups * sizeof(float));
    stream_backward(&gpt->operations, tokens, &sum, scratch->d_normed, scratch->rms_scale, scratch->d_streams);
}

void stream_reduce_backward(struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const struct final_norm final = final_norm_of(gpt);
    if (gpt->operations.shape.collapsed) {
        collapse_streams_backward(gpt);
    } else if (is_last_pre(gpt)) {
        last_pre_backward(gpt);
    } else {
        final_norm_backward(&gpt->operations, gpt_tokens(gpt), &final, gpt->d_final, gpt->scratch.d_streams,
                            gpt_norm(parameters->gradients, top_of(gpt)->at->norm), parameters->accumulate);
    }
}
