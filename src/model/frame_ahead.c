/* Hyper-connections with read_delay: a sublayer reads with the H_pre that the sublayer before has computed, the
 * first one reads stream 0, and with stream_reduce = last_pre the top reads with that of the last sublayer:
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
    const struct buffer
        *first;     /* [N, h_row]: what the first sublayer reads with, as if one before it had computed it:
                                   H_pre of stream 0 alone, H_post zero, H_res the identity */
    int64_t normed; /* the sublayer whose mix.normed the leave before it has computed; -1: none */
};

static struct ahead *state_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

static void set_module(struct gpt *gpt) {
    compute_set_module(gpt->compute, "hyper-connections");
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
    sublayer->mix.read = sublayer->index > 0 ? sublayer[-1].mix.h : state_of(gpt)->first;
    if (sublayer->branch && sublayer->index >= BRANCHES && gpt->options.mode == GPT_TRAINING &&
        gpt->options.recompute) {
        sublayer->mix.statistics = gpt_plan_floats(gpt, "branch activations", 2);
    }
}

static void plan_scratch(struct gpt *gpt) {
    mixed_plan_scratch(gpt);
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
    if (state->normed != sublayer->index) { /* the first of a pass, or of a layer that is computed again */
        width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
    }
    state->normed = -1;
    mixed_map(gpt, sublayer);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct sublayer *next = sublayer + 1;
    set_module(gpt);
    if (!next->branch) {
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, next->mix.streams, next->mix.squares);
    } else if (mixed_is_fused(gpt)) {
        frame_leave(&gpt->operations, &sublayer->mix);
    } else {
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
    if (!reads_last(gpt) && mixed_is_fused(gpt)) {
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
                                      .d_read = scratch->d_h,
                                      .d_h = scratch->d_h,
                                      .norm = gpt_norm(gpt->parameters.gradients, next->at->norm)};
    *to = next->mix;
    if (!next->branch) {
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
    mixed_map_backward(gpt, sublayer);
    mixed_projections_backward(gpt, sublayer);
    return gradients.d_branch;
}

/* Before the first sublayer there is no leave; of the others the leave before has the rest. */
static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const size_t tokens = gpt_tokens(gpt);
    set_module(gpt);
    if (mixed_is_fused(gpt)) {
        mixed_enter_backward_fused(gpt, sublayer);
    } else if (sublayer->index == 0) {
        struct stream_mix first = sublayer->mix;
        first.h = state_of(gpt)->first;
        width_mix_backward(&gpt->operations, tokens, &first, scratch->d_normed, scratch->d_normed, scratch->d_h,
                           gpt_norm(gpt->parameters.gradients, sublayer->at->norm), gpt->parameters.accumulate);
        stream_backward(&gpt->operations, tokens, &first, scratch->d_normed, scratch->rms_scale,
                        scratch->d_streams);
    }
}

const struct frame frame_ahead = {
    .name = "ahead",
    .reads_output = true,
    .completes_next = true,
    .add_norm = frame_add_norm,
    .add_parameters = mixed_add_parameters,
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
