#include "src/operations/kernels.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/sizes.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t operations_scratch_bytes(const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const struct policy *policy = &operations->policy;
    const size_t widest = (shape->scaled || residual_has_gates(shape->residual)) && shape->streams > 4
                              ? (size_t)shape->streams
                              : 4; /* 4: c_fc's bias */
    const size_t hidden = (size_t)shape->hidden * (mlp_is_gated(shape->mlp) ? 2 : 1);
    const size_t linear = size_larger(hidden, (size_t)head_shape(shape).qkv_row);
    const size_t ways = residual_mixes_layers(shape->residual) ? 2 * (size_t)shape->sublayers + 32 : 0; /* of b */
    const size_t rows =
        policy->row_chunks * size_larger(size_larger(widest * (size_t)shape->channels, linear), ways);
    const size_t theta = policy->map_chunks * operations->theta;
    const size_t logits = shape->head_bias ? HEAD_BIAS_CHUNKS * (size_t)shape->vocabulary : 0;
    return size_larger(size_larger(size_larger(rows, theta), frame_scratch(operations)),
                       size_larger(policy->square_chunks, logits)) *
           sizeof(float);
}

/* ---- programs */

/* Norms, MLPs and activations: a next one is a row and, unless it is there, a file of cl/, norm_<name>.cl or
 * activation_<name>.cl. */
static const struct {
    const char *name;
    bool has_bias; /* where the model has biases */
    double epsilon;
} norms[] = {[NORM_LAYER] = {"layer", true, 1e-5}, [NORM_RMS] = {"rms", false, 1e-6}};
static const struct {
    const char *name;
    const char *turns; /* what it does to heads is cl/position_<this>.cl */
} positions[] = {[POSITION_LEARNED] = {"learned", "none"},
                 [POSITION_ROPE] = {"rope", "rope"},
                 [POSITION_NONE] = {"none", "none"}};
static const struct {
    const char *name;
    const char *activation; /* its file is activation_<this>.cl; NULL: the one that the model chooses */
    bool gated;             /* f(c_gate x) (c_fc x); else f(c_fc x) */
} mlps[] = {[MLP_GELU] = {"gelu", NULL, false},
            [MLP_SWIGLU] = {"swiglu", "silu", true},
            [MLP_RELU2] = {"relu2", "relu2", false}};
static const char *const activations[] = {[ACTIVATION_GELU] = "gelu", [ACTIVATION_GELU_TANH] = "gelu_tanh"};

/* Rows of so many bytes, each of which begins with its name. */
static const char *list_names(const void *table, size_t bytes, size_t count, const char *suffix, char names[256]) {
    for (size_t i = 0, used = 0; i < count; i++) {
        const char *name = *(const char *const *)((const char *)table + i * bytes);
        used += (size_t)snprintf(names + used, 256 - used, "%s%s%s", i > 0 ? "|" : "", name, suffix);
    }
    return names;
}

const char *norm_names(void) {
    static char names[256];
    return list_names(norms, sizeof norms[0], COUNT(norms), "norm", names);
}

bool norm_has_bias(int norm) {
    return norms[norm].has_bias;
}

double norm_epsilon(int norm) {
    return norms[norm].epsilon;
}

const char *position_names(void) {
    static char names[256];
    return list_names(positions, sizeof positions[0], COUNT(positions), "", names);
}

const char *mlp_names(void) {
    static char names[256];
    return list_names(mlps, sizeof mlps[0], COUNT(mlps), "", names);
}

bool mlp_is_gated(int mlp) {
    return mlps[mlp].gated;
}

bool position_turns_heads(int position) {
    return strcmp(positions[position].turns, "none") != 0;
}

const char *activation_names(void) {
    static char names[256];
    return list_names(activations, sizeof activations[0], COUNT(activations), "", names);
}

/* When a program is built, besides attention's. */
enum need {
    ALWAYS,
    HYPER_CONNECTIONS,
    PROJECTIONS,
    READ_AHEAD,
    READ_AHEAD_APART,
    FUSED_FRAME,
    GATED_MLPS,
    EMBED_NORM,
    HEAD_BIAS,
    HEAD_ROWS,
    COLLAPSE,
    CHANNEL_GATES,
    DEPTH,
    MULTIWAY,
    MUON
};

/* Files of cl/, which are compiled together after common.cl, and the kernels that are taken from them.
 *
 * `constants` lists the build constants that the text uses, and no others, so that models which differ in other
 * things share the compiled program. "NAME" has the value of that name in number_of, "NAME=other" that of `other`,
 * which may also be a number; SETTINGS stands for what the residual variant's file reads. */
#define KERNEL(kernel) {#kernel, offsetof(struct operation_kernels, kernel)}
#define HEAD_CONSTANTS "VEC=head_vector KEY_VEC HEADS KV_HEADS HEAD_SIZE ATTN_SCALE ACT"
enum { ROW_FILES = 5 }; /* at most */
static const struct program {
    const char
        *files[ROW_FILES]; /* %s is the name of the residual variant, norm, kind of positions or activation */
    const char *constants;
    enum need need;
    const char *attention; /* only for the algorithm of this name; NULL: not of attention */
    struct {
        const char *name;
        size_t at; /* in struct operation_kernels */
    } kernels[11];
} programs[] = {
    {.files = {"embedding.cl"},
     .constants = "VEC STREAMS CHANNELS SCALED POSITIONS EMBED_NORM EMBED_EPSILON MASTER ACT",
     .kernels = {KERNEL(embedding_forward), KERNEL(embedding_backward_sum), KERNEL(embedding_backward_tokens),
                 KERNEL(embedding_backward_positions), KERNEL(stream_scale_backward)}},
    {.files = {"embedding_norm.cl"},
     .constants = "VEC CHANNELS POSITIONS MASTER ACT=MASTER",
     .need = EMBED_NORM,
     .kernels = {KERNEL(embedding_norm_backward)}},
    {.files = {"norm_%s.cl", "mix_parts.cl", "stream_mix.cl"},
     .constants = "VEC STREAMS CHANNELS PLAIN RMS_GROUPS BIAS NORM_EPSILON ACT",
     .kernels = {KERNEL(width_mix_forward), KERNEL(width_mix_backward), KERNEL(depth_mix_forward),
                 KERNEL(depth_mix_backward), KERNEL(stream_backward), KERNEL(stream_gram)}},
    {.files = {"norm_%s.cl", "mix_parts.cl", "mix_between.cl"},
     .constants = "VEC STREAMS CHANNELS PLAIN RMS_GROUPS BIAS NORM_EPSILON ACT",
     .need = READ_AHEAD,
     .kernels = {KERNEL(mix_between)}},
    {.files = {"norm_%s.cl", "mix_parts.cl", "mix_backward.cl"},
     .constants = "VEC STREAMS CHANNELS PLAIN RMS_GROUPS BIAS NORM_EPSILON ACT",
     .need = READ_AHEAD_APART,
     .kernels = {KERNEL(mix_backward)}},
    {.files = {"norm_%s.cl", "head.cl"},
     .constants = "VEC STREAMS CHANNELS BIAS NORM_SUM NORM_EPSILON ACT",
     .kernels = {KERNEL(final_norm_forward), KERNEL(final_norm_backward)}},
    {.files = {"norm_%s.cl", "depth_read.cl"},
     .constants = "VEC CHANNELS BIAS GAINED NORM_EPSILON ACT",
     .need = DEPTH,
     .kernels = {KERNEL(depth_read_forward), KERNEL(depth_read_backward)}},
    {.files = {"activation_gelu.cl", "ways.cl"},
     .constants = "VEC CHANNELS WAYS=4 NORM_EPSILON ACT",
     .need = MULTIWAY,
     .kernels = {KERNEL(ways_pack), KERNEL(ways_state_forward), KERNEL(ways_state_backward),
                 KERNEL(ways_hidden_forward), KERNEL(ways_hidden_backward), KERNEL(ways_mix_forward),
                 KERNEL(ways_mix_backward)}},
    {.files = {"activation_gelu.cl", "ways.cl"},
     .constants = "VEC CHANNELS WAYS=1 NORM_EPSILON ACT",
     .need = MULTIWAY,
     .kernels = {{"ways_mix_forward", offsetof(struct operation_kernels, way_mix_forward)},
                 {"ways_mix_backward", offsetof(struct operation_kernels, way_mix_backward)}}},
    {.files = {"activation_gelu.cl", "elementwise.cl"}, /* of floats */
     .constants = "VEC ACT=0",
     .need = MULTIWAY,
     .kernels = {{"bias_add", offsetof(struct operation_kernels, ways_bias_forward)}}},
    {.files = {"collapse.cl"},
     .constants = "VEC=1 STREAMS CHANNELS PROJECTED HC_EPS ACT",
     .need = COLLAPSE,
     .kernels = {KERNEL(collapse_forward), KERNEL(collapse_backward)}},
    {.files = {"channel_gates.cl"},
     .constants = "VEC STREAMS CHANNELS RANK RANK_ROW Y_ROW GAINED NORM_EPSILON ACT",
     .need = CHANNEL_GATES,
     .kernels = {KERNEL(gates_pack), KERNEL(gates_unpack), KERNEL(gates_begin), KERNEL(gates_leave),
                 KERNEL(gates_leave_backward), KERNEL(gates_streams_backward), KERNEL(gates_hidden_forward),
                 KERNEL(gates_hidden_backward), KERNEL(gates_open), KERNEL(gates_forward), KERNEL(gates_backward)}},
    {.files = {"cross_entropy.cl"},
     .constants = "VEC LANES=loss_lanes VOCABULARY CAPPED SOFTCAP ACT",
     .kernels = {KERNEL(cross_entropy)}},
    {.files = {"head_bias.cl"},
     .constants = "VEC=1 VOCABULARY ACT",
     .need = HEAD_BIAS,
     .kernels = {KERNEL(head_bias_forward), KERNEL(head_bias_backward)}},
    {.files = {"hc_gates.cl", "hc_%s.cl", "hc_token.cl", "hc_map.cl"},
     .constants = "VEC=1 LANES=map_lanes STREAMS CHANNELS PLAIN RMS_GROUPS MAP_LOCAL=0 SETTINGS", /* always fp32 */
     .need = HYPER_CONNECTIONS,
     .kernels = {KERNEL(hc_map_forward), KERNEL(hc_map_backward)}},
    {.files = {"hc_gates.cl", "hc_%s.cl", "hc_token.cl", "norm_%s.cl", "frame.cl"},
     .constants = "VEC STREAMS CHANNELS PLAIN RMS_GROUPS BIAS NORM_EPSILON GROUP_ROWS LENGTH MAP_LOCAL READ_DELAY "
                  "SETTINGS ACT",
     .need = FUSED_FRAME,
     .kernels = {KERNEL(frame_enter), KERNEL(frame_between), KERNEL(frame_output_gradient),
                 KERNEL(frame_backward)}},
    {.files = {"projections.cl"},
     .constants = "VEC COLUMNS LENGTH GAINED WIDE ACT",
     .need = PROJECTIONS,
     .kernels = {KERNEL(projections_pack), KERNEL(projections_unpack), KERNEL(projections_gradient)}},
    {.files = {"few_rows.cl"},
     .constants = "VEC BLOCK_ROWS=projection_rows BLOCK_COLUMNS=3 ACT",
     .need = PROJECTIONS,
     .kernels = {{"few_rows_multiply", offsetof(struct operation_kernels, projections_multiply)}}},
    {.files = {"activation_%s.cl", "elementwise.cl"},
     .constants = "VEC=linear_vector ACT",
     .kernels = {KERNEL(activation_forward), KERNEL(activation_backward), KERNEL(bias_add), KERNEL(dropout_apply)}},
    {.files = {"activation_%s.cl", "gated.cl"},
     .constants = "VEC=linear_vector ACT",
     .need = GATED_MLPS,
     .kernels = {KERNEL(gated_forward), KERNEL(gated_backward)}},
    {.files = {"reduce.cl"},
     .constants = "VEC=linear_vector ACT",
     .kernels = {KERNEL(column_sums), KERNEL(partials_add)}},
    {.files = {"position_%s.cl", "head_rows.cl"},
     .constants = "VEC=half_head_vector HEADS KV_HEADS HEAD_SIZE NORMED HEAD_GAINS NORM_EPSILON ACT",
     .need = HEAD_ROWS,
     .kernels = {KERNEL(head_rows_forward), KERNEL(head_rows_backward), KERNEL(head_gains_backward)}},
    {.files = {"attention.cl", "attention_step.cl", "attention_cpu_bf16.cl", "attention_cpu.cl"},
     .constants = HEAD_CONSTANTS " QUERIES KEYS KEYS_BACKWARD EMULATED",
     .attention = "cpu_bf16",
     .kernels = {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
                 KERNEL(attention_backward_keys), KERNEL(attention_fill), KERNEL(attention_step)}},
    {.files = {"attention.cl", "attention_step.cl", "attention_cpu_fp32.cl", "attention_cpu.cl"},
     .constants = HEAD_CONSTANTS " QUERIES KEYS KEYS_BACKWARD",
     .attention = "cpu",
     .kernels = {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
                 KERNEL(attention_backward_keys), KERNEL(attention_fill), KERNEL(attention_step)}},
    {.files = {"attention.cl", "attention_step.cl", "attention_gpu.cl"},
     .constants = HEAD_CONSTANTS " ACROSS=query_across DOWN=query_down SCALE KEYS_STAY=0",
     .attention = "gpu",
     .kernels = {KERNEL(attention_forward), KERNEL(attention_backward_queries), KERNEL(attention_fill),
                 KERNEL(attention_step)}},
    {.files = {"attention.cl", "attention_gpu.cl"},
     .constants = HEAD_CONSTANTS " ACROSS=key_across DOWN=key_down SCALE KEYS_STAY=1",
     .attention = "gpu",
     .kernels = {KERNEL(attention_backward_keys)}},
    {.files = {"few_rows.cl"},
     .constants = "VEC=linear_vector BLOCK_ROWS=1 BLOCK_COLUMNS=1 ACT",
     .kernels = {{"few_rows_multiply", offsetof(struct operation_kernels, one_row_multiply)}}},
    {.files = {"few_rows.cl"},
     .constants = "VEC=linear_vector BLOCK_ROWS=few_rows_block BLOCK_COLUMNS=few_rows_block ACT",
     .kernels = {KERNEL(few_rows_multiply)}},
    {.files = {"reduce.cl"},
     .constants = "VEC=arena_vector ACT",
     .kernels = {KERNEL(square_sums), KERNEL(sum_total)}},
    {.files = {"rounding.cl", "adamw.cl"},
     .constants = "VEC=arena_vector MOMENTS MASTER ACT",
     .kernels = {KERNEL(adamw)}},
    {.files = {"rounding.cl", "muon.cl"},
     .constants = "VEC=any_vector MOMENTS ACT=muon_type",
     .need = MUON,
     .kernels = {KERNEL(muon_momentum), KERNEL(muon_normalise), KERNEL(muon_polynomial)}},
    {.files = {"rounding.cl", "muon.cl"},
     .constants = "VEC=any_vector MASTER ACT",
     .need = MUON,
     .kernels = {KERNEL(muon_update)}},
};

static struct kernel *kernel_of(const struct operations *operations, const struct program *program, size_t i) {
    return i < COUNT(program->kernels) && program->kernels[i].name
               ? (struct kernel *)((char *)operations->kernels + program->kernels[i].at)
               : NULL;
}

/* ---- build constants */

/* The value of a build constant. -1: there is none of this name. */
static int64_t number_of(const struct operations *operations, const char *name) {
    const struct operation_shape *shape = &operations->shape;
    const struct policy *policy = &operations->policy;
    const struct head_shape heads = head_shape(shape);
    const bool bf16 = attention_is(operations, "cpu_bf16");
    const struct {
        const char *name;
        int64_t number;
    } all[] = {
        {"ACT", shape->type},
        {"BIAS", has_norm_bias(operations)},
        {"CAPPED", shape->softcap > 0.0 ? 1 + shape->softcap_kind : 0},
        {"CHANNELS", shape->channels},
        {"COLUMNS", (int64_t)operations->columns},
        {"EMBED_NORM", shape->embed_norm},
        {"EMULATED", operations->emulates_bf16},
        {"GAINED", !shape->gainless},
        {"GROUP_ROWS", (int64_t)policy->frame_rows},
        {"HEADS", heads.heads},
        {"HEAD_GAINS", shape->qk_norm == QK_NORM_GAINED},
        {"HEAD_SIZE", heads.size},
        {"KEYS", policy->attention_keys},
        {"KEYS_BACKWARD", policy->attention_keys_backward},
        {"KEY_VEC", policy->attention_key_vector},
        {"KV_HEADS", heads.kv_heads},
        {"LENGTH", (int64_t)norm_length(operations)},
        {"MAP_LOCAL", (int64_t)(policy->frame_local_bytes / sizeof(float))},
        {"MASTER", shape->master},
        {"MOMENTS", shape->moments},
        {"NORMED", shape->qk_norm != QK_NORM_NONE},
        {"NORM_SUM", shape->norm_sum},
        {"PLAIN", !residual_has_matrices(shape->residual)},
        {"PROJECTED", !shape->fixed_top},
        {"POSITIONS", shape->position == POSITION_LEARNED},
        {"QUERIES", policy->attention_queries[bf16]},
        {"RANK", gates_rank(shape)},
        {"RANK_ROW", (int64_t)gate_rows(shape).hidden},
        {"READ_DELAY", shape->read_delay},
        {"RMS_GROUPS", (int64_t)operations->norm_groups},
        {"SCALED", shape->scaled},
        {"STREAMS", shape->streams},
        {"VEC", policy->vector},
        {"VOCABULARY", shape->vocabulary},
        {"WIDE", (int64_t)policy->projection_vectors},
        {"Y_ROW", (int64_t)gate_rows(shape).y},
        {"any_vector", policy->any_vector},
        {"arena_vector", policy->arena_vector},
        {"few_rows_block", FEW_ROWS_BLOCK},
        {"half_head_vector", policy->half_head_vector},
        {"head_vector", policy->head_vector},
        {"key_across", policy->attention_gpu[1].across},
        {"key_down", policy->attention_gpu[1].down},
        {"linear_vector", policy->linear_vector},
        {"loss_lanes", (int64_t)policy->loss_lanes},
        {"muon_type", shape->muon_type},
        {"map_lanes", (int64_t)policy->map_lanes},
        {"projection_rows", (int64_t)policy->projection_rows},
        {"query_across", policy->attention_gpu[0].across},
        {"query_down", policy->attention_gpu[0].down},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        if (strcmp(all[i].name, name) == 0) {
            return all[i].number;
        }
    }
    return -1;
}

/* The value of a build constant that is a float; NAN: there is none of this name. */
static double real_of(const struct operations *operations, const char *name) {
    const struct operation_shape *shape = &operations->shape;
    const struct {
        const char *name;
        double value;
    } all[] = {
        {"HC_EPS", shape->hc_eps},
        {"NORM_EPSILON", shape->norm_eps},
        {"EMBED_EPSILON", shape->embed_norm ? shape->norm_eps : 1.0},
        {"SOFTCAP", shape->softcap > 0.0 ? shape->softcap : 1.0},
        {"SCALE", attention_scale(shape)},
        {"ATTN_SCALE", shape->attn_scale},
    };
    for (size_t i = 0; i < COUNT(all); i++) {
        if (strcmp(all[i].name, name) == 0) {
            return all[i].value;
        }
    }
    return NAN;
}

/* What the residual variant's file reads: its settings, and P_<leaf>, where each small parameter is in a sublayer's
 * theta. */
static void define_settings(FILE *file, const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    int64_t offset = 0;
    fprintf(file, " -DCOLUMNS=%zu -DTHETA=%" PRId64 " -DHC_EPS=%.9ef -DRMS_EPSILON=%.9ef -DH_TRANSPOSED=%d",
            operations->columns, residual_theta(shape->residual, shape->streams, &shape->settings), shape->hc_eps,
            shape->hc_norm_eps, shape->h_res_transposed);
    residual_settings_define(shape->residual, &shape->settings, file);
    if (shape->residual->uses_depth) {
        fprintf(file, " -DSUBLAYERS=%" PRId64, shape->sublayers);
    }
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const bool exists = residual_leaf_exists(shape->residual, leaf, &shape->settings);
        const int64_t elements =
            exists && residual_leaf_is_small(leaf) ? residual_leaf_elements(leaf, shape->streams, 0) : 0;
        if (elements > 0) {
            fprintf(file, " -DP_%s=%" PRId64, leaf->name, offset);
            if (shape->freeze_alpha_res && strcmp(leaf->name, "alpha_res") == 0) {
                fputs(" -DFREEZE_ALPHA_RES", file);
            }
        }
        offset += elements;
    }
}

/* " -D<name>=<value> ...", which the caller frees. */
static char *define_all(const struct operations *operations, const struct program *program) {
    char words[192], *rest, *text;
    size_t bytes;
    FILE *file = memory_open_stream(&text, &bytes);
    snprintf(words, sizeof words, "%s", program->constants);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        const char *equals = strchr(word, '='), *value = equals ? equals + 1 : word;
        const int64_t number = number_of(operations, value);
        const double real = real_of(operations, word);
        if (strcmp(word, "SETTINGS") == 0) {
            define_settings(file, operations);
        } else if (!isnan(real)) {
            fprintf(file, " -D%s=%.9ef", word, real);
        } else if (number < 0) {
            fprintf(file, " -D%s", word);
        } else {
            fprintf(file, " -D%.*s=%" PRId64, (int)strcspn(word, "="), word, number);
        }
    }
    const bool is_heavy = program->need == HYPER_CONNECTIONS || program->need == FUSED_FRAME ||
                          program->need == CHANNEL_GATES || program->need == DEPTH || program->need == MULTIWAY;
    fputs(device_registers_option(&operations->compute->device, is_heavy ? REGISTERS_MANY : REGISTERS_AS_NEEDED),
          file);
    memory_close_stream(file);
    return text;
}

/* ---- building */

const char *shape_activation(const struct operation_shape *shape) {
    const char *own = mlps[shape->mlp].activation;
    return own ? own : activations[shape->activation];
}

/* The file of the model's residual variant, norm, kind of positions or activation, or `file` itself. */
static void name_file(const struct operations *operations, const char *file, char *name, size_t size) {
    const struct operation_shape *shape = &operations->shape;
    const char *chosen = *file == 'h'   ? shape->residual->name
                         : *file == 'n' ? norms[shape->norm].name
                         : *file == 'p' ? positions[shape->position].turns
                                        : shape_activation(shape);
    const char *percent = strchr(file, '%');
    if (percent) {
        snprintf(name, size, "%.*s%s.cl", (int)(percent - file), file, chosen);
    } else {
        snprintf(name, size, "%s", file);
    }
}

/* What a row's program is compiled from. */
struct row_text {
    char names[ROW_FILES][64];
    const char *files[ROW_FILES + 2];
    char *constants; /* to be freed */
};

static void describe_row(const struct operations *operations, const struct program *row, struct row_text *text) {
    *text = (struct row_text){.files = {"common.cl"}, .constants = define_all(operations, row)};
    for (size_t i = 0; i < COUNT(row->files) && row->files[i]; i++) {
        name_file(operations, row->files[i], text->names[i], sizeof text->names[i]);
        text->files[1 + i] = text->names[i];
    }
}

static int build(struct operations *operations, const struct program *row) {
    struct row_text text;
    cl_program program = NULL;
    describe_row(operations, row, &text);
    int status = program_build(operations->compute, text.files, text.constants, &program);
    free(text.constants);
    struct kernel *kernel;
    for (size_t i = 0; (kernel = kernel_of(operations, row, i)) && status == 0; i++) {
        status = kernel_create(operations->compute, program, row->kernels[i].name, kernel);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

/* Whether a program of this row is to be built: one that the model needs, of the wanted file, and not built
 * before. */
static bool is_needed(const struct operations *operations, const struct program *row, const char *file) {
    const bool reads_ahead = operations->shape.read_delay || residual_is_fixed(operations->shape.residual);
    const bool needed[] = {
        [ALWAYS] = true,
        [HYPER_CONNECTIONS] = residual_has_matrices(operations->shape.residual),
        [PROJECTIONS] = operations->columns > 0,
        [READ_AHEAD] = reads_ahead,
        [READ_AHEAD_APART] = reads_ahead && operations->policy.frame_rows == 0,
        [FUSED_FRAME] = operations->policy.frame_rows > 0,
        [COLLAPSE] = operations->shape.collapsed,
        [CHANNEL_GATES] = residual_has_gates(operations->shape.residual),
        [DEPTH] = residual_reads_depth(operations->shape.residual),
        [MULTIWAY] = residual_mixes_layers(operations->shape.residual),
        [MUON] = operations->shape.muon,
        [GATED_MLPS] = mlp_is_gated(operations->shape.mlp),
        [EMBED_NORM] = operations->shape.embed_norm,
        [HEAD_BIAS] = operations->shape.head_bias,
        [HEAD_ROWS] = head_rows_change(&operations->shape),
    };
    bool wanted = !file;
    for (size_t i = 0; i < COUNT(row->files) && row->files[i]; i++) {
        wanted |= file && strcmp(row->files[i], file) == 0;
    }
    return wanted && needed[row->need] && (!row->attention || attention_is(operations, row->attention)) &&
           !kernel_of(operations, row, 0)->handle;
}

void operations_release_attention(struct operations *operations) {
    struct kernel *kernel;
    for (const struct program *row = programs; operations->kernels && row < programs + COUNT(programs); row++) {
        for (size_t i = 0; row->attention && (kernel = kernel_of(operations, row, i)); i++) {
            kernel_release(kernel);
        }
    }
}

/* Compiles the programs that are needed, several at a time. */
static void prepare(struct operations *operations, const char *file) {
    struct row_text texts[COUNT(programs)];
    struct program_request requests[COUNT(programs)];
    size_t count = 0;
    for (size_t i = 0; i < COUNT(programs); i++) {
        if (is_needed(operations, &programs[i], file)) {
            describe_row(operations, &programs[i], &texts[count]);
            requests[count] = (struct program_request){texts[count].files, texts[count].constants};
            count++;
        }
    }
    programs_prepare(operations->compute, requests, count);
    for (size_t i = 0; i < count; i++) {
        free(texts[i].constants);
    }
}

/* The compiler may refuse the inline assembler of cpu_bf16: attention does without it then, with the rows that
 * follow. */
int operations_build(struct operations *operations, const char *file) {
    if (!operations->kernels) {
        operations->kernels = memory_zeroed(1, sizeof *operations->kernels);
        if (buffer_create(operations->compute, &operations->partials, operations_scratch_bytes(operations))) {
            return -1;
        }
    }
    prepare(operations, file);
    for (size_t i = 0; i < COUNT(programs); i++) {
        const struct program *row = &programs[i];
        if (is_needed(operations, row, file) && build(operations, row)) {
            if (!row->attention || strcmp(row->attention, "cpu_bf16") != 0 || operations->emulates_bf16 ||
                attention_next(operations)) {
                return -1;
            }
            error_clear();
        }
    }
    return 0;
}

void operations_describe(struct compute *compute, const struct operation_shape *shape,
                         struct operations *operations) {
    *operations = (struct operations){
        .compute = compute,
        .shape = *shape,
        .policy = policy_make(compute, shape),
        .columns = (size_t)residual_columns(shape->residual, shape->streams),
        .theta = (size_t)residual_theta(shape->residual, shape->streams, &shape->settings),
        .norm_groups = (size_t)residual_norm_groups(shape->residual, shape->streams),
        .h_row = (size_t)(shape->streams * (shape->streams + 2)),
    };
    attention_next(operations);
}

void operations_release(struct operations *operations) {
    struct kernel *kernels = (struct kernel *)operations->kernels; /* the struct holds nothing else */
    for (size_t i = 0; kernels && i < sizeof *operations->kernels / sizeof *kernels; i++) {
        kernel_release(&kernels[i]);
    }
    buffer_release(operations->compute, &operations->partials);
    attention_matrix_cores_close(operations);
    free(operations->kernels);
    memset(operations, 0, sizeof *operations);
}

/* ---- sums over chunks of rows */

struct chunking chunk_rows(size_t rows, size_t most) {
    const size_t per_chunk = (rows + most - 1) / most;
    return (struct chunking){per_chunk, per_chunk ? (rows + per_chunk - 1) / per_chunk : 0};
}

#define ARG_TARGET(target) ARG_I32((target).first), ARG_I32((target).count), ARG_U64((target).out.offset)

void add_partials(struct operations *operations, size_t chunks, size_t width,
                  const struct partial_target targets[PARTIAL_TARGETS], bool accumulate) {
    const size_t count = targets[0].count + targets[1].count + targets[2].count;
    const size_t lanes = operations->compute->lanes, parts = lanes < 8 ? lanes : 8; /* see reduce.cl */
    const size_t group = lanes == 1 ? ELEMENT_GROUP : lanes, columns = lanes == 1 ? ELEMENT_GROUP : lanes / parts;
    KERNEL_RUN(operations->compute, &operations->kernels->partials_add, groups_for(count, columns), group,
               ARG_IN(&operations->partials, chunks * count), ARG_U64(chunks), ARG_I32(width),
               ARG_TARGET(targets[0]), ARG_TARGET(targets[1]), ARG_TARGET(targets[2]),
               ARG_GRADIENTS(targets[0].out.buffer, count, accumulate));
}

void target_norm(const struct operations *operations, struct layer_norm gradients,
                 struct partial_target targets[2]) {
    const size_t channels = (size_t)operations->shape.channels;
    targets[0] = (struct partial_target){0, channels, gradients.gain};
    targets[1] = (struct partial_target){channels, has_norm_bias(operations) ? channels : 0, gradients.bias};
}
