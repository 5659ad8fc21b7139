/* laurel: one stream, x' = a branch(norm(x)) + b (x + (x w_down) w_up), which cl/laurel.cl computes: a and b are
 * two learned weights, and the product has a low rank. laurel_form leaves out one or the other. */
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include <math.h>

enum { DOWN, UP }; /* places in sublayer_offsets.projections; theta is b_mix */

/* gpt->frame_state */
struct laurel {
    const struct buffer *d_low; /* [N, rank] */
    const struct buffer *low[]; /* [N, rank] of each sublayer */
};

static struct laurel *laurel_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

/* ---- parameters: at first a = b = 1, and the product is zero */

/* w_down[c, k] = 1 / sqrt(rank C) where c mod rank = k, else 0. */
static float parts(int64_t index, const struct residual_init *init) {
    const int64_t rank = residual_setting_value(init->settings, "laurel_rank").number;
    return index / rank % rank == index % rank ? (float)(1.0 / sqrt((double)(rank * init->channels))) : 0.0f;
}

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const struct model_config *config = builder->config;
    const struct operation_shape shape = {.residual = config->residual, .settings = config->settings};
    const uint64_t width = (uint64_t)config->n_embd, rank = (uint64_t)laurel_rank(&shape);
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    if (sublayer == BRANCHES * config->n_layer) {
        return;
    }
    if (laurel_has_weights(&shape)) {
        parameters_add(builder, "b_mix", 1, &(uint64_t){2}, &at->theta);
    }
    if (rank > 0) {
        struct parameter *down =
            parameters_add(builder, "w_down", 2, (uint64_t[]){width, rank}, &at->projections[DOWN]);
        down->initial = parts;
        down->decayed = true;
        parameters_add(builder, "w_up", 2, (uint64_t[]){rank, width}, &at->projections[UP])->decayed = true;
    }
}

/* ---- memory */

static void plan(struct gpt *gpt) {
    const size_t sublayers = BRANCHES * (size_t)gpt->config.n_layer + 1;
    struct laurel *state = memory_zeroed(1, sizeof *state + sublayers * sizeof *state->low);
    gpt->frame_state = state;
}

static int64_t rank_of(const struct gpt *gpt) {
    return laurel_rank(&gpt->operations.shape);
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    struct laurel *state = laurel_of(gpt);
    const int64_t index = sublayer->index;
    const bool shares = gpt->options.mode != GPT_TRAINING;
    frame_plan_single(gpt, sublayer);
    if (sublayer->branch && rank_of(gpt) > 0) {
        state->low[index] = index >= BRANCHES && shares
                                ? state->low[index - BRANCHES]
                                : gpt_plan_activations(gpt, "hyper-connection matrices", rank_of(gpt));
    }
}

static void plan_scratch(struct gpt *gpt) {
    if (gpt->options.mode == GPT_TRAINING && rank_of(gpt) > 0) {
        laurel_of(gpt)->d_low = gpt_plan_activations(gpt, "scratch", rank_of(gpt));
    }
}

static uint64_t largest_matrix(const struct gpt *gpt) {
    const uint64_t rank = (uint64_t)rank_of(gpt), width = (uint64_t)gpt->config.n_embd;
    return size_larger(gpt_tokens(gpt), width) * size_larger(rank, width);
}

/* ---- passes */

static struct laurel_values values_of(const struct gpt *gpt, const struct sublayer *sublayer) {
    const struct parameters *parameters = &gpt->parameters;
    const struct sublayer_offsets *at = sublayer->at;
    return (struct laurel_values){.streams = sublayer->mix.streams,
                                  .low = laurel_of(gpt)->low[sublayer->index],
                                  .output = sublayer->mix.output,
                                  .mix = {parameters->weights, at->theta},
                                  .down = {parameters->weights_lowp, at->projections[DOWN]},
                                  .up = {parameters->weights_lowp, at->projections[UP]}};
}

/* w_down [C, rank], or its gradient, and w_up [rank, C]. */
static struct matrix down_of(const struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *arena) {
    return matrix_of(arena, sublayer->at->projections[DOWN], (size_t)gpt->config.n_embd, (size_t)rank_of(gpt));
}

static struct matrix up_of(const struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *arena) {
    return matrix_of(arena, sublayer->at->projections[UP], (size_t)rank_of(gpt), (size_t)gpt->config.n_embd);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct laurel_values values = values_of(gpt, sublayer);
    const size_t tokens = gpt_tokens(gpt), rank = (size_t)rank_of(gpt);
    if (rank > 0 && tokens <= FEW_ROWS) {
        laurel_low(&gpt->operations, tokens, &values);
    } else if (rank > 0) { /* x w_down: as w_down is stored, this GEMM is that of a backward pass */
        linear_input_backward(gpt->compute, frame_rows(gpt, values.streams, (size_t)gpt->config.n_embd),
                              down_of(gpt, sublayer, gpt->parameters.weights_lowp),
                              frame_rows(gpt, values.low, rank), false);
    }
    laurel_forward(&gpt->operations, tokens, &values, frame_next(sublayer), sublayer[1].mix.squares);
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct parameters *parameters = &gpt->parameters;
    const struct laurel_values values = values_of(gpt, sublayer);
    const size_t width = (size_t)gpt->config.n_embd, rank = (size_t)rank_of(gpt);
    laurel_backward(&gpt->operations, gpt_tokens(gpt), &values, scratch->d_streams, scratch->d_output,
                    (struct span){parameters->gradients, sublayer->at->theta}, parameters->accumulate);
    if (rank > 0) {
        const struct matrix d_m = frame_rows(gpt, scratch->d_streams, width),
                            d_low = frame_rows(gpt, laurel_of(gpt)->d_low, rank);
        linear_gemm(&gpt->operations, d_m, up_of(gpt, sublayer, parameters->weights_lowp), d_low, false);
        linear_matrix_backward(gpt->compute, frame_rows(gpt, values.low, rank), d_m,
                               up_of(gpt, sublayer, parameters->gradients), parameters->accumulate);
        linear_matrix_backward(gpt->compute, frame_rows(gpt, values.streams, width), d_low,
                               down_of(gpt, sublayer, parameters->gradients), parameters->accumulate);
        linear_gemm(&gpt->operations, d_low, down_of(gpt, sublayer, parameters->weights_lowp), d_m, true);
    }
    return scratch->d_output;
}

const struct frame frame_laurel = {
    .name = "laurel",
    .reads_output = true,
    .add_norm = frame_add_norm,
    .add_parameters = add_parameters,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .plan_scratch = plan_scratch,
    .largest_matrix = largest_matrix,
    .enter = frame_single_enter,
    .leave = leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = leave_backward,
    .enter_backward = frame_stream_enter_backward,
};
