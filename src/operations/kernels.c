#include "src/operations/kernels.h"
#include "runtime/system/error.h"
#include "src/operations/attention_matrix_cores.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes that suit the device */

/* On a GPU four work-groups a compute unit, and where those are few, more. */
size_t row_chunks(const struct compute *compute) {
    const size_t units = compute->device.compute_units ? compute->device.compute_units : 1;
    const size_t each = units < 64 ? (256 + units - 1) / units : 4;
    return compute->device.is_gpu ? units * each : 32;
}

size_t square_chunks(const struct compute *compute) {
    return 4 * row_chunks(compute);
}

/* On a GPU as many as there are tokens in a batch that fills it, in whole work-groups. */
size_t map_chunks(const struct compute *compute, const struct operation_shape *shape) {
    const size_t theta = (size_t)residual_theta(shape->residual, shape->streams), lanes = map_lanes(compute);
    const size_t fitting = theta ? ((size_t)4 << 20) / theta : 1;
    const size_t wanted = compute->device.is_gpu ? row_chunks(compute) * lanes : 32;
    return (fitting < 32 ? 32 : fitting < wanted ? fitting : wanted) / lanes * lanes;
}

size_t map_lanes(const struct compute *compute) {
    return compute->lanes < 32 ? compute->lanes : 32;
}

unsigned vector_for(const struct compute *compute, int64_t length) {
    unsigned vector = compute->vector;
    while (length % vector != 0) {
        vector /= 2;
    }
    return vector;
}

static size_t maximum(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Sums of theta's gradients of each row of a group of the fused frame. */
static size_t theta_partial_bytes(const struct compute *compute, const struct operation_shape *shape) {
    const size_t theta = (size_t)residual_theta(shape->residual, shape->streams);
    return frame_rows(compute, shape) * frame_groups(compute) * theta * sizeof(float);
}

size_t operations_scratch_bytes(const struct compute *compute, const struct operation_shape *shape) {
    const size_t widest =
        shape->scaled && shape->streams > 4 ? (size_t)shape->streams : 4; /* else: the bias of c_fc */
    const size_t rows = row_chunks(compute) * widest * (size_t)shape->channels;
    const size_t theta = map_chunks(compute, shape) * (size_t)residual_theta(shape->residual, shape->streams);
    const size_t frame = frame_rows(compute, shape) ? frame_groups(compute) * frame_partials(shape) : 0;
    return maximum(maximum(maximum(rows, theta), frame), square_chunks(compute)) * sizeof(float) +
           theta_partial_bytes(compute, shape);
}

/* ---- building */

/* Which build constants a program has: only what its text uses, so that models which differ in other things share it
 * compiled. */
enum {
    STREAMS = 1,
    NORM_GROUPS = 2,
    BIAS = 4,
    NORM_SUM = 8,
    MAP = 16, /* this and the next are of hyper-connections only */
    PROJECTIONS = 32,
    ATTENTION = 64,
    GELU = 128,
    ONE_ROW = 256,
    FEW_ROWS_BLOCKS = 512,
    ARENAS = 1024, /* which are padded to whole vectors whatever the channels */
    LOSS = 2048,
    FRAME = 4096,        /* where it is fused */
    CPU_FP32 = 8192,     /* attention where it is not tiled, in floats */
    QUERY_TILES = 16384, /* and where it is, with queries that stay */
    KEY_TILES = 32768,   /* or keys */
    CPU_BF16 = 65536,    /* where it is not tiled, in pairs of bf16 */
    EXPAND = 131072,
    SCALE = 262144, /* where streams are scaled */
};

/* Files of cl/, compiled together after common.cl, and the kernels that are taken from them. */
#define KERNEL(kernel) {#kernel, offsetof(struct operation_kernels, kernel)}
static const struct program {
    const char *files[4]; /* "hc_%s.cl" is the variant's */
    unsigned constants;
    struct {
        const char *name;
        size_t at; /* in struct operation_kernels */
    } kernels[7];
} programs[] = {
    {{"embedding.cl"},
     STREAMS | EXPAND,
     {KERNEL(embedding_forward), KERNEL(embedding_backward_sum), KERNEL(embedding_backward_tokens),
      KERNEL(embedding_backward_positions)}},
    {{"embedding.cl", "stream_scale.cl"}, STREAMS | EXPAND | SCALE, {KERNEL(stream_scale_backward)}},
    {{"stream_mix.cl"},
     STREAMS | NORM_GROUPS | BIAS,
     {KERNEL(width_mix_forward), KERNEL(width_mix_backward), KERNEL(depth_mix_forward), KERNEL(depth_mix_backward),
      KERNEL(stream_backward), KERNEL(stream_gram)}},
    {{"head.cl"}, STREAMS | BIAS | NORM_SUM, {KERNEL(final_norm_forward), KERNEL(final_norm_backward)}},
    {{"cross_entropy.cl"}, LOSS, {KERNEL(cross_entropy)}},
    {{"hc_gates.cl", "hc_%s.cl", "hc_token.cl", "hc_map.cl"},
     STREAMS | NORM_GROUPS | MAP,
     {KERNEL(hc_map_forward), KERNEL(hc_map_backward)}},
    {{"hc_gates.cl", "hc_%s.cl", "hc_token.cl", "frame.cl"},
     STREAMS | NORM_GROUPS | BIAS | FRAME,
     {KERNEL(frame_enter), KERNEL(frame_between), KERNEL(frame_output_gradient), KERNEL(frame_backward)}},
    {{"projections.cl"},
     PROJECTIONS,
     {KERNEL(projections_pack), KERNEL(projections_unpack), KERNEL(projections_multiply),
      KERNEL(projections_gradient)}},
    {{"elementwise.cl"},
     GELU,
     {KERNEL(gelu_forward), KERNEL(gelu_backward), KERNEL(bias_add), KERNEL(dropout_apply)}},
    {{"reduce.cl"}, GELU, {KERNEL(column_sums), KERNEL(partials_add)}},
    {{"attention.cl", "attention_step.cl", "attention_cpu_bf16.cl", "attention_cpu.cl"},
     ATTENTION | CPU_BF16,
     {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
      KERNEL(attention_backward_keys), KERNEL(attention_fill), KERNEL(attention_step),
      KERNEL(attention_cpu_bf16_check)}},
    {{"attention.cl", "attention_step.cl", "attention_cpu_fp32.cl", "attention_cpu.cl"},
     ATTENTION | CPU_FP32,
     {KERNEL(attention_transpose), KERNEL(attention_forward), KERNEL(attention_backward_queries),
      KERNEL(attention_backward_keys), KERNEL(attention_fill), KERNEL(attention_step)}},
    {{"attention.cl", "attention_step.cl", "attention_gpu.cl"},
     ATTENTION | QUERY_TILES,
     {KERNEL(attention_forward), KERNEL(attention_backward_queries), KERNEL(attention_fill),
      KERNEL(attention_step)}},
    {{"attention.cl", "attention_gpu.cl"}, ATTENTION | KEY_TILES, {KERNEL(attention_backward_keys)}},
    {{"few_rows.cl"}, ONE_ROW, {{"few_rows_multiply", offsetof(struct operation_kernels, one_row_multiply)}}},
    {{"few_rows.cl"}, FEW_ROWS_BLOCKS, {KERNEL(few_rows_multiply)}},
    {{"reduce.cl"}, ARENAS, {KERNEL(square_sums), KERNEL(sum_total)}},
    {{"adamw.cl"}, ARENAS, {KERNEL(adamw)}},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

struct constants {
    char text[2304];
    bool cut; /* they were too many for the text */
};

/* Appends " -D<name>=<value> ...". */
__attribute__((format(printf, 2, 3))) static void define(struct constants *constants, const char *format, ...) {
    const size_t used = strlen(constants->text);
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(constants->text + used, sizeof constants->text - used, format, arguments);
    va_end(arguments);
    constants->cut |= length < 0 || (size_t)length >= sizeof constants->text - used;
}

/* P_<leaf>: where the kernels find each small parameter of a sublayer. */
static void define_theta(struct constants *constants, const struct operation_shape *shape) {
    int64_t offset = 0;
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const int64_t elements = residual_leaf_is_small(leaf) ? residual_leaf_elements(leaf, shape->streams, 0) : 0;
        if (elements > 0) {
            define(constants, " -DP_%s=%" PRId64, leaf->name, offset);
        }
        offset += elements;
    }
}

static void define_attention(struct constants *constants, const struct operations *operations, unsigned which) {
    const struct operation_shape *shape = &operations->shape;
    const int64_t head_size = shape->channels / shape->heads;
    const struct attention_cpu_tiles tiles = attention_cpu_tiles(operations);
    define(constants, "-DVEC=%u -DKEY_VEC=%u -DHEADS=%" PRId64 " -DHEAD_SIZE=%" PRId64,
           vector_for(operations->compute, head_size), tiles.key_vector, shape->heads, head_size);
    define(constants, " -DQUERIES=%u -DKEYS=%u -DKEYS_BACKWARD=%u", tiles.queries, tiles.keys, tiles.keys_backward);
    if (which & CPU_BF16) {
        define(constants, " -DEMULATED=%d", operations->attention_products == ATTENTION_PAIRS_EMULATED);
    }
    if (which & (QUERY_TILES | KEY_TILES)) {
        const bool keys_stay = which & KEY_TILES;
        const struct attention_gpu_group group = attention_gpu_group(operations, keys_stay);
        define(constants, " -DACROSS=%u -DDOWN=%u -DSCALE=%.9ef -DKEYS_STAY=%d", group.across, group.down,
               1.0 / sqrt((double)head_size), keys_stay);
    }
}

static void define_all(struct constants *constants, const struct operations *operations, unsigned which) {
    const struct operation_shape *shape = &operations->shape;
    if (which & ATTENTION) {
        define_attention(constants, operations, which);
    } else if (which & MAP) {
        define(constants, "-DVEC=1 -DLANES=%zu",
               map_lanes(operations->compute)); /* number by number, and in fp32 whatever activations are */
    } else {
        define(constants, "-DVEC=%u", which & ARENAS ? operations->compute->vector : operations->vector);
    }
    if (which & STREAMS) {
        define(constants, " -DSTREAMS=%" PRId64 " -DCHANNELS=%" PRId64, shape->streams, shape->channels);
    }
    if (which & NORM_GROUPS) {
        define(constants, " -DPLAIN=%d -DRMS_GROUPS=%zu", residual_is_plain(shape->residual),
               operations->norm_groups);
    }
    if (which & BIAS) {
        define(constants, " -DBIAS=%d", shape->bias);
    }
    if (which & EXPAND) {
        define(constants, " -DSCALED=%d", shape->scaled);
    }
    if (which & NORM_SUM) {
        define(constants, " -DNORM_SUM=%d", shape->norm_sum);
    }
    if (which & LOSS) {
        define(constants, " -DLANES=%zu -DVOCABULARY=%" PRId64, loss_lanes(operations->compute), shape->vocabulary);
    }
    if (which & FRAME) {
        define(constants, " -DGROUP_ROWS=%zu -DLENGTH=%zu -DMAP_LOCAL=%zu", operations->frame_rows,
               norm_length(operations), frame_local_bytes(operations->compute, &operations->shape) / sizeof(float));
    }
    if (which & (MAP | FRAME)) {
        char settings[256];
        constants->cut |=
            residual_settings_define(shape->residual, &shape->settings, settings, sizeof settings) != 0;
        define(constants, " -DCOLUMNS=%zu -DTHETA=%" PRId64 "%s", operations->columns,
               residual_theta(shape->residual, shape->streams), settings);
        if (shape->residual->uses_depth) {
            define(constants, " -DSUBLAYERS=%" PRId64, shape->sublayers);
        }
        define_theta(constants, shape);
    }
    if (which & PROJECTIONS) {
        define(constants, " -DCOLUMNS=%zu -DLENGTH=%zu -DWIDE=%zu -DBLOCK_ROWS=%zu", operations->columns,
               norm_length(operations), gradient_width(operations), projection_rows(operations));
    }
    if (which & GELU) {
        define(constants, " -DGELU_TANH=%d", shape->gelu_tanh);
    }
    if (which & (ONE_ROW | FEW_ROWS_BLOCKS)) {
        const int block = which & ONE_ROW ? 1 : FEW_ROWS_BLOCK;
        define(constants, " -DBLOCK_ROWS=%d -DBLOCK_COLUMNS=%d", block, block);
    }
    if (!(which & MAP)) {
        define(constants, " -DACT=%d", (int)shape->type);
    }
}

static int build(struct operations *operations, const struct program *row) {
    struct constants constants = {"", false};
    char variant[64];
    const char *files[COUNT(row->files) + 2] = {"common.cl"};
    snprintf(variant, sizeof variant, "hc_%s.cl", operations->shape.residual->name);
    for (size_t i = 0; i < COUNT(row->files) && row->files[i]; i++) {
        files[1 + i] = strchr(row->files[i], '%') ? variant : row->files[i];
    }
    define_all(&constants, operations, row->constants);
    define(&constants, "%s",
           device_registers_option(&operations->compute->device,
                                   row->constants & FRAME ? REGISTERS_MANY : REGISTERS_AS_NEEDED));
    if (constants.cut) {
        return error_set("the build constants of %s are too long, with residual '%s'", files[1],
                         operations->shape.residual->name);
    }
    cl_program program = NULL;
    int status = program_build(operations->compute, files, constants.text, &program);
    for (size_t i = 0; i < COUNT(row->kernels) && row->kernels[i].name && status == 0; i++) {
        struct kernel *kernel = (struct kernel *)((char *)operations->kernels + row->kernels[i].at);
        status = kernel_create(operations->compute, program, row->kernels[i].name, kernel);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

/* Which of attention's constants the programs have that this device takes. */
static unsigned attention_kind(const struct operations *operations) {
    return attention_is_tiled(operations->compute) ? QUERY_TILES | KEY_TILES
           : operations->attention_products        ? CPU_BF16
                                                   : CPU_FP32;
}

/* Whether a program of this row is to be built: one that the variant has, of the wanted file, and not built before. */
static bool is_needed(const struct operations *operations, const struct program *row, const char *file) {
    const struct kernel *first = (const struct kernel *)((char *)operations->kernels + row->kernels[0].at);
    bool wanted = !file;
    for (size_t i = 0; i < COUNT(row->files) && row->files[i]; i++) {
        wanted |= file && strcmp(row->files[i], file) == 0;
    }
    const bool plain = residual_is_plain(operations->shape.residual);
    const bool lacks =
        (plain && row->constants & (MAP | PROJECTIONS)) || (row->constants & FRAME && !operations->frame_rows) ||
        (row->constants & SCALE && !operations->shape.scaled) ||
        (row->constants & (CPU_FP32 | CPU_BF16 | QUERY_TILES | KEY_TILES) & ~attention_kind(operations)) != 0;
    return wanted && !lacks && !first->handle;
}

void attention_leave_bf16(struct operations *operations) {
    const struct program *row = programs;
    while (!(row->constants & CPU_BF16)) {
        row++;
    }
    for (size_t i = 0; i < COUNT(row->kernels) && row->kernels[i].name; i++) {
        kernel_release((struct kernel *)((char *)operations->kernels + row->kernels[i].at));
    }
    operations->attention_products = ATTENTION_FLOATS;
}

/* A compiler may refuse inline assembler: attention does without pairs then, and floats are the next row. */
static bool gives_up_pairs(struct operations *operations, const struct program *row) {
    if (!(row->constants & CPU_BF16) || operations->attention_products != ATTENTION_PAIRS) {
        return false;
    }
    attention_leave_bf16(operations);
    error_clear();
    return true;
}

int operations_build(struct operations *operations, const char *file) {
    for (size_t i = 0; i < COUNT(programs); i++) {
        const struct program *row = &programs[i];
        if (is_needed(operations, row, file) && build(operations, row) && !gives_up_pairs(operations, row)) {
            return -1;
        }
    }
    return 0;
}

/* Whether attention may multiply pairs of bf16 with the host's instructions for that, in vectors of 16. */
static bool takes_pairs(const struct compute *compute, const struct operation_shape *shape) {
    return compute->device.native_kernels && !attention_is_tiled(compute) && shape->type == ELEMENT_BF16 &&
           shape->channels / shape->heads % 16 == 0 && compute->vector == 16 &&
           strstr(compute->device.units.names[ELEMENT_BF16], ATTENTION_PAIRS_UNIT);
}

int operations_describe(struct compute *compute, const struct operation_shape *shape,
                        struct operations *operations) {
    *operations = (struct operations){
        .compute = compute,
        .shape = *shape,
        .columns = (size_t)residual_columns(shape->residual, shape->streams),
        .norm_groups = (size_t)residual_norm_groups(shape->residual, shape->streams),
        .h_row = (size_t)(shape->streams * (shape->streams + 2)),
        .vector = vector_for(compute, shape->channels),
        .frame_rows = frame_rows(compute, shape),
        .head_cores = compute->device.native_kernels ? compute->device.compute_units : 0,
        .attention_products = takes_pairs(compute, shape) ? ATTENTION_PAIRS : ATTENTION_FLOATS,
        .kernels = calloc(1, sizeof(struct operation_kernels)),
    };
    if (!operations->kernels) {
        return error_set("out of memory");
    }
    const size_t theta_bytes = theta_partial_bytes(compute, shape);
    const int status =
        buffer_create(compute, &operations->partials, operations_scratch_bytes(compute, shape) - theta_bytes) ||
                buffer_create(compute, &operations->theta_partials, theta_bytes)
            ? -1
            : 0;
    if (status) {
        operations_release(operations);
    }
    return status;
}

int operations_create(struct compute *compute, const struct operation_shape *shape, struct operations *operations) {
    if (operations_describe(compute, shape, operations)) {
        return -1;
    }
    if (operations_build(operations, NULL)) {
        operations_release(operations);
        return -1;
    }
    return 0;
}

void operations_release(struct operations *operations) {
    if (!operations->kernels) {
        return;
    }
    struct kernel *kernels = (struct kernel *)operations->kernels; /* the struct holds nothing else */
    for (size_t i = 0; i < sizeof *operations->kernels / sizeof *kernels; i++) {
        if (kernels[i].handle) {
            kernel_release(&kernels[i]);
        }
    }
    buffer_release(operations->compute, &operations->partials);
    buffer_release(operations->compute, &operations->theta_partials);
    attention_matrix_cores_close(operations->attention_matrix_cores);
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
                  const struct partial_target targets[PARTIAL_TARGETS]) {
    const size_t count = targets[0].count + targets[1].count + targets[2].count;
    const size_t lanes = operations->compute->lanes, parts = lanes < 8 ? lanes : 8; /* see reduce.cl */
    const size_t group = lanes == 1 ? ELEMENT_GROUP : lanes, columns = lanes == 1 ? ELEMENT_GROUP : lanes / parts;
    KERNEL_RUN(operations->compute, &operations->kernels->partials_add, groups_for(count, columns), group,
               ARG_IN(&operations->partials, chunks * count), ARG_U64(chunks), ARG_I32(width),
               ARG_TARGET(targets[0]), ARG_TARGET(targets[1]), ARG_TARGET(targets[2]), ARG_KEEP,
               ARG_GRADIENTS(targets[0].out.buffer, count));
}

void target_norm(const struct operations *operations, struct layer_norm gradients,
                 struct partial_target targets[2]) {
    const size_t channels = (size_t)operations->shape.channels;
    targets[0] = (struct partial_target){0, channels, gradients.gain};
    targets[1] = (struct partial_target){channels, operations->shape.bias ? channels : 0, gradients.bias};
}
