#include "src/operations/policy.h"
#include "runtime/system/array.h"
#include "runtime/system/message.h"
#include <math.h>

/* ---- the fused frame */

#define FRAME_ITEMS     256         /* work-items of a work-group, if the device has so many */
#define FRAME_REGISTERS 64          /* numbers of a token's streams that a work-item can have in registers */
#define FRAME_STREAMS   4           /* sums of d_h grow with their square, and with more of them compilers spill */
#define FRAME_COLUMNS   64          /* projections per token: a GEMM is better at more */
#define FRAME_THETA     1024        /* small parameters, whose sums each row of a group keeps */
#define FRAME_LOCAL     (32U << 10) /* bytes of local memory */
#define COLUMN_BLOCK    4           /* as in cl/frame.cl */

#define ATTENTION_SIDE 8 /* work-items of a side of a tile, at least */

/* The widest vector of the device that divides `length`. */
static unsigned vector_of(const struct compute *compute, int64_t length) {
    unsigned vector = compute->vector;
    while (length % vector != 0) {
        vector /= 2;
    }
    return vector;
}

/* Sums over a token's lanes, as GROUP_SUMS_SCRATCH of cl/group.cl lays them out. */
static size_t frame_local_bytes(const struct compute *compute, const struct operation_shape *shape) {
    const size_t streams = (size_t)shape->streams, sums = streams * (streams + 2), least = COLUMN_BLOCK + streams;
    const size_t lanes = compute->lanes, parts = lanes >= 64 ? 8 : lanes >= 16 ? 4 : lanes >= 4 ? 2 : 1;
    return (sums > least ? sums : least) * (lanes + parts) * sizeof(float);
}

static size_t frame_rows(const struct compute *compute, const struct operation_shape *shape,
                         struct residual_sizes sizes) {
    const size_t lanes = compute->lanes, width = (size_t)(shape->streams * shape->channels);
    if (!residual_has_matrices(shape->residual) || shape->residual->has_fractions || shape->settings.is_static ||
        lanes == 1 || shape->streams > FRAME_STREAMS || width > FRAME_REGISTERS * lanes ||
        sizes.columns * sizes.norm_groups > FRAME_COLUMNS || sizes.theta > FRAME_THETA) {
        return 0;
    }
    return size_smaller(size_smaller(FRAME_ITEMS, compute->device.max_work_group) / lanes,
                        size_smaller(FRAME_LOCAL, compute->device.local_bytes) / frame_local_bytes(compute, shape));
}

/* ---- gates per channel */

#define GATE_ROW_UNIT 16 /* elements of the widest vector */

int64_t gates_rank(const struct operation_shape *shape) {
    const int64_t rank = residual_setting_value(&shape->settings, "gated_rank").number;
    return rank ? rank : (shape->channels + 7) / 8;
}

struct gate_rows gate_rows(const struct operation_shape *shape) {
    const size_t rank = (size_t)gates_rank(shape);
    const size_t hidden = (rank + GATE_ROW_UNIT - 1) / GATE_ROW_UNIT * GATE_ROW_UNIT;
    return (struct gate_rows){hidden, hidden + GATE_ROW_UNIT};
}

/* ---- heads */

struct head_shape head_shape(const struct operation_shape *shape) {
    const int64_t heads = shape->heads, kv_heads = shape->kv_heads ? shape->kv_heads : heads;
    const int64_t size = shape->head_size ? shape->head_size : shape->channels / heads;
    return (struct head_shape){heads, kv_heads, size, heads * size, kv_heads * size, (heads + 2 * kv_heads) * size};
}

int64_t stream_channels(const struct operation_shape *shape) {
    return shape->residual->has_fractions ? shape->channels / shape->streams : shape->channels;
}

int64_t depth_heads(const struct operation_shape *shape) {
    return residual_reads_depth(shape->residual) ? residual_setting_value(&shape->settings, "attnres_heads").number
                                                 : 1;
}

bool depth_is_gated(const struct operation_shape *shape) {
    return residual_has_frame(shape->residual, "dar") &&
           residual_setting_value(&shape->settings, "dar_gate").choice == DAR_GATE_ZERO;
}

int64_t laurel_rank(const struct operation_shape *shape) {
    const bool has_product = residual_setting_value(&shape->settings, "laurel_form").choice != LAUREL_RW;
    return has_product ? residual_setting_value(&shape->settings, "laurel_rank").number : 0;
}

bool laurel_has_weights(const struct operation_shape *shape) {
    return residual_setting_value(&shape->settings, "laurel_form").choice != LAUREL_LR;
}

bool ways_are_normed(const struct operation_shape *shape) {
    return residual_setting_value(&shape->settings, "mudd_norm").choice == MUDD_NORM_PREPOST;
}

bool ways_are_fixed(const struct operation_shape *shape) {
    return shape->residual->fixed_ways;
}

double attention_scale(const struct operation_shape *shape) {
    return shape->attn_scale > 0.0 ? shape->attn_scale : 1.0 / sqrt((double)head_shape(shape).size);
}

/* The widest vector that divides rows of channels, and those inside attention and an MLP. */
static unsigned linear_vector(const struct compute *compute, const struct operation_shape *shape) {
    const struct head_shape heads = head_shape(shape);
    unsigned vector = vector_of(compute, stream_channels(shape));
    while (heads.y_row % vector != 0 || heads.qkv_row % vector != 0 || shape->hidden % vector != 0) {
        vector /= 2;
    }
    return vector;
}

/* ---- chunks and groups */

/* Four work-groups per compute unit of a GPU, and more of them where it has few. */
static size_t row_chunks(const struct compute *compute) {
    const size_t units = compute->device.compute_units ? compute->device.compute_units : 1;
    const size_t each = units < 64 ? (256 + units - 1) / units : 4;
    return compute->device.is_gpu ? units * each : 32;
}

/* On a GPU as many as there are tokens in a batch that fills it. mhc_lite's theta has S! elements. */
static size_t map_chunks(const struct compute *compute, size_t theta, size_t lanes) {
    const size_t fitting = theta ? ((size_t)4 << 20) / theta : 1;
    const size_t wanted = compute->device.is_gpu ? row_chunks(compute) * lanes : 32;
    return (fitting < 32 ? 32 : size_smaller(fitting, wanted)) / lanes * lanes;
}

static size_t loss_lanes(const struct compute *compute) {
    const size_t most = compute->device.max_work_group;
    return compute->lanes < 64 || most < 256 ? compute->lanes : most < 512 ? 256 : 512;
}

/* As many as leave every core several work-items. */
static size_t projection_vectors(const struct compute *compute, size_t vectors) {
    size_t width = 4;
    while (width > 1 && (vectors % width != 0 || vectors / width < 4 * (size_t)compute->device.compute_units)) {
        width /= 2;
    }
    return width;
}

/* So many side by side that a work-item adds up two quads of a row at most, or one of each of two where keys stay,
 * in heads of up to 128 channels: more do not fit into 128 registers beside the rest. */
static struct attention_gpu_group gpu_group(const struct compute *compute, int64_t head_size, bool keys_stay) {
    const bool wide = head_size > (keys_stay ? 64 : 128);
    struct attention_gpu_group group = head_size <= 32 ? (struct attention_gpu_group){8, 16}
                                       : wide          ? (struct attention_gpu_group){32, 8}
                                                       : (struct attention_gpu_group){16, 16};
    while (group.across * group.down > compute->device.max_work_group &&
           group.across * group.down > ATTENTION_SIDE * ATTENTION_SIDE) {
        unsigned *side = group.down > ATTENTION_SIDE ? &group.down : &group.across;
        *side /= 2;
    }
    return group;
}

struct policy policy_make(const struct compute *compute, const struct operation_shape *shape) {
    const bool native = compute->device.native_kernels, gpu = compute->device.is_gpu;
    const int64_t head_size = head_shape(shape).size;
    const unsigned vector = vector_of(compute, stream_channels(shape));
    const struct residual_sizes sizes = residual_sizes(shape->residual, shape->streams, &shape->settings);
    const size_t lanes = compute->lanes;
    const size_t norm_length = (size_t)(shape->streams * stream_channels(shape)) / sizes.norm_groups;
    return (struct policy){
        .vector = vector,
        .depth_vector = vector_of(compute, shape->channels / depth_heads(shape)),
        .linear_vector = linear_vector(compute, shape),
        .head_vector = vector_of(compute, head_size),
        .half_head_vector = vector_of(compute, head_size % 2 ? 1 : head_size / 2),
        .arena_vector = compute->vector,
        .any_vector = lanes == 1 ? compute->vector : 1,
        .item_group = gpu ? 64 : 1,
        .map_lanes = size_smaller(lanes, 32),
        .loss_lanes = loss_lanes(compute),
        .row_chunks = row_chunks(compute),
        .square_chunks = 4 * row_chunks(compute),
        .map_chunks = map_chunks(compute, sizes.theta, size_smaller(lanes, 32)),
        .projection_rows = gpu ? 4 : 8, /* as many as a CPU's caches like; on a GPU their sums are registers */
        .projection_vectors = projection_vectors(compute, norm_length / vector),
        .projection_columns = native ? 96 : 0,
        .projection_columns_16_bit = native ? 32 : 0,
        .frame_rows = frame_rows(compute, shape, sizes),
        .frame_groups = 4 * (size_t)compute->device.compute_units, /* ROCm counts those of RDNA in pairs */
        .frame_local_bytes = frame_local_bytes(compute, shape),
        .attention_keys = native ? 64 : 8,
        .attention_queries = {native ? 8 : 1,
                              32}, /* more for bf16: a tile is rounded and zipped once for all of them */
        .attention_keys_backward = native ? 64 : 4,
        .attention_key_vector = native ? compute->vector : (unsigned)size_smaller(compute->vector, 4),
        .attention_head_cores = native ? compute->device.compute_units : 0,
        .attention_gpu = {gpu_group(compute, head_size, false), gpu_group(compute, head_size, true)},
    };
}

void policy_print(FILE *file, const struct policy *policy) {
    const struct attention_gpu_group *gpu = policy->attention_gpu;
    const struct {
        const char *what;
        size_t number;
    } lines[] = {
        {"floats in a vector, of rows of channels", policy->vector},
        {"floats in a vector, of a head of attention over depth", policy->depth_vector},
        {"floats in a vector, of linear layers", policy->linear_vector},
        {"floats in a vector, of channels of a head", policy->head_vector},
        {"floats in a vector, of half a head", policy->half_head_vector},
        {"floats in a vector, of all weights", policy->arena_vector},
        {"floats in a vector, of what lies at any place", policy->any_vector},
        {"work-items in a work-group, of kernels with few work-items", policy->item_group},
        {"work-items in a work-group, of maps to H", policy->map_lanes},
        {"work-items in a work-group, of the loss", policy->loss_lanes},
        {"chunks of rows whose sums are added", policy->row_chunks},
        {"chunks of vectors whose squares are added", policy->square_chunks},
        {"chunks of tokens in the backward pass of maps to H", policy->map_chunks},
        {"rows in a work-group, of projections", policy->projection_rows},
        {"vectors in a work-item, of gradients of projections", policy->projection_vectors},
        {"projections at most without a GEMM", policy->projection_columns},
        {"projections at most without a GEMM in 16 bits", policy->projection_columns_16_bit},
        {"tokens in a work-group, of the fused frame (0: not fused)", policy->frame_rows},
        {"work-groups in the backward pass of the fused frame", policy->frame_groups},
        {"bytes of local memory of a token, of the fused frame", policy->frame_local_bytes},
        {"attention on CPUs: keys in a tile", policy->attention_keys},
        {"attention on CPUs: queries in a work-item, fp32", policy->attention_queries[0]},
        {"attention on CPUs: queries in a work-item, bf16", policy->attention_queries[1]},
        {"attention on CPUs: keys in a work-item, backward", policy->attention_keys_backward},
        {"attention on CPUs: keys in a vector", policy->attention_key_vector},
        {"attention on CPUs: cores that may take whole heads", policy->attention_head_cores},
        {"attention on GPUs: work-items in a work-group, queries", (size_t)gpu[0].across * gpu[0].down},
        {"attention on GPUs: work-items in a work-group, keys", (size_t)gpu[1].across * gpu[1].down},
    };
    for (size_t i = 0; i < COUNT(lines); i++) {
        message_print(file, "   %-60s %zu\n", lines[i].what, lines[i].number);
    }
}
