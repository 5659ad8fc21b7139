/* mudd: multiway dynamic dense connections. State 0 is the embedding and state i + 1 the output of layer i. After
 * layer i all states are mixed in four ways, with weights that depend on the newest (cl/ways.cl): queries, keys and
 * values of the next layer each read a mixture through a norm of their own, and the stream goes on from the fourth,
 *
 *     h = y_r + attention(ln_q(y_q), ln_k(y_k), ln_v(y_v)),     state i + 2 = h + MLP(ln_2(h)).
 *
 * Layer 0 reads state 0 alone, and the top one mixture of all. In `dense` there is one mixture after each layer,
 * with weights that are parameters; it is the stream, and a layer reads it as a plain model does. With mudd_norm =
 * prepost states are normed, the embedding, too, and a layer's output is kept beside its state. What is computed
 * after layer i is enqueued with its MLP: the parameters and their gradients are those of sublayer 2 i + 1.
 *
 * states has a slot for every state in all modes. d_states has the gradients of all of them, which layers add to as
 * they go backward; that of the newest is complete once the layer that reads it has gone backward. */
#include "runtime/system/memory.h"
#include "src/model/frame_parts.h"
#include "src/operations/ways.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { W_1, W_2 }; /* places in sublayer_offsets.projections; theta is b */
enum { QUERIES, KEYS, VALUES, STREAM, NORMED_WAYS = STREAM };

/* What is computed after a layer. */
struct layer {
    struct way_values values;
    const struct buffer *statistics[NORMED_WAYS]; /* [N, 2] of the norms of keys and values */
    uint64_t packed_at;
};

struct mudd {
    const struct buffer *states;                       /* [n_layer + 1, N, C] */
    struct way_values embedding;                       /* normed states: what makes state 0 */
    const struct buffer *packed, *table;               /* matrices of all layers as GEMMs read them */
    const struct buffer *d_stream;                     /* [N, C] gradient of the stream inside of a layer */
    const struct buffer *d_weights, *d_hidden, *along; /* see ways.h */
    uint64_t packed_elements;
    struct layer layers[]; /* n_layer */
};

static struct mudd *mudd_of(const struct gpt *gpt) {
    return gpt->frame_state;
}

static bool is_attention(int64_t sublayer) {
    return sublayer % BRANCHES == 0;
}

static bool is_dense(const struct gpt *gpt) {
    return ways_are_fixed(&gpt->operations.shape);
}

static bool is_normed(const struct gpt *gpt) {
    return ways_are_normed(&gpt->operations.shape);
}

/* What is computed after the layer before an attention sublayer, or before the top. */
static struct layer *layer_before(const struct gpt *gpt, int64_t sublayer) {
    return &mudd_of(gpt)->layers[sublayer / BRANCHES - 1];
}

/* ---- parameters */

static float plain_gain(int64_t index, const struct residual_init *init) {
    return init->gain[index];
}

static float plain_bias(int64_t index, const struct residual_init *init) {
    return init->bias[index];
}

/* One of three norms where a plain model has one. */
static void add_input_norm(struct parameter_builder *builder, const char *name, struct norm_offsets *norm) {
    const size_t first = builder->parameters->count;
    parameters_add_norm(builder, name, norm);
    for (size_t i = first; i < builder->parameters->count; i++) {
        builder->parameters->table[i].upcycled = i == first ? plain_gain : plain_bias;
    }
}

static void add_norm(struct parameter_builder *builder, int64_t sublayer) {
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    const bool has_ways = sublayer > 0 && is_attention(sublayer) && sublayer < BRANCHES * builder->config->n_layer;
    if (!has_ways || ways_are_fixed(&(struct operation_shape){.residual = builder->config->residual})) {
        frame_add_norm(builder, sublayer);
        return;
    }
    add_input_norm(builder, "ln_q", &at->norm);
    add_input_norm(builder, "ln_k", &at->key_norm);
    add_input_norm(builder, "ln_v", &at->value_norm);
}

/* Every mixture begins as the newest state alone, or as nothing that is added to it. */
static float newest_alone(int64_t index, const struct residual_init *init) {
    const int64_t states = init->sublayer / BRANCHES + 2;
    const bool is_added = residual_setting_value(init->settings, "mudd_norm").choice == MUDD_NORM_PREPOST;
    return index % states == states - 1 && !is_added ? 1.0f : 0.0f;
}

#define FIRST_POST_GAIN 0.001f

static void add_parameters(struct parameter_builder *builder, int64_t sublayer) {
    const struct model_config *config = builder->config;
    const int64_t layer = sublayer / BRANCHES;
    const struct operation_shape shape = {.sublayers = BRANCHES * config->n_layer,
                                          .residual = config->residual,
                                          .settings = config->settings};
    const struct way_sizes sizes = way_sizes(&shape, layer);
    const uint64_t width = (uint64_t)config->n_embd;
    struct sublayer_offsets *at = &builder->parameters->sublayers[sublayer];
    if (sublayer == 0 && ways_are_normed(&shape)) {
        snprintf(builder->prefix, sizeof builder->prefix, "transformer.mudd.");
        parameters_add_gain(builder, "norm_pre", width, &at->rms_gain);
    }
    if (is_attention(sublayer)) {
        return;
    }
    snprintf(builder->prefix, sizeof builder->prefix, "transformer.h.%" PRId64 ".%s.", layer,
             config->residual->name);
    if (ways_are_fixed(&shape)) {
        parameters_add(builder, "b", 1, &(uint64_t){sizes.states}, &at->theta)->initial = newest_alone;
        return;
    }
    struct parameter *w_1 =
        parameters_add(builder, "w_1", 2, (uint64_t[]){width, sizes.hidden}, &at->projections[W_1]);
    w_1->deviation = 1.0 / sqrt((double)config->n_embd);
    w_1->decayed = true;
    parameters_add(builder, "w_2", 2, (uint64_t[]){sizes.hidden, sizes.weights}, &at->projections[W_2])->decayed =
        true;
    parameters_add(builder, "b", 2, (uint64_t[]){sizes.ways, sizes.states}, &at->theta)->initial = newest_alone;
    if (ways_are_normed(&shape)) {
        parameters_add_gain(builder, "norm_pre", width, &at->rms_gain);
        struct parameter *post = parameters_add(builder, "norm_post.weight", 1, &width, NULL);
        post->constant = FIRST_POST_GAIN;
        post->joined = true;
    }
}

/* ---- memory */

/* The longest rows after any layer. */
static struct way_sizes longest_rows(const struct gpt *gpt) {
    struct way_sizes most = way_sizes(&gpt->operations.shape, 0);
    for (int64_t layer = 1; layer < gpt->config.n_layer; layer++) {
        const struct way_sizes sizes = way_sizes(&gpt->operations.shape, layer);
        most.hidden_row = size_larger(most.hidden_row, sizes.hidden_row);
        most.weights_row = size_larger(most.weights_row, sizes.weights_row);
    }
    return most;
}

/* Weights and what they are computed from: in training and analysis each layer has its own. */
static void plan(struct gpt *gpt) {
    const char *const group = "hyper-connection matrices";
    const int64_t layers = gpt->config.n_layer, width = gpt->config.n_embd;
    const struct way_sizes most = longest_rows(gpt);
    const bool shares = gpt_shares_streams(gpt);
    struct mudd *state = memory_zeroed(1, sizeof *state + (size_t)layers * sizeof *state->layers);
    gpt->frame_state = state;
    state->states = gpt_plan_activations(gpt, "streams", (layers + 1) * width);
    for (int64_t index = 0; index < layers; index++) {
        struct layer *layer = &state->layers[index];
        const struct way_sizes sizes = way_sizes(&gpt->operations.shape, index);
        if (index > 0) {
            layer->values = layer[-1].values;
        } else {
            layer->values.states = state->states;
            layer->values.scales = gpt_plan_floats(gpt, group, 1);
        }
        layer->values.sizes = sizes;
        layer->values.gains =
            (struct span){gpt->parameters.weights, gpt->parameters.sublayers[BRANCHES * index + 1].rms_gain};
        if (is_normed(gpt) && (index == 0 || !shares)) {
            layer->values.newest = gpt_plan_activations(gpt, "streams", width);
        }
        if (is_dense(gpt)) {
            layer->values.weights =
                (struct span){gpt->parameters.weights, gpt->parameters.sublayers[BRANCHES * index + 1].theta};
            continue;
        }
        if (index == 0) {
            layer->values.hidden = gpt_plan_activations(gpt, "scratch", (int64_t)most.hidden_row);
        }
        layer->packed_at = state->packed_elements;
        state->packed_elements += sizes.hidden_row * ((size_t)width + sizes.weights_row); /* w_1, then w_2 */
        if (index == 0 || !shares) {
            const struct way_sizes rows = shares ? most : sizes;
            layer->values.scales = index > 0 ? gpt_plan_floats(gpt, group, 1) : layer->values.scales;
            layer->values.raw = gpt_plan_activations(gpt, group, (int64_t)rows.hidden_row);
            layer->values.weights.buffer = gpt_plan_floats(gpt, group, (int64_t)rows.weights_row);
        }
    }
    if (!is_dense(gpt)) {
        state->packed = memory_plan_add(&gpt->plan, "weights", state->packed_elements, gpt->options.type);
        state->table =
            memory_plan_add(&gpt->plan, "weights", 2 * (uint64_t)layers * WAY_MATRIX_INTEGERS, ELEMENT_INT32);
    }
    if (is_normed(gpt)) {
        state->embedding =
            (struct way_values){.sizes = {.states = 1},
                                .states = state->states,
                                .scales = gpt_plan_floats(gpt, group, 1),
                                .gains = {gpt->parameters.weights, gpt->parameters.sublayers[0].rms_gain},
                                .newest = gpt_plan_activations(gpt, "streams", width)};
    }
    if (gpt->options.mode == GPT_TRAINING) { /* the embedding's gradient is the first of them */
        gpt->scratch.d_streams = gpt_plan_activations(gpt, "scratch", (layers + 1) * width);
    }
}

/* What an attention sublayer behind the first reads: mixtures, and their norms. No backward pass reads the mixture
 * of the stream, so layers share it. */
static void plan_inputs(struct gpt *gpt, struct sublayer *sublayer) {
    const char *const group = "streams";
    struct layer *layer = layer_before(gpt, sublayer->index);
    const bool is_first = sublayer->index == BRANCHES;
    for (int way = QUERIES; way < NORMED_WAYS; way++) {
        layer->values.mixed[way] = gpt_plan_activations(gpt, group, gpt->config.n_embd);
    }
    if (is_normed(gpt)) {
        layer->values.unnormed = gpt_plan_activations(gpt, group, gpt->config.n_embd);
    }
    layer->values.mixed[STREAM] =
        is_first ? gpt_plan_activations(gpt, group, gpt->config.n_embd) : layer[-1].values.mixed[STREAM];
    layer->statistics[KEYS] = gpt_plan_floats(gpt, group, 2);
    layer->statistics[VALUES] = gpt_plan_floats(gpt, group, 2);
    sublayer->key_input = gpt_plan_activations(gpt, "branch activations", gpt->config.n_embd);
    sublayer->value_input = gpt_plan_activations(gpt, "branch activations", gpt->config.n_embd);
    sublayer->mix.streams = layer->values.mixed[STREAM];
}

static void plan_sublayer(struct gpt *gpt, struct sublayer *sublayer) {
    const int64_t index = sublayer->index;
    const bool shares = gpt->options.mode != GPT_TRAINING || gpt->options.recompute;
    if (index == 0) {
        sublayer->mix.streams = is_normed(gpt) ? mudd_of(gpt)->embedding.newest : mudd_of(gpt)->states;
        sublayer->mix.squares = gpt_plan_floats(gpt, "streams", 1); /* which nobody reads, as z and H */
    } else if (!sublayer->branch || (is_attention(index) && is_dense(gpt))) {
        if (!sublayer->branch || index == BRANCHES || !shares) {
            sublayer->mix.streams = gpt_plan_activations(gpt, "streams", gpt->config.n_embd);
        }
        layer_before(gpt, index)->values.mixed[QUERIES] = sublayer->mix.streams;
        if (is_normed(gpt)) {
            layer_before(gpt, index)->values.unnormed = gpt_plan_activations(gpt, "streams", gpt->config.n_embd);
        }
    } else if (is_attention(index)) {
        if (index == BRANCHES || !shares) {
            plan_inputs(gpt, sublayer);
        } else {
            struct layer *layer = layer_before(gpt, index);
            memcpy(layer->values.mixed, layer[-1].values.mixed, sizeof layer->values.mixed);
            memcpy(layer->statistics, layer[-1].statistics, sizeof layer->statistics);
            layer->values.unnormed = layer[-1].values.unnormed;
        }
    } else if (index == 1 || !shares) {
        sublayer->mix.streams = gpt_plan_activations(gpt, "streams", gpt->config.n_embd);
    }
    sublayer->mix.squares = gpt->sublayers[0].mix.squares;
    sublayer->mix.z = sublayer->mix.h = sublayer->mix.squares;
}

static void plan_scratch(struct gpt *gpt) {
    const char *const group = "scratch";
    const struct way_sizes most = longest_rows(gpt);
    struct mudd *state = mudd_of(gpt);
    if (gpt->options.mode == GPT_TRAINING) {
        state->d_stream = gpt_plan_activations(gpt, group, gpt->config.n_embd);
        state->d_weights = gpt_plan_activations(gpt, group, (int64_t)most.weights_row);
    }
    if (gpt->options.mode == GPT_TRAINING && !is_dense(gpt)) {
        state->d_hidden = gpt_plan_activations(gpt, group, (int64_t)most.hidden_row);
        state->along = gpt_plan_floats(gpt, group, 1);
        gpt->scratch.d_key_input = gpt_plan_activations(gpt, group, gpt->config.n_embd);
        gpt->scratch.d_value_input = gpt_plan_activations(gpt, group, gpt->config.n_embd);
    }
}

static uint64_t largest_matrix(const struct gpt *gpt) {
    const struct way_sizes most = longest_rows(gpt);
    const size_t width = size_larger((size_t)gpt->config.n_embd, most.weights_row);
    if (is_dense(gpt)) {
        return 0;
    }
    return size_larger(gpt_tokens(gpt), size_larger(width, most.hidden_row)) * size_larger(width, most.hidden_row);
}

/* Writes the table of all matrices to the device. */
static int create(struct gpt *gpt) {
    const struct mudd *state = mudd_of(gpt);
    const size_t layers = (size_t)gpt->config.n_layer;
    if (is_dense(gpt)) {
        return 0;
    }
    struct way_matrix *matrices = memory_zeroed(2 * layers, sizeof *matrices);
    for (size_t layer = 0; layer < layers; layer++) {
        const uint64_t *at = gpt->sublayers[BRANCHES * layer + 1].at->projections;
        ways_list(&gpt->operations.shape, (int64_t)layer, at[W_1], at[W_2], state->layers[layer].packed_at,
                  matrices + 2 * layer);
    }
    const int status = buffer_write(gpt->compute, state->table, 0, matrices, 2 * layers * sizeof *matrices);
    free(matrices);
    return status;
}

/* ---- forward */

/* The mixture of queries, keys or values with its norm; at the top the only mixture. */
static struct stream_mix mix_of(const struct gpt *gpt, const struct sublayer *sublayer, int way) {
    const struct layer *layer = layer_before(gpt, sublayer->index);
    const struct buffer *weights = gpt->parameters.weights;
    struct stream_mix mix = sublayer->mix;
    mix.streams = layer->values.mixed[way];
    mix.norm = gpt_norm(weights, sublayer->at->norm);
    if (way == KEYS) {
        mix.normed = sublayer->key_input;
        mix.norm = gpt_norm(weights, sublayer->at->key_norm);
    } else if (way == VALUES) {
        mix.normed = sublayer->value_input;
        mix.norm = gpt_norm(weights, sublayer->at->value_norm);
    }
    mix.statistics = layer->statistics[way] ? layer->statistics[way] : mix.statistics;
    return mix;
}

/* Steps of generation use what the pass over the prompt has packed. */
static void begin(struct gpt *gpt) {
    const struct mudd *state = mudd_of(gpt);
    if (gpt->pass.cache != CACHE_STEP && !is_dense(gpt)) {
        ways_pack(&gpt->operations, gpt->parameters.weights_lowp, state->table, 2 * (size_t)gpt->config.n_layer,
                  state->packed_elements, state->packed);
    }
    if (is_normed(gpt)) {
        ways_state_forward(&gpt->operations, gpt_tokens(gpt), &state->embedding, state->embedding.newest, NULL);
    }
}

/* Mixtures of all states, each through its norm. */
static void read_states(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct way_values *values = &layer_before(gpt, sublayer->index)->values;
    const size_t tokens = gpt_tokens(gpt);
    ways_mix_forward(&gpt->operations, tokens, values);
    for (int way = QUERIES; way < (values->sizes.ways == 1 ? KEYS : NORMED_WAYS); way++) {
        const struct stream_mix mix = mix_of(gpt, sublayer, way);
        width_mix_forward(&gpt->operations, tokens, &mix);
    }
}

static void enter(struct gpt *gpt, const struct sublayer *sublayer) {
    if (is_attention(sublayer->index) && sublayer->index > 0) {
        read_states(gpt, sublayer);
    } else {
        width_mix_forward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix);
    }
}

static void top(struct gpt *gpt) {
    frame_set_module(gpt);
    read_states(gpt, frame_top(gpt));
}

/* Packed w_1 [hidden_row, C] and w_2 [weights_row, hidden_row] of a layer. */
static struct matrix packed_1(const struct gpt *gpt, const struct layer *layer) {
    return matrix_of(mudd_of(gpt)->packed, layer->packed_at, layer->values.sizes.hidden_row,
                     (size_t)gpt->config.n_embd);
}

static struct matrix packed_2(const struct gpt *gpt, const struct layer *layer) {
    const struct matrix w_1 = packed_1(gpt, layer);
    return matrix_of(w_1.buffer, w_1.offset + w_1.rows * w_1.columns, layer->values.sizes.weights_row, w_1.rows);
}

/* The newest state, or what it is the norm of. */
static struct matrix newest_of(const struct gpt *gpt, const struct layer *layer) {
    if (is_normed(gpt)) {
        return frame_rows(gpt, layer->values.newest, (size_t)gpt->config.n_embd);
    }
    struct matrix state = frame_rows(gpt, mudd_of(gpt)->states, (size_t)gpt->config.n_embd);
    state.offset = (layer->values.sizes.states - 1) * state.rows * state.columns;
    return state;
}

/* Behind a layer: its state, and the weights of all mixtures that are read next. */
static void leave(struct gpt *gpt, const struct sublayer *sublayer) {
    struct operations *operations = &gpt->operations;
    const struct layer *layer = &mudd_of(gpt)->layers[sublayer->index / BRANCHES];
    const struct way_values *values = &layer->values;
    const size_t tokens = gpt_tokens(gpt), hidden = values->sizes.hidden_row;
    if (is_attention(sublayer->index)) {
        depth_mix_forward(operations, tokens, &sublayer->mix, sublayer[1].mix.streams, sublayer[1].mix.squares);
        return;
    }
    ways_state_forward(operations, tokens, values, sublayer->mix.streams, sublayer->mix.output);
    if (is_dense(gpt)) {
        return;
    }
    linear_multiply(operations, newest_of(gpt, layer), packed_1(gpt, layer), frame_rows(gpt, values->raw, hidden));
    ways_hidden_forward(operations, tokens, values);
    linear_multiply(operations, frame_rows(gpt, values->hidden, hidden), packed_2(gpt, layer),
                    frame_rows(gpt, values->weights.buffer, values->sizes.weights_row));
    ways_bias_forward(operations, tokens, values, (struct span){gpt->parameters.weights, sublayer->at->theta});
}

/* ---- backward */

/* Gradients of what is computed after a layer; -1: after the embedding. */
static struct way_gradients gradients_of(const struct gpt *gpt, int64_t layer) {
    const struct mudd *state = mudd_of(gpt);
    const bool is_layer = layer >= 0;
    const struct sublayer_offsets *at = &gpt->parameters.sublayers[is_layer ? BRANCHES * layer + 1 : 0];
    return (struct way_gradients){.d_states = gpt->scratch.d_streams,
                                  .d_weights = state->d_weights,
                                  .d_through = is_layer ? gpt->scratch.d_normed : NULL,
                                  .along = state->along,
                                  .d = is_layer ? state->d_stream : gpt->scratch.d_streams,
                                  .d_newest = state->d_stream,
                                  .gains = {gpt->parameters.gradients, at->rms_gain}};
}

/* d_weights -> the gradients of b, w_2 and w_1 and, in scratch.d_normed, the part of the newest state's gradient
 * that comes through raw, with the factor of the state in `along`. */
static void weights_backward(struct gpt *gpt, const struct layer *layer, const struct sublayer_offsets *at) {
    const struct mudd *state = mudd_of(gpt);
    const struct way_sizes sizes = layer->values.sizes;
    const struct parameters *parameters = &gpt->parameters;
    const size_t tokens = gpt_tokens(gpt), width = (size_t)gpt->config.n_embd;
    /* the same rows without what pads them */
    const struct matrix hidden = {layer->values.hidden, 0, tokens, sizes.hidden, sizes.hidden_row},
                        d_hidden = {state->d_hidden, 0, tokens, sizes.hidden, sizes.hidden_row},
                        d_weights = {state->d_weights, 0, tokens, sizes.weights, sizes.weights_row};
    bias_backward(&gpt->operations, tokens, sizes.weights_row, sizes.weights, state->d_weights,
                  (struct span){parameters->gradients, at->theta}, parameters->accumulate);
    if (is_dense(gpt)) {
        return;
    }
    ways_hidden_forward(&gpt->operations, tokens, &layer->values); /* all layers share it */
    linear_matrix_backward(gpt->compute, hidden, d_weights,
                           matrix_of(parameters->gradients, at->projections[W_2], sizes.hidden, sizes.weights),
                           parameters->accumulate);
    linear_input_backward(gpt->compute, frame_rows(gpt, state->d_weights, sizes.weights_row), packed_2(gpt, layer),
                          frame_rows(gpt, state->d_hidden, sizes.hidden_row), false);
    ways_hidden_backward(&gpt->operations, tokens, &layer->values, state->d_hidden, state->along);
    linear_matrix_backward(gpt->compute, newest_of(gpt, layer), d_hidden,
                           matrix_of(parameters->gradients, at->projections[W_1], width, sizes.hidden),
                           parameters->accumulate);
    linear_input_backward(gpt->compute, frame_rows(gpt, state->d_hidden, sizes.hidden_row), packed_1(gpt, layer),
                          frame_rows(gpt, gpt->scratch.d_normed, width), false);
}

/* d_inputs, what the norms of the mixtures have written, become the gradients of the mixtures and then of
 * states. */
static void read_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *const d_inputs[]) {
    const struct layer *layer = layer_before(gpt, sublayer->index);
    const struct sublayer_offsets *at = sublayer->at;
    const struct norm_offsets norms[] = {at->norm, at->key_norm, at->value_norm};
    const size_t tokens = gpt_tokens(gpt);
    const bool is_top = !sublayer->branch;
    if (is_dense(gpt) && !is_top) {
        frame_single_enter_backward(gpt, sublayer, d_inputs[QUERIES]);
    }
    for (int way = QUERIES; way < (is_top ? KEYS : is_dense(gpt) ? QUERIES : NORMED_WAYS); way++) {
        const struct stream_mix mix = mix_of(gpt, sublayer, way);
        width_mix_backward(&gpt->operations, tokens, &mix, d_inputs[way], d_inputs[way], mix.h,
                           gpt_norm(gpt->parameters.gradients, norms[way]), gpt->parameters.accumulate);
    }
    const struct way_gradients gradients = gradients_of(gpt, sublayer->index / BRANCHES - 1);
    ways_mix_backward(&gpt->operations, tokens, &layer->values, d_inputs, !is_top, &gradients,
                      gpt->parameters.accumulate);
    weights_backward(gpt, layer, sublayer[-1].at);
}

static void top_backward(struct gpt *gpt) {
    const struct buffer *const d_inputs[MOST_WAYS] = {gpt->d_final};
    frame_set_module(gpt);
    read_backward(gpt, frame_top(gpt), d_inputs);
}

/* Behind a layer d_stream begins as the gradient of its state. */
static const struct buffer *leave_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct mudd *state = mudd_of(gpt);
    const size_t layer = (size_t)sublayer->index / BRANCHES, bytes = gpt_activation_bytes(gpt, gpt->config.n_embd);
    if (!is_attention(sublayer->index) && is_dense(gpt)) {
        buffer_copy(gpt->compute, gpt->scratch.d_streams, (layer + 1) * bytes, state->d_stream, 0, bytes);
    } else if (!is_attention(sublayer->index)) {
        const struct way_gradients gradients = gradients_of(gpt, (int64_t)layer);
        ways_state_backward(&gpt->operations, gpt_tokens(gpt), &state->layers[layer].values, &gradients,
                            gpt->parameters.accumulate);
    }
    return frame_single_leave_backward(gpt, state->d_stream);
}

static void enter_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct gpt_scratch *scratch = &gpt->scratch;
    const struct buffer *const d_inputs[MOST_WAYS] = {is_dense(gpt) ? mudd_of(gpt)->d_stream : scratch->d_normed,
                                                      scratch->d_key_input, scratch->d_value_input,
                                                      mudd_of(gpt)->d_stream};
    if (is_attention(sublayer->index) && sublayer->index > 0) {
        read_backward(gpt, sublayer, d_inputs);
    } else {
        frame_single_enter_backward(gpt, sublayer, mudd_of(gpt)->d_stream);
    }
    if (sublayer->index == 0 && is_normed(gpt)) {
        const struct way_gradients gradients = gradients_of(gpt, -1);
        ways_state_backward(&gpt->operations, gpt_tokens(gpt), &mudd_of(gpt)->embedding, &gradients,
                            gpt->parameters.accumulate);
    } else if (sublayer->index == 0) { /* the embedding is read along the stream, too, beside the mixtures */
        stream_backward(&gpt->operations, gpt_tokens(gpt), &sublayer->mix, mudd_of(gpt)->d_stream,
                        scratch->d_normed, scratch->d_streams);
    }
}

/* ---- values */

/* The weights after a layer, with its MLP. */
static size_t values(const struct gpt *gpt, int64_t sublayer, struct frame_value values[FRAME_MOST_VALUES]) {
    if (is_attention(sublayer)) {
        return 0;
    }
    const struct way_values *after = &mudd_of(gpt)->layers[sublayer / BRANCHES].values;
    values[0] = (struct frame_value){.buffer = after->weights.buffer,
                                     .row = after->sizes.weights_row,
                                     .rank = 2,
                                     .shape = {after->sizes.ways, after->sizes.states}};
    if (is_dense(gpt)) {
        values[0].row = 0;
        values[0].first = after->weights.offset;
        values[0].rank = 1;
        values[0].shape[0] = after->sizes.states;
    }
    snprintf(values[0].name, sizeof values[0].name, "depth.%" PRId64, sublayer / BRANCHES);
    return 1;
}

const struct frame frame_mudd = {
    .name = "mudd",
    .add_norm = add_norm,
    .add_parameters = add_parameters,
    .plan = plan,
    .plan_sublayer = plan_sublayer,
    .plan_scratch = plan_scratch,
    .largest_matrix = largest_matrix,
    .create = create,
    .begin = begin,
    .enter = enter,
    .leave = leave,
    .top = top,
    .top_backward = top_backward,
    .leave_backward = leave_backward,
    .enter_backward = enter_backward,
    .values = values,
};
