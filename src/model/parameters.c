#define PCRE2_CODE_UNIT_WIDTH 8
#include "src/model/parameters.h"
#include "runtime/device/compute.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include "runtime/system/random.h"
#include "src/model/branch.h"
#include "src/model/frame.h"
#include "src/model/narrow_weights.h"
#include <inttypes.h>
#include <math.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT             64   /* elements: every tensor starts on a vector of any width */
#define DEVIATION             0.02 /* of initial weights */
#define TRACK3_INNER_VARIANCE 0.33 /* with init track3: of a linear layer's weights, times its inputs */

/* ---- the table, in file order */

/* A row called <prefix><name><kind>. */
static struct parameter *add(struct parameter_builder *builder, uint64_t *offset_copy, const char *name,
                             const char *kind, unsigned rank, const uint64_t *shape) {
    struct parameters *parameters = builder->parameters;
    if (parameters->count % 64 == 0) {
        parameters->table = memory_resize(parameters->table, parameters->count + 64, sizeof *parameters->table);
    }
    struct parameter *parameter = &parameters->table[parameters->count++];
    memset(parameter, 0, sizeof *parameter);
    snprintf(parameter->name, sizeof parameter->name, "%s%s%s", builder->prefix, name, kind);
    parameter->rank = rank;
    parameter->shape[0] = rank > 0 ? shape[0] : 1;
    parameter->shape[1] = rank > 1 ? shape[1] : 1;
    parameter->elements = parameter->shape[0] * parameter->shape[1];
    parameter->sublayer = builder->sublayer;
    parameter->offset_copy = offset_copy;
    parameters->total += parameter->elements;
    return parameter;
}

/* These return the parameter, or NULL if there is none, until the next one is added. */
static struct parameter *add_weight(struct parameter_builder *builder, uint64_t *offset_copy, const char *name,
                                    size_t rows, size_t columns, double deviation) {
    struct parameter *parameter = add(builder, offset_copy, name, ".weight", 2, (uint64_t[]){rows, columns});
    parameter->decayed = true;
    parameter->lowp_only = true;
    parameter->deviation = deviation;
    return parameter;
}

static struct parameter *add_bias(struct parameter_builder *builder, uint64_t *offset_copy, const char *name,
                                  uint64_t elements, bool has_bias) {
    return has_bias ? add(builder, offset_copy, name, ".bias", 1, &elements) : NULL;
}

struct parameter *parameters_add(struct parameter_builder *builder, const char *name, unsigned rank,
                                 const uint64_t *shape, uint64_t *offset_copy) {
    return add(builder, offset_copy, name, "", rank, shape);
}

struct parameter *parameters_add_gain(struct parameter_builder *builder, const char *name, size_t elements,
                                      uint64_t *offset_copy) {
    struct parameter *gain = add(builder, offset_copy, name, ".weight", 1, &(uint64_t){elements});
    gain->constant = 1.0f;
    return gain;
}

void parameters_add_norm(struct parameter_builder *builder, const char *name, struct norm_offsets *norm) {
    const uint64_t width = (uint64_t)builder->config->n_embd;
    parameters_add_gain(builder, name, width, &norm->gain);
    add_bias(builder, &norm->bias, name, width, builder->config->bias && norm_has_bias(builder->config->norm));
}

/* The standard deviation of first values in a matrix whose rows have `in` numbers. */
static double deviation_of(const struct model_config *config, size_t in, enum linear_role role) {
    const double layers = (double)config->n_layer, width = (double)config->n_embd;
    switch (config->init) {
    case INIT_TRACK3:
        return role == LINEAR_EMBEDDING ? 1.0
               : role == LINEAR_INNER   ? sqrt(TRACK3_INNER_VARIANCE / (double)in)
                                        : 0.0;
    case INIT_LITGPT:
        return role == LINEAR_OUTPUT ? 1.0 / (sqrt(width) * layers) : parameters_litgpt_deviation(config);
    default:
        return role == LINEAR_OUTPUT ? DEVIATION / sqrt(2.0 * layers) : DEVIATION;
    }
}

double parameters_litgpt_deviation(const struct model_config *config) {
    return sqrt(0.4 / (double)config->n_embd);
}

void parameters_add_linear(struct parameter_builder *builder, const char *name, size_t in, size_t out,
                           const uint64_t *matrices, bool has_bias, enum linear_role role, struct linear *linear) {
    struct parameter *weight =
        add_weight(builder, &linear->weight_at, name, out, in, deviation_of(builder->config, in, role));
    linear->has_bias = has_bias;
    linear->in = in;
    linear->out = out;
    weight->matrices[0] = out;
    if (matrices) {
        memcpy(weight->matrices, matrices, sizeof weight->matrices);
    }
    add_bias(builder, &linear->bias_at, name, out, has_bias);
}

void parameters_join_linear(struct parameter_builder *builder, const char *name, struct linear *linear) {
    struct parameter *weight = add_weight(builder, NULL, name, linear->out, linear->in,
                                          deviation_of(builder->config, linear->in, LINEAR_INNER));
    weight->joined = true;
    weight->matrices[0] = linear->out;
    struct parameter *bias = add_bias(builder, NULL, name, linear->out, linear->has_bias);
    if (bias) {
        bias->joined = true;
    }
    linear->out *= 2;
}

void parameters_add_adapters(struct parameter_builder *builder, struct linear *linear, size_t count,
                             const enum lora_module *modules, const uint64_t *rows) {
    const struct model_config *config = builder->config;
    const uint64_t rank = (uint64_t)config->lora.rank;
    enum lora_module covered[LINEAR_MOST_ADAPTERS];
    size_t first = 0;
    for (size_t i = 0; i < count; first += rows[i++]) {
        if (rank > 0 && config->lora.targets >> modules[i] & 1) {
            linear->adapters[linear->adapter_count] = (struct linear_adapter){.first = first, .count = rows[i]};
            covered[linear->adapter_count++] = modules[i];
        }
    }
    for (size_t i = 0; i < 2 * linear->adapter_count; i++) { /* A of all, then B: those of A lie without gaps */
        const size_t adapter = i % linear->adapter_count;
        const bool is_a = i < linear->adapter_count;
        const uint64_t shape[] = {is_a ? rank : linear->adapters[adapter].count, is_a ? linear->in : rank};
        uint64_t *at = !is_a ? &linear->adapters[adapter].b_at : adapter == 0 ? &linear->a_at : NULL;
        struct parameter *added = add(builder, at, lora_module_name(model_config_modules(config), covered[adapter]),
                                      is_a ? ".lora_A" : ".lora_B", 2, shape);
        added->adapter = true;
        added->decayed = true;
        added->joined = is_a && adapter > 0;
        added->spread = is_a ? 1.0 / sqrt((double)linear->in) : 0.0;
    }
}

static void begin_sublayer(struct parameter_builder *builder, int64_t index, const char *name) {
    builder->sublayer = index;
    snprintf(builder->prefix, sizeof builder->prefix, "transformer.h.%lld.%s%s", (long long)index / BRANCHES, name,
             *name ? "." : "");
}

static void add_norm(struct parameter_builder *builder, int64_t index) {
    const struct frame *frame = frame_of(builder->config);
    if (frame->add_norm) {
        frame->add_norm(builder, index);
    }
}

/* The parameters from number `first` on belong to the residual connection. */
static void mark_auxiliary(struct parameters *parameters, size_t first) {
    for (; first < parameters->count; first++) {
        parameters->table[first].auxiliary = true;
        parameters->auxiliary += parameters->table[first].elements;
    }
}

/* What the frame adds around a branch, or at the top; builder->prefix is set. */
static void add_frame(struct parameter_builder *builder, int64_t index) {
    const struct frame *frame = frame_of(builder->config);
    const size_t first = builder->parameters->count;
    if (frame->add_parameters) {
        frame->add_parameters(builder, index);
        mark_auxiliary(builder->parameters, first);
    }
}

/* They are new beside a plain model, or the base of an adapter has them. */
static void mark_unless_of_base(struct parameter_builder *builder, size_t first, bool base_has_them) {
    if (!base_has_them) {
        mark_auxiliary(builder->parameters, first);
        return;
    }
    for (; first < builder->parameters->count; first++) {
        builder->parameters->table[first].upcycled = NULL;
    }
}

/* What layers begin with where there are x0_lambdas; first values are nanochat's. */
static void add_lambdas(struct parameter_builder *builder, int64_t layer) {
    const int64_t last = builder->config->n_layer - 1;
    const double depth = (double)layer / (double)(last > 0 ? last : 1);
    const size_t first = builder->parameters->count;
    uint64_t *at = &builder->parameters->sublayers[BRANCHES * layer].lambdas;
    begin_sublayer(builder, BRANCHES * layer, "");
    struct parameter *lambda = add(builder, at, "lambda_resid", "", 0, NULL);
    lambda->constant = (float)(1.15 - 0.10 * depth);
    lambda->upcycled = residual_one;
    lambda = add(builder, NULL, "lambda_x0", "", 0, NULL);
    lambda->constant = (float)(0.20 - 0.15 * depth);
    lambda->upcycled = residual_zero;
    lambda->joined = true;
    mark_unless_of_base(builder, first, builder->config->lora.base_has_lambdas);
}

#define VALUE_GATE_FIRST 0.02 /* first weights of the gates are uniform from 0 to this */

static void add_value_embed(struct parameter_builder *builder, int64_t layer) {
    const struct model_config *config = builder->config;
    const struct head_shape heads = model_config_heads(config);
    const size_t first = builder->parameters->count;
    struct sublayer_offsets *at = &builder->parameters->sublayers[BRANCHES * layer];
    begin_sublayer(builder, BRANCHES * layer, "attn");
    struct parameter *table =
        add_weight(builder, &at->value_embed, "value_embed", (size_t)config->vocab_size, (size_t)heads.kv_row, 0.0);
    table->spread = sqrt(3.0 / (double)config->n_embd);
    table->upcycled = residual_zero;
    struct parameter *gate = add(builder, &at->value_gate, "ve_gate", ".weight", 2,
                                 (uint64_t[]){(uint64_t)heads.kv_heads, VALUE_EMBED_CHANNELS});
    gate->decayed = true;
    gate->constant = (float)VALUE_GATE_FIRST / 2.0f;
    gate->spread = VALUE_GATE_FIRST / 2.0;
    mark_unless_of_base(builder, first, config->lora.base_has_value_embeds);
}

static void fill_table(struct parameters *parameters, const struct model_config *config) {
    struct parameter_builder builder = {parameters, config, -1, "transformer."};
    const size_t tokens = (size_t)config->vocab_size, positions = (size_t)config->block_size;
    const size_t width = (size_t)config->n_embd;
    const int64_t top = BRANCHES * config->n_layer;
    const double of_embeddings = deviation_of(config, width, LINEAR_EMBEDDING);
    add_weight(&builder, &parameters->token_embedding, "wte", tokens, width, of_embeddings);
    if (config->position == POSITION_LEARNED) {
        add_weight(&builder, &parameters->position_embedding, "wpe", positions, width, of_embeddings);
    }
    if (config->embed_norm) {
        parameters_add_gain(&builder, "ln_e", width, &parameters->embed_gain);
    }
    if (config->stream_expand == STREAM_EXPAND_SCALED) { /* around 0.6, as in arXiv 2606.03483 */
        const uint64_t shape[] = {(uint64_t)config->n_streams, width};
        struct parameter *scale = add(&builder, &parameters->stream_scale, "stream_scale", "", 2, shape);
        scale->constant = 0.6f;
        scale->spread = sqrt(6.0 / (double)(shape[0] + shape[1]));
        mark_auxiliary(parameters, parameters->count - 1);
    }
    for (int64_t first = 0; first < top; first += BRANCHES) { /* sublayer of a layer */
        for (int64_t i = 0; i < BRANCHES; i++) {
            begin_sublayer(&builder, first + i, "");
            add_norm(&builder, first + i);
            branches[i]->add_parameters(&builder, &parameters->sublayers[first + i]);
        }
        for (int64_t i = 0; i < BRANCHES; i++) {
            begin_sublayer(&builder, first + i, branches[i]->hyper_connection);
            add_frame(&builder, first + i);
        }
        if (config->x0_lambdas) {
            add_lambdas(&builder, first / BRANCHES);
        }
        if (model_config_has_value_embed(config, first / BRANCHES)) {
            add_value_embed(&builder, first / BRANCHES);
        }
    }
    builder = (struct parameter_builder){parameters, config, top, "transformer."};
    add_norm(&builder, top);
    *builder.prefix = '\0';
    if (!config->tie_embeddings) {
        add_weight(&builder, &parameters->head, "lm_head", tokens, width, deviation_of(config, width, LINEAR_HEAD));
    }
    add_bias(&builder, &parameters->head_bias, "lm_head", tokens, config->head_bias);
    snprintf(builder.prefix, sizeof builder.prefix, "transformer.hc_head.");
    add_frame(&builder, top);
}

/* ---- the arena, in the order of enum arena_part: optimizers need one comparison for weight decay, and arenas that
 * lack the last parts end before them. In all parts the parameters of a sublayer are adjacent, since a backward
 * pass completes their gradients together */

enum arena_part { PART_UNDECAYED, PART_DECAYED, PART_LOWP_ONLY, PART_WITHOUT_GRADIENT, PART_NARROW, ARENA_PARTS };

static enum arena_part part_of(const struct parameter *parameter) {
    if (parameter->without_gradient) {
        return parameter->narrow ? PART_NARROW : PART_WITHOUT_GRADIENT;
    }
    if (parameter->lowp_only) {
        return PART_LOWP_ONLY;
    }
    return parameter->decayed ? PART_DECAYED : PART_UNDECAYED;
}

static uint64_t align(uint64_t offset) {
    return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Places the parameters of one sublayer from offset `next` on, and returns the offset behind them. Small leaves
 * have no gaps between them, as kernels expect of theta. */
static uint64_t place_sublayer(struct parameters *parameters, int64_t sublayer, enum arena_part part,
                               size_t *placed, uint64_t next) {
    bool after_small = false;
    for (size_t i = 0; i < parameters->count; i++) {
        struct parameter *parameter = &parameters->table[i];
        if (part_of(parameter) != part || parameter->sublayer != sublayer) {
            continue;
        }
        const bool small = parameter->leaf && residual_leaf_is_small(parameter->leaf);
        parameter->offset = parameter->joined || (small && after_small) ? next : align(next);
        if (parameter->offset_copy) {
            *parameter->offset_copy = parameter->offset;
        }
        parameters->in_arena[(*placed)++] = i;
        next = parameter->offset + (parameter->narrow
                                        ? NARROW_BLOCK * narrow_blocks(parameter->shape[0], parameter->shape[1])
                                        : parameter->elements);
        after_small = small;
    }
    return align(next);
}

void parameters_lay_out(struct parameters *parameters) {
    const int64_t top = parameters->table[parameters->count - 1].sublayer;
    uint64_t next = 0, firsts[ARENA_PARTS];
    size_t placed = 0;
    parameters->in_arena = memory_resize(parameters->in_arena, parameters->count, sizeof *parameters->in_arena);
    parameters->offsets = memory_resize(parameters->offsets, parameters->count, sizeof *parameters->offsets);
    for (int part = 0; part < ARENA_PARTS; part++) {
        firsts[part] = next;
        for (int64_t sublayer = -1; sublayer <= top; sublayer++) {
            next = place_sublayer(parameters, sublayer, (enum arena_part)part, &placed, next);
        }
    }
    parameters->decayed_from = firsts[PART_DECAYED];
    parameters->lowp_only_from = firsts[PART_LOWP_ONLY];
    parameters->gradients_end = firsts[PART_WITHOUT_GRADIENT];
    parameters->narrow_from = firsts[PART_NARROW];
    parameters->elements = next;
    uint64_t outside = 0; /* elements before a parameter that are of no matrix */
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[parameters->in_arena[i]];
        const bool is_last = i + 1 == parameters->count;
        const uint64_t first = i > 0 ? parameter->offset : 0;
        const uint64_t end = is_last ? next : parameters->table[parameters->in_arena[i + 1]].offset;
        parameters->offsets[i] = (struct arena_offset){first, outside};
        outside += parameter->matrices[0] ? 0 : end - first;
    }
    if (parameters->head_is_embedding) {
        parameters->head = parameters->token_embedding;
    }
}

bool parameters_train(const struct parameters *parameters, uint64_t offset) {
    return offset < parameters->gradients_end;
}

void parameters_create(const struct model_config *config, struct parameters *parameters) {
    *parameters = (struct parameters){.accumulate = true, .adapter_rank = (size_t)config->lora.rank};
    parameters->adapter_scale = config->lora.rank > 0 ? (float)lora_scale(&config->lora) : 0.0f;
    parameters->sublayers = memory_zeroed(BRANCHES * (size_t)config->n_layer + 1, sizeof *parameters->sublayers);
    fill_table(parameters, config);
    parameters->head_is_embedding = config->tie_embeddings;
    parameters_lay_out(parameters);
}

void parameters_release(struct parameters *parameters) {
    free(parameters->table);
    free(parameters->in_arena);
    free(parameters->offsets);
    free(parameters->sublayers);
    memset(parameters, 0, sizeof *parameters);
}

uint64_t parameters_outside_matrices(const struct parameters *parameters, uint64_t offset) {
    const size_t index =
        search_range(&parameters->offsets->first, sizeof *parameters->offsets, parameters->count, offset);
    const struct arena_offset *found = &parameters->offsets[index];
    const bool is_inside = parameters->table[parameters->in_arena[index]].matrices[0];
    return found->outside + (is_inside ? 0 : offset - found->first);
}

bool parameter_is_new(const struct parameter *parameter) {
    return parameter->auxiliary || parameter->upcycled;
}

bool parameter_is_alpha_res(const struct parameter *parameter) {
    return strcmp(strrchr(parameter->name, '.'), ".alpha_res") == 0;
}

const struct parameter *parameters_find(const struct parameters *parameters, const char *name) {
    for (size_t i = 0; i < parameters->count; i++) {
        if (strcmp(parameters->table[i].name, name) == 0) {
            return &parameters->table[i];
        }
    }
    return NULL;
}

/* ---- what is frozen */

/* A name has less than 100 bytes, so that patterns which stay below the limit need at most milliseconds for one. */
enum { MOST_PATTERN_BYTES = 1000, MATCH_LIMIT = 10000 };

static int set_error(const char *option, const char *pattern, const char *what, int code) {
    char reason[256] = "";
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return error_set("%s = %s %s: %s", option, pattern, what, reason);
}

/* Weights of a layer have no gradient if they all are frozen, those that are joined to the first as well. */
static void mark_linear(struct parameters *parameters, struct linear *linear) {
    struct parameter *end = parameters->table + parameters->count, *first = parameters->table, *next;
    while (first->offset_copy != &linear->weight_at) {
        first++;
    }
    linear->frozen = linear->bias_frozen = true;
    for (next = first; next < end && (next == first || next->offset_copy == &linear->bias_at || next->joined);
         next++) {
        bool *frozen = next->lowp_only ? &linear->frozen : &linear->bias_frozen;
        *frozen &= next->frozen;
    }
    linear->narrow = linear->frozen && frozen_weights_are_narrow(parameters->frozen_weights);
    for (; first < next; first++) {
        first->without_gradient = linear->frozen && first->lowp_only;
        first->narrow = first->without_gradient && linear->narrow;
    }
}

/* Embeddings, and the head's weights. */
static bool is_table(const struct parameters *parameters, const struct parameter *parameter) {
    return parameter->offset_copy == &parameters->token_embedding ||
           parameter->offset_copy == &parameters->position_embedding ||
           parameter->offset_copy == &parameters->head || strstr(parameter->name, ".value_embed.");
}

/* Sets `frozen` of the parameters whose names the pattern, of an option, matches. Returns how many they are; -1
 * with an error. */
static int64_t mark_matches(struct parameters *parameters, const char *option, const char *pattern, bool frozen) {
    int error = 0;
    int64_t matches = 0;
    PCRE2_SIZE at;
    if (strlen(pattern) > MOST_PATTERN_BYTES) {
        return error_set("%s: a pattern has at most %d bytes", option, MOST_PATTERN_BYTES);
    }
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, 0, &error, &at, NULL);
    if (!code) {
        return set_error(option, pattern, "is not a valid regular expression", error);
    }
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    if (!context || !data) {
        memory_refused(0);
    }
    pcre2_set_match_limit(context, MATCH_LIMIT);
    for (size_t i = 0; i < parameters->count && matches >= 0; i++) {
        struct parameter *parameter = &parameters->table[i];
        const int result =
            pcre2_match(code, (PCRE2_SPTR)parameter->name, strlen(parameter->name), 0, 0, data, context);
        if (result < 0 && result != PCRE2_ERROR_NOMATCH) { /* the limit does not suffice */
            set_error(option, pattern, "cannot be compared with names, a simpler expression is needed", result);
            matches = error_prefix("%s", parameter->name);
        } else if (result >= 0) {
            parameter->frozen = frozen;
            matches++;
        }
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
    return matches;
}

/* The same, where a pattern that matches nothing, or all, is an error. */
static int mark(struct parameters *parameters, const char *option, const char *pattern, bool frozen) {
    if (!pattern || !*pattern) {
        return 0;
    }
    const int64_t matches = mark_matches(parameters, option, pattern, frozen);
    if (matches < 0) {
        return -1;
    }
    if (matches == 0 || (frozen && matches == (int64_t)parameters->count)) {
        return error_set("%s = %s matches %s: %s", option, pattern, matches ? "all parameters" : "no parameter",
                         matches ? "nothing would be trained"
                                 : "names are like transformer.wte.weight and transformer.h.0.attn.c_attn.weight");
    }
    return 0;
}

/* Places what has no gradient then. */
static void place_frozen(struct parameters *parameters) {
    const int64_t top = parameters->table[parameters->count - 1].sublayer;
    for (size_t i = 0; i < parameters->count; i++) {
        struct parameter *parameter = &parameters->table[i];
        parameter->without_gradient = parameter->frozen && is_table(parameters, parameter);
    }
    for (int64_t i = 0; i < top; i++) {
        mark_linear(parameters, &parameters->sublayers[i].in);
        mark_linear(parameters, &parameters->sublayers[i].out);
    }
    parameters_lay_out(parameters);
}

int frozen_mark(struct parameters *parameters, const char *pattern) {
    const int status = mark(parameters, "freeze", pattern, true);
    if (status == 0 && pattern && *pattern) {
        place_frozen(parameters);
    }
    return status;
}

int frozen_create(const struct model_config *config, const struct optimizer_settings *settings, bool training,
                  struct parameters *parameters) {
    parameters_create(config, parameters);
    parameters->frozen_weights = settings->frozen_weights;
    if (!training && settings->frozen_weights == FROZEN_AS_OTHERS) {
        return 0;
    }
    for (size_t i = 0; i < parameters->count; i++) {
        struct parameter *parameter = &parameters->table[i];
        parameter->frozen =
            !training || (config->lora.rank > 0 && !parameter->adapter && !parameter_is_new(parameter));
    }
    int status = training && (mark(parameters, "lora_train", settings->lora_train, false) ||
                              mark(parameters, "freeze", settings->freeze, true));
    if (status == 0) {
        place_frozen(parameters);
    } else {
        parameters_release(parameters);
    }
    return status ? -1 : 0;
}

uint64_t frozen_elements(const struct parameters *parameters) {
    uint64_t elements = 0;
    for (size_t i = 0; i < parameters->count; i++) {
        elements += parameters->table[i].frozen ? parameters->table[i].elements : 0;
    }
    return elements;
}

void frozen_clear(struct compute *compute, const struct parameters *parameters, int64_t sublayer) {
    uint64_t first = 0, end = 0; /* of a run of neighbours in the arena */
    for (size_t i = 0; i <= parameters->count; i++) {
        const struct parameter *parameter =
            i < parameters->count ? &parameters->table[parameters->in_arena[i]] : NULL;
        const bool is_cleared = parameter && parameter->frozen && !parameter->without_gradient &&
                                (sublayer == FROZEN_ALL || parameter->sublayer == sublayer);
        if (!is_cleared && end > first) {
            buffer_zero(compute, parameters->gradients, first * sizeof(float), (end - first) * sizeof(float));
        }
        if (is_cleared) {
            first = end > first ? first : parameter->offset;
        }
        end = is_cleared ? parameter->offset + parameter->elements : first;
    }
}

/* ---- weights */

/* How many of `count` weights from `first` on have fp32. */
static uint64_t count_in_fp32(const struct parameters *parameters, uint64_t first, uint64_t count) {
    return first < parameters->fp32_elements ? size_smaller(count, parameters->fp32_elements - first) : 0;
}

int parameters_read(struct compute *compute, const struct parameters *parameters, uint64_t first, uint64_t count,
                    float *values) {
    const uint64_t in_fp32 = count_in_fp32(parameters, first, count);
    return (in_fp32 && buffer_read_floats(compute, parameters->weights, first, values, in_fp32)) ||
                   (in_fp32 < count && buffer_read_floats(compute, parameters->weights_lowp, first + in_fp32,
                                                          values + in_fp32, count - in_fp32))
               ? -1
               : 0;
}

int parameters_write(struct compute *compute, const struct parameters *parameters, uint64_t first, uint64_t count,
                     const float *values) {
    const uint64_t in_fp32 = count_in_fp32(parameters, first, count);
    return (in_fp32 && buffer_write_floats(compute, parameters->weights, first, values, in_fp32)) ||
                   (in_fp32 < count && buffer_write_floats(compute, parameters->weights_lowp, first + in_fp32,
                                                           values + in_fp32, count - in_fp32))
               ? -1
               : 0;
}

/* Packs rows of a narrow matrix and writes their blocks. */
static int write_blocks(struct compute *compute, const struct parameters *parameters, uint64_t at, uint64_t rows,
                        uint64_t columns, const float *values) {
    const size_t bytes = narrow_block_bytes(parameters->frozen_weights);
    const uint64_t first = (at - parameters->narrow_from) / NARROW_BLOCK, blocks = narrow_blocks(rows, columns);
    unsigned char *codes = memory_allocate(blocks, bytes);
    float *scales = memory_allocate(blocks, sizeof *scales);
    narrow_pack(parameters->frozen_weights, rows, columns, values, codes, scales);
    const int status =
        buffer_write(compute, parameters->narrow.codes, first * bytes, codes, blocks * bytes) ||
        buffer_write(compute, parameters->narrow.scales, first * sizeof *scales, scales, blocks * sizeof *scales);
    free(codes);
    free(scales);
    return status ? -1 : 0;
}

int parameter_write(struct compute *compute, const struct parameters *parameters, const struct parameter *parameter,
                    uint64_t first, uint64_t count, const float *values) {
    const uint64_t columns = parameter->shape[1];
    if (!parameter->narrow) {
        return parameters_write(compute, parameters, parameter->offset + first, count, values);
    }
    const uint64_t before = NARROW_BLOCK * narrow_blocks(first / columns, columns);
    return first % columns || count % columns
               ? error_set("rows of %" PRIu64 " numbers are too long to be kept in blocks", columns)
               : write_blocks(compute, parameters, parameter->offset + before, count / columns, columns, values);
}

void parameters_round(struct compute *compute, const struct parameters *parameters) {
    if (parameters->weights_lowp != parameters->weights) {
        convert_elements(compute, (struct span){parameters->weights, 0}, (struct span){parameters->weights_lowp, 0},
                         parameters->fp32_elements);
    }
}

/* ---- initialisation */

/* One parameter's initial values: PIECE of them at a time. */
struct initialisation {
    const struct parameter *parameter;
    const struct model_config *config;
    uint64_t seed;
    float *values; /* [elements] */
};

enum { PIECE = 1 << 14 };

/* Random values depend on seed, name and place only, so not on what is computed together. */
void parameter_first_values(const struct parameter *parameter, const struct model_config *config, uint64_t seed,
                            uint64_t first, uint64_t count, float *values) {
    const struct residual_init init = {.streams = config->n_streams,
                                       .sublayer = parameter->sublayer,
                                       .stream = model_config_first_stream(config, parameter->sublayer),
                                       .settings = &config->settings,
                                       .channels = config->n_embd};
    const uint64_t key = random_key(seed, parameter->name);
    if (parameter->deviation > 0.0) {
        random_normal(key, first, count, 0.0, parameter->deviation, values);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        values[i] = parameter->initial ? parameter->initial((int64_t)(first + i), &init) : parameter->constant;
        if (parameter->spread > 0.0) {
            values[i] += (float)(parameter->spread * (2.0 * random_uniform(key, first + i) - 1.0));
        }
    }
}

static int initialise_piece(void *context, size_t piece) {
    const struct initialisation *all = context;
    const size_t first = piece * PIECE, end = size_smaller(first + PIECE, all->parameter->elements);
    parameter_first_values(all->parameter, all->config, all->seed, first, end - first, all->values + first);
    return 0;
}

int parameters_initialise(struct compute *compute, struct parameters *parameters, const struct model_config *config,
                          uint64_t seed) {
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        float *values = memory_allocate(parameter->elements, sizeof *values);
        struct initialisation all = {parameter, config, seed, values};
        const bool failed = parallel_run(groups_for(parameter->elements, PIECE), initialise_piece, &all) ||
                            parameter_write(compute, parameters, parameter, 0, parameter->elements, values);
        free(values);
        if (failed) {
            return error_prefix("cannot initialise %s", parameter->name);
        }
    }
    parameters_round(compute, parameters);
    return compute_check(compute);
}
