#include "src/model/hyper_connection.h"
#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "src/model/linear.h"

static bool is_plain(const struct gpt *gpt) {
    return residual_is_plain(gpt->config.residual);
}

/* Normalised rows of all tokens. */
static size_t norm_rows(const struct gpt *gpt) {
    return gpt_tokens(gpt) * gpt->operations.norm_groups;
}

static void begin(struct gpt *gpt) {
    compute_set_module(gpt->compute, "hyper-connections");
}

void hyper_connection_pack(struct gpt *gpt) {
    if (!is_plain(gpt) && gpt->pass.cache != CACHE_STEP) {
        begin(gpt);
        projections_pack(&gpt->operations, gpt->parameters.weights, gpt->projections, gpt->packed);
    }
}

void hyper_connection_unpack(struct gpt *gpt, const struct sublayer *sublayer) {
    if (!is_plain(gpt)) {
        begin(gpt);
        projections_unpack(&gpt->operations, gpt->parameters.weights,
                           sublayer ? sublayer->projections : gpt->projections, gpt->scratch.d_packed,
                           gpt->parameters.gradients, gpt->parameters.accumulate);
    }
}

/* streams -> raw projections z */
static void project(struct gpt *gpt, const struct sublayer *sublayer) {
    const size_t columns = gpt->operations.columns, length = norm_length(&gpt->operations),
                 tokens = gpt_tokens(gpt);
    const struct span streams = {sublayer->mix.streams, 0}, packed = sublayer->mix.packed;
    if (tokens <= FEW_ROWS) { /* by tokens, so that it does not depend on norm_groups */
        few_rows_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed, sublayer->mix.z);
    } else if (projections_avoid_gemm(&gpt->operations)) {
        projections_multiply(&gpt->operations, tokens, sublayer->mix.streams, packed, sublayer->mix.z);
    } else {
        linear_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed, sublayer->mix.z);
    }
}

/* The fused frame's kernels give a token the same bits whatever else is in the batch, but not those of few_rows. */
static bool is_fused(const struct gpt *gpt) {
    return frame_is_fused(&gpt->operations) && gpt->pass.cache == CACHE_NONE;
}

void hyper_connection_enter(struct gpt *gpt, const struct sublayer *sublayer) {
    begin(gpt);
    if (is_fused(gpt)) {
        frame_enter(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
        return;
    }
    if (!is_plain(gpt)) {
        project(gpt, sublayer);
        map_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
    }
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

void hyper_connection_leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    begin(gpt);
    if (is_fused(gpt) && next->branch) {
        frame_leave(&gpt->operations, &sublayer->mix);
    } else {
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, next->mix.streams, next->mix.squares);
    }
}

const struct buffer *hyper_connection_leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *d_streams = scratch->d_streams, *d_output = scratch->d_output;
    const size_t tokens = gpt_tokens(gpt);
    begin(gpt);
    if (is_fused(gpt)) {
        if (!sublayer[1].branch) { /* else frame_backward of the next sublayer has computed it */
            frame_output_gradient(&gpt->operations, tokens, &sublayer->mix, d_streams, d_output);
        }
    } else if (!is_plain(gpt)) {
        depth_mix_backward(&gpt->operations, tokens, &sublayer->mix, d_streams, d_output, scratch->d_h);
    } else if (gpt_drops(gpt)) { /* dropout will write to it */
        const size_t row = (size_t)gpt->config.n_embd * element_size(gpt->options.type);
        buffer_copy(gpt->compute, d_streams, 0, d_output, 0, tokens * row);
    } else {
        return d_streams;
    }
    return d_output;
}

/* The projections' part of the streams' gradient: d_streams += d_z packed. */
static void add_projected(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t columns = gpt->operations.columns, length = norm_length(&gpt->operations);
    if (scratch->d_z_lowp != scratch->d_z) {
        convert_elements(gpt->compute, (struct span){scratch->d_z, 0}, (struct span){scratch->d_z_lowp, 0},
                         norm_rows(gpt) * columns);
    }
    gemm_run(gpt->compute, &(struct gemm_call){.a = matrix_of(scratch->d_z_lowp, 0, norm_rows(gpt), columns),
                                               .b = matrix_of(sublayer->mix.packed.buffer,
                                                              sublayer->mix.packed.offset, columns, length),
                                               .c = matrix_of(scratch->d_streams, 0, norm_rows(gpt), length),
                                               .beta = 1.0f});
}

/* The gradients of the packed projections, from d_z. */
static void projections_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t columns = gpt->operations.columns, length = norm_length(&gpt->operations);
    const struct span d_packed = {scratch->d_packed, sublayer->mix.packed.offset};
    if (!is_fused(gpt) && projections_avoid_gemm(&gpt->operations)) {
        projections_gradient(&gpt->operations, gpt_tokens(gpt), sublayer->mix.streams, scratch->d_z, d_packed);
    } else {
        gemm_run(gpt->compute,
                 &(struct gemm_call){.transpose_a = true,
                                     .a = matrix_of(scratch->d_z_lowp, 0, norm_rows(gpt), columns),
                                     .b = matrix_of(sublayer->mix.streams, 0, norm_rows(gpt), length),
                                     .c = matrix_of(d_packed.buffer, d_packed.offset, columns, length)});
    }
}

static void backward_fused(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *gradients = gpt->parameters.gradients;
    frame_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_normed,
                   &(struct frame_gradients){.d_z = scratch->d_z_lowp,
                                             .d_streams = scratch->d_streams,
                                             .d_output = scratch->d_output,
                                             .h_before = sublayer->index > 0 ? sublayer[-1].mix.h : NULL,
                                             .norm = gpt_norm(gradients, sublayer->at->norm),
                                             .d_theta = {gradients, sublayer->at->theta}},
                   gpt->parameters.accumulate);
}

void hyper_connection_enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *gradients = gpt->parameters.gradients;
    const size_t tokens = gpt_tokens(gpt);
    begin(gpt);
    if (is_fused(gpt)) {
        backward_fused(gpt, sublayer);
        projections_backward(gpt, sublayer);
        return;
    }
    width_mix_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->d_normed, scratch->d_h,
                       gpt_norm(gradients, sublayer->at->norm), gpt->parameters.accumulate);
    if (!is_plain(gpt)) {
        map_backward(operations, tokens, &sublayer->mix, scratch->d_h, scratch->d_z, scratch->rms_scale,
                     (struct span){gradients, sublayer->at->theta}, gpt->parameters.accumulate);
    }
    stream_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->rms_scale, scratch->d_streams);
    if (!is_plain(gpt)) {
        add_projected(gpt, sublayer);
        projections_backward(gpt, sublayer);
    }
}
