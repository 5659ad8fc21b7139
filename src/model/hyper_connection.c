#include "src/model/hyper_connection.h"
#include "runtime/device/convert.h"
#include "runtime/gemm/gemm.h"
#include "src/model/linear.h"

static bool is_plain(const struct gpt *gpt) {
    return residual_is_plain(gpt->config.residual);
}

/* Normalised rows of all tokens, and their length. */
static size_t norm_rows(const struct gpt *gpt) {
    return gpt_tokens(gpt) * gpt->operations.norm_groups;
}

static size_t row_length(const struct gpt *gpt) {
    return (size_t)(gpt->config.n_streams * gpt->config.n_embd) / gpt->operations.norm_groups;
}

static struct span rms_gain(const struct gpt *gpt, const struct sublayer *sublayer) {
    return (struct span){gpt->parameters.weights, sublayer->at->rms_gain};
}

/* The sublayer's projections [columns, row]. Steps of generation use what the pass over the prompt has packed. */
static const struct buffer *pack(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct buffer *packed = sublayer->packed ? sublayer->packed : gpt->scratch.packed;
    if (gpt->pass.cache != CACHE_STEP) {
        projections_pack(&gpt->operations, sublayer->at->projections, rms_gain(gpt, sublayer), packed);
    }
    return packed;
}

/* streams -> raw projections z */
static void project(struct gpt *gpt, const struct sublayer *sublayer) {
    const size_t columns = gpt->operations.columns, length = row_length(gpt), tokens = gpt_tokens(gpt);
    const struct span streams = {sublayer->mix.streams, 0}, packed = {pack(gpt, sublayer), 0};
    if (tokens <= FEW_ROWS) { /* by tokens, so that it does not depend on norm_groups */
        few_rows_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed, sublayer->map.z);
    } else if (projections_are_few(&gpt->operations)) {
        projections_multiply(&gpt->operations, tokens, sublayer->mix.streams, packed.buffer, sublayer->map.z);
    } else {
        linear_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed, sublayer->map.z);
    }
}

static void begin(struct gpt *gpt) {
    compute_part(gpt->compute, "hyper-connections");
}

void hyper_connection_enter(struct gpt *gpt, const struct sublayer *sublayer) {
    begin(gpt);
    if (!is_plain(gpt)) {
        project(gpt, sublayer);
        map_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->map);
    }
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

void hyper_connection_leave(struct gpt *gpt, const struct sublayer *sublayer) {
    begin(gpt);
    depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, sublayer[1].mix.streams,
                      sublayer[1].map.squares);
}

const struct buffer *hyper_connection_leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    begin(gpt);
    if (!is_plain(gpt)) {
        depth_mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_streams, scratch->d_output,
                           scratch->d_h);
        return scratch->d_output;
    }
    if (!gpt_drops(gpt)) {
        return scratch->d_streams;
    }
    /* dropout will write to it */
    buffer_copy(gpt->compute, scratch->d_streams, 0, scratch->d_output, 0,
                gpt_tokens(gpt) * (size_t)gpt->config.n_embd * element_size(gpt->options.type));
    return scratch->d_output;
}

/* The projections' part: d_streams += d_z packed, and the gradients of projections and their norm's gain. */
static void projections_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t columns = gpt->operations.columns, length = row_length(gpt);
    const struct matrix d_z = {scratch->d_z_operand, 0, columns};
    pack(gpt, sublayer);
    if (scratch->d_z_operand != scratch->d_z) {
        convert_elements(gpt->compute, (struct span){scratch->d_z, 0}, (struct span){scratch->d_z_operand, 0},
                         norm_rows(gpt) * columns);
    }
    gemm_run(gpt->compute, &(struct gemm_call){.m = norm_rows(gpt),
                                               .n = length,
                                               .k = columns,
                                               .a = d_z,
                                               .b = {scratch->packed, 0, length},
                                               .c = {scratch->d_streams, 0, length},
                                               .beta = 1.0f});
    if (projections_are_few(&gpt->operations)) {
        projections_gradient(&gpt->operations, gpt_tokens(gpt), sublayer->mix.streams, scratch->d_z,
                             scratch->d_packed);
    } else {
        gemm_run(gpt->compute, &(struct gemm_call){.transpose_a = true,
                                                   .m = columns,
                                                   .n = length,
                                                   .k = norm_rows(gpt),
                                                   .a = d_z,
                                                   .b = {sublayer->mix.streams, 0, length},
                                                   .c = {scratch->d_packed, 0, length}});
    }
    projections_unpack(&gpt->operations, sublayer->at->projections, rms_gain(gpt, sublayer), scratch->d_packed,
                       gpt->parameters.gradients);
}

void hyper_connection_enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *gradients = gpt->parameters.gradients;
    const size_t tokens = gpt_tokens(gpt);
    begin(gpt);
    width_mix_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->d_normed, scratch->d_h,
                       gpt_norm(gradients, sublayer->at->norm));
    if (!is_plain(gpt)) {
        map_backward(operations, tokens, &sublayer->map, scratch->d_h, scratch->d_z, scratch->rms_scale,
                     (struct span){gradients, sublayer->at->theta});
    }
    stream_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->rms_scale, scratch->d_streams);
    if (!is_plain(gpt)) {
        projections_backward(gpt, sublayer);
    }
}
