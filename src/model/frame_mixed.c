/* Hyper-connections: streams X [N, S, C] around a branch,
 *
 *     enter    H = map(X), u = sum_s H_pre[s] x_s, normed = LN(u)
 *     leave    x'_i = sum_j H_res[i, j] x_j + H_post[i] output
 *
 * where the map is the kernel file of the residual variant. With the fused frame (frame_is_fused) what is written
 * here as two steps, leave and the enter that follows, is one kernel. */
#include "src/model/frame_mixed.h"
#include "runtime/device/compute.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/sizes.h"
#include "src/model/frame_parts.h"
#include "src/model/linear.h"
#include "src/model/stream_reduce.h"
#include <inttypes.h>
#include <stdlib.h>

/* ---- parameters */

void mixed_add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const struct model_config *config = builder->config;
    if (sublayer == BRANCHES * config->n_layer) {
        stream_reduce_add_parameters(builder);
        return;
    }
    const int64_t streams = config->n_streams;
    const int64_t row = streams * config->n_embd / residual_norm_groups(config->residual, streams);
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    uint64_t *projection = at->projections, *theta = &at->theta; /* homes of the next leaves */
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf->name; leaf++) {
        uint64_t shape[2];
        const unsigned rank = residual_leaf_shape(leaf, streams, row, shape);
        uint64_t *offset_copy = leaf->kind == LEAF_NORM         ? &at->rms_gain
                                : leaf->kind == LEAF_PROJECTION ? projection++
                                                                : theta;
        if (shape[0] * shape[1] == 0 || !residual_leaf_exists(config->residual, leaf, &config->settings) ||
            (leaf->kind == LEAF_NORM && !config->hc_norm_gain)) {
            continue;
        }
        theta = offset_copy == theta ? NULL : theta; /* the offset of the first small leaf is that of theta */
        struct parameter *parameter = parameters_add(builder, leaf->name, rank, shape, offset_copy);
        parameter->leaf = leaf;
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
int mixed_check_upcycling(const struct model_config *config) {
    const struct residual_variant *residual = config->residual;
    const double least_share = 0.5 / (double)(config->n_streams - 1); /* see residual_share */
    char reduce[32];
    if (config->hc_init == HC_INIT_LITGPT && residual->litgpt_projections) {
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
    if (residual->optional_with && config->settings.values[residual_setting_find(residual->optional_with)].flag) {
        return error_set(
            "%s = true takes a part of the streams in each sublayer, which a plain model keeps: leave it out",
            residual->optional_with);
    }
    return config->hc_eps < 0.5 * least_share ? frame_check_equal_streams(config)
                                              : error_set("hc_eps = %g is too much beside the least weight, %.3g, "
                                                          "with which a stream is read: give at most "
                                                          "%.3g",
                                                          config->hc_eps, least_share, 0.25 * least_share);
}

/* ---- memory */

/* Numbers that are projected from a token's streams: columns of each normalised row. */
static int64_t projected(const struct gpt *gpt) {
    return (int64_t)(gpt->operations.norm_groups * gpt->operations.columns);
}

/* Elements of a sublayer's packed projection matrices [columns, row]. */
static uint64_t packed_elements(const struct gpt *gpt) {
    return gpt->operations.columns * norm_length(&gpt->operations);
}

static uint64_t sublayers(const struct gpt *gpt) {
    return BRANCHES * (uint64_t)gpt->config.n_layer;
}

void mixed_plan(struct gpt *gpt) {
    const uint64_t leaves = (uint64_t)residual_projection_matrices(gpt->config.residual, gpt->config.n_streams);
    gpt->packed = memory_plan_add(&gpt->plan, "weights", sublayers(gpt) * packed_elements(gpt), gpt->options.type);
    gpt->projections.leaves =
        memory_plan_add(&gpt->plan, "weights", sublayers(gpt) * leaves * LEAF_INTEGERS, ELEMENT_INT32);
}

void mixed_plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const matrices = "hyper-connection matrices";
    const int64_t streams = gpt->config.n_streams;
    const bool is_new = frame_plan_streams(gpt, sublayer);
    if (!sublayer->branch) {
        stream_reduce_plan(gpt);
        return;
    }
    sublayer->mix.theta = (struct span){gpt->parameters.weights, sublayer->at->theta};
    sublayer->mix.packed = (struct span){gpt->packed, (size_t)sublayer->index * packed_elements(gpt)};
    if (is_new) {
        sublayer->gram = gpt->options.recompute ? gpt_plan_floats(gpt, matrices, streams * streams) : NULL;
        sublayer->mix.z = gpt_plan_floats(gpt, matrices, projected(gpt));
        sublayer->mix.h = gpt_plan_floats(gpt, matrices, (int64_t)gpt->operations.h_row);
    }
}

void mixed_plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    struct gpt_scratch *scratch = &gpt->scratch;
    if (!gpt_shares_streams(gpt)) {
        scratch->d_h = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.h_row);
    }
    if (gpt->options.mode != GPT_TRAINING) {
        return;
    }
    scratch->d_packed = memory_plan_add(&gpt->plan, group, sublayers(gpt) * packed_elements(gpt), ELEMENT_FP32);
    scratch->d_z_lowp = gpt_plan_activations(gpt, group, projected(gpt));
    scratch->d_z = scratch->d_z_lowp;
    if (!frame_is_fused(&gpt->operations)) { /* which keeps these to itself */
        scratch->d_z =
            gpt->options.type == ELEMENT_FP32 ? scratch->d_z_lowp : gpt_plan_floats(gpt, group, projected(gpt));
        scratch->rms_scale = gpt_plan_floats(gpt, group, (int64_t)gpt->operations.norm_groups);
    }
}

uint64_t mixed_largest_matrix(const struct gpt *gpt) {
    const uint64_t row = (uint64_t)gpt->config.n_streams * (uint64_t)gpt->config.n_embd;
    return size_larger(packed_elements(gpt), gpt_tokens(gpt) * row);
}

/* Writes the table of all projection matrices to the device. */
int mixed_create(struct gpt *gpt) {
    if (gpt->operations.columns == 0) {
        return 0;
    }
    const size_t each = (size_t)residual_projection_matrices(gpt->config.residual, gpt->config.n_streams);
    const size_t count = each * sublayers(gpt);
    struct projection_leaf *leaves = memory_zeroed(count, sizeof *leaves);
    for (size_t i = 0; i < sublayers(gpt); i++) {
        struct sublayer *sublayer = &gpt->sublayers[i];
        sublayer->projections = (struct projection_table){gpt->projections.leaves, i * each, each};
        projections_list(&gpt->operations, sublayer->at->projections, sublayer->at->rms_gain,
                         sublayer->mix.packed.offset, &leaves[i * each]);
    }
    gpt->projections.count = count;
    const int status = buffer_write(gpt->compute, gpt->projections.leaves, 0, leaves, count * sizeof *leaves);
    free(leaves);
    return status;
}

/* ---- forward */

/* Normalised rows of all tokens. */
static size_t norm_rows(const struct gpt *gpt) {
    return gpt_tokens(gpt) * gpt->operations.norm_groups;
}

static void set_module(struct gpt *gpt) {
    compute_set_module(gpt->compute, "hyper-connections");
}

/* Packs the projection matrices of all sublayers for GEMMs. Steps of generation use what the pass over the prompt
 * has packed. */
void mixed_begin(struct gpt *gpt) {
    if (gpt->pass.cache != CACHE_STEP && gpt->operations.columns > 0) {
        set_module(gpt);
        projections_pack(&gpt->operations, gpt->parameters.weights, gpt->projections, gpt->packed);
    }
}

/* streams -> raw projections z */
static void project(struct gpt *gpt, const struct sublayer *sublayer) {
    const size_t columns = gpt->operations.columns, length = norm_length(&gpt->operations),
                 tokens = gpt_tokens(gpt);
    const struct span streams = {sublayer->mix.streams, 0}, packed = sublayer->mix.packed;
    if (tokens <= FEW_ROWS) { /* by tokens, so that it does not depend on norm_groups */
        few_rows_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed,
                          (struct span){sublayer->mix.z, 0}, columns);
    } else if (projections_avoid_gemm(&gpt->operations)) {
        projections_multiply(&gpt->operations, tokens, sublayer->mix.streams, packed, sublayer->mix.z);
    } else {
        linear_multiply(&gpt->operations, norm_rows(gpt), columns, length, streams, packed, sublayer->mix.z);
    }
}

/* The fused frame's kernels give a token the same bits whatever else is in the batch, but not those of few_rows. */
bool mixed_is_fused(const struct gpt *gpt) {
    return frame_is_fused(&gpt->operations) && gpt->pass.cache == CACHE_NONE;
}

void mixed_map(struct gpt *gpt, const struct sublayer *sublayer) {
    if (gpt->operations.columns > 0) {
        project(gpt, sublayer);
    }
    map_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        frame_enter(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
        return;
    }
    mixed_map(gpt, sublayer);
    width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    set_module(gpt);
    if (mixed_is_fused(gpt) && next->branch) {
        frame_leave(&gpt->operations, &sublayer->mix);
    } else {
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, next->mix.streams, next->mix.squares);
    }
}

/* ---- backward */

const struct buffer *mixed_leave_backward_fused(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    if (!sublayer[1].branch) { /* else frame_backward of the next sublayer has computed it */
        frame_output_gradient(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_streams,
                              scratch->d_normed);
    }
    return scratch->d_normed;
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        return mixed_leave_backward_fused(gpt, sublayer);
    }
    depth_mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, scratch->d_streams, scratch->d_output,
                       scratch->d_h);
    return scratch->d_output;
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
    if (gpt->operations.columns == 0) {
        return;
    }
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t columns = gpt->operations.columns, length = norm_length(&gpt->operations);
    const struct span d_packed = {scratch->d_packed, sublayer->mix.packed.offset};
    if (!mixed_is_fused(gpt) && projections_avoid_gemm(&gpt->operations)) {
        projections_gradient(&gpt->operations, gpt_tokens(gpt), sublayer->mix.streams, scratch->d_z, d_packed);
    } else {
        gemm_run(gpt->compute,
                 &(struct gemm_call){.transpose_a = true,
                                     .a = matrix_of(scratch->d_z_lowp, 0, norm_rows(gpt), columns),
                                     .b = matrix_of(sublayer->mix.streams, 0, norm_rows(gpt), length),
                                     .c = matrix_of(d_packed.buffer, d_packed.offset, columns, length)});
    }
}

void mixed_projections_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (gpt->operations.columns > 0) {
        add_projected(gpt, sublayer);
    }
    projections_backward(gpt, sublayer);
}

void mixed_enter_backward_fused(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *gradients = gpt->parameters.gradients;
    const bool delayed = gpt->config.read_delay;
    frame_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix,
                   &(struct frame_gradients){.d_z = scratch->d_z_lowp,
                                             .d_streams = scratch->d_streams,
                                             .h_before = delayed               ? sublayer->mix.read
                                                         : sublayer->index > 0 ? sublayer[-1].mix.h
                                                                               : NULL,
                                             .d_branch = scratch->d_normed,
                                             .d_read = delayed ? scratch->d_h : NULL,
                                             .norm = gpt_norm(gradients, sublayer->at->norm),
                                             .d_theta = {gradients, sublayer->at->theta}},
                   gpt->parameters.accumulate);
    projections_backward(gpt, sublayer);
}

void mixed_map_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_h) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    map_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, d_h, scratch->d_z, scratch->rms_scale,
                 (struct span){gpt->parameters.gradients, sublayer->at->theta}, gpt->parameters.accumulate);
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        mixed_enter_backward_fused(gpt, sublayer);
        return;
    }
    width_mix_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->d_normed, scratch->d_h,
                       gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
    mixed_map_backward(gpt, sublayer, scratch->d_h);
    stream_backward(operations, tokens, &sublayer->mix, scratch->d_normed, scratch->rms_scale, scratch->d_streams);
    mixed_projections_backward(gpt, sublayer);
}

void mixed_finish_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (gpt->operations.columns == 0) {
        return;
    }
    set_module(gpt);
    projections_unpack(&gpt->operations, gpt->parameters.weights,
                       sublayer ? sublayer->projections : gpt->projections, gpt->scratch.d_packed,
                       gpt->parameters.gradients, gpt->parameters.accumulate);
}

/* ---- values */

size_t mixed_values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    const size_t streams = (size_t)gpt->config.n_streams;
    const struct {
        const char *name;
        unsigned rank;
        size_t first;
    } all[] = {{"h_pre", 1, 0}, {"h_post", 1, streams}, {"h_res", 2, 2 * streams}};
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
    .add_parameters = mixed_add_parameters,
    .check_upcycling = mixed_check_upcycling,
    .plan = mixed_plan,
    .plan_sublayer = mixed_plan_sublayer,
    .plan_scratch = mixed_plan_scratch,
    .largest_matrix = mixed_largest_matrix,
    .create = mixed_create,
    .begin = mixed_begin,
    .enter = enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .finish_backward = mixed_finish_backward,
    .values = mixed_values,
};
