/* Hyper-connections: streams X [N, S, C] around a branch,
 *
 *     enter    H = map(X), u = sum_s H_pre[s] x_s, normed = LN(u)
 *     leave    x'_i = sum_j H_res[i, j] x_j + H_post[i] output
 *
 * where the map is the kernel file of the residual variant. With the fused frame (frame_is_fused) what is written
 * here as two steps, leave and the enter that follows, is one kernel.
 *
 * In the frame `early` H_pre of the next sublayer is known before its streams are. In the variant `wide` it is a
 * constant. With read_delay it comes from the sublayer before: the first sublayer reads stream 0, and with
 * stream_reduce = last_pre the top reads with the H_pre of the last sublayer:
 *
 *     enter    u = sum_s read[s] x_s, normed = LN(u), H = map(X)
 *     leave    x'_i = sum_j H_res[i, j] x_j + H_post[i] output, and the next sublayer reads with H_pre
 *
 * So the next sublayer's u is known while its streams are written: leave and the width mix of the next enter are
 * one kernel, and so is their backward pass, which runs before that of the first sublayer's branch. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include <inttypes.h>
#include <stdlib.h>

/* gpt->frame_state of `early` */
struct early {
    /* [N, h_row], as if a sublayer before the first had computed it: H_pre of stream 0 alone, H_post zero, H_res
     * the identity */
    const struct buffer *first;
    /* [N, h_row] without read_delay: gradients of h of odd sublayers; scratch.d_h has those of the others */
    const struct buffer *d_h;
    int64_t normed; /* the sublayer whose mix.normed the leave before it has computed; -1: none */
};

static struct early *early_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

/* Of wide without read_delay: a sublayer reads with its own H_pre. */
static bool reads_own(const struct gpt *gpt) {
    return !gpt->config.read_delay;
}

/* What runs the map of a sublayer: see gpt.unmixed. */
static struct operations *maps_of(struct gpt *gpt, const struct sublayer *sublayer) {
    return gpt_is_unmixed(gpt, sublayer->index) ? &gpt->unmixed : &gpt->operations;
}

/* The gradient of a sublayer's h. */
static const struct buffer *d_h_of(const struct gpt *gpt, int64_t sublayer) {
    return reads_own(gpt) && sublayer % 2 ? early_of(gpt)->d_h : gpt->scratch.d_h;
}

/* ---- parameters */

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const struct model_config *config = builder->config;
    if (sublayer == BRANCHES * config->n_layer) {
        stream_reduce_add_parameters(builder);
        return;
    }
    const struct residual_settings settings = model_config_connection(config, sublayer);
    const int64_t streams = config->n_streams, copies = config->residual->has_fractions ? 1 : streams;
    const int64_t groups = (int64_t)residual_sizes(config->residual, streams, NULL).norm_groups;
    const int64_t row = copies * config->n_embd / groups;
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    uint64_t *projection = at->projections, *theta = &at->theta; /* where the offsets of the next leaves go */
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf->name; leaf++) {
        uint64_t shape[2];
        const unsigned rank = residual_leaf_shape(leaf, streams, row, shape);
        uint64_t *offset_copy = leaf->kind == LEAF_NORM         ? &at->rms_gain
                                : leaf->kind == LEAF_PROJECTION ? projection++
                                                                : theta;
        if (shape[0] * shape[1] == 0 || !residual_leaf_exists(config->residual, leaf, &settings) ||
            (leaf->kind == LEAF_NORM && !config->hc_norm_gain)) {
            continue;
        }
        theta = offset_copy == theta ? NULL : theta; /* the offset of the first small leaf is that of theta */
        struct parameter *parameter = parameters_add(builder, leaf->name, rank, shape, offset_copy);
        parameter->leaf = leaf;
        parameter->is_hc_gain = leaf->kind == LEAF_NORM;
        parameter->initial = leaf->initial;
        parameter->upcycled = leaf->upcycled;
        parameter->decayed = leaf->kind == LEAF_PROJECTION;
        if (parameter->decayed && config->hc_init == HC_INIT_LITGPT && config->residual->litgpt_projections) {
            parameter->deviation = parameters_litgpt_deviation(config);
        }
    }
}

#define MOST_EPS_IN_ROWS 1e-5 /* tens of sublayers then change logits by less than bf16 rounds them */

/* Equal streams stay equal as long as rows of H_res sum to 1, and are read as one where H_pre sums to 1. The top
 * has to read them in the same way. */
static int check_upcycling(const struct model_config *config) {
    const struct residual_variant *residual = config->residual;
    const double least_share = 0.5 / (double)(config->n_streams - 1); /* see residual_share */
    char reduce[32];
    if (residual->has_fractions) { /* what it begins with is a plain model */
        return 0;
    }
    if (config->hc_init == HC_INIT_LITGPT && residual->litgpt_projections && config->hc_dynamic) {
        return error_set("hc_init = litgpt begins with projections that depend on the streams: leave it out");
    }
    if (residual->eps_in_rows && config->hc_eps > MOST_EPS_IN_ROWS) {
        return error_set("with hc_eps = %g each sublayer takes that part of the streams: give at most %g",
                         config->hc_eps, MOST_EPS_IN_ROWS);
    }
    if (config->stream_reduce == STREAM_REDUCE_NORM_SUM || config->stream_reduce == STREAM_REDUCE_SUM_NORM) {
        options_word(STREAM_REDUCE_WORDS, config->stream_reduce, reduce, sizeof reduce);
        return error_set("stream_reduce = %s sums %" PRId64
                         " streams, of which a plain model has one: leave it out",
                         reduce, config->n_streams);
    }
    if (residual->optional_with && residual_setting_value(&config->settings, residual->optional_with).flag) {
        return error_set(
            "%s = true takes a part of the streams in each sublayer, which a plain model keeps: leave it out",
            residual->optional_with);
    }
    if (config->hc_eps >= 0.5 * least_share) {
        return error_set("hc_eps = %g is too much beside the least weight, %.3g, with which a stream is read: give "
                         "at most %.3g",
                         config->hc_eps, least_share, 0.25 * least_share);
    }
    return frame_check_equal_streams(config);
}

/* ---- memory */

static uint64_t sublayers(const struct gpt *gpt) {
    return BRANCHES * (uint64_t)gpt->config.n_layer;
}

/* Sublayers that mix their streams. */
static uint64_t mixing(const struct gpt *gpt) {
    return gpt->config.hc_until ? (uint64_t)gpt->config.hc_until : sublayers(gpt);
}

/* Elements of the packed projection matrices [columns, row] of a sublayer with these maps. */
static uint64_t packed_elements(const struct operations *maps) {
    return maps->columns > 0 ? maps->columns * norm_length(maps) : 0;
}

/* The same of the first `count` sublayers. */
static uint64_t packed_before(const struct gpt *gpt, uint64_t count) {
    const uint64_t mixed = size_smaller(count, mixing(gpt));
    return mixed * packed_elements(&gpt->operations) + (count - mixed) * packed_elements(&gpt->unmixed);
}

static void plan(struct gpt *gpt) {
    const uint64_t leaves = sublayers(gpt) * gpt->operations.matrices;
    gpt->packed = memory_plan_add(&gpt->plan, "weights", packed_before(gpt, sublayers(gpt)), gpt->options.type);
    gpt->projection_leaves = memory_plan_add(&gpt->plan, "weights", leaves * LEAF_INTEGERS, ELEMENT_INT32);
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const matrices = "hyper-connection matrices";
    const int64_t streams = gpt->config.n_streams;
    const bool is_new = frame_plan_streams(gpt, sublayer);
    if (!sublayer->branch) {
        stream_reduce_plan(gpt, sublayer);
        return;
    }
    sublayer->mix.theta = (struct span){gpt->parameters.weights, sublayer->at->theta};
    sublayer->mix.packed = (struct span){gpt->packed, packed_before(gpt, (uint64_t)sublayer->index)};
    if (is_new) {
        sublayer->gram = gpt->options.recompute ? gpt_plan_floats(gpt, matrices, streams * streams) : NULL;
        if (!gpt->operations.shape.settings.is_static) {
            sublayer->mix.z = gpt_plan_floats(gpt, matrices, (int64_t)maps_of(gpt, sublayer)->z_row);
        } else { /* zeros that nothing writes */
            sublayer->mix.z = memory_plan_add(&gpt->plan, matrices, gpt->operations.z_row, ELEMENT_FP32);
        }
        sublayer->mix.h = gpt_plan_floats(gpt, matrices, (int64_t)gpt->operations.h_row);
    }
}

static void plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    struct gpt_scratch *scratch = &gpt->scratch;
    if (!gpt_shares_streams(gpt)) {
        scratch->d_h = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.h_row);
    }
    if (gpt->options.mode != GPT_TRAINING) {
        return;
    }
    scratch->d_packed = memory_plan_add(&gpt->plan, group, packed_before(gpt, sublayers(gpt)), ELEMENT_FP32);
    scratch->d_z_lowp = gpt_plan_activations(gpt, group, (int64_t)gpt->operations.z_row);
    scratch->d_z = scratch->d_z_lowp;
    if (!frame_is_fused(&gpt->operations)) { /* which keeps these to itself */
        scratch->d_z = gpt->options.type == ELEMENT_FP32
                           ? scratch->d_z_lowp
                           : gpt_plan_floats(gpt, group, (int64_t)gpt->operations.z_row);
        scratch->rms_scale = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.norm_groups);
    }
}

static uint64_t largest_matrix(const struct gpt *gpt) {
    return size_larger(packed_elements(&gpt->operations), gpt_tokens(gpt) * (uint64_t)gpt_stream_row(gpt));
}

/* The leaves of sublayers [first, first + count), which all mix their streams or do not. */
static struct projection_table projections_of(const struct gpt *gpt, uint64_t first, uint64_t count) {
    const uint64_t until = mixing(gpt);
    const uint64_t mixed = gpt->operations.matrices, unmixed = gpt->unmixed.matrices;
    const uint64_t before = size_smaller(first, until) * mixed + (first - size_smaller(first, until)) * unmixed;
    return (struct projection_table){gpt->projection_leaves, before, count * (first < until ? mixed : unmixed)};
}

/* Writes the table of all projection matrices to the device. */
static int create(struct gpt *gpt) {
    if (gpt->operations.columns == 0) {
        return 0;
    }
    const struct projection_table last = projections_of(gpt, sublayers(gpt) - 1, 1);
    const size_t count = last.first + last.count;
    struct projection_leaf *leaves = memory_zeroed(count, sizeof *leaves);
    for (size_t i = 0; i < sublayers(gpt); i++) {
        const struct sublayer *sublayer = &gpt->sublayers[i];
        projections_list(maps_of(gpt, sublayer), sublayer->at->projections, sublayer->at->rms_gain,
                         sublayer->mix.packed.offset, &leaves[projections_of(gpt, i, 1).first]);
    }
    const int status = buffer_write(gpt->compute, gpt->projection_leaves, 0, leaves, count * sizeof *leaves);
    free(leaves);
    return status;
}

static void early_plan(struct gpt *gpt) {
    struct early *state = memory_zeroed(1, sizeof *state);
    gpt->frame_state = state;
    plan(gpt);
    state->first = gpt_plan_floats(gpt, "hyper-connection matrices", (int64_t)gpt->operations.h_row);
}

/* The backward pass reads a sublayer's statistics after those of the layer before were computed again. */
static void early_plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    plan_sublayer(gpt, sublayer);
    if (is_last_pre(gpt) && !sublayer->branch) {
        sublayer->mix.h = sublayer[-1].mix.h;
    } else if (!reads_own(gpt) && sublayer->branch) {
        sublayer->mix.read = sublayer->index > 0 ? sublayer[-1].mix.h : early_of(gpt)->first;
    }
    if (sublayer->branch && sublayer->index >= BRANCHES && gpt->options.mode == GPT_TRAINING &&
        gpt->options.recompute) {
        sublayer->mix.statistics = gpt_plan_floats(gpt, "branch activations", 2);
    }
}

static void early_plan_scratch(struct gpt *gpt) {
    plan_scratch(gpt);
    if (gpt->options.mode == GPT_TRAINING && reads_own(gpt)) {
        early_of(gpt)->d_h = gpt_plan_floats(gpt, "scratch", (int64_t)gpt->operations.h_row);
    }
    if (gpt->options.mode == GPT_TRAINING && !gpt->scratch.rms_scale) {
        gpt->scratch.rms_scale = gpt_plan_floats(gpt, "scratch", (int64_t)gpt->operations.norm_groups);
    }
}

static int early_create(struct gpt *gpt) {
    const size_t streams = (size_t)gpt->config.n_streams, row = gpt->operations.h_row, tokens = gpt_tokens(gpt);
    float *rows = memory_zeroed(tokens * row, sizeof *rows);
    for (size_t token = 0; token < tokens; token++) {
        rows[token * row] = 1.0f;
        for (size_t s = 0; s < streams; s++) {
            rows[token * row + 2 * streams + s * (streams + 1)] = 1.0f;
        }
    }
    const int status =
        buffer_write(gpt->compute, early_of(gpt)->first, 0, rows, tokens * row * sizeof *rows) || create(gpt);
    free(rows);
    return status ? -1 : 0;
}

/* ---- forward */

/* Normalised rows of all tokens. */
static size_t norm_rows(const struct gpt *gpt) {
    return gpt_tokens(gpt) * gpt->operations.norm_groups;
}

/* The streams as normalised rows, and the packed projections. */
static struct matrix stream_rows(const struct gpt *gpt, const struct buffer *streams) {
    return matrix_of(streams, 0, norm_rows(gpt), norm_length(&gpt->operations));
}

static struct matrix packed_of(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *packed) {
    const struct operations *maps = maps_of(gpt, sublayer);
    return matrix_of(packed, sublayer->mix.packed.offset, maps->columns, norm_length(maps));
}

static void pack(struct gpt *gpt, uint64_t first, uint64_t count) {
    if (count > 0 && gpt->operations.columns > 0) {
        projections_pack(maps_of(gpt, &gpt->sublayers[first]), gpt->parameters.weights,
                         projections_of(gpt, first, count), gpt->packed);
    }
}

/* Packs the projection matrices of all sublayers for GEMMs. Steps of generation use what the pass over the prompt
 * has packed. */
static void begin(struct gpt *gpt) {
    const struct stream_mix *mix = &gpt->sublayers[0].mix;
    if (gpt->pass.cache != CACHE_STEP) {
        pack(gpt, 0, mixing(gpt));
        pack(gpt, mixing(gpt), sublayers(gpt) - mixing(gpt));
    }
    if (gpt->config.residual->has_fractions && !gpt->config.x0_lambdas) { /* the embedding's are of all channels */
        stream_squares(&gpt->operations, gpt_tokens(gpt), mix->streams, mix->squares);
    }
}

/* Whether the current pass runs the fused frame. Its kernels give a token the same bits whatever else is in the
 * batch, but not those of few_rows_multiply. */
static bool is_fused(const struct gpt *gpt) {
    return frame_is_fused(&gpt->operations) && gpt->pass.cache == CACHE_NONE;
}

/* streams -> z and h */
static void run_map(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct stream_mix *mix = &sublayer->mix;
    struct operations *maps = maps_of(gpt, sublayer);
    const size_t columns = maps->columns, tokens = gpt_tokens(gpt);
    if (columns > 0 && tokens > FEW_ROWS && projections_avoid_gemm(maps)) {
        projections_multiply(maps, tokens, mix->streams, mix->packed, mix->z);
    } else if (columns > 0 && tokens > FEW_ROWS) {
        linear_multiply(&gpt->operations, stream_rows(gpt, mix->streams),
                        packed_of(gpt, sublayer, mix->packed.buffer),
                        matrix_of(mix->z, 0, norm_rows(gpt), columns));
    } else if (columns > 0) { /* by tokens, so that it does not depend on norm_groups */
        few_rows_multiply(&gpt->operations, norm_rows(gpt), columns, norm_length(&gpt->operations),
                          (struct span){mix->streams, 0}, mix->packed, (struct span){mix->z, 0}, columns);
    }
    map_forward(maps, tokens, mix);
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    if (is_fused(gpt)) {
        frame_enter(maps_of(gpt, sublayer), gpt_tokens(gpt), &sublayer->mix);
        return;
    }
    run_map(gpt, sublayer);
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    if (is_fused(gpt) && next->branch && !frame_lambdas_follow(sublayer)) {
        frame_leave(maps_of(gpt, next), &sublayer->mix);
    } else {
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, frame_next(sublayer),
                          next->mix.squares);
    }
}

static void early_begin(struct gpt *gpt) {
    early_of(gpt)->normed = -1;
    begin(gpt);
}

static void early_enter(struct gpt *gpt, const struct sublayer *sublayer) {
    struct early *state = early_of(gpt);
    const bool normed = state->normed == sublayer->index; /* not of a pass's first, or a layer's that runs again */
    state->normed = -1;
    if (is_fused(gpt) || !normed) {
        enter(gpt, sublayer);
    } else if (!reads_own(gpt)) {
        run_map(gpt, sublayer);
    }
}

static void early_leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    if (!next->branch || is_fused(gpt) || frame_lambdas_follow(sublayer)) {
        leave(gpt, sublayer);
        return;
    }
    if (reads_own(gpt)) {
        run_map(gpt, next);
    }
    mix_between(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, &next->mix);
    early_of(gpt)->normed = next->index;
}

/* ---- backward */

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    if (!is_fused(gpt)) {
        depth_mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_streams, scratch->d_output,
                           scratch->d_h);
        return scratch->d_output;
    }
    if (!sublayer[1].branch || frame_lambdas_follow(sublayer)) { /* else the next one's frame_backward has */
        frame_output_gradient(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_streams,
                              scratch->d_normed);
    }
    return scratch->d_normed;
}

/* d_h [N, h_row] -> scratch.d_z, scratch.rms_scale, and the gradient of theta */
static void map_backward_of(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_h) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    map_backward(maps_of(gpt, sublayer), gpt_tokens(gpt), &sublayer->mix, d_h, scratch->d_z, scratch->rms_scale,
                 (struct span){gpt->parameters.gradients, sublayer->at->theta}, gpt->parameters.accumulate);
}

/* scratch.d_z -> the gradients of the packed projections and, unless the fused frame has added it, its part of
 * scratch.d_streams. */
static void projections_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    struct operations *maps = maps_of(gpt, sublayer);
    const size_t columns = maps->columns;
    const struct matrix d_z = matrix_of(scratch->d_z_lowp, 0, norm_rows(gpt), columns);
    const struct matrix d_packed = packed_of(gpt, sublayer, scratch->d_packed);
    if (columns == 0) {
        return;
    }
    if (!is_fused(gpt)) {
        if (scratch->d_z_lowp != scratch->d_z) {
            convert_elements(gpt->compute, (struct span){scratch->d_z, 0}, (struct span){scratch->d_z_lowp, 0},
                             norm_rows(gpt) * columns);
        }
        linear_input_backward(gpt->compute, d_z, packed_of(gpt, sublayer, gpt->packed),
                              stream_rows(gpt, scratch->d_streams), true);
    }
    if (!is_fused(gpt) && projections_avoid_gemm(maps)) {
        projections_gradient(maps, gpt_tokens(gpt), sublayer->mix.streams, scratch->d_z,
                             (struct span){d_packed.buffer, d_packed.offset});
    } else {
        linear_matrix_backward(gpt->compute, d_z, stream_rows(gpt, sublayer->mix.streams), d_packed, false);
    }
}

static void enter_backward_fused(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *gradients = gpt->parameters.gradients;
    const bool delayed = gpt->config.read_delay;
    const bool is_first = sublayer->index == 0 || frame_lambdas_follow(sublayer - 1);
    const struct buffer *h_before = is_first ? NULL : sublayer[-1].mix.h;
    frame_backward(maps_of(gpt, sublayer), gpt_tokens(gpt), &sublayer->mix,
                   &(struct frame_gradients){.d_z = scratch->d_z_lowp,
                                             .d_streams = scratch->d_streams,
                                             .h_before = delayed ? sublayer->mix.read : h_before,
                                             .d_branch = scratch->d_normed,
                                             .d_read = delayed ? scratch->d_h : NULL,
                                             .norm = gpt_norm(gradients, sublayer->at->norm),
                                             .d_theta = {gradients, sublayer->at->theta}},
                   gpt->parameters.accumulate);
    projections_backward(gpt, sublayer);
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    if (is_fused(gpt)) {
        enter_backward_fused(gpt, sublayer);
        return;
    }
    width_mix_backward(&gpt->operations, tokens, &sublayer->mix, scratch->d_normed, scratch->d_normed, scratch->d_h,
                       gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
    map_backward_of(gpt, sublayer, scratch->d_h);
    stream_backward(&gpt->operations, tokens, &sublayer->mix, scratch->d_normed, scratch->rms_scale,
                    scratch->d_streams);
    projections_backward(gpt, sublayer);
}

static void unpack(struct gpt *gpt, uint64_t first, uint64_t count) {
    if (count > 0 && gpt->operations.columns > 0) {
        projections_unpack(maps_of(gpt, &gpt->sublayers[first]), gpt->parameters.weights,
                           projections_of(gpt, first, count), gpt->scratch.d_packed, gpt->parameters.gradients,
                           gpt->parameters.accumulate);
    }
}

static void finish_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (sublayer) {
        unpack(gpt, (uint64_t)sublayer->index, 1);
    } else {
        unpack(gpt, 0, mixing(gpt));
        unpack(gpt, mixing(gpt), sublayers(gpt) - mixing(gpt));
    }
}

/* The fused frame gets the gradient of the last H_pre in scratch.d_h. Otherwise what comes through the norm of the
 * top, if the top reads with H_pre, is left to leave_backward. */
static void early_top_backward(struct gpt *gpt) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    if (is_last_pre(gpt) && !is_fused(gpt)) {
        buffer_zero(gpt->compute, scratch->d_streams, 0, gpt_activation_bytes(gpt, gpt_stream_row(gpt)));
        return;
    }
    stream_reduce_backward(gpt);
    if (!is_last_pre(gpt) && !reads_own(gpt) && is_fused(gpt)) {
        buffer_zero(gpt->compute, scratch->d_h, 0, tokens * gpt->operations.h_row * sizeof(float));
    }
}

/* Backward pass of the mix between `from` and the sublayer behind it. Returns the gradient of from's output. At the
 * top gpt->d_final takes the place of d_normed: it is zero if no norm reads what a width mix makes there. */
static const struct buffer *between_backward(struct gpt *gpt, const struct stream_mix *from,
                                             const struct sublayer *next) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    struct stream_mix to = next->mix;
    struct mix_gradients gradients = {.d_branch = scratch->d_normed,
                                      .d_streams = scratch->d_streams,
                                      .rms_scale = scratch->rms_scale,
                                      .d_read = d_h_of(gpt, reads_own(gpt) ? next->index : next->index - 1),
                                      .d_h = d_h_of(gpt, next->index - 1),
                                      .norm = gpt_norm(gpt->parameters.gradients, next->at->norm)};
    if (!next->branch) {
        to.read = from->h; /* with last_pre, and else of no consequence */
        gradients.d_branch = gpt->d_final;
        buffer_zero(gpt->compute, scratch->rms_scale, 0, tokens * gpt->operations.norm_groups * sizeof(float));
    }
    if (!next->branch && !is_last_pre(gpt)) {
        gradients.norm = (struct layer_norm){{NULL, 0}, {NULL, 0}};
        buffer_zero(gpt->compute, gpt->d_final, 0, gpt_activation_bytes(gpt, gpt->config.n_embd));
    }
    mix_backward(&gpt->operations, tokens, from, &to, &gradients, gpt->parameters.accumulate);
    if (reads_own(gpt) && next->branch) {
        map_backward_of(gpt, next, gradients.d_read);
    }
    return gradients.d_branch;
}

/* Backward pass of a depth mix that x0_lambdas separate from the next width mix. */
static void lambdas_between_backward(struct gpt *gpt, const struct sublayer *sublayer,
                                     const struct buffer *d_output) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    const struct buffer *nothing = gpt->d_final;
    depth_mix_backward(&gpt->operations, tokens, &sublayer->mix, scratch->d_streams, d_output,
                       d_h_of(gpt, sublayer->index));
    buffer_zero(gpt->compute, nothing, 0, gpt_activation_bytes(gpt, gpt->config.n_embd));
    buffer_zero(gpt->compute, scratch->rms_scale, 0, tokens * gpt->operations.norm_groups * sizeof(float));
    stream_backward(&gpt->operations, tokens, &sublayer->mix, nothing, scratch->rms_scale, scratch->d_streams);
}

/* Also the backward pass of this sublayer's map and of the next sublayer's enter, but for that of its map. */
static const struct buffer *early_leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (is_fused(gpt)) {
        return leave_backward(gpt, sublayer);
    }
    const struct buffer *d_output = gpt->scratch.d_output;
    if (frame_lambdas_follow(sublayer)) {
        lambdas_between_backward(gpt, sublayer, d_output);
    } else {
        d_output = between_backward(gpt, &sublayer->mix, sublayer + 1);
    }
    if (!reads_own(gpt)) {
        map_backward_of(gpt, sublayer, gpt->scratch.d_h);
        projections_backward(gpt, sublayer);
    }
    return d_output;
}

/* early_leave_backward of the sublayer before does this work. Sublayer 0, and a sublayer behind x0_lambdas, have no
 * such leave: an identity mix stands in for it. */
static void early_enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (is_fused(gpt)) {
        enter_backward_fused(gpt, sublayer);
    } else if (sublayer->index == 0 || frame_lambdas_follow(sublayer - 1)) {
        struct stream_mix before = sublayer->mix;
        before.h = early_of(gpt)->first;
        between_backward(gpt, &before, sublayer);
    }
}

/* ---- values */

static size_t values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    const size_t streams = (size_t)gpt->config.n_streams;
    const struct {
        const char *name;
        unsigned rank;
        size_t first;
    } all[] = {{"h_pre", gpt->operations.pre > streams ? 2 : 1, 0},
               {"h_post", 1, gpt->operations.pre},
               {"h_res", 2, gpt->operations.pre + streams}};
    if (!gpt->sublayers[sublayer].branch) {
        return 0;
    }
    for (size_t i = 0; i < 3; i++) {
        values[i] = (struct frame_value){.buffer = gpt->sublayers[sublayer].mix.h,
                                         .row = gpt->operations.h_row,
                                         .first = all[i].first,
                                         .rank = all[i].rank,
                                         .shape = {streams, all[i].rank == 2 ? streams : 1}};
        snprintf(values[i].name, sizeof values[i].name, "%s.%" PRId64, all[i].name, sublayer);
    }
    return 3;
}

const struct frame frame_mixed = {
    .name = "mixed",
    .reads_output = true,
    .add_norm = frame_add_norm,
    .add_parameters = add_parameters,
    .check_upcycling = check_upcycling,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .plan_scratch = plan_scratch,
    .largest_matrix = largest_matrix,
    .create = create,
    .begin = begin,
    .enter = enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .finish_backward = finish_backward,
    .values = values,
};

const struct frame frame_early = {
    .name = "early",
    .reads_output = true,
    .completes_next = true,
    .add_norm = frame_add_norm,
    .add_parameters = add_parameters,
    .check_upcycling = check_upcycling,
    .plan = early_plan,
    .plan_sublayer = early_plan_sublayer,
    .plan_scratch = early_plan_scratch,
    .largest_matrix = largest_matrix,
    .create = early_create,
    .begin = early_begin,
    .enter = early_enter,
    .leave = early_leave,
    .top = stream_reduce_forward,
    .top_backward = early_top_backward,
    .leave_backward = early_leave_backward,
    .enter_backward = early_enter_backward,
    .finish_backward = finish_backward,
    .values = values,
};
