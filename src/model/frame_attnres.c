/* Attention residuals: no stream is carried. Each sublayer, and the top, reads a mixture of earlier states, which
 * cl/depth_read.cl computes: the embedding, the sums of the outputs of attnres_block sublayers each, and that of
 * the block which is not complete.
 *
 * The value of the newest state before sublayer l is number l. A backward pass reads the state of an incomplete
 * block as it was, so modes that keep streams have a slot for every value: state s < count of sublayer l is in slot
 * min(s block, l). Other modes have one for each state. Gradients have one for each state in any case: that of the
 * newest is complete as soon as the enter behind its last output has gone backward.
 *
 * dar carries a stream, too: x' = x + output, and a branch reads the norm of x + gate u, u such a mixture of the
 * embedding and of complete blocks alone. There is one slot for each state in all modes. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include <inttypes.h>

/* What a sublayer, or the top, has of its own. */
struct kept {
    const struct buffer *weights; /* [N, heads, states] */
    const struct buffer *mixed;   /* [N, C] */
};

struct attnres {
    const struct buffer *states, *scales; /* [slots, N, C] and [slots, N] */
    const struct buffer *d_states;        /* [states, N, C] gradients; of attnres they are scratch.d_streams */
    struct kept kept[];
};

static struct attnres *attnres_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

static int64_t top_of(const struct gpt *gpt) {
    return BRANCHES * gpt->config.n_layer;
}

static int64_t block_of(const struct gpt *gpt) {
    return residual_setting_value(&gpt->config.settings, "attnres_block").number;
}

static bool is_dar(const struct gpt *gpt) {
    return gpt->frame == &frame_dar;
}

/* States that sublayer `index` reads. */
static int64_t count_of(const struct gpt *gpt, int64_t index) {
    const int64_t block = block_of(gpt);
    return (is_dar(gpt) ? index / block : (index + block - 1) / block) + 1;
}

/* ---- parameters */

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const uint64_t width = (uint64_t)builder->config->n_embd;
    uint64_t *offset_copy = &builder->parameters->sublayers[sublayer].theta;
    const bool has_gain = builder->config->hc_norm_gain;
    if (has_gain) {
        parameters_add_gain(builder, "norm", width, offset_copy)->is_hc_gain =
            sublayer < BRANCHES * builder->config->n_layer;
    }
    struct parameter *query = parameters_add(builder, "query", 1, &width, has_gain ? NULL : offset_copy);
    query->joined = has_gain;
    if (depth_is_gated(&(struct operation_shape){.residual = builder->config->residual,
                                                 .settings = builder->config->settings})) {
        parameters_add(builder, "gate", 0, NULL, NULL)->joined = true;
    }
}

/* Means are read where a plain model reads sums. A norm between them does not see that, but for its eps. */
static int check_upcycling(const struct model_config *config) {
    (void)config;
    return error_set("it reads means of states where a plain model reads their sum");
}

/* ---- memory */

static void plan(struct gpt *gpt) {
    const char *const group = "streams";
    const int64_t values = top_of(gpt) + 1, width = gpt->config.n_embd;
    const int64_t slots = is_dar(gpt)               ? (values - 2) / block_of(gpt) + 2
                          : gpt_shares_streams(gpt) ? count_of(gpt, top_of(gpt))
                                                    : values;
    struct attnres *state = memory_zeroed(1, sizeof *state + (size_t)values * sizeof *state->kept);
    gpt->frame_state = state;
    state->states = gpt_plan_activations(gpt, group, slots * width);
    state->scales = gpt_plan_floats(gpt, group, slots);
    if (gpt->options.mode == GPT_TRAINING) { /* the embedding's gradient is the first of them */
        state->d_states = gpt_plan_activations(gpt, "scratch", count_of(gpt, top_of(gpt)) * width);
        gpt->scratch.d_streams = is_dar(gpt) ? NULL : state->d_states;
    }
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const group = "hyper-connection matrices";
    struct attnres *state = attnres_of(gpt);
    struct kept *kept = &state->kept[sublayer->index];
    const int64_t heads = depth_heads(&gpt->operations.shape);
    const bool training = gpt->options.mode == GPT_TRAINING, first = sublayer->index == 0;
    const bool shares_mixed =
        !training || (gpt->options.recompute && sublayer->index >= BRANCHES && sublayer->branch);
    if (is_dar(gpt)) {
        frame_plan_single(gpt, sublayer);
        if (!sublayer->branch) {
            return;
        }
    } else {
        sublayer->mix.streams = state->states; /* the embedding goes to slot 0 */
    }
    if (first && !is_dar(gpt)) {
        sublayer->mix.squares = gpt_plan_floats(gpt, "streams", 1); /* of the embedding, which nobody reads */
    }
    if (gpt_shares_streams(gpt)) {
        kept->weights =
            first ? gpt_plan_floats(gpt, group, heads * count_of(gpt, top_of(gpt))) : state->kept[0].weights;
    } else {
        kept->weights = gpt_plan_floats(gpt, group, heads * count_of(gpt, sublayer->index));
    }
    kept->mixed = first || !shares_mixed ? gpt_plan_activations(gpt, "streams", gpt->config.n_embd)
                  : training             ? state->kept[sublayer->index - BRANCHES].mixed
                                         : state->kept[0].mixed;
}

/* ---- forward */

/* What sublayer `index` reads. `output` is that of the one before, whose sum the newest state becomes, or NULL. */
static struct depth_read read_of(const struct gpt *gpt, int64_t index, const struct buffer *output) {
    const struct attnres *state = attnres_of(gpt);
    const struct sublayer *sublayer = &gpt->sublayers[index];
    const struct buffer *weights = gpt->parameters.weights;
    const int64_t count = count_of(gpt, index), block = block_of(gpt);
    const bool shares = gpt_shares_streams(gpt) || is_dar(gpt), continues = (index - 1) % block != 0;
    const int64_t newest = shares ? count - 1 : index;
    return (struct depth_read){.states = state->states,
                               .count = count,
                               .apart = shares ? 1 : block,
                               .newest = newest,
                               .output = output,
                               .before = index == 0 || !continues ? -1
                                         : shares                 ? newest
                                                                  : newest - 1,
                               .stream = is_dar(gpt) ? sublayer->mix.streams : NULL,
                               .leaves = {weights, sublayer->at->theta},
                               .norm = gpt_norm(weights, sublayer->at->norm),
                               .scales = state->scales,
                               .weights = state->kept[index].weights,
                               .mixed = state->kept[index].mixed,
                               .normed = sublayer->mix.normed,
                               .statistics = sublayer->mix.statistics};
}

static void run_forward(struct gpt *gpt, const struct sublayer *sublayer) {
    /* all values are kept in training */
    const bool is_there = sublayer->index == 0 || gpt->recomputes || is_dar(gpt);
    const struct depth_read read = read_of(gpt, sublayer->index, is_there ? NULL : sublayer[-1].mix.output);
    depth_read_forward(&gpt->operations, gpt_tokens(gpt), &read);
}

static void top(struct gpt *gpt) {
    frame_set_module(gpt);
    run_forward(gpt, frame_top(gpt));
}

/* Of dar: the embedding is a state, too. */
static void dar_begin(struct gpt *gpt) {
    buffer_copy(gpt->compute, gpt->first_streams, 0, attnres_of(gpt)->states, 0,
                gpt_activation_bytes(gpt, gpt->config.n_embd));
}

/* The state that a sublayer's output is a part of. */
static int64_t slot_of(const struct gpt *gpt, const struct sublayer *sublayer) {
    return sublayer->index / block_of(gpt) + 1;
}

static void dar_leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct stream_mix *mix = &sublayer->mix;
    if (gpt->recomputes) { /* states are kept */
        depth_mix_forward(&gpt->operations, gpt_tokens(gpt), mix, frame_next(sublayer), sublayer[1].mix.squares);
    } else {
        depth_leave_forward(&gpt->operations, gpt_tokens(gpt), mix->streams, mix->output, slot_of(gpt, sublayer),
                            sublayer->index % block_of(gpt) > 0, frame_next(sublayer), attnres_of(gpt)->states);
    }
}

/* ---- backward */

static void run_backward(struct gpt *gpt, int64_t index, const struct buffer *d_normed) {
    const struct buffer *d_output = index > 0 && !is_dar(gpt) ? gpt->scratch.d_output : NULL,
                        *gradients = gpt->parameters.gradients;
    const struct sublayer_offsets *at = gpt->sublayers[index].at;
    const struct depth_read read = read_of(gpt, index, d_output);
    depth_read_backward(&gpt->operations, gpt_tokens(gpt), &read, d_normed,
                        &(struct depth_read_gradients){.d_states = attnres_of(gpt)->d_states,
                                                       .adds = index < top_of(gpt) - is_dar(gpt),
                                                       .d_output = d_output,
                                                       .d_stream = is_dar(gpt) ? gpt->scratch.d_streams : NULL,
                                                       .norm = gpt_norm(gradients, at->norm),
                                                       .leaves = {gradients, at->theta}},
                        gpt->parameters.accumulate);
}

static void top_backward(struct gpt *gpt) {
    frame_set_module(gpt);
    run_backward(gpt, top_of(gpt), gpt->d_final);
}

/* depth_read_backward of the next sublayer has written scratch.d_output. */
static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    (void)sublayer;
    return gpt->scratch.d_output;
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    run_backward(gpt, sublayer->index, gpt->scratch.d_normed);
}

static const struct buffer *dar_leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const int64_t slot = slot_of(gpt, sublayer);
    if (slot >= count_of(gpt, top_of(gpt) - 1)) { /* no sublayer reads it */
        return frame_single_leave_backward(gpt, scratch->d_streams);
    }
    depth_leave_backward(&gpt->operations, gpt_tokens(gpt), scratch->d_streams, attnres_of(gpt)->d_states, slot,
                         scratch->d_output);
    return scratch->d_output;
}

static void dar_enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    enter_backward(gpt, sublayer);
    if (sublayer->index == 0) {
        const struct buffer *d_embedding = gpt->scratch.d_first;
        depth_leave_backward(&gpt->operations, gpt_tokens(gpt), d_embedding, attnres_of(gpt)->d_states, 0,
                             d_embedding);
    }
}

/* ---- values */

static size_t values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    const size_t count = (size_t)count_of(gpt, sublayer), heads = (size_t)depth_heads(&gpt->operations.shape);
    if (is_dar(gpt) && sublayer == top_of(gpt)) {
        return 0;
    }
    values[0] = (struct frame_value){.buffer = attnres_of(gpt)->kept[sublayer].weights,
                                     .row = heads * count,
                                     .rank = heads > 1 ? 2 : 1,
                                     .shape = {heads > 1 ? heads : count, count}};
    if (sublayer < top_of(gpt)) {
        snprintf(values[0].name, sizeof values[0].name, "depth.%" PRId64, sublayer);
    } else {
        snprintf(values[0].name, sizeof values[0].name, "depth.top");
    }
    return 1;
}

const struct frame frame_attnres = {
    .name = "attnres",
    .add_norm = frame_add_norm,
    .add_parameters = add_parameters,
    .check_upcycling = check_upcycling,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .enter = run_forward,
    .top = top,
    .top_backward = top_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .values = values,
};

/* With dar_gate = zero u counts nothing at first, so the model begins as rc. */
static int dar_check_upcycling(const struct model_config *config) {
    if (residual_setting_value(&config->settings, "dar_gate").choice == DAR_GATE_NONE) {
        return error_set("with dar_gate = none branches read means of states from the start: give dar_gate = zero");
    }
    return 0;
}

static void dar_add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    if (sublayer < BRANCHES * builder->config->n_layer) {
        add_parameters(builder, sublayer);
    }
}

const struct frame frame_dar = {
    .name = "dar",
    .add_norm = frame_add_norm,
    .add_parameters = dar_add_parameters,
    .check_upcycling = dar_check_upcycling,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .begin = dar_begin,
    .enter = run_forward,
    .leave = dar_leave,
    .top = stream_reduce_forward,
    .top_backward = stream_reduce_backward,
    .leave_backward = dar_leave_backward,
    .enter_backward = dar_enter_backward,
    .values = values,
};
