#include "tests/support/reference_model.h"
#include "runtime/system/memory.h"
#include "tests/support/freed.h"
#include "tests/support/reference.h"
#include "tests/support/reference_residual.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = RESIDUAL_MAX_STREAMS };

/* One sublayer's place in the model. */
struct place {
    const struct reference_model *model;
    int64_t index;
    size_t tokens, width, streams;
    double
        *read; /* [N, S]: with read_delay the H_pre of the sublayer before, of the first that of stream 0 alone */
};

static double *allocate(size_t count) {
    return memory_zeroed(count, sizeof(double));
}

/* "transformer.<name>"; NULL: the model has none. */
static const double *find(const struct reference_model *model, const char *name) {
    char whole[128];
    snprintf(whole, sizeof whole, "transformer.%s", name);
    const struct parameter *parameter = parameters_find(model->parameters, whole);
    return parameter ? model->values + parameter->offset : NULL;
}

static const double *find_leaf(const struct place *place, const char *attention, const char *mlp,
                               const char *leaf) {
    char name[96];
    snprintf(name, sizeof name, "h.%" PRId64 ".%s.%s", place->index / 2, place->index % 2 ? mlp : attention, leaf);
    return find(place->model, name);
}

/* A leaf of what a sublayer reads with, or at place->index 2 n_layer the top. */
static const double *find_connection(const struct place *place, const char *leaf) {
    char name[32];
    snprintf(name, sizeof name, "hc_head.%s", leaf);
    return place->index == 2 * place->model->config->n_layer ? find(place->model, name)
                                                             : find_leaf(place, "hc_attn", "hc_mlp", leaf);
}

static double dropped(const struct reference_model *model, const char *name, size_t token, size_t element) {
    const struct gpt_pass *pass = &model->pass;
    return pass->dropout
               ? reference_dropout((float)model->config->dropout, dropout_key(pass->seed, pass->iteration, name),
                                   pass->first_row + token, (uint32_t)element)
               : 1.0;
}

/* out [rows, outputs] = in [rows, inputs] weight^T + bias */
static void linear(size_t rows, size_t inputs, size_t outputs, const double *in, const double *weight,
                   const double *bias, double *out) {
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < outputs; k++) {
            out[i * outputs + k] =
                reference_dot(inputs, in + i * inputs, weight + k * inputs) + (bias ? bias[k] : 0.0);
        }
    }
}

/* The linear layer of this name in the sublayer. */
static void linear_named(const struct place *place, const char *name, size_t inputs, size_t outputs,
                         const double *in, double *out) {
    linear(place->tokens, inputs, outputs, in, find_leaf(place, name, name, "weight"),
           find_leaf(place, name, name, "bias"), out);
}

/* ---- hyper-connections */

/* raw [groups, columns]: gain times streams, by every projection. */
static void project(const struct place *place, const double *x, size_t groups, size_t columns, double *raw) {
    const struct model_config *config = place->model->config;
    const size_t length = place->streams * place->width / groups;
    const double *gain = find_leaf(place, "hc_attn", "hc_mlp", "norm.weight");
    size_t first = 0;
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf->name; leaf++) {
        if (leaf->kind != LEAF_PROJECTION) {
            continue;
        }
        const size_t width = (size_t)leaf->width(config->n_streams);
        const double *weight = find_leaf(place, "hc_attn", "hc_mlp", leaf->name);
        for (size_t i = 0; i < groups * length; i++) {
            for (size_t k = 0; k < width; k++) {
                raw[i / length * columns + first + k] +=
                    x[i] * (gain ? gain[i % length] : 1.0) * weight[i % length * width + k];
            }
        }
        first += width;
    }
}

static struct reference_map map_of(const struct place *place) {
    const struct model_config *config = place->model->config;
    struct reference_map map = {.residual = config->residual,
                                .settings = &config->settings,
                                .streams = place->streams,
                                .channels = place->width,
                                .eps = config->hc_eps,
                                .norm_eps = config->hc_norm_eps,
                                .transposed = config->h_res_transposed,
                                .sublayers = 2 * (size_t)config->n_layer};
    for (size_t i = 0; config->residual->leaves[i].name; i++) {
        map.leaves[i] = find_leaf(place, "hc_attn", "hc_mlp", config->residual->leaves[i].name);
    }
    return map;
}

/* One token's h from its streams. */
static void make_matrices(const struct place *place, const double *x, double *h) {
    const struct model_config *config = place->model->config;
    const struct residual_sizes sizes = residual_sizes(config->residual, config->n_streams, NULL);
    const size_t groups = sizes.norm_groups, columns = sizes.columns;
    const struct reference_map map = map_of(place);
    FREED double *raw = allocate(groups * columns), *z = allocate(groups * columns);
    double squares[STREAMS];
    for (size_t s = 0; s < place->streams; s++) {
        squares[s] = reference_dot(place->width, x + s * place->width, x + s * place->width);
    }
    project(place, x, groups, columns, raw);
    reference_map_token(&map, columns, raw, squares, z, h);
}

/* ---- branches */

/* qkv [N, (H + 2 K) D]: queries from q, keys from k, values from v, each [N, C]. */
static void project_heads(const struct place *place, const double *q, const double *k, const double *v,
                          double *qkv) {
    const struct head_shape heads = model_config_heads(place->model->config);
    const size_t row = (size_t)heads.qkv_row, ends[] = {(size_t)heads.y_row, row - (size_t)heads.kv_row, row};
    const double *const inputs[] = {q, k, v};
    FREED double *all = allocate(place->tokens * row);
    for (size_t input = 0, first = 0; input < 3; first = ends[input++]) {
        linear_named(place, "attn.c_attn", place->width, row, inputs[input], all);
        for (size_t token = 0; token < place->tokens; token++) {
            memcpy(qkv + token * row + first, all + token * row + first, (ends[input] - first) * sizeof *all);
        }
    }
}

/* Of queries, keys and values that are made of q, k and v [N, C]. */
static void attend(const struct place *place, const double *q, const double *k, const double *v, double *output) {
    const struct reference_model *model = place->model;
    const size_t tokens = place->tokens;
    char name[32];
    snprintf(name, sizeof name, "%" PRId64 " attention", place->index);
    const struct head_shape heads = model_config_heads(model->config);
    const size_t qkv_row = (size_t)heads.qkv_row, y_row = (size_t)heads.y_row;
    const struct reference_attention shape = {
        .batch = (size_t)model->shape.batch,
        .sequence = (size_t)model->shape.sequence,
        .heads = (size_t)heads.heads,
        .kv_heads = (size_t)heads.kv_heads,
        .head_size = (size_t)heads.size,
        .scale = model->config->attn_scale,
        .dropout = model->pass.dropout ? (float)model->config->dropout : 0.0f,
        .key = dropout_key(model->pass.seed, model->pass.iteration, name),
        .first_row = model->pass.first_row,
    };
    FREED double *qkv = allocate(tokens * qkv_row), *inner = allocate(tokens * y_row);
    FREED double *lse = allocate(tokens * shape.heads);
    project_heads(place, q, k, v, qkv);
    const struct reference_head_rows rows = {
        .heads = shape.heads,
        .kv_heads = shape.kv_heads,
        .head_size = shape.head_size,
        .normed = model->config->qk_norm != QK_NORM_NONE,
        .q_gain = find_leaf(place, "attn.q_norm", "", "weight"),
        .k_gain = find_leaf(place, "attn.k_norm", "", "weight"),
        .epsilon = model->config->norm_eps,
        .theta = model->config->position == POSITION_ROPE ? model->config->rope_theta : 0.0,
        .fraction = model->config->rope_fraction,
    };
    FREED double *changed = allocate(tokens * qkv_row);
    for (size_t token = 0; token < tokens; token++) {
        reference_head_rows(&rows, token % shape.sequence, qkv + token * qkv_row, changed + token * qkv_row);
    }
    reference_attention(&shape, changed, inner, lse);
    linear_named(place, "attn.c_proj", y_row, place->width, inner, output);
}

static double activation(const struct model_config *config, double x) {
    return config->mlp == MLP_SWIGLU                    ? reference_silu(x)
           : config->mlp == MLP_RELU2                   ? reference_relu2(x)
           : config->activation == ACTIVATION_GELU_TANH ? reference_gelu_tanh(x)
                                                        : reference_gelu(x);
}

static void mlp(const struct place *place, const double *normed, double *output) {
    const struct model_config *config = place->model->config;
    const size_t tokens = place->tokens, width = place->width, hidden = (size_t)config->mlp_width;
    const bool gate = find_leaf(place, "", "mlp.c_gate", "weight") != NULL;
    FREED double *wide = allocate(tokens * hidden), *gates = allocate(tokens * hidden);
    linear_named(place, "mlp.c_fc", width, hidden, normed, wide);
    if (gate) {
        linear_named(place, "mlp.c_gate", width, hidden, normed, gates);
    }
    for (size_t i = 0; i < tokens * hidden; i++) {
        wide[i] = gate ? activation(config, gates[i]) * wide[i] : activation(config, wide[i]);
    }
    linear_named(place, "mlp.c_proj", hidden, width, wide, output);
}

static void drop_output(const struct place *place, double *output) {
    char name[32];
    snprintf(name, sizeof name, "%" PRId64 " output", place->index);
    for (size_t k = 0; k < place->tokens * place->width; k++) {
        output[k] *= dropped(place->model, name, k / place->width, k % place->width);
    }
}

/* Its output [N, C], with dropout. */
static void run_branch(const struct place *place, const double *normed, double *output) {
    if (place->index % 2) {
        mlp(place, normed, output);
    } else {
        attend(place, normed, normed, normed, output);
    }
    drop_output(place, output);
}

/* ---- gated */

static struct reference_gates gates_of(const struct place *place) {
    const struct reference_model *model = place->model;
    const struct operation_shape shape = {.channels = model->config->n_embd, .settings = model->config->settings};
    return (struct reference_gates){.streams = place->streams,
                                    .channels = place->width,
                                    .rank = (size_t)gates_rank(&shape),
                                    .epsilon = model->config->norm_eps,
                                    .gain = find_connection(place, "norm.weight"),
                                    .down = find_connection(place, "w_down"),
                                    .up = find_connection(place, "w_up"),
                                    .post = find_connection(place, "w_post")};
}

static void run_gated_sublayer(const struct place *place, double *streams) {
    const struct reference_gates gates = gates_of(place);
    const size_t width = place->width, row = place->streams * width;
    FREED double *read = allocate(place->tokens * width), *output = allocate(place->tokens * width);
    FREED double *post = allocate(place->tokens * place->streams);
    for (size_t token = 0; token < place->tokens; token++) {
        reference_gates_read(&gates, streams + token * row, read + token * width, post + token * place->streams);
    }
    run_branch(place, read, output);
    for (size_t k = 0; k < place->tokens * row; k++) {
        streams[k] += post[k / width] * output[k / row * width + k % width];
    }
}

/* ---- sublayers */

/* streams [N, S, C] through one sublayer, in place */
static void run_sublayer(const struct place *place, double *streams) {
    const size_t width = place->width, row = place->streams * width, h_row = place->streams * (place->streams + 2);
    const bool plain = !residual_has_matrices(place->model->config->residual);
    const struct reference_norm norm = {place->model->config->norm, place->model->config->norm_eps,
                                        find_leaf(place, "ln_1", "ln_2", "weight"),
                                        find_leaf(place, "ln_1", "ln_2", "bias")};
    FREED double *h = allocate(place->tokens * h_row), *normed = allocate(place->tokens * width);
    FREED double *output = allocate(place->tokens * width), *mixed = allocate(row);
    for (size_t token = 0; token < place->tokens; token++) {
        double *read = place->read + token * place->streams;
        if (!plain) {
            make_matrices(place, streams + token * row, h + token * h_row);
        }
        if (!plain && !place->model->config->read_delay) {
            memcpy(read, h + token * h_row, place->streams * sizeof *h);
        }
        reference_width_mix(&norm, place->streams, width, streams + token * row, plain ? NULL : read,
                            normed + token * width, NULL);
        memcpy(read, h + token * h_row, place->streams * sizeof *h);
    }
    run_branch(place, normed, output);
    for (size_t token = 0; token < place->tokens; token++) {
        reference_depth_mix(place->streams, width, streams + token * row, plain ? NULL : h + token * h_row,
                            output + token * width, mixed);
        memcpy(streams + token * row, mixed, row * sizeof *mixed);
    }
}

/* ---- attention over depth */

/* States of all tokens: what sublayers read, and the sum of outputs that the next is made of. */
struct depth {
    double *states; /* [count + 1, N, C]: the last is that sum */
    size_t count;
    int64_t summed; /* outputs in it */
};

/* States -> their mixture [N, C], by the leaves of the sublayer or, at place->index 2 n_layer, of hc_head. */
static void read_depth(const struct place *place, const struct depth *depth, double *mixed) {
    const size_t count = depth->count + (depth->summed > 0), row = place->tokens * place->width;
    const struct reference_depth leaves = {
        .count = count,
        .channels = place->width,
        .gain = find_connection(place, "norm.weight"),
        .query = find_connection(place, "query"),
        .epsilon = place->model->config->norm_eps,
    };
    FREED double *weights = allocate(count);
    FREED const double **states = memory_zeroed(count, sizeof *states);
    for (size_t token = 0; token < place->tokens; token++) {
        for (size_t s = 0; s < count; s++) {
            states[s] = depth->states + s * row + token * place->width;
        }
        reference_depth_read(&leaves, states, weights, mixed + token * place->width);
    }
}

/* x [N, C] through the norm of this name in the layer */
static void norm_named(const struct place *place, const char *norm, const double *x, double *normed) {
    const struct model_config *config = place->model->config;
    const struct reference_norm leaves = {config->norm, config->norm_eps, find_leaf(place, norm, norm, "weight"),
                                          find_leaf(place, norm, norm, "bias")};
    for (size_t at = 0; at < place->tokens * place->width; at += place->width) {
        reference_norm(&leaves, place->width, x + at, normed + at, NULL);
    }
}

/* The mixture that a sublayer has read becomes its output, which joins the newest state. */
static void add_output(const struct place *place, struct depth *depth, double *mixed) {
    const struct model_config *config = place->model->config;
    const int64_t block = config->settings.values[residual_setting_find("attnres_block")].number;
    const size_t row = place->tokens * place->width;
    FREED double *normed = allocate(row);
    double *newest = depth->states + depth->count * row;
    norm_named(place, place->index % 2 ? "ln_2" : "ln_1", mixed, normed);
    run_branch(place, normed, mixed);
    for (size_t i = 0; i < row; i++) {
        newest[i] += mixed[i];
    }
    depth->summed++;
    if (depth->summed == block) {
        depth->count++;
        depth->summed = 0;
    }
}

/* embedding [N, C] -> the mixture at the top [N, C], in place */
static void run_over_depth(struct place *place, double *embedded) {
    const int64_t sublayers = 2 * place->model->config->n_layer;
    const size_t row = place->tokens * place->width;
    FREED double *states = allocate(((size_t)sublayers + 2) * row);
    struct depth depth = {.states = states, .count = 1};
    memcpy(states, embedded, row * sizeof *embedded);
    for (place->index = 0; place->index < sublayers; place->index++) {
        read_depth(place, &depth, embedded);
        add_output(place, &depth, embedded);
    }
    read_depth(place, &depth, embedded);
}

/* ---- multiway dense connections */

/* After layer `layer`, from states [layer + 2, N, C]: the mixture [N, C] of this number of `ways`. */
static void mix_way(const struct place *place, int64_t layer, size_t ways, size_t way, const double *states,
                    double *mixed) {
    const size_t count = (size_t)layer + 2, width = place->width, row = place->tokens * width, all = ways * count;
    const double *leaves[3];
    static const char *const names[3] = {"w_1", "w_2", "b"};
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "h.%" PRId64 ".mudd.%s", layer, names[i]);
        leaves[i] = find(place->model, name);
    }
    char name[96];
    snprintf(name, sizeof name, "transformer.h.%" PRId64 ".mudd.w_1", layer);
    const size_t hidden = parameters_find(place->model->parameters, name)->shape[1];
    for (size_t token = 0; token < place->tokens; token++) {
        const double *newest = states + (count - 1) * row + token * width;
        FREED double *a = allocate(count);
        memcpy(a, leaves[2] + way * count, count * sizeof *a);
        const double rms =
            sqrt(reference_dot(width, newest, newest) / (double)width + place->model->config->norm_eps);
        for (size_t k = 0; k < hidden; k++) {
            double u = 0.0;
            for (size_t c = 0; c < width; c++) {
                u += newest[c] / rms * leaves[0][c * hidden + k];
            }
            for (size_t s = 0; s < count; s++) {
                a[s] += reference_gelu(u) * leaves[1][k * all + way * count + s];
            }
        }
        for (size_t c = token * width; c < (token + 1) * width; c++) {
            mixed[c] = 0.0;
            for (size_t s = 0; s < count; s++) {
                mixed[c] += a[s] * states[s * row + c];
            }
        }
    }
}

/* One layer: inputs [4, N, C] are mixtures for queries, keys, values and the stream -> the next state. */
static void run_mixed_layer(struct place *place, int64_t layer, double *inputs, double *state) {
    static const char *const norms[] = {"ln_q", "ln_k", "ln_v"};
    const size_t row = place->tokens * place->width;
    const double *stream = inputs + 3 * row;
    FREED double *normed = allocate(3 * row), *output = allocate(row);
    place->index = 2 * layer;
    for (size_t i = 0; i < 3; i++) {
        norm_named(place, layer > 0 ? norms[i] : "ln_1", inputs + i * row, normed + i * row);
    }
    attend(place, normed, normed + row, normed + 2 * row, output);
    drop_output(place, output);
    for (size_t i = 0; i < row; i++) {
        state[i] = stream[i] + output[i];
    }
    place->index++;
    norm_named(place, "ln_2", state, normed);
    run_branch(place, normed, output);
    for (size_t i = 0; i < row; i++) {
        state[i] += output[i];
    }
}

/* embedding [N, C] -> the mixture at the top [N, C], in place */
static void run_multiway(struct place *place, double *embedded) {
    const int64_t layers = place->model->config->n_layer;
    const size_t row = place->tokens * place->width;
    FREED double *states = allocate(((size_t)layers + 1) * row), *inputs = allocate(4 * row);
    memcpy(states, embedded, row * sizeof *states);
    for (size_t i = 0; i < 4; i++) {
        memcpy(inputs + i * row, embedded, row * sizeof *states);
    }
    for (int64_t layer = 0; layer < layers; layer++) {
        const size_t ways = layer + 1 < layers ? 4 : 1;
        run_mixed_layer(place, layer, inputs, states + (size_t)(layer + 1) * row);
        for (size_t way = 0; way < ways; way++) {
            mix_way(place, layer, ways, way, states, inputs + way * row);
        }
    }
    memcpy(embedded, inputs, row * sizeof *embedded);
    place->index = 2 * layers;
}

/* ---- the ends */

static void embed(const struct place *place, double *streams) {
    const struct reference_model *model = place->model;
    const double *wte = find(model, "wte.weight"), *wpe = find(model, "wpe.weight");
    const double *scale = model->config->stream_expand == STREAM_EXPAND_SCALED ? find(model, "stream_scale") : NULL;
    const struct reference_norm norm = {NORM_RMS, model->config->norm_eps, find(model, "ln_e.weight"), NULL};
    const size_t width = place->width;
    FREED double *row = allocate(width);
    for (size_t token = 0; token < place->tokens; token++) {
        const size_t id = (size_t)model->x[token], position = token % (size_t)model->shape.sequence;
        for (size_t c = 0; c < width; c++) {
            row[c] = wte[id * width + c] + (wpe ? wpe[position * width + c] : 0.0);
        }
        if (norm.gain) {
            reference_norm(&norm, width, row, row, NULL);
        }
        for (size_t c = 0; c < width; c++) {
            const double value = row[c] * dropped(model, "embedding", token, c);
            for (size_t s = 0; s < place->streams; s++) {
                streams[(token * place->streams + s) * width + c] = value * (scale ? scale[s * width + c] : 1.0);
            }
        }
    }
}

/* The weight of stream s in the sum with stream_reduce = head or read. */
static double collapse_weight(const struct reference_model *model, size_t streams, size_t row, const double *x,
                              size_t s) {
    const double *w = find(model, "hc_head.w_pre");
    double z = 0.0;
    if (model->config->stream_reduce == STREAM_REDUCE_READ) {
        return 1.0 / (1.0 + exp(-find(model, "hc_head.b_pre")[s])) + model->config->hc_eps;
    }
    for (size_t k = 0; k < row; k++) {
        z += x[k] * w[k * streams + s];
    }
    z /= sqrt(reference_dot(row, x, x) / (double)row + 1e-6);
    return 1.0 / (1.0 + exp(-*find(model, "hc_head.alpha_pre") * z - find(model, "hc_head.b_pre")[s])) +
           model->config->hc_eps;
}

/* One token's streams [S, C] to top [C]; read [S] is H_pre of the last sublayer, and normed [C] scratch. */
static void reduce(const struct place *place, const double *x, const double *read, double *normed, double *top) {
    const struct reference_model *model = place->model;
    const struct reference_norm norm = {model->config->norm, model->config->norm_eps, find(model, "ln_f.weight"),
                                        find(model, "ln_f.bias")};
    const size_t width = place->width;
    if (residual_has_frame(model->config->residual, "gated")) {
        const struct reference_gates gates = gates_of(place);
        reference_gates_read(&gates, x, top, NULL);
        return;
    }
    memset(top, 0, width * sizeof *top);
    for (size_t s = 0; s < place->streams; s++) {
        const double *part = x + s * width;
        if (model->config->stream_reduce == STREAM_REDUCE_NORM_SUM) {
            reference_norm(&norm, width, part, normed, NULL);
            part = normed;
        }
        const double weight =
            model->config->stream_reduce == STREAM_REDUCE_HEAD || model->config->stream_reduce == STREAM_REDUCE_READ
                ? collapse_weight(model, place->streams, place->streams * width, x, s)
            : model->config->stream_reduce == STREAM_REDUCE_LAST_PRE ? read[s]
                                                                     : 1.0;
        for (size_t c = 0; c < width; c++) {
            top[c] += weight * part[c];
        }
    }
    if (model->config->stream_reduce != STREAM_REDUCE_NORM_SUM) {
        reference_norm(&norm, width, top, normed, NULL);
        memcpy(top, normed, width * sizeof *top);
    }
}

static double head_loss(const struct place *place, const double *streams, double *logits) {
    const struct reference_model *model = place->model;
    const size_t vocabulary = (size_t)model->config->vocab_size, width = place->width;
    const double *head = model->values + model->parameters->head, cap = model->config->logit_softcap;
    const double *bias = model->config->head_bias ? model->values + model->parameters->head_bias : NULL;
    FREED double *top = allocate(width), *normed = allocate(width), *row = allocate(vocabulary);
    size_t valid = 0;
    double sum = 0.0;
    for (size_t token = 0; token < place->tokens; token++) {
        reduce(place, streams + token * place->streams * width, place->read + token * place->streams, normed, top);
        linear(1, width, vocabulary, top, head, bias, row);
        for (size_t i = 0; cap > 0.0 && i < vocabulary; i++) {
            row[i] = reference_capped(cap, model->config->softcap_kind, row[i]);
        }
        sum += reference_cross_entropy(vocabulary, row, model->y[token]);
        valid += model->y[token] >= 0;
        if (logits) {
            memcpy(logits + token * vocabulary, row, vocabulary * sizeof *row);
        }
    }
    return sum / (double)valid;
}

double reference_model_loss(const struct reference_model *model, double *logits) {
    const size_t tokens = (size_t)(model->shape.batch * model->shape.sequence);
    const size_t width = (size_t)model->config->n_embd, n = (size_t)model->config->n_streams;
    FREED double *streams = allocate(tokens * n * width), *read = allocate(tokens * n);
    struct place place = {.model = model, .tokens = tokens, .width = width, .streams = n, .read = read};
    for (size_t token = 0; token < tokens; token++) {
        read[token * n] = 1.0;
    }
    embed(&place, streams);
    if (residual_has_frame(model->config->residual, "attnres")) {
        run_over_depth(&place, streams);
    }
    if (residual_has_frame(model->config->residual, "mudd")) {
        run_multiway(&place, streams);
    }
    for (; place.index < 2 * model->config->n_layer; place.index++) {
        (residual_has_frame(model->config->residual, "gated") ? run_gated_sublayer : run_sublayer)(&place, streams);
    }
    return head_loss(&place, streams, logits);
}
