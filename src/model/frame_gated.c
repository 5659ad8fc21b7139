/* gated: each stream and channel has a gate, which depends on all streams of the token,
 *
 *     enter    v_i = norm(x_i) (1 + gain_i), u = sum_i gate_i v_i / S,
 *              gate = sigmoid(silu(v w_down / S) w_up); the branch reads u, without a norm of its own
 *     leave    x'_i = x_i + s_i output, s = 2 sigmoid(v w_post / S)
 *
 * and the top reads the streams once more in the same way. mix.streams holds them normalised: see
 * cl/channel_gates.cl. */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include "src/operations/channel_gates.h"
#include <inttypes.h>
#include <stdlib.h>

#define DEVIATION 0.02 /* of initial weights */

enum { DOWN, UP, POST }; /* places in sublayer_offsets.projections */

struct gated_state {
    struct operations *operations;
    const struct buffer *packed;   /* matrices of all sublayers and of the top, as GEMMs read them */
    struct gate_table table;       /* where they come from */
    const struct buffer *d_packed; /* gradients of the first part of each: [rows.y, S C] */
    const struct buffer *d_gates;  /* [N, S C]: gradients of logits, then those of v; or the gates themselves */
    const struct buffer *d_hidden, *d_y, *d_post;
    struct gate_values values[]; /* of 2 n_layer + 1 sublayers, the top included */
};

static struct gated_state *state_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

/* ---- parameters */

/* The plain norm's gain where gates are 1/2. */
static float upcycled_gain(int64_t index, const struct residual_init *init) {
    const float share = residual_share(index / init->channels, init);
    return 2.0f * (float)init->streams * share * init->gain[index % init->channels] - 1.0f;
}

/* A branch reads norms of the streams without subtracting a mean, with gains. */
static int check_upcycling(const struct model_config *config) {
    if (config->norm != NORM_RMS) {
        return error_set("it reads streams through RMSNorms, and this model has LayerNorms");
    }
    if (!config->hc_norm_gain) {
        return error_set("hc_norm_gain = false leaves no place for the gains of the model's norms: leave it out");
    }
    return frame_check_equal_streams(config);
}

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const struct model_config *config = builder->config;
    const uint64_t row = (uint64_t)(config->n_streams * config->n_embd);
    const struct operation_shape shape = {.channels = config->n_embd, .settings = config->settings};
    const uint64_t rank = (uint64_t)gates_rank(&shape), streams = (uint64_t)config->n_streams;
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    const struct {
        const char *name;
        uint64_t shape[2];
    } matrices[] = {
        [DOWN] = {"w_down", {row, rank}}, [UP] = {"w_up", {rank, row}}, [POST] = {"w_post", {row, streams}}};
    if (config->hc_norm_gain) { /* what it adds to 1 */
        parameters_add(builder, "norm.weight", 1, &row, &at->rms_gain)->upcycled = upcycled_gain;
    }
    for (int i = DOWN; i <= (sublayer == BRANCHES * config->n_layer ? UP : POST); i++) {
        struct parameter *matrix =
            parameters_add(builder, matrices[i].name, 2, matrices[i].shape, &at->projections[i]);
        matrix->decayed = true;
        matrix->deviation = DEVIATION;
        matrix->upcycled = i == DOWN ? NULL : residual_zero;
    }
}

/* ---- memory */

static size_t row_length(const struct gpt *gpt) {
    return (size_t)(gpt->config.n_streams * gpt->config.n_embd);
}

static void plan(struct gpt *gpt) {
    const size_t sublayers = BRANCHES * (size_t)gpt->config.n_layer + 1;
    struct gated_state *state = memory_zeroed(1, sizeof *state + sublayers * sizeof *state->values);
    gpt->frame_state = state;
    state->packed = memory_plan_add(&gpt->plan, "weights", sublayers * gates_packed_elements(&gpt->operations),
                                    gpt->options.type);
    state->table.leaves = memory_plan_add(&gpt->plan, "weights", sublayers * GATE_LEAF_INTEGERS, ELEMENT_INT32);
    state->table.count = sublayers;
    state->table.has_top = true;
}

/* Whether each sublayer keeps what its gates are computed from. */
static bool keeps_gates(const struct gpt *gpt) {
    return !gpt_shares_streams(gpt) && !gpt->options.recompute;
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const group = "hyper-connection matrices";
    const struct gate_rows rows = gate_rows(&gpt->operations.shape);
    struct gate_values *values = &state_of(gpt)->values[sublayer->index];
    const bool is_top = !sublayer->branch, shares = is_top ? gpt_shares_streams(gpt) : !keeps_gates(gpt);
    frame_plan_streams(gpt, sublayer);
    if (sublayer->index >= BRANCHES && shares) {
        *values = values[-BRANCHES];
    } else {
        values->y = gpt_plan_floats(gpt, group, (int64_t)rows.y);
        values->hidden = gpt_plan_activations(gpt, group, (int64_t)rows.hidden);
        values->post = gpt_plan_floats(gpt, group, gpt->config.n_streams);
        values->logits = gpt_plan_activations(gpt, group, (int64_t)row_length(gpt));
    }
    values->gain = (struct span){gpt->parameters.weights, sublayer->at->rms_gain};
    values->streams = sublayer->mix.streams;
    values->squares = sublayer->mix.squares;
}

static void plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    const struct gate_rows rows = gate_rows(&gpt->operations.shape);
    struct gated_state *state = state_of(gpt);
    if (!gpt_shares_streams(gpt)) {
        state->d_gates = gpt_plan_activations(gpt, group, (int64_t)row_length(gpt));
    }
    if (gpt->options.mode == GPT_TRAINING) {
        state->d_packed =
            memory_plan_add(&gpt->plan, group, state->table.count * rows.y * row_length(gpt), ELEMENT_FP32);
        state->d_hidden = gpt_plan_floats(gpt, group, (int64_t)rows.hidden);
        state->d_y = gpt_plan_activations(gpt, group, (int64_t)rows.y);
        state->d_post = gpt_plan_floats(gpt, group, gpt->config.n_streams);
    }
}

static uint64_t largest_matrix(const struct gpt *gpt) {
    const size_t rows = gate_rows(&gpt->operations.shape).y, tokens = gpt_tokens(gpt);
    return (rows > tokens ? rows : tokens) * row_length(gpt);
}

/* Writes the table of all matrices to the device. */
static int create(struct gpt *gpt) {
    struct gated_state *state = state_of(gpt);
    struct gate_leaves *leaves = memory_zeroed(state->table.count, sizeof *leaves);
    for (size_t i = 0; i < state->table.count; i++) {
        const struct sublayer_offsets *at = gpt->sublayers[i].at;
        state->values[i].output = gpt->sublayers[i].mix.output;
        leaves[i] = (struct gate_leaves){at->rms_gain, at->projections[DOWN], at->projections[UP],
                                         gpt->sublayers[i].branch ? at->projections[POST] : GATES_NO_POST,
                                         i * gates_packed_elements(&gpt->operations)};
    }
    state->operations = &gpt->operations;
    const int status =
        buffer_write(gpt->compute, state->table.leaves, 0, leaves, state->table.count * sizeof *leaves);
    free(leaves);
    return status;
}

/* ---- forward */

static const struct gate_values *values_of(const struct gpt *gpt, const struct sublayer *sublayer) {
    return &state_of(gpt)->values[sublayer->index];
}

/* Its packed matrices: [rows.y, S C], and [S C, rows.hidden]. */
static struct matrix packed_in(const struct gpt *gpt, const struct sublayer *sublayer) {
    const size_t at = (size_t)sublayer->index * gates_packed_elements(&gpt->operations);
    return matrix_of(state_of(gpt)->packed, at, gate_rows(&gpt->operations.shape).y, row_length(gpt));
}

static struct matrix packed_up(const struct gpt *gpt, const struct sublayer *sublayer) {
    const struct matrix in = packed_in(gpt, sublayer);
    return matrix_of(in.buffer, in.offset + in.rows * in.columns, in.columns,
                     gate_rows(&gpt->operations.shape).hidden);
}

/* Packs the matrices, and normalises the first streams. Steps of generation use what the pass over the prompt has
 * packed. */
static void begin(struct gpt *gpt) {
    const struct gated_state *state = state_of(gpt);
    if (gpt->pass.cache != CACHE_STEP) {
        gates_pack(&gpt->operations, gpt->parameters.weights, state->table, state->packed);
    }
    if (!gpt->config.x0_lambdas) {
        gates_begin(&gpt->operations, gpt_tokens(gpt), state->values);
    }
}

static void weighed(struct gpt *gpt, const struct sublayer *sublayer) {
    gates_begin(&gpt->operations, gpt_tokens(gpt), values_of(gpt, sublayer));
}

/* streams -> u [N, C] */
static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct gate_values *values = values_of(gpt, sublayer);
    const struct matrix in = packed_in(gpt, sublayer), up = packed_up(gpt, sublayer);
    const size_t tokens = gpt_tokens(gpt);
    linear_multiply(operations, frame_rows(gpt, values->streams, in.columns), in,
                    frame_rows(gpt, values->y, in.rows));
    gates_hidden_forward(operations, tokens, values);
    linear_multiply(operations, frame_rows(gpt, values->hidden, up.columns), up,
                    frame_rows(gpt, values->logits, up.rows));
    gates_forward(operations, tokens, values, sublayer->mix.normed);
}

static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gate_values *values = values_of(gpt, sublayer);
    gates_leave(&gpt->operations, gpt_tokens(gpt), values, !frame_lambdas_follow(sublayer), frame_next(sublayer),
                sublayer[1].mix.squares);
}

static void top(struct gpt *gpt) {
    frame_set_module(gpt);
    enter(gpt, frame_top(gpt));
}

/* ---- backward */

/* d_u [N, C] and scratch.d_streams of the next sublayer -> scratch.d_streams */
static void read_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_u) {
    struct operations *operations = &gpt->operations;
    const struct gated_state *state = state_of(gpt);
    const struct gate_values *values = values_of(gpt, sublayer);
    const struct matrix in = packed_in(gpt, sublayer), up = packed_up(gpt, sublayer);
    const struct buffer *gradients = gpt->parameters.gradients;
    const size_t tokens = gpt_tokens(gpt), rank = (size_t)gates_rank(&operations->shape);
    const bool is_top = !sublayer->branch;
    gates_backward(operations, tokens, values, d_u, state->d_gates,
                   (struct span){gradients, sublayer->at->rms_gain}, gpt->parameters.accumulate);
    /* logits = hidden up */
    const struct matrix d_logits = frame_rows(gpt, state->d_gates, up.rows);
    linear_input_backward(gpt->compute, d_logits, up, frame_rows(gpt, state->d_hidden, up.columns), false);
    linear_matrix_backward(gpt->compute, (struct matrix){values->hidden, 0, tokens, rank, up.columns}, d_logits,
                           matrix_of(gradients, sublayer->at->projections[UP], rank, up.rows),
                           gpt->parameters.accumulate);
    gates_hidden_backward(operations, tokens, values, state->d_hidden, is_top ? NULL : state->d_post, state->d_y);
    /* y = streams in; d_gates becomes that part of the normalised streams' gradient which comes through y */
    const struct matrix d_y = frame_rows(gpt, state->d_y, in.rows);
    linear_input_backward(gpt->compute, d_y, in, frame_rows(gpt, state->d_gates, in.columns), false);
    linear_matrix_backward(gpt->compute, d_y, frame_rows(gpt, values->streams, in.columns),
                           matrix_of(state->d_packed, (size_t)sublayer->index * in.rows * in.columns, in.rows,
                                     in.columns),
                           false);
    gates_streams_backward(operations, tokens, values, state->d_gates, d_u, gpt->scratch.d_streams, is_top);
}

static void unpack(struct gpt *gpt, size_t first, size_t count) {
    const struct gated_state *state = state_of(gpt);
    gates_unpack(&gpt->operations, gpt->parameters.weights,
                 (struct gate_table){state->table.leaves, first, count, first + count == state->table.count},
                 state->d_packed, gpt->parameters.gradients, gpt->parameters.accumulate);
}

static void top_backward(struct gpt *gpt) {
    const struct sublayer *top = frame_top(gpt);
    frame_set_module(gpt);
    read_backward(gpt, top, gpt->d_final);
    unpack(gpt, (size_t)top->index, 1);
}

static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    gates_leave_backward(&gpt->operations, gpt_tokens(gpt), values_of(gpt, sublayer), gpt->scratch.d_streams,
                         gpt->scratch.d_output, state_of(gpt)->d_post);
    return gpt->scratch.d_output;
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    read_backward(gpt, sublayer, gpt->scratch.d_normed);
}

/* top_backward has finished its own. */
static void finish_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    unpack(gpt, sublayer ? (size_t)sublayer->index : 0, sublayer ? 1 : (size_t)frame_top(gpt)->index);
}

/* ---- values */

static size_t values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    const struct gated_state *state = state_of(gpt);
    const uint64_t streams = (uint64_t)gpt->config.n_streams;
    const bool is_top = sublayer == frame_top(gpt)->index;
    if (!keeps_gates(gpt)) {
        return 0;
    }
    gates_open(state->operations, gpt_tokens(gpt), state->values[sublayer].logits, state->d_gates);
    values[0] = (struct frame_value){.buffer = state->d_gates,
                                     .row = row_length(gpt),
                                     .rank = 2,
                                     .shape = {streams, (uint64_t)gpt->config.n_embd}};
    values[1] = (struct frame_value){.buffer = state->values[sublayer].post,
                                     .row = streams,
                                     .rank = 1,
                                     .shape = {streams, 1}};
    snprintf(values[0].name, sizeof values[0].name, is_top ? "h_gate.top" : "h_gate.%" PRId64, sublayer);
    snprintf(values[1].name, sizeof values[1].name, "h_post.%" PRId64, sublayer);
    return is_top ? 1 : 2;
}

const struct frame frame_gated = {
    .name = "gated",
    .reads_output = true,
    .add_parameters = add_parameters,
    .check_upcycling = check_upcycling,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .plan_scratch = plan_scratch,
    .largest_matrix = largest_matrix,
    .create = create,
    .begin = begin,
    .weighed = weighed,
    .enter = enter,
    .leave = leave,
    .top = top,
    .top_backward = top_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .finish_backward = finish_backward,
    .values = values,
};
