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
    size_t row;          /* of a token's streams: S C, or C of fractions */
    const double *first; /* [N, row]: the streams of the first layer */
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

/* "transformer.h.<layer>.<name>" */
static const double *find_in_layer(const struct place *place, const char *name) {
    char whole[96];
    snprintf(whole, sizeof whole, "h.%" PRId64 ".%s", place->index / 2, name);
    return find(place->model, whole);
}

static const double *find_leaf(const struct place *place, const char *attention, const char *mlp,
                               const char *leaf) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", place->index % 2 ? mlp : attention, leaf);
    return find_in_layer(place, name);
}

/* A leaf of what a sublayer reads with, or at place->index 2 n_layer the top. */
static const double *find_connection(const struct place *place, const char *leaf) {
    char name[32];
    snprintf(name, sizeof name, "hc_head.%s", leaf);
    return place->index == 2 * place->model->config->n_layer ? find(place->model, name)
                                                             : find_leaf(place, "hc_attn", "hc_mlp", leaf);
}

static bool is_variant(const struct place *place, const char *name) {
    return strcmp(place->model->config->residual->name, name) == 0;
}

static union residual_value setting(const struct place *place, const char *name) {
    return place->model->config->settings.values[residual_setting_find(name)];
}

static double dropped_at(const struct reference_model *model, double rate, const char *name, size_t token,
                         size_t element) {
    const struct gpt_pass *pass = &model->pass;
    return pass->dropout ? reference_dropout((float)rate, dropout_key(pass->seed, pass->iteration, name),
                                             pass->first_row + token, (uint32_t)element)
                         : 1.0;
}

static double dropped(const struct reference_model *model, const char *name, size_t token, size_t element) {
    return dropped_at(model, model->config->dropout, name, token, element);
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

/* Adds a module's adapter, if there is one, to outputs [first, first + count) of `row`. */
static void add_adapter(const struct place *place, const char *module, size_t inputs, size_t first, size_t count,
                        size_t row, const double *in, double *out) {
    const struct lora_settings *lora = &place->model->config->lora;
    const size_t rank = (size_t)lora->rank;
    const double *a = find_leaf(place, module, module, "lora_A"), *b = find_leaf(place, module, module, "lora_B");
    const double scale = lora->alpha / (lora->by_root ? sqrt((double)rank) : (double)rank);
    const bool writes = strstr(module, ".o") || strstr(module, ".down") || strstr(module, "c_proj");
    char name[48];
    snprintf(name, sizeof name, "%" PRId64 " adapter %s", place->index, writes ? "out" : "in");
    FREED double *x = allocate(inputs);
    for (size_t token = 0; a && token < place->tokens; token++) {
        for (size_t i = 0; i < inputs; i++) {
            x[i] = in[token * inputs + i] * dropped_at(place->model, lora->dropout, name, token, i);
        }
        for (size_t i = 0; i < count * rank; i++) {
            out[token * row + first + i / rank] += scale * b[i] * reference_dot(inputs, x, a + i % rank * inputs);
        }
    }
}

/* The linear layer of this name in the sublayer, with its adapters. */
static void linear_named(const struct place *place, const char *name, size_t inputs, size_t outputs,
                         const double *in, double *out) {
    static const char *const llama[][2] = {{"attn.c_proj", "attn.o"},
                                           {"mlp.c_gate", "mlp.gate"},
                                           {"mlp.c_fc", "mlp.up"},
                                           {"mlp.c_proj", "mlp.down"}};
    const struct head_shape heads = model_config_heads(place->model->config);
    const size_t y_row = (size_t)heads.y_row, kv_row = (size_t)heads.kv_row;
    linear(place->tokens, inputs, outputs, in, find_leaf(place, name, name, "weight"),
           find_leaf(place, name, name, "bias"), out);
    add_adapter(place, name, inputs, 0, outputs, outputs, in, out); /* of GPT-2's modules */
    for (size_t i = 0; i < sizeof llama / sizeof *llama; i++) {
        if (strcmp(name, llama[i][0]) == 0) {
            add_adapter(place, llama[i][1], inputs, 0, outputs, outputs, in, out);
        }
    }
    if (strcmp(name, "attn.c_attn") == 0) {
        add_adapter(place, "attn.q", inputs, 0, y_row, outputs, in, out);
        add_adapter(place, "attn.k", inputs, y_row, kv_row, outputs, in, out);
        add_adapter(place, "attn.v", inputs, y_row + kv_row, kv_row, outputs, in, out);
    }
}

/* ---- hyper-connections */

/* raw [N, groups, columns]: gain times streams, by every projection; 0 where the connection lacks one. */
static void project(const struct place *place, const double *x, size_t groups, size_t columns, double *raw) {
    const struct model_config *config = place->model->config;
    const size_t length = place->row / groups;
    const double *gain = find_leaf(place, "hc_attn", "hc_mlp", "norm.weight");
    size_t first = 0;
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf->name; leaf++) {
        if (leaf->kind != LEAF_PROJECTION) {
            continue;
        }
        const size_t width = (size_t)leaf->width(config->n_streams);
        const double *weight = find_leaf(place, "hc_attn", "hc_mlp", leaf->name);
        for (size_t i = 0; weight && i < place->tokens * groups * length; i++) {
            for (size_t k = 0; k < width; k++) {
                raw[i / length * columns + first + k] +=
                    x[i] * (gain ? gain[i % length] : 1.0) * weight[i % length * width + k];
            }
        }
        first += width;
    }
}

static struct reference_map map_of(const struct place *place, const struct residual_settings *settings) {
    const struct model_config *config = place->model->config;
    struct reference_map map = {.residual = config->residual,
                                .settings = settings,
                                .streams = place->streams,
                                .channels = place->row / place->streams,
                                .eps = config->hc_eps,
                                .norm_eps = config->hc_norm_eps,
                                .transposed = config->h_res_transposed,
                                .sublayers = 2 * (size_t)config->n_layer};
    for (size_t i = 0; config->residual->leaves[i].name; i++) {
        map.leaves[i] = find_leaf(place, "hc_attn", "hc_mlp", config->residual->leaves[i].name);
    }
    return map;
}

/* h [N, h_row] from streams [N, row] */
static void make_matrices(const struct place *place, const double *streams, size_t h_row, double *h) {
    const struct model_config *config = place->model->config;
    const struct residual_sizes sizes = residual_sizes(config->residual, config->n_streams, NULL);
    const size_t groups = sizes.norm_groups, columns = sizes.columns;
    struct residual_settings settings = config->settings;
    settings.is_static = !config->hc_dynamic;
    settings.is_unmixed = config->hc_until > 0 && place->index >= config->hc_until;
    const struct reference_map map = map_of(place, &settings);
    FREED double *raw = allocate(place->tokens * groups * columns), *z = allocate(groups * columns);
    project(place, streams, groups, columns, raw);
    for (size_t token = 0; token < place->tokens; token++) {
        double squares[STREAMS];
        for (size_t s = 0; s < place->streams; s++) {
            const double *x = streams + token * place->row + s * map.channels;
            squares[s] = reference_dot(map.channels, x, x);
        }
        reference_map_token(&map, columns, raw + token * groups * columns, squares, z, h + token * h_row);
    }
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

/* Where the layer has embeddings of tokens for its values, adds them to those of qkv: each key head's times
 * 3 sigmoid(gate), and gates are made of the first channels of v [N, C]. */
static void add_value_embeds(const struct place *place, const double *v, double *qkv) {
    enum { GATE_CHANNELS = 12 };
    const struct head_shape heads = model_config_heads(place->model->config);
    const size_t row = (size_t)heads.qkv_row, values = (size_t)heads.kv_row, size = (size_t)heads.size;
    const double *table = find_in_layer(place, "attn.value_embed.weight"),
                 *gates = find_in_layer(place, "attn.ve_gate.weight");
    for (size_t i = 0; table && i < place->tokens * values; i++) {
        const size_t token = i / values, k = i % values, id = (size_t)place->model->x[token];
        const double gate =
            reference_dot(GATE_CHANNELS, v + token * place->width, gates + k / size * GATE_CHANNELS);
        qkv[(token + 1) * row - values + k] += 3.0 / (1.0 + exp(-gate)) * table[id * values + k];
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
    add_value_embeds(place, v, qkv);
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

/* ---- one stream with weights, and fractions of it */

/* x [N, C] through the norm of this name in the layer */
static void norm_named(const struct place *place, const char *norm, const double *x, double *normed) {
    const struct model_config *config = place->model->config;
    const struct reference_norm leaves = {config->norm, config->norm_eps, find_leaf(place, norm, norm, "weight"),
                                          find_leaf(place, norm, norm, "bias")};
    for (size_t at = 0; at < place->tokens * place->width; at += place->width) {
        reference_norm(&leaves, place->width, x + at, normed + at, NULL);
    }
}

static const char *norm_before(const struct place *place) {
    return place->index % 2 ? "ln_2" : "ln_1";
}

/* laurel: x becomes a o + b (x + x w_down w_up), where a and b are twice a softmax, or 1. */
static void run_weighted_sublayer(const struct place *place, double *x) {
    const size_t width = place->width, rank = (size_t)setting(place, "laurel_rank").number;
    const double *mix = find_connection(place, "b_mix"), *down = find_connection(place, "w_down"),
                 *up = find_connection(place, "w_up");
    const double a = mix ? 2.0 / (1.0 + exp(mix[1] - mix[0])) : 1.0, b = mix ? 2.0 - a : 1.0;
    FREED double *normed = allocate(place->tokens * width), *output = allocate(place->tokens * width);
    norm_named(place, norm_before(place), x, normed);
    run_branch(place, normed, output);
    for (size_t token = 0; token < place->tokens; token++) {
        FREED double *stream = allocate(width);
        memcpy(stream, x + token * width, width * sizeof *x);
        for (size_t k = 0; down && k < width * rank * width; k++) {
            const size_t from = k / width / rank, hidden = k / width % rank, to = k % width;
            stream[to] += x[token * width + from] * down[from * rank + hidden] * up[hidden * width + to];
        }
        for (size_t c = 0; c < width; c++) {
            x[token * width + c] = a * output[token * width + c] + b * stream[c];
        }
    }
}

/* frac: x [N, C] are the fractions of each token. */
static void run_fractions(const struct place *place, double *x) {
    const size_t width = place->width, s = place->streams, h_row = s * (2 * s + 1);
    FREED double *h = allocate(place->tokens * h_row), *read = allocate(place->tokens * width);
    FREED double *output = allocate(place->tokens * width), *mixed = allocate(width);
    make_matrices(place, x, h_row, h);
    for (size_t token = 0; token < place->tokens; token++) {
        reference_fractions_read(s, width, x + token * width, h + token * h_row, read + token * width);
    }
    norm_named(place, norm_before(place), read, read);
    run_branch(place, read, output);
    for (size_t token = 0; token < place->tokens; token++) {
        reference_fractions_write(s, width, x + token * width, h + token * h_row, output + token * width, mixed);
        memcpy(x + token * width, mixed, width * sizeof *x);
    }
}

/* ---- sublayers */

/* Before a layer with weights for it: streams [N, row] become lambda_resid times themselves + lambda_x0 times the
 * first ones. */
static void begin_layer(const struct place *place, double *streams) {
    const double *own = find_in_layer(place, "lambda_resid"), *first = find_in_layer(place, "lambda_x0");
    for (size_t i = 0; own && place->index % 2 == 0 && i < place->tokens * place->row; i++) {
        streams[i] = *own * streams[i] + *first * place->first[i];
    }
}

/* streams [N, S, C] through one sublayer, in place */
static void run_sublayer(const struct place *place, double *streams) {
    const size_t width = place->width, row = place->streams * width, h_row = place->streams * (place->streams + 2);
    const bool plain = !residual_has_matrices(place->model->config->residual);
    const struct reference_norm norm = {place->model->config->norm, place->model->config->norm_eps,
                                        find_leaf(place, "ln_1", "ln_2", "weight"),
                                        find_leaf(place, "ln_1", "ln_2", "bias")};
    FREED double *h = allocate(place->tokens * h_row), *normed = allocate(place->tokens * width);
    FREED double *output = allocate(place->tokens * width), *mixed = allocate(row);
    if (!plain) {
        make_matrices(place, streams, h_row, h);
    }
    for (size_t token = 0; token < place->tokens; token++) {
        double *read = place->read + token * place->streams;
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

/* States (of dar, those that are complete) -> their mixture [N, C], by the leaves of the sublayer or, at
 * place->index 2 n_layer, of hc_head. */
static void read_depth(const struct place *place, const struct depth *depth, double *mixed) {
    const size_t count = depth->count + (depth->summed > 0 && !is_variant(place, "dar"));
    const size_t row = place->tokens * place->width, heads = (size_t)setting(place, "attnres_heads").number;
    const struct reference_depth leaves = {
        .count = count,
        .channels = place->width,
        .heads = heads,
        .gain = find_connection(place, "norm.weight"),
        .query = find_connection(place, "query"),
        .epsilon = place->model->config->norm_eps,
    };
    FREED double *weights = allocate(heads * count);
    FREED const double **states = memory_zeroed(count, sizeof *states);
    for (size_t token = 0; token < place->tokens; token++) {
        for (size_t s = 0; s < count; s++) {
            states[s] = depth->states + s * row + token * place->width;
        }
        reference_depth_read(&leaves, states, weights, mixed + token * place->width);
    }
}

/* The mixture that a sublayer has read becomes its output, which joins the newest state. */
static void add_output(const struct place *place, struct depth *depth, double *mixed) {
    const int64_t block = setting(place, "attnres_block").number;
    const size_t row = place->tokens * place->width;
    FREED double *normed = allocate(row);
    double *newest = depth->states + depth->count * row;
    norm_named(place, norm_before(place), mixed, normed);
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

/* embedding [N, C] -> the mixture at the top [N, C], in place; or with `stays` the stream, to which the gated
 * mixture is added where a branch reads it */
static void run_over_depth(struct place *place, double *stream) {
    const int64_t sublayers = 2 * place->model->config->n_layer;
    const size_t row = place->tokens * place->width;
    const bool stays = is_variant(place, "dar");
    FREED double *states = allocate(((size_t)sublayers + 2) * row), *mixed = allocate(row);
    struct depth depth = {.states = states, .count = 1};
    memcpy(states, stream, row * sizeof *stream);
    for (place->index = 0; place->index < sublayers; place->index++) {
        const double *gate = find_connection(place, "gate");
        begin_layer(place, stream);
        read_depth(place, &depth, mixed);
        for (size_t i = 0; stays && i < row; i++) {
            mixed[i] = stream[i] + (gate ? *gate : 1.0) * mixed[i];
        }
        add_output(place, &depth, mixed);
        for (size_t i = 0; stays && i < row; i++) {
            stream[i] += mixed[i];
        }
    }
    if (!stays) {
        read_depth(place, &depth, stream);
    }
}

/* ---- multiway dense connections, and dense ones */

/* States of all tokens: the embedding and the outputs of layers, which mudd_norm = prepost has normed. */
struct layers {
    double *states;       /* [count, N, C] */
    const double *newest; /* [N, C]: the last one as it was */
    size_t count;
    bool is_normed;
};

/* A layer's output, or the embedding, [N, C] joins the states through the norm of this name. */
static void add_state(const struct place *place, struct layers *layers, const char *norm, const double *output) {
    const size_t width = place->width, row = place->tokens * width;
    const struct reference_norm leaves = {NORM_RMS, place->model->config->norm_eps, find(place->model, norm), NULL};
    double *state = layers->states + layers->count++ * row;
    memcpy(state, output, row * sizeof *state);
    for (size_t at = 0; layers->is_normed && at < row; at += width) {
        reference_norm(&leaves, width, output + at, state + at, NULL);
    }
    layers->newest = output;
}

/* The weights [count] of the states in the mixture of this number of `ways`, after the layer of place->index. */
static void weigh_states(const struct place *place, const struct layers *layers, size_t ways, size_t way,
                         size_t token, double *a) {
    const size_t count = layers->count, width = place->width, all = ways * count;
    const double *newest = layers->newest + token * width, *w_1 = find_in_layer(place, "mudd.w_1"),
                 *w_2 = find_in_layer(place, "mudd.w_2"), *dense = find_in_layer(place, "dense.b"),
                 *b = dense ? dense : find_in_layer(place, "mudd.b") + way * count;
    char name[96];
    snprintf(name, sizeof name, "transformer.h.%" PRId64 ".mudd.w_1", place->index / 2);
    const size_t hidden = dense ? 0 : parameters_find(place->model->parameters, name)->shape[1];
    const double rms = sqrt(reference_dot(width, newest, newest) / (double)width + place->model->config->norm_eps);
    memcpy(a, b, count * sizeof *a);
    for (size_t k = 0; k < hidden; k++) {
        double u = 0.0;
        for (size_t c = 0; c < width; c++) {
            u += newest[c] / rms * w_1[c * hidden + k];
        }
        for (size_t s = 0; s < count; s++) {
            a[s] += reference_gelu(u) * w_2[k * all + way * count + s];
        }
    }
}

/* mixed [N, C] through the norm after the layer's mixture */
static void norm_mixture(const struct place *place, double *mixed) {
    const struct reference_norm leaves = {NORM_RMS, place->model->config->norm_eps,
                                          find_in_layer(place, "mudd.norm_post.weight"), NULL};
    for (size_t at = 0; at < place->tokens * place->width; at += place->width) {
        reference_norm(&leaves, place->width, mixed + at, mixed + at, NULL);
    }
}

/* The mixture [N, C] of this number of `ways`, the last of which is that of the stream. */
static void mix_way(const struct place *place, const struct layers *layers, size_t ways, size_t way,
                    double *mixed) {
    const size_t width = place->width, row = place->tokens * width;
    FREED double *a = allocate(layers->count);
    memset(mixed, 0, row * sizeof *mixed);
    for (size_t token = 0; token < place->tokens; token++) {
        weigh_states(place, layers, ways, way, token, a);
        for (size_t k = 0; k < layers->count * width; k++) {
            mixed[token * width + k % width] +=
                a[k / width] * layers->states[k / width * row + token * width + k % width];
        }
    }
    if (layers->is_normed && way + 1 == ways) {
        norm_mixture(place, mixed);
    }
    for (size_t i = 0; layers->is_normed && i < row; i++) {
        mixed[i] += layers->newest[i];
    }
}

/* One layer: inputs [4, N, C] are mixtures for queries, keys, values and the stream -> its output. */
static void run_mixed_layer(struct place *place, const double *inputs, double *state) {
    static const char *const norms[] = {"ln_q", "ln_k", "ln_v"};
    const size_t row = place->tokens * place->width;
    const double *stream = inputs + 3 * row;
    FREED double *normed = allocate(3 * row), *output = allocate(row);
    for (size_t i = 0; i < 3; i++) {
        norm_named(place, find_in_layer(place, "ln_q.weight") ? norms[i] : "ln_1", inputs + i * row,
                   normed + i * row);
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
    FREED double *states = allocate(((size_t)layers + 1) * row), *inputs = allocate(4 * row),
                 *output = allocate(row);
    struct layers all = {.states = states, .is_normed = setting(place, "mudd_norm").choice == MUDD_NORM_PREPOST};
    add_state(place, &all, "mudd.norm_pre.weight", embedded);
    for (size_t i = 0; i < 4; i++) {
        memcpy(inputs + i * row, embedded, row * sizeof *inputs);
    }
    for (; place->index < 2 * layers; place->index++) {
        const size_t ways = is_variant(place, "dense") || place->index + 2 == 2 * layers ? 1 : 4;
        char norm[64];
        snprintf(norm, sizeof norm, "h.%" PRId64 ".mudd.norm_pre.weight", place->index / 2);
        run_mixed_layer(place, inputs, output);
        add_state(place, &all, norm, output);
        for (size_t way = 0; way < 4; way++) { /* one is all of them */
            mix_way(place, &all, ways, way % ways, inputs + way * row);
        }
    }
    memcpy(embedded, inputs, row * sizeof *embedded);
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
            for (size_t s = 0; s < place->row / width; s++) {
                streams[token * place->row + s * width + c] = value * (scale ? scale[s * width + c] : 1.0);
            }
        }
    }
}

/* The weight of stream s in the sum with stream_reduce = head or read. */
static double collapse_weight(const struct reference_model *model, size_t streams, size_t row, const double *x,
                              size_t s) {
    const double *w = find(model, "hc_head.w_pre"), *alpha = find(model, "hc_head.alpha_pre");
    double z = 0.0;
    if (model->config->stream_reduce == STREAM_REDUCE_READ) {
        return 1.0 / (1.0 + exp(-find(model, "hc_head.b_pre")[s])) + model->config->hc_eps;
    }
    for (size_t k = 0; w && k < row; k++) {
        z += *alpha * x[k] * w[k * streams + s];
    }
    z /= sqrt(reference_dot(row, x, x) / (double)row + 1e-6);
    return 1.0 / (1.0 + exp(-z - find(model, "hc_head.b_pre")[s])) + model->config->hc_eps;
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
    for (size_t s = 0; s < place->row / width; s++) {
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
        reduce(place, streams + token * place->row, place->read + token * place->streams, normed, top);
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

static void run_layers(struct place *place, double *streams) {
    const struct residual_variant *residual = place->model->config->residual;
    void (*const run)(const struct place *, double *) = residual->has_fractions                 ? run_fractions
                                                        : residual_has_frame(residual, "gated") ? run_gated_sublayer
                                                        : is_variant(place, "laurel") ? run_weighted_sublayer
                                                                                      : run_sublayer;
    for (; place->index < 2 * place->model->config->n_layer; place->index++) {
        begin_layer(place, streams);
        run(place, streams);
    }
}

double reference_model_loss(const struct reference_model *model, double *logits) {
    const size_t tokens = (size_t)(model->shape.batch * model->shape.sequence);
    const size_t width = (size_t)model->config->n_embd, n = (size_t)model->config->n_streams;
    const struct residual_variant *residual = model->config->residual;
    const size_t row = residual->has_fractions ? width : n * width;
    FREED double *streams = allocate(tokens * row), *first = allocate(tokens * row), *read = allocate(tokens * n);
    struct place place = {
        .model = model, .tokens = tokens, .width = width, .streams = n, .row = row, .first = first, .read = read};
    for (size_t token = 0; token < tokens; token++) {
        read[token * n] = 1.0;
    }
    embed(&place, streams);
    memcpy(first, streams, tokens * row * sizeof *first);
    (is_variant(&place, "attnres") || is_variant(&place, "dar")  ? run_over_depth
     : is_variant(&place, "mudd") || is_variant(&place, "dense") ? run_multiway
                                                                 : run_layers)(&place, streams);
    return head_loss(&place, streams, logits);
}
