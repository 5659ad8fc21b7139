/* Hyper-connections whose H_pre of the next sublayer is known before its streams are. In the variant `wide` it is a
 * constant. With read_delay it comes from the sublayer before: the first sublayer reads stream 0, and with
 * stream_reduce = last_pre the top reads with the H_pre of the last sublayer:
 *
 *     enter    u = sum_s read[s] x_s, normed = LN(u), H = map(X)
 *     leave    x'_i = sum_j H_res[i, j] x_j + H_post[i] output, and the next sublayer reads with H_pre
 *
 * So the next sublayer's u is known while its streams are written: leave and the width mix of the next enter are
 * one kernel, and so is their backward pass, which runs before that of the first sublayer's branch. */
#include "runtime/device/compute.h"
#include "runtime/system/memory.h"
#include "src/model/frame_mixed.h"
#include "src/model/frame_parts.h"
#include "src/model/stream_reduce.h"
#include <stdlib.h>

/* gpt->frame_state */
struct ahead {
    /* [N, h_row], as if a sublayer before the first had computed it: H_pre of stream 0 alone, H_post zero, H_res
     * the identity */
    const struct buffer *first;
    const struct buffer
        *d_h;       /* [N, h_row] of wide: gradients of h of odd sublayers; scratch.d_h is of the others */
    int64_t normed; /* the sublayer whose mix.normed the leave before it has computed; -1: none */
};

static struct ahead *state_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

static void set_module(struct gpt *gpt) {
    compute_set_module(gpt->compute, "hyper-connections");
}

/* Of wide without read_delay: a sublayer reads with its own H_pre. */
static bool reads_own(const struct gpt *gpt) {
    return !gpt->config.read_delay;
}

/* The gradient of a sublayer's h. */
static const struct buffer *d_h_of(const struct gpt *gpt, int64_t sublayer) {
    return reads_own(gpt) && sublayer % 2 ? state_of(gpt)->d_h : gpt->scratch.d_h;
}

/* ---- memory */

static void plan(struct gpt *gpt) {
    struct ahead *state = memory_zeroed(1, sizeof *state);
    gpt->frame_state = state;
    mixed_plan(gpt);
    state->first = gpt_plan_floats(gpt, "hyper-connection matrices", (int64_t)gpt->operations.h_row);
}

/* The backward pass reads a sublayer's statistics after those of the layer before were computed again. */
static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    mixed_plan_sublayer(gpt, sublayer);
    if (!reads_own(gpt)) {
        sublayer->mix.read = sublayer->index > 0 ? sublayer[-1].mix.h : state_of(gpt)->first;
    }
    if (sublayer->branch && sublayer->index >= BRANCHES && gpt->options.mode == GPT_TRAINING &&
        gpt->options.recompute) {
        sublayer->mix.statistics = gpt_plan_floats(gpt, "branch activations", 2);
    }
}

static void plan_scratch(struct gpt *gpt) {
    mixed_plan_scratch(gpt);
    if (gpt->options.mode == GPT_TRAINING && reads_own(gpt)) {
        state_of(gpt)->d_h = gpt_plan_floats(gpt, "scratch", (int64_t)gpt->operations.h_row);
    }
    if (gpt->options.mode == GPT_TRAINING && !gpt->scratch.rms_scale) {
        gpt->scratch.rms_scale = gpt_plan_floats(gpt, "scratch", (int64_t)gpt->operations.norm_groups);
    }
}

static int create(struct gpt *gpt) {
    const size_t streams = (size_t)gpt->config.n_streams, row = gpt->operations.h_row, tokens = gpt_tokens(gpt);
    float *rows = memory_zeroed(tokens * row, sizeof *rows);
    for (size_t token = 0; token < tokens; token++) {
        rows[token * row] = 1.0f;
        for (size_t s = 0; s < streams; s++) {
            rows[token * row + 2 * streams + s * (streams + 1)] = 1.0f;
        }
    }
    const int status =
        buffer_write(gpt->compute, state_of(gpt)->first, 0, rows, tokens * row * sizeof *rows) || mixed_create(gpt);
    free(rows);
    return status ? -1 : 0;
}

/* ---- forward */

static void begin(struct gpt *gpt) {
    state_of(gpt)->normed = -1;
    mixed_begin(gpt);
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    struct ahead *state = state_of(gpt);
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        frame_enter(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
        return;
    }
    const bool normed = state->normed == sublayer->index; /* not of a pass's first, or a layer's that runs again */
    state->normed = -1;
    if (!normed || !reads_own(gpt)) {
        mixed_map(gpt, sublayer);
    }
    if (!normed) {
        width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
    }
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    set_module(gpt);
    if (!next->branch) {
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, next->mix.streams, next->mix.squares);
    } else if (mixed_is_fused(gpt)) {
        frame_leave(&gpt->operations, &sublayer->mix);
    } else {
        if (reads_own(gpt)) {
            mixed_map(gpt, next);
        }
        mix_between(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, &next->mix);
        state_of(gpt)->normed = next->index;
    }
}

/* ---- backward */

static bool reads_last(const struct gpt *gpt) {
    return gpt->config.stream_reduce == STREAM_REDUCE_LAST_PRE;
}

/* The fused frame gets the gradient of the last H_pre in scratch.d_h. Otherwise what comes through the norm of the
 * top, if the top reads with H_pre, is left to leave_backward. */
static void top_backward(struct gpt *gpt) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt), row = (size_t)(gpt->config.n_streams * gpt->config.n_embd);
    if (reads_last(gpt) && !mixed_is_fused(gpt)) {
        buffer_zero(gpt->compute, scratch->d_streams, 0, tokens * row * element_size(gpt->options.type));
        return;
    }
    stream_reduce_backward(gpt);
    if (!reads_last(gpt) && !reads_own(gpt) && mixed_is_fused(gpt)) {
        buffer_zero(gpt->compute, scratch->d_h, 0, tokens * gpt->operations.h_row * sizeof(float));
    }
}

/* The mix that follows a sublayer, with the gradient of what it has normed; of the top, gpt->d_final, which is zero
 * if no norm reads what a width mix makes there. */
static struct mix_gradients gradients_behind(struct gpt *gpt, const struct sublayer *sublayer,
                                             struct stream_mix *to) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct sublayer *next = sublayer + 1;
    const size_t tokens = gpt_tokens(gpt);
    struct mix_gradients gradients = {.d_branch = scratch->d_normed,
                                      .d_streams = scratch->d_streams,
                                      .rms_scale = scratch->rms_scale,
                                      .d_read = d_h_of(gpt, reads_own(gpt) ? next->index : sublayer->index),
                                      .d_h = d_h_of(gpt, sublayer->index),
                                      .norm = gpt_norm(gpt->parameters.gradients, next->at->norm)};
    *to = next->mix;
    if (!next->branch) {
        to->read = sublayer->mix.h; /* with last_pre, and else of no consequence */
        to->norm = gpt_norm(gpt->parameters.weights, next->at->norm);
        to->statistics = gpt->final_statistics;
        gradients.d_branch = gpt->d_final;
        buffer_zero(gpt->compute, scratch->rms_scale, 0, tokens * gpt->operations.norm_groups * sizeof(float));
    }
    if (!next->branch && !reads_last(gpt)) {
        const size_t bytes = tokens * (size_t)gpt->config.n_embd * element_size(gpt->options.type);
        gradients.norm = (struct layer_norm){{NULL, 0}, {NULL, 0}};
        buffer_zero(gpt->compute, gpt->d_final, 0, bytes);
    }
    return gradients;
}

/* Also the backward pass of this sublayer's map and of the next sublayer's enter, but for that of its map. */
static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        return mixed_leave_backward_fused(gpt, sublayer);
    }
    struct stream_mix to;
    const struct mix_gradients gradients = gradients_behind(gpt, sublayer, &to);
    mix_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, &to, &gradients, gpt->parameters.accumulate);
    if (!reads_own(gpt)) {
        mixed_map_backward(gpt, sublayer, gradients.d_h);
        mixed_projections_backward(gpt, sublayer);
    } else if (sublayer[1].branch) {
        mixed_map_backward(gpt, sublayer + 1, gradients.d_read);
    }
    return gradients.d_branch;
}

/* Of the first sublayer, before which there is no leave: as if there were one that changes nothing. */
static void first_backward(struct gpt *gpt, const struct sublayer *first) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    struct stream_mix before = first->mix;
    before.h = state_of(gpt)->first;
    const struct mix_gradients gradients = {.d_branch = scratch->d_normed,
                                            .d_streams = scratch->d_streams,
                                            .rms_scale = scratch->rms_scale,
                                            .d_read = d_h_of(gpt, 0),
                                            .d_h = d_h_of(gpt, 1),
                                            .norm = gpt_norm(gpt->parameters.gradients, first->at->norm)};
    mix_backward(&gpt->operations, gpt_tokens(gpt), &before, &first->mix, &gradients, gpt->parameters.accumulate);
    if (reads_own(gpt)) {
        mixed_map_backward(gpt, first, gradients.d_read);
    }
}

/* The leave before has the rest. */
static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        mixed_enter_backward_fused(gpt, sublayer);
    } else if (sublayer->index == 0) {
        first_backward(gpt, sublayer);
    }
}

const struct frame frame_ahead = {
    .name = "ahead",
    .reads_output = true,
    .completes_next = true,
    .add_norm = frame_add_norm,
    .add_parameters = mixed_add_parameters,
    .check_upcycling = mixed_check_upcycling,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .plan_scratch = plan_scratch,
    .largest_matrix = mixed_largest_matrix,
    .create = create,
    .begin = begin,
    .enter = enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = top_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .finish_backward = mixed_finish_backward,
    .values = mixed_values,
};
