/* Attention residuals: no stream is carried. Each sublayer, and the top, reads a mixture of earlier states, which
 * cl/depth_read.cl computes: the embedding, the sums of the outputs of attnres_block sublayers each, and that of
 * the block which is not complete.
 *
 * The value of the newest state before sublayer l is number l. A backward pass reads the state of an incomplete
 * block as it was, so modes that keep streams have a slot for every value: state s < count of sublayer l is in slot
 * min(s block, l). Other modes have one for each state. Gradients have one for each state in any case: that of the
 * newest is complete as soon as the enter behind its last output has gone backward. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include <inttypes.h>

/* What a sublayer, or the top, has of its own. */
struct kept {
    const struct buffer *weights; /* [N, states] */
    const struct buffer *mixed;   /* [N, C] */
};

struct attnres {
    const struct buffer *states, *scales; /* [slots, N, C] and [slots, N] */
    struct kept kept[];
};

static struct attnres *attnres_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

static int64_t top_of(const struct gpt *gpt) {
    return BRANCHES * gpt->config.n_layer;
}

static int64_t block_of(const struct gpt *gpt) {
    return gpt->config.settings.values[residual_setting_find("attnres_block")].number;
}

/* States that sublayer `index` reads. */
static int64_t count_of(const struct gpt *gpt, int64_t index) {
    const int64_t block = block_of(gpt);
    return (index + block - 1) / block + 1;
}

/* ---- parameters */

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const uint64_t width = (uint64_t)builder->config->n_embd;
    uint64_t *offset_copy = &builder->parameters->sublayers[sublayer].theta;
    const bool has_gain = builder->config->hc_norm_gain;
    if (has_gain) {
        parameters_add_gain(builder, "norm", width, offset_copy);
    }
    struct parameter *query = parameters_add(builder, "query", 1, &width, has_gain ? NULL : offset_copy);
    query->joined = has_gain;
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
    const int64_t slots = gpt_shares_streams(gpt) ? count_of(gpt, top_of(gpt)) : values;
    struct attnres *state = memory_zeroed(1, sizeof *state + (size_t)values * sizeof *state->kept);
    gpt->frame_state = state;
    state->states = gpt_plan_activations(gpt, group, slots * width);
    state->scales = gpt_plan_floats(gpt, group, slots);
    if (gpt->options.mode == GPT_TRAINING) { /* the embedding's gradient is the first of them */
        gpt->scratch.d_streams = gpt_plan_activations(gpt, "scratch", count_of(gpt, top_of(gpt)) * width);
    }
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const group = "hyper-connection matrices";
    struct attnres *state = attnres_of(gpt);
    struct kept *kept = &state->kept[sublayer->index];
    const bool training = gpt->options.mode == GPT_TRAINING, first = sublayer->index == 0;
    const bool shares_mixed =
        !training || (gpt->options.recompute && sublayer->index >= BRANCHES && sublayer->branch);
    sublayer->mix.streams = state->states; /* the embedding goes to slot 0 */
    if (first) {
        sublayer->mix.squares = gpt_plan_floats(gpt, "streams", 1); /* of the embedding, which nobody reads */
    }
    if (gpt_shares_streams(gpt)) {
        kept->weights = first ? gpt_plan_floats(gpt, group, count_of(gpt, top_of(gpt))) : state->kept[0].weights;
    } else {
        kept->weights = gpt_plan_floats(gpt, group, count_of(gpt, sublayer->index));
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
    const bool shares = gpt_shares_streams(gpt), continues = (index - 1) % block != 0;
    const int64_t newest = shares ? count - 1 : index;
    return (struct depth_read){.states = state->states,
                               .count = count,
                               .apart = shares ? 1 : block,
                               .newest = newest,
                               .output = output,
                               .before = index == 0 || !continues ? -1
                                         : shares                 ? newest
                                                                  : newest - 1,
                               .leaves = {weights, sublayer->at->theta},
                               .norm = gpt_norm(weights, sublayer->at->norm),
                               .scales = state->scales,
                               .weights = state->kept[index].weights,
                               .mixed = state->kept[index].mixed,
                               .normed = sublayer->mix.normed,
                               .statistics = sublayer->mix.statistics};
}

static void run_forward(struct gpt *gpt, const struct sublayer *sublayer) {
    const bool is_there = sublayer->index == 0 || gpt->recomputes; /* all values are kept in training */
    const struct depth_read read = read_of(gpt, sublayer->index, is_there ? NULL : sublayer[-1].mix.output);
    depth_read_forward(&gpt->operations, gpt_tokens(gpt), &read);
}

static void top(struct gpt *gpt) {
    frame_set_module(gpt);
    run_forward(gpt, frame_top(gpt));
}

/* ---- backward */

static void run_backward(struct gpt *gpt, int64_t index, const struct buffer *d_normed) {
    const struct buffer *d_output = index > 0 ? gpt->scratch.d_output : NULL,
                        *gradients = gpt->parameters.gradients;
    const struct sublayer_offsets *at = gpt->sublayers[index].at;
    const struct depth_read read = read_of(gpt, index, d_output);
    depth_read_backward(&gpt->operations, gpt_tokens(gpt), &read, d_normed,
                        &(struct depth_read_gradients){.d_states = gpt->scratch.d_streams,
                                                       .adds = index < top_of(gpt),
                                                       .d_output = d_output,
                                                       .norm = gpt_norm(gradients, at->norm),
                                                       .leaves = {gradients, at->theta}},
                        gpt->parameters.accumulate);
}

static void top_backward(struct gpt *gpt) {
    frame_set_module(gpt);
    run_backward(gpt, top_of(gpt), gpt->d_final);
}

/* The enter that follows has computed it. */
static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    (void)sublayer;
    return gpt->scratch.d_output;
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    run_backward(gpt, sublayer->index, gpt->scratch.d_normed);
}

/* ---- values */

static size_t values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    const size_t count = (size_t)count_of(gpt, sublayer);
    values[0] = (struct frame_value){.buffer = attnres_of(gpt)->kept[sublayer].weights,
                                     .row = count,
                                     .rank = 1,
                                     .shape = {count, 1}};
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
