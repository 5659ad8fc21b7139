#include "src/model/parameters.h"
#include "runtime/device/convert.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64 /* elements: every tensor starts on a vector of any width */

static float zeros(int64_t index, const struct residual_place *place) {
    (void)index;
    (void)place;
    return 0.0f;
}

static float ones(int64_t index, const struct residual_place *place) {
    (void)index;
    (void)place;
    return 1.0f;
}

/* ---- the table, in file order */

/* Appends a row of rank 0 to 2. */
__attribute__((format(printf, 6, 7))) static struct parameter *add(struct parameters *parameters, unsigned rank,
                                                                   int64_t rows, int64_t columns, bool decayed,
                                                                   const char *format, ...) {
    struct parameter *parameter = &parameters->table[parameters->count++];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(parameter->name, sizeof parameter->name, format, arguments);
    va_end(arguments);
    parameter->rank = rank;
    parameter->shape[0] = rank > 0 ? (uint64_t)rows : 1;
    parameter->shape[1] = rank > 1 ? (uint64_t)columns : 1;
    parameter->elements = parameter->shape[0] * parameter->shape[1];
    parameter->decayed = decayed;
    parameter->initial = zeros;
    parameter->sublayer = -1;
    return parameter;
}

static void add_norm(struct parameters *parameters, const struct model_config *config, const char *name) {
    add(parameters, 1, config->n_embd, 0, false, "%s.weight", name)->initial = ones;
    if (config->bias) {
        add(parameters, 1, config->n_embd, 0, false, "%s.bias", name);
    }
}

static void add_linear(struct parameters *parameters, const struct model_config *config, const char *name,
                       int64_t out, int64_t in, double deviation) {
    add(parameters, 2, out, in, true, "%s.weight", name)->deviation = deviation;
    if (config->bias) {
        add(parameters, 1, out, 0, false, "%s.bias", name);
    }
}

static int64_t norm_row(const struct model_config *config) {
    return config->n_streams * config->n_embd / residual_norm_groups(config->residual, config->n_streams);
}

static void add_hyper_connection(struct parameters *parameters, const struct model_config *config, int64_t layer,
                                 int64_t sublayer, const char *name) {
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf && leaf->name; leaf++) {
        uint64_t shape[2];
        const unsigned rank = residual_leaf_shape(leaf, config->n_streams, norm_row(config), shape);
        if (shape[0] * shape[1] == 0) {
            continue;
        }
        struct parameter *parameter =
            add(parameters, rank, (int64_t)shape[0], (int64_t)shape[1], leaf->kind == LEAF_PROJECTION,
                "transformer.h.%lld.%s.%s", (long long)layer, name, leaf->name);
        parameter->initial = leaf->initial;
        parameter->sublayer = sublayer;
        parameters->auxiliary += parameter->elements;
    }
}

/* Rows of the table from `first` on belong to this sublayer. */
static void assign(struct parameters *parameters, size_t first, int64_t sublayer) {
    for (size_t i = first; i < parameters->count; i++) {
        parameters->table[i].sublayer = sublayer;
    }
}

static void add_layer(struct parameters *parameters, const struct model_config *config, int64_t layer) {
    const int64_t width = config->n_embd;
    const double deviation = 0.02, scaled = 0.02 / sqrt(2.0 * (double)config->n_layer);
    const size_t first = parameters->count;
    char name[64];
#define NAME(leaf) (snprintf(name, sizeof name, "transformer.h.%lld." leaf, (long long)layer), name)
    add_norm(parameters, config, NAME("ln_1"));
    add_linear(parameters, config, NAME("attn.c_attn"), 3 * width, width, deviation);
    add_linear(parameters, config, NAME("attn.c_proj"), width, width, scaled);
    assign(parameters, first, 2 * layer);
    const size_t second = parameters->count;
    add_norm(parameters, config, NAME("ln_2"));
    add_linear(parameters, config, NAME("mlp.c_fc"), 4 * width, width, deviation);
    add_linear(parameters, config, NAME("mlp.c_proj"), width, 4 * width, scaled);
#undef NAME
    assign(parameters, second, 2 * layer + 1);
    add_hyper_connection(parameters, config, layer, 2 * layer, "hc_attn");
    add_hyper_connection(parameters, config, layer, 2 * layer + 1, "hc_mlp");
}

static void fill_table(struct parameters *parameters, const struct model_config *config) {
    add(parameters, 2, config->vocab_size, config->n_embd, true, "transformer.wte.weight")->deviation = 0.02;
    add(parameters, 2, config->block_size, config->n_embd, true, "transformer.wpe.weight")->deviation = 0.02;
    for (int64_t layer = 0; layer < config->n_layer; layer++) {
        add_layer(parameters, config, layer);
    }
    const size_t final = parameters->count;
    add_norm(parameters, config, "transformer.ln_f");
    assign(parameters, final, 2 * config->n_layer);
    for (size_t i = 0; i < parameters->count; i++) {
        parameters->total += parameters->table[i].elements;
    }
}

/* ---- the arena: weights with decay first, so that decay is one comparison in the optimiser */

static bool is_small_leaf(const struct model_config *config, const struct parameter *parameter) {
    const char *leaf = strstr(parameter->name, ".hc_");
    leaf = leaf ? strchr(leaf + 1, '.') + 1 : NULL;
    for (const struct residual_leaf *row = config->residual->leaves; leaf && row && row->name; row++) {
        if (strcmp(row->name, leaf) == 0) {
            return residual_leaf_is_small(row);
        }
    }
    return false;
}

/* Small leaves of a sublayer follow one another without gaps, as the kernels' theta expects. */
static void place(struct parameters *parameters, const struct model_config *config) {
    uint64_t next = 0;
    for (int pass = 0; pass < 2; pass++) {
        bool after_small = false;
        for (size_t i = 0; i < parameters->count; i++) {
            struct parameter *parameter = &parameters->table[i];
            if (parameter->decayed != (pass == 0)) {
                continue;
            }
            const bool small = is_small_leaf(config, parameter);
            if (!small || !after_small || parameter->sublayer != parameter[-1].sublayer) {
                next = (next + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            }
            parameter->offset = next;
            next += parameter->elements;
            after_small = small;
        }
        next = (next + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        parameters->decayed = pass == 0 ? next : parameters->decayed;
    }
    parameters->elements = next;
}

static uint64_t offset_of(const struct parameters *parameters, int64_t layer, const char *leaf) {
    char name[96];
    snprintf(name, sizeof name, "transformer.h.%lld.%.40s", (long long)layer, leaf);
    const struct parameter *parameter = parameters_find(parameters, name);
    return parameter ? parameter->offset : 0;
}

static void find_hyper_connection(const struct parameters *parameters, const struct model_config *config,
                                  int64_t layer, const char *name, struct sublayer_offsets *offsets) {
    size_t projections = 0;
    bool found_theta = false;
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf && leaf->name; leaf++) {
        char path[40];
        snprintf(path, sizeof path, "%s.%s", name, leaf->name);
        const uint64_t offset = offset_of(parameters, layer, path);
        if (leaf->kind == LEAF_NORM) {
            offsets->rms_gain = offset;
        } else if (leaf->kind == LEAF_PROJECTION) {
            offsets->projections[projections++] = offset;
        } else if (!found_theta && residual_leaf_elements(leaf, config->n_streams, 0) > 0) {
            offsets->theta = offset;
            found_theta = true;
        }
    }
}

static void find_offsets(struct parameters *parameters, const struct model_config *config) {
    static const char *const leaves[2][6] = {
        {"ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
         "attn.c_proj.bias"},
        {"ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"},
    };
    for (int64_t sublayer = 0; sublayer < 2 * config->n_layer; sublayer++) {
        struct sublayer_offsets *offsets = &parameters->sublayers[sublayer];
        uint64_t *fields[6] = {&offsets->norm_gain, &offsets->norm_bias,  &offsets->in_weight,
                               &offsets->in_bias,   &offsets->out_weight, &offsets->out_bias};
        for (size_t i = 0; i < 6; i++) {
            *fields[i] = offset_of(parameters, sublayer / 2, leaves[sublayer % 2][i]);
        }
        find_hyper_connection(parameters, config, sublayer / 2, sublayer % 2 ? "hc_mlp" : "hc_attn", offsets);
    }
    parameters->token_embedding = parameters_find(parameters, "transformer.wte.weight")->offset;
    parameters->position_embedding = parameters_find(parameters, "transformer.wpe.weight")->offset;
    parameters->final_gain = parameters_find(parameters, "transformer.ln_f.weight")->offset;
    const struct parameter *bias = parameters_find(parameters, "transformer.ln_f.bias");
    parameters->final_bias = bias ? bias->offset : 0;
}

int parameters_create(const struct model_config *config, struct parameters *parameters) {
    memset(parameters, 0, sizeof *parameters);
    size_t leaves = 0;
    for (const struct residual_leaf *leaf = config->residual->leaves; leaf && leaf->name; leaf++) {
        leaves++;
    }
    parameters->table = calloc(4 + (size_t)config->n_layer * (12 + 2 * leaves), sizeof *parameters->table);
    parameters->sublayers = calloc(2 * (size_t)config->n_layer, sizeof *parameters->sublayers);
    if (!parameters->table || !parameters->sublayers) {
        parameters_release(parameters);
        return error_set("out of memory for the parameter table");
    }
    fill_table(parameters, config);
    place(parameters, config);
    find_offsets(parameters, config);
    return 0;
}

void parameters_release(struct parameters *parameters) {
    free(parameters->table);
    free(parameters->sublayers);
    memset(parameters, 0, sizeof *parameters);
}

const struct parameter *parameters_find(const struct parameters *parameters, const char *name) {
    for (size_t i = 0; i < parameters->count; i++) {
        if (strcmp(parameters->table[i].name, name) == 0) {
            return &parameters->table[i];
        }
    }
    return NULL;
}

/* ---- initialisation */

void parameters_round(struct compute *compute, const struct parameters *parameters) {
    if (parameters->operands != parameters->weights) {
        convert_elements(compute, (struct span){parameters->weights, 0}, (struct span){parameters->operands, 0},
                         parameters->elements);
    }
}

void parameter_initialise(const struct parameter *parameter, const struct model_config *config, uint64_t seed,
                          float *values) {
    const struct residual_place place = {config->n_streams, parameter->sublayer, &config->settings};
    if (parameter->deviation > 0.0) {
        random_normal(random_key(seed, parameter->name), 0, parameter->elements, 0.0, parameter->deviation, values);
        return;
    }
    for (uint64_t i = 0; i < parameter->elements; i++) {
        values[i] = parameter->initial((int64_t)i, &place);
    }
}

int parameters_initialise(struct compute *compute, struct parameters *parameters, const struct model_config *config,
                          uint64_t seed) {
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        float *values = malloc(parameter->elements * sizeof *values);
        if (!values) {
            return error_set("out of memory for the initial values of %s", parameter->name);
        }
        parameter_initialise(parameter, config, seed, values);
        const int status = buffer_write(compute, parameters->weights, parameter->offset * sizeof *values, values,
                                        parameter->elements * sizeof *values);
        free(values);
        if (status) {
            return error_prefix("cannot initialise %s", parameter->name);
        }
    }
    parameters_round(compute, parameters);
    return compute_check(compute);
}
