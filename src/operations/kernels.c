#include "src/operations/kernels.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

size_t operations_scratch_bytes(const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const struct policy *policy = &operations->policy;
    const size_t widest = (shape->scaled || residual_has_frame(shape->residual, "gated")) && shape->streams > 4
                              ? (size_t)shape->streams
                              : 4; /* 4: c_fc's bias */
    const size_t hidden = (size_t)shape->hidden * (mlp_is_gated(shape->mlp) ? 2 : 1);
    const size_t linear = size_larger(hidden, (size_t)head_shape(shape).qkv_row);
    const size_t ways =
        residual_has_frame(shape->residual, "mudd") ? 2 * (size_t)shape->sublayers + 32 : 0; /* of b */
    const size_t gates = shape->value_embeds ? (size_t)head_shape(shape).kv_heads * VALUE_EMBED_CHANNELS : 0;
    const size_t norms = widest * (size_t)shape->channels + (depth_is_gated(shape) ? policy->depth_vector : 0);
    const size_t rows = policy->row_chunks * size_larger(size_larger(norms, gates), size_larger(linear, ways));
    const size_t theta = policy->map_chunks * operations->theta;
    const size_t logits = shape->head_bias ? HEAD_BIAS_CHUNKS * (size_t)shape->vocabulary : 0;
    return size_larger(size_larger(size_larger(rows, theta), frame_scratch(operations)),
                       size_larger(policy->square_chunks, logits)) *
           sizeof(float);
}

/* ---- programs */

/* Norms, kinds of positions, MLPs and activations, in the order of their words in policy.h: a next one is a word,
 * a row and, unless it is there, a file of cl/: norm_<file>.cl, position_<file>.cl or activation_<file>.cl. */
static const struct {
    const char *file;
    bool has_bias; /* where the model has biases */
    double epsilon;
} norms[] = {[NORM_LAYER] = {"layer", true, 1e-5}, [NORM_RMS] = {"rms", false, 1e-6}};
static const char *const positions[] = {
    [POSITION_LEARNED] = "none", [POSITION_ROPE] = "rope", [POSITION_NONE] = "none"};
static const struct {
    const char *activation; /* its file; NULL: the one that the model chooses */
    bool gated;             /* f(c_gate x) (c_fc x); else f(c_fc x) */
} mlps[] = {[MLP_GELU] = {NULL, false}, [MLP_SWIGLU] = {"silu", true}, [MLP_RELU2] = {"relu2", false}};
static const char *const activations[] = {[ACTIVATION_GELU] = "gelu", [ACTIVATION_GELU_TANH] = "gelu_tanh"};

bool norm_has_bias(int norm) {
    return norms[norm].has_bias;
}

double norm_epsilon(int norm) {
    return norms[norm].epsilon;
}

bool mlp_is_gated(int mlp) {
    return mlps[mlp].gated;
}

bool position_turns_heads(int position) {
    return strcmp(positions[position], "none") != 0;
}

/* ---- the table of programs */

/* When a program is built. */
static bool has_map(const struct operations *operations) {
    return residual_has_matrices(operations->shape.residual);
}

static bool has_projections(const struct operations *operations) {
    return operations->columns > 0;
}

/* Whether H_pre is known before the streams that it weighs. */
static bool reads_early(const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    return shape->read_delay || residual_reads_early(shape->residual, shape->settings.is_static);
}

static bool reads_early_unfused(const struct operations *operations) {
    return reads_early(operations) && !frame_is_fused(operations);
}

static bool has_lambdas(const struct operations *operations) {
    return operations->shape.x0_lambdas;
}

static bool has_collapse(const struct operations *operations) {
    return operations->shape.collapsed;
}

static bool has_channel_gates(const struct operations *operations) {
    return residual_has_frame(operations->shape.residual, "gated");
}

static bool reads_depth(const struct operations *operations) {
    return residual_reads_depth(operations->shape.residual);
}

static bool has_laurel(const struct operations *operations) {
    return residual_has_frame(operations->shape.residual, "laurel");
}

static bool mixes_layers(const struct operations *operations) {
    return residual_has_frame(operations->shape.residual, "mudd");
}

static bool mixes_by_token(const struct operations *operations) {
    return mixes_layers(operations) && !ways_are_fixed(&operations->shape);
}

static bool has_gated_mlp(const struct operations *operations) {
    return mlp_is_gated(operations->shape.mlp);
}

static bool has_embed_norm(const struct operations *operations) {
    return operations->shape.embed_norm;
}

static bool has_head_bias(const struct operations *operations) {
    return operations->shape.head_bias;
}

static bool changes_heads(const struct operations *operations) {
    return head_rows_change(&operations->shape);
}

static bool has_adapters(const struct operations *operations) {
    return operations->shape.adapters;
}

static bool has_narrow_weights(const struct operations *operations) {
    return frozen_weights_are_narrow(operations->shape.frozen_weights);
}

static bool has_value_embeds(const struct operations *operations) {
    return operations->shape.value_embeds;
}

static bool uses_muon(const struct operations *operations) {
    return operations->shape.muon;
}

/* Build constants with values of the device and the model. A program lists those that its text uses, and no others,
 * so that models which differ in other things share the compiled program. VEC_HEAD and the like are other values of
 * VEC. A next one is a name here, a row of print_constants, and a word of each program that reads it. A setting of
 * a residual variant brings its own along (residual.c); GEMMs and attention on matrix cores print theirs. */
enum constant {
    END,
    ACT,
    ACROSS_KEY,
    ACROSS_QUERY,
    ACT_MUON,
    ACT_TABLES,
    BIAS,
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    BLOCK_ROWS_PROJECTED,
    CAPPED,
    CHANNELS,
    COPIES,
    DEPTH_HEADS,
    DOWN_KEY,
    DOWN_QUERY,
    EMBED_NORM,
    EMULATED,
    FIXED,
    FRACTIONS,
    GAINED,
    GATED,
    GROUP_ROWS,
    HEADS,
    HEAD_GAINS,
    HEAD_SIZE,
    INPUTS,
    KEEPS_STREAM,
    KEYS,
    KEYS_BACKWARD,
    KEY_VEC,
    KV_HEADS,
    LANES_LOSS,
    LANES_MAP,
    LAUREL_RANK,
    LENGTH,
    MAP_LOCAL,
    MASTER,
    MOMENTS,
    NARROW,
    NORMED,
    NORM_SUM,
    PLAIN,
    POSITIONS,
    PREPOST,
    PROJECTED,
    PROJECTIONS,
    QUERIES,
    RANK,
    RANK_ROW,
    READ_DELAY,
    RMS_GROUPS,
    SCALED,
    STREAMS,
    TABLES,
    VEC,
    VEC_ANY,
    VEC_ARENA,
    VEC_DEPTH,
    VEC_HALF_HEAD,
    VEC_HEAD,
    VEC_LINEAR,
    VOCABULARY,
    WEIGHTS,
    WIDE,
    Y_ROW,
    /* floats from here on, as print_constants relies on */
    EMBED_EPSILON,
    HC_EPS,
    NORM_EPSILON,
    SCALE,
    SOFTCAP,
    /* what the file of the residual variant reads */ VARIANT
};
#define MIX_CONSTANTS  VEC, STREAMS, CHANNELS, FRACTIONS, PLAIN, RMS_GROUPS, BIAS, NORM_EPSILON, ACT
#define HEAD_CONSTANTS VEC_HEAD, KEY_VEC, HEADS, KV_HEADS, HEAD_SIZE, SCALE, ACT

#define KERNEL(kernel) {#kernel, offsetof(struct operation_kernels, kernel)}
static const struct program {
    const char *file;            /* of cl/ */
    enum constant constants[17]; /* the last one END */
    const char *options;         /* build constants whose values are always these; NULL: none */
    enum registers registers;    /* work-items of some kernels need many */
    bool (*needed)(const struct operations *operations); /* NULL: by all models */
    const char *attention; /* only for the algorithm of this name; NULL: not of attention */
    struct {
        const char *name;
        size_t at; /* in struct operation_kernels */
    } kernels[11];
} programs[] = {
    {.file = "embedding.cl",
     .constants = {VEC, COPIES, CHANNELS, SCALED, POSITIONS, EMBED_NORM, EMBED_EPSILON, TABLES, ACT},
     .kernels = {KERNEL(embedding_forward), KERNEL(embedding_backward_sum), KERNEL(embedding_backward_tokens),
                 KERNEL(embedding_backward_positions), KERNEL(stream_scale_backward)}},
    {.file = "embedding_norm.cl",
     .constants = {VEC, CHANNELS, POSITIONS, TABLES, ACT_TABLES},
     .needed = has_embed_norm,
     .kernels = {KERNEL(embedding_norm_backward)}},
    {.file = "stream_mix.cl",
     .constants = {MIX_CONSTANTS},
     .kernels = {KERNEL(width_mix_forward), KERNEL(width_mix_backward), KERNEL(depth_mix_forward),
                 KERNEL(depth_mix_backward), KERNEL(stream_backward), KERNEL(stream_squares), KERNEL(stream_gram)}},
    {.file = "mix_between.cl",
     .constants = {MIX_CONSTANTS},
     .needed = reads_early,
     .kernels = {KERNEL(mix_between)}},
    {.file = "mix_backward.cl",
     .constants = {MIX_CONSTANTS},
     .needed = reads_early_unfused,
     .kernels = {KERNEL(mix_backward)}},
    {.file = "lambdas.cl",
     .constants = {VEC, STREAMS, CHANNELS, FRACTIONS, ACT},
     .needed = has_lambdas,
     .kernels = {KERNEL(lambdas_forward), KERNEL(lambdas_backward)}},
    {.file = "head.cl",
     .constants = {VEC, COPIES, CHANNELS, BIAS, NORM_SUM, NORM_EPSILON, ACT},
     .kernels = {KERNEL(final_norm_forward), KERNEL(final_norm_backward)}},
    {.file = "depth_read.cl",
     .constants = {VEC_DEPTH, CHANNELS, DEPTH_HEADS, KEEPS_STREAM, GATED, BIAS, GAINED, NORM_EPSILON, ACT},
     .registers = REGISTERS_MANY,
     .needed = reads_depth,
     .kernels = {KERNEL(depth_read_forward), KERNEL(depth_read_backward), KERNEL(depth_leave_forward),
                 KERNEL(depth_leave_backward)}},
    {.file = "laurel.cl",
     .constants = {VEC, CHANNELS, WEIGHTS, LAUREL_RANK, ACT},
     .needed = has_laurel,
     .kernels = {KERNEL(laurel_low), KERNEL(laurel_forward), KERNEL(laurel_backward)}},
    {.file = "ways.cl",
     .constants = {VEC, CHANNELS, FIXED, PREPOST, NORM_EPSILON, ACT},
     .options = " -DWAYS=4",
     .registers = REGISTERS_MANY,
     .needed = mixes_by_token,
     .kernels = {KERNEL(ways_pack), KERNEL(ways_state_backward), KERNEL(ways_hidden_forward),
                 KERNEL(ways_hidden_backward), KERNEL(ways_mix_forward), KERNEL(ways_mix_backward)}},
    {.file = "ways.cl",
     .constants = {VEC, CHANNELS, FIXED, PREPOST, NORM_EPSILON, ACT},
     .options = " -DWAYS=1",
     .registers = REGISTERS_MANY,
     .needed = mixes_layers,
     .kernels = {KERNEL(ways_state_forward),
                 {"ways_mix_forward", offsetof(struct operation_kernels, way_mix_forward)},
                 {"ways_mix_backward", offsetof(struct operation_kernels, way_mix_backward)}}},
    {.file = "elementwise.cl", /* of floats */
     .constants = {VEC},
     .options = " -DACT=0",
     .registers = REGISTERS_MANY,
     .needed = mixes_by_token,
     .kernels = {{"bias_add", offsetof(struct operation_kernels, ways_bias_forward)}}},
    {.file = "collapse.cl",
     .constants = {STREAMS, CHANNELS, PROJECTED, HC_EPS, ACT},
     .options = " -DVEC=1",
     .needed = has_collapse,
     .kernels = {KERNEL(collapse_forward), KERNEL(collapse_backward)}},
    {.file = "channel_gates.cl",
     .constants = {VEC, STREAMS, CHANNELS, RANK, RANK_ROW, Y_ROW, GAINED, NORM_EPSILON, ACT},
     .registers = REGISTERS_MANY,
     .needed = has_channel_gates,
     .kernels = {KERNEL(gates_pack), KERNEL(gates_unpack), KERNEL(gates_begin), KERNEL(gates_leave),
                 KERNEL(gates_leave_backward), KERNEL(gates_streams_backward), KERNEL(gates_hidden_forward),
                 KERNEL(gates_hidden_backward), KERNEL(gates_open), KERNEL(gates_forward), KERNEL(gates_backward)}},
    {.file = "cross_entropy.cl",
     .constants = {VEC, LANES_LOSS, VOCABULARY, CAPPED, SOFTCAP, ACT},
     .kernels = {KERNEL(cross_entropy)}},
    {.file = "head_bias.cl",
     .constants = {VOCABULARY, ACT},
     .options = " -DVEC=1",
     .needed = has_head_bias,
     .kernels = {KERNEL(head_bias_forward), KERNEL(head_bias_backward)}},
    {.file = "hc_map.cl", /* always fp32 */
     .constants = {LANES_MAP, STREAMS, CHANNELS, FRACTIONS, PLAIN, RMS_GROUPS, VARIANT},
     .options = " -DVEC=1 -DMAP_LOCAL=0",
     .registers = REGISTERS_MANY,
     .needed = has_map,
     .kernels = {KERNEL(hc_map_forward), KERNEL(hc_map_backward)}},
    {.file = "frame.cl",
     .constants = {MIX_CONSTANTS, GROUP_ROWS, LENGTH, MAP_LOCAL, READ_DELAY, VARIANT},
     .registers = REGISTERS_MANY,
     .needed = frame_is_fused,
     .kernels = {KERNEL(frame_enter), KERNEL(frame_between), KERNEL(frame_output_gradient),
                 KERNEL(frame_backward)}},
    {.file = "projections.cl",
     .constants = {VEC, PROJECTIONS, LENGTH, GAINED, WIDE, ACT},
     .needed = has_projections,
     .kernels = {KERNEL(projections_pack), KERNEL(projections_unpack), KERNEL(projections_gradient)}},
    {.file = "few_rows.cl",
     .constants = {VEC, BLOCK_ROWS_PROJECTED, ACT},
     .options = " -DBLOCK_COLUMNS=3",
     .needed = has_projections,
     .kernels = {{"few_rows_multiply", offsetof(struct operation_kernels, projections_multiply)}}},
    {.file = "elementwise.cl",
     .constants = {VEC_LINEAR, ACT},
     .kernels = {KERNEL(activation_forward), KERNEL(activation_backward), KERNEL(bias_add), KERNEL(dropout_apply)}},
    {.file = "adapter.cl",
     .constants = {ACT},
     .options = " -DVEC=1",
     .needed = has_adapters,
     .kernels = {KERNEL(scale_elements), KERNEL(adapter_add)}},
    {.file = "narrow_weights.cl",
     .constants = {VEC_LINEAR, NARROW, ACT},
     .needed = has_narrow_weights,
     .kernels = {KERNEL(narrow_expand)}},
    {.file = "gated.cl",
     .constants = {VEC_LINEAR, ACT},
     .needed = has_gated_mlp,
     .kernels = {KERNEL(gated_forward), KERNEL(gated_backward)}},
    {.file = "reduce.cl", .constants = {VEC_LINEAR, ACT}, .kernels = {KERNEL(column_sums), KERNEL(partials_add)}},
    {.file = "reduce.cl", .constants = {VEC_ARENA, ACT}, .kernels = {KERNEL(square_sums), KERNEL(sum_total)}},
    {.file = "head_rows.cl",
     .constants = {VEC_HALF_HEAD, HEADS, KV_HEADS, HEAD_SIZE, NORMED, HEAD_GAINS, NORM_EPSILON, ACT},
     .needed = changes_heads,
     .kernels = {KERNEL(head_rows_forward), KERNEL(head_rows_backward), KERNEL(head_gains_backward)}},
    {.file = "value_embeds.cl",
     .constants = {VEC_HEAD, HEADS, KV_HEADS, HEAD_SIZE, CHANNELS, INPUTS, TABLES, ACT},
     .needed = has_value_embeds,
     .kernels = {KERNEL(value_embed_forward), KERNEL(value_embed_backward), KERNEL(value_embed_backward_table)}},
    {.file = "attention_step.cl",
     .constants = {HEAD_CONSTANTS},
     .kernels = {KERNEL(attention_fill), KERNEL(attention_step)}},
    {.file = "attention_cpu_bf16.cl",
     .constants = {HEAD_CONSTANTS, QUERIES, KEYS, KEYS_BACKWARD, EMULATED},
     .attention = "cpu_bf16",
     .kernels = {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
                 KERNEL(attention_backward_keys)}},
    {.file = "attention_cpu_fp32.cl",
     .constants = {HEAD_CONSTANTS, QUERIES, KEYS, KEYS_BACKWARD},
     .attention = "cpu",
     .kernels = {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
                 KERNEL(attention_backward_keys)}},
    {.file = "attention_gpu.cl",
     .constants = {HEAD_CONSTANTS, ACROSS_QUERY, DOWN_QUERY},
     .options = " -DKEYS_STAY=0",
     .attention = "gpu",
     .kernels = {KERNEL(attention_forward), KERNEL(attention_backward_queries)}},
    {.file = "attention_gpu.cl",
     .constants = {HEAD_CONSTANTS, ACROSS_KEY, DOWN_KEY},
     .options = " -DKEYS_STAY=1",
     .attention = "gpu",
     .kernels = {KERNEL(attention_backward_keys)}},
    {.file = "few_rows.cl",
     .constants = {VEC_LINEAR, ACT},
     .options = " -DBLOCK_ROWS=1 -DBLOCK_COLUMNS=1",
     .kernels = {{"few_rows_multiply", offsetof(struct operation_kernels, one_row_multiply)}}},
    {.file = "few_rows.cl",
     .constants = {VEC_LINEAR, BLOCK_ROWS, BLOCK_COLUMNS, ACT},
     .kernels = {KERNEL(few_rows_multiply)}},
    {.file = "adamw.cl", .constants = {VEC_ARENA, MOMENTS, MASTER, ACT}, .kernels = {KERNEL(adamw)}},
    {.file = "muon.cl",
     .constants = {VEC_ANY, MOMENTS, ACT_MUON},
     .needed = uses_muon,
     .kernels = {KERNEL(muon_momentum), KERNEL(muon_normalise), KERNEL(muon_polynomial)}},
    {.file = "muon.cl", .constants = {VEC_ANY, MASTER, ACT}, .needed = uses_muon, .kernels = {KERNEL(muon_update)}},
};

static struct kernel *kernel_of(const struct operations *operations, const struct program *program, size_t i) {
    return i < COUNT(program->kernels) && program->kernels[i].name
               ? (struct kernel *)((char *)operations->kernels + program->kernels[i].at)
               : NULL;
}

/* ---- build constants */

/* What the residual variant's file reads: its settings, and P_<leaf>, where each small parameter is in a sublayer's
 * theta. */
static void print_variant(FILE *file, const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    struct residual_settings dynamic = shape->settings;
    int64_t offset = 0;
    dynamic.is_static = false;
    fprintf(file, " -DPROJECTIONS=%zu -DTHETA=%zu -DHC_EPS=%.9ef -DRMS_EPSILON=%.9ef -DH_TRANSPOSED=%d -DSTATIC=%d",
            operations->z_row / operations->norm_groups, operations->theta, shape->hc_eps, shape->hc_norm_eps,
            shape->h_res_transposed, shape->settings.is_static);
    residual_settings_define(shape->residual, &shape->settings, file);
    if (shape->residual->uses_depth) {
        fprintf(file, " -DSUBLAYERS=%" PRId64, shape->sublayers);
    }
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const bool exists = residual_leaf_exists(shape->residual, leaf, &shape->settings);
        const int64_t elements = residual_leaf_is_small(leaf) ? residual_leaf_elements(leaf, shape->streams, 0) : 0;
        if (elements > 0 && residual_leaf_exists(shape->residual, leaf, &dynamic)) {
            fprintf(file, " -DP_%s=%" PRId64, leaf->name, exists ? offset : 0);
            if (shape->freeze_alpha_res && exists && strcmp(leaf->name, "alpha_res") == 0) {
                fputs(" -DFREEZE_ALPHA_RES", file);
            }
        }
        offset += exists ? elements : 0;
    }
}

/* " -D<name>=<value> ...", which the caller frees. */
static char *print_constants(const struct operations *operations, const struct program *program) {
    const struct operation_shape *shape = &operations->shape;
    const struct policy *policy = &operations->policy;
    const struct head_shape heads = head_shape(shape);
    const struct attention_gpu_group *tiles = policy->attention_gpu;
    const struct {
        const char *name;
        int64_t number;
        double real;
    } all[] = {
        [ACT] = {"ACT", shape->type},
        [ACROSS_KEY] = {"ACROSS", tiles[1].across},
        [ACROSS_QUERY] = {"ACROSS", tiles[0].across},
        [ACT_MUON] = {"ACT", shape->muon_type},
        [ACT_TABLES] = {"ACT", tables_type(shape)},
        [BIAS] = {"BIAS", has_norm_bias(operations)},
        [BLOCK_COLUMNS] = {"BLOCK_COLUMNS", FEW_ROWS_BLOCK},
        [BLOCK_ROWS] = {"BLOCK_ROWS", FEW_ROWS_BLOCK},
        [BLOCK_ROWS_PROJECTED] = {"BLOCK_ROWS", (int64_t)policy->projection_rows},
        [CAPPED] = {"CAPPED", shape->softcap > 0.0 ? 1 + shape->softcap_kind : 0},
        [CHANNELS] = {"CHANNELS", shape->channels},
        [COPIES] = {"STREAMS", stream_copies(shape)},
        [DEPTH_HEADS] = {"DEPTH_HEADS", depth_heads(shape)},
        [DOWN_KEY] = {"DOWN", tiles[1].down},
        [DOWN_QUERY] = {"DOWN", tiles[0].down},
        [EMBED_NORM] = {"EMBED_NORM", shape->embed_norm},
        [EMULATED] = {"EMULATED", operations->emulates_bf16},
        [FIXED] = {"FIXED", ways_are_fixed(shape)},
        [FRACTIONS] = {"FRACTIONS", shape->residual->has_fractions},
        [GAINED] = {"GAINED", !shape->gainless},
        [GATED] = {"GATED", depth_is_gated(shape)},
        [GROUP_ROWS] = {"GROUP_ROWS", (int64_t)policy->frame_rows},
        [HEADS] = {"HEADS", heads.heads},
        [HEAD_GAINS] = {"HEAD_GAINS", shape->qk_norm == QK_NORM_GAINED},
        [HEAD_SIZE] = {"HEAD_SIZE", heads.size},
        [INPUTS] = {"INPUTS", VALUE_EMBED_CHANNELS},
        [KEEPS_STREAM] = {"KEEPS_STREAM", residual_has_frame(shape->residual, "dar")},
        [KEYS] = {"KEYS", policy->attention_keys},
        [KEYS_BACKWARD] = {"KEYS_BACKWARD", policy->attention_keys_backward},
        [KEY_VEC] = {"KEY_VEC", policy->attention_key_vector},
        [KV_HEADS] = {"KV_HEADS", heads.kv_heads},
        [LANES_LOSS] = {"LANES", (int64_t)policy->loss_lanes},
        [LANES_MAP] = {"LANES", (int64_t)policy->map_lanes},
        [LAUREL_RANK] = {"LAUREL_RANK", laurel_rank(shape)},
        [LENGTH] = {"LENGTH", (int64_t)norm_length(operations)},
        [MAP_LOCAL] = {"MAP_LOCAL", (int64_t)(policy->frame_local_bytes / sizeof(float))},
        [MASTER] = {"MASTER", shape->master},
        [MOMENTS] = {"MOMENTS", shape->moments},
        [NARROW] = {"NARROW", shape->frozen_weights - FROZEN_BF16},
        [NORMED] = {"NORMED", shape->qk_norm != QK_NORM_NONE},
        [NORM_SUM] = {"NORM_SUM", shape->norm_sum},
        [PLAIN] = {"PLAIN", !residual_has_matrices(shape->residual)},
        [POSITIONS] = {"POSITIONS", shape->position == POSITION_LEARNED},
        [PREPOST] = {"PREPOST", ways_are_normed(shape)},
        [PROJECTED] = {"PROJECTED", !shape->fixed_top},
        [PROJECTIONS] = {"PROJECTIONS", (int64_t)operations->columns},
        [QUERIES] = {"QUERIES", policy->attention_queries[attention_is(operations, "cpu_bf16")]},
        [RANK] = {"RANK", gates_rank(shape)},
        [RANK_ROW] = {"RANK_ROW", (int64_t)gate_rows(shape).hidden},
        [READ_DELAY] = {"READ_DELAY", shape->read_delay},
        [RMS_GROUPS] = {"RMS_GROUPS", (int64_t)operations->norm_groups},
        [SCALED] = {"SCALED", shape->scaled},
        [STREAMS] = {"STREAMS", shape->streams},
        [TABLES] = {"MASTER", tables_type(shape)},
        [VEC] = {"VEC", policy->vector},
        [VEC_ANY] = {"VEC", policy->any_vector},
        [VEC_ARENA] = {"VEC", policy->arena_vector},
        [VEC_DEPTH] = {"VEC", policy->depth_vector},
        [VEC_HALF_HEAD] = {"VEC", policy->half_head_vector},
        [VEC_HEAD] = {"VEC", policy->head_vector},
        [VEC_LINEAR] = {"VEC", policy->linear_vector},
        [VOCABULARY] = {"VOCABULARY", shape->vocabulary},
        [WEIGHTS] = {"WEIGHTS", laurel_has_weights(shape)},
        [WIDE] = {"WIDE", (int64_t)policy->projection_vectors},
        [Y_ROW] = {"Y_ROW", (int64_t)gate_rows(shape).y},
        [EMBED_EPSILON] = {"EMBED_EPSILON", .real = shape->embed_norm ? shape->norm_eps : 1.0},
        [HC_EPS] = {"HC_EPS", .real = shape->hc_eps},
        [NORM_EPSILON] = {"NORM_EPSILON", .real = shape->norm_eps},
        [SCALE] = {"SCALE", .real = attention_scale(shape)},
        [SOFTCAP] = {"SOFTCAP", .real = shape->softcap > 0.0 ? shape->softcap : 1.0},
    };
    char *text;
    size_t bytes;
    FILE *file = memory_open_stream(&text, &bytes);
    for (const enum constant *constant = program->constants; *constant != END; constant++) {
        if (*constant == VARIANT) {
            print_variant(file, operations);
        } else if (*constant >= EMBED_EPSILON) {
            fprintf(file, " -D%s=%.9ef", all[*constant].name, all[*constant].real);
        } else {
            fprintf(file, " -D%s=%" PRId64, all[*constant].name, all[*constant].number);
        }
    }
    fputs(program->options ? program->options : "", file);
    fputs(device_registers_option(&operations->compute->device, program->registers), file);
    memory_close_stream(file);
    return text;
}

/* ---- building */

const char *shape_activation(const struct operation_shape *shape) {
    const char *own = mlps[shape->mlp].activation;
    return own ? own : activations[shape->activation];
}

/* What a row's program is compiled from. */
struct row_text {
    char chosen[4][64]; /* the files of the model's residual variant, norm, kind of positions and activation */
    const char *files[6];
    char *constants; /* to be freed */
};

static void describe_row(const struct operations *operations, const struct program *row, struct row_text *text) {
    const struct operation_shape *shape = &operations->shape;
    *text = (struct row_text){.files = {row->file}, .constants = print_constants(operations, row)};
    snprintf(text->chosen[0], sizeof *text->chosen, "hc_%s.cl",
             residual_map(shape->residual, &shape->settings)->name);
    snprintf(text->chosen[1], sizeof *text->chosen, "norm_%s.cl", norms[shape->norm].file);
    snprintf(text->chosen[2], sizeof *text->chosen, "position_%s.cl", positions[shape->position]);
    snprintf(text->chosen[3], sizeof *text->chosen, "activation_%s.cl", shape_activation(shape));
    for (size_t i = 0; i < COUNT(text->chosen); i++) {
        text->files[1 + i] = text->chosen[i];
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

/* Whether a program of this row is to be built: the model needs it, its file's name begins with `file`, and it was
 * not built before. */
static bool is_needed(const struct operations *operations, const struct program *row, const char *file) {
    return (!file || strncmp(row->file, file, strlen(file)) == 0) && (!row->needed || row->needed(operations)) &&
           (!row->attention || attention_is(operations, row->attention)) && !kernel_of(operations, row, 0)->handle;
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
    const struct residual_sizes sizes = residual_sizes(shape->residual, shape->streams, &shape->settings);
    *operations = (struct operations){
        .compute = compute,
        .shape = *shape,
        .policy = policy_make(compute, shape),
        .columns = sizes.columns,
        .matrices = sizes.matrices,
        .theta = sizes.theta,
        .norm_groups = sizes.norm_groups,
        .z_row = sizes.norm_groups * sizes.z_columns,
        .pre = (size_t)(shape->streams * (shape->residual->has_fractions ? shape->streams : 1)),
    };
    operations->h_row = operations->pre + (size_t)(shape->streams * (shape->streams + 1));
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

void add_columns(struct operations *operations, size_t chunks, size_t width, size_t count, struct span out,
                 bool accumulate) {
    add_partials(operations, chunks, width, (struct partial_target[PARTIAL_TARGETS]){{0, count, out}}, accumulate);
}

void target_norm(const struct operations *operations, struct layer_norm gradients,
                 struct partial_target targets[2]) {
    const size_t channels = (size_t)operations->shape.channels;
    targets[0] = (struct partial_target){0, channels, gradients.gain};
    targets[1] = (struct partial_target){channels, has_norm_bias(operations) ? channels : 0, gradients.bias};
}
