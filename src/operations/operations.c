#include "src/operations/operations.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "src/operations/attention_units.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct operation_kernels {
    struct kernel embedding_forward, embedding_backward_sum, embedding_backward_tokens,
        embedding_backward_positions;
    struct kernel projections_pack, projections_unpack, projections_multiply, projections_gradient;
    struct kernel hc_map_forward, hc_map_backward;
    struct kernel width_mix_forward, width_mix_backward, depth_mix_forward, depth_mix_backward, stream_backward;
    struct kernel stream_gram;
    struct kernel attention_transpose, attention_forward, attention_backward_queries, attention_backward_keys;
    struct kernel attention_fill, attention_step, one_row_multiply, few_rows_multiply;
    struct kernel gelu_forward, gelu_backward, bias_add, dropout_apply;
    struct kernel final_norm_forward, final_norm_backward, cross_entropy;
    struct kernel column_sums, partials_add, square_sums, sum_total, adamw;
};

/* ---- shapes that suit the device */

/* Row kernels sum parameter gradients over chunks of rows: enough chunks to fill the device, the same number on
 * every run. */
static size_t row_chunks(const struct compute *compute) {
    return compute->device.is_gpu ? 256 : 32;
}

/* Each chunk of the map's backward pass has its own sums of theta, which for mhc_lite has S! elements. */
static size_t map_chunks(const struct compute *compute, const struct operation_shape *shape) {
    const size_t theta = (size_t)residual_theta(shape->residual, shape->streams);
    const size_t fitting = theta ? ((size_t)4 << 20) / theta : 1;
    const size_t wanted = compute->device.is_gpu ? 2048 : 32;
    return fitting < 32 ? 32 : fitting < wanted ? fitting : wanted;
}

static size_t square_chunks(const struct compute *compute) {
    return 4 * row_chunks(compute);
}

/* The widest vector that divides `length`. */
static unsigned vector_for(const struct compute *compute, int64_t length) {
    unsigned vector = compute->vector;
    while (length % vector != 0) {
        vector /= 2;
    }
    return vector;
}

/* Tiles of attention: wide where a work-item has a core's caches to itself, small where it has registers only. */
struct attention_tiles {
    unsigned queries, keys, keys_backward, key_vector;
};

static struct attention_tiles attention_tiles(const struct compute *compute) {
    return compute->device.native_kernels
               ? (struct attention_tiles){8, 64, 64, compute->vector}
               : (struct attention_tiles){1, 8, 4, compute->vector < 4 ? compute->vector : 4};
}

size_t operations_key_tile(const struct compute *compute) {
    return attention_tiles(compute).keys;
}

size_t operations_padded(const struct operations *operations, int64_t sequence) {
    return ((size_t)sequence + operations->key_tile - 1) / operations->key_tile * operations->key_tile;
}

static size_t maximum(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t operations_scratch_bytes(const struct compute *compute, const struct operation_shape *shape) {
    const size_t rows = row_chunks(compute) * 4 * (size_t)shape->channels; /* widest: the bias of c_fc */
    const size_t theta = map_chunks(compute, shape) * (size_t)residual_theta(shape->residual, shape->streams);
    return maximum(maximum(rows, theta), square_chunks(compute)) * sizeof(float);
}

/* ---- building */

/* Appends " -D<name>=<value>". */
__attribute__((format(printf, 3, 4))) static void define(char *options, size_t size, const char *format, ...) {
    const size_t used = strlen(options);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(options + used, size - used, format, arguments);
    va_end(arguments);
}

/* P_<leaf>: where the kernels find each small parameter of a sublayer. */
static void define_theta(char *options, size_t size, const struct operation_shape *shape) {
    int64_t offset = 0;
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const int64_t elements = residual_leaf_is_small(leaf) ? residual_leaf_elements(leaf, shape->streams, 0) : 0;
        if (elements > 0) {
            define(options, size, " -DP_%s=%" PRId64, leaf->name, offset);
        }
        offset += elements;
    }
}

struct kernel_slot {
    struct kernel *kernel;
    const char *name;
};

static int build(struct operations *operations, const char *const *files, const char *options,
                 const struct kernel_slot *slots, size_t count) {
    cl_program program = NULL;
    char typed[2304] = "";
    snprintf(typed, sizeof typed, "%s -DACT=%d", options, (int)operations->shape.type);
    int status = program_build(operations->compute, files, typed, &program);
    for (size_t i = 0; i < count && status == 0; i++) {
        status = kernel_create(operations->compute, program, slots[i].name, slots[i].kernel);
    }
    if (program) {
        clReleaseProgram(program);
    }
    return status;
}

#define FILES(...) ((const char *const[]){"common.cl", __VA_ARGS__, NULL})
#define SLOT(name)                                                                                                 \
    { &operations->kernels->name, #name }
#define BUILD(files, options, ...)                                                                                 \
    build(operations, files, options, (const struct kernel_slot[]){__VA_ARGS__},                                   \
          sizeof((const struct kernel_slot[]){__VA_ARGS__}) / sizeof(struct kernel_slot))

/* A row that the projections' norm runs over. */
static size_t norm_length(const struct operations *operations) {
    return (size_t)(operations->shape.streams * operations->shape.channels) / operations->norm_groups;
}

#define PROJECTION_ROWS 8 /* rows of the streams in a work-group of projections_multiply */

/* Vectors side by side in projections_gradient: as many as leave every core several work-items. */
static size_t gradient_width(const struct operations *operations) {
    const size_t vectors = norm_length(operations) / operations->vector;
    size_t width = 4;
    while (width > 1 &&
           (vectors % width != 0 || vectors / width < 4 * (size_t)operations->compute->device.compute_units)) {
        width /= 2;
    }
    return width;
}

static int build_projections(struct operations *operations) {
    char options[256] = "";
    define(options, sizeof options, "-DVEC=%u -DCOLUMNS=%zu -DLENGTH=%zu -DWIDE=%zu -DBLOCK_ROWS=%d",
           operations->vector, operations->columns, norm_length(operations), gradient_width(operations),
           PROJECTION_ROWS);
    return BUILD(FILES("projections.cl"), options, SLOT(projections_pack), SLOT(projections_unpack),
                 SLOT(projections_multiply), SLOT(projections_gradient));
}

static int build_streams(struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    char options[2048] = "";
    define(options, sizeof options, "-DVEC=%u -DSTREAMS=%" PRId64 " -DCHANNELS=%" PRId64, operations->vector,
           shape->streams, shape->channels);
    define(options, sizeof options, " -DBIAS=%d -DPLAIN=%d -DRMS_GROUPS=%zu -DNORM_SUM=%d -DVOCABULARY=%" PRId64,
           shape->bias, residual_is_plain(shape->residual), operations->norm_groups, shape->norm_sum,
           shape->vocabulary);
    if (BUILD(FILES("embedding.cl"), options, SLOT(embedding_forward), SLOT(embedding_backward_sum),
              SLOT(embedding_backward_tokens), SLOT(embedding_backward_positions)) ||
        BUILD(FILES("stream_mix.cl"), options, SLOT(width_mix_forward), SLOT(width_mix_backward),
              SLOT(depth_mix_forward), SLOT(depth_mix_backward), SLOT(stream_backward), SLOT(stream_gram)) ||
        BUILD(FILES("head.cl"), options, SLOT(final_norm_forward), SLOT(final_norm_backward),
              SLOT(cross_entropy))) {
        return -1;
    }
    if (residual_is_plain(shape->residual)) {
        return 0;
    }
    char variant_file[64], settings[256];
    snprintf(variant_file, sizeof variant_file, "hc_%s.cl", shape->residual->name);
    if (residual_settings_define(shape->residual, &shape->settings, settings, sizeof settings)) {
        return error_set("the settings of '%s' are too long for the compiler's options", shape->residual->name);
    }
    define(options, sizeof options, " -DCOLUMNS=%zu -DTHETA=%zu%s", operations->columns, operations->theta,
           settings);
    define_theta(options, sizeof options, shape);
    return BUILD(FILES("hc_gates.cl", variant_file, "hc_map.cl"), options, SLOT(hc_map_forward),
                 SLOT(hc_map_backward)) ||
                   build_projections(operations)
               ? -1
               : 0;
}

#define FEW_ROWS_BLOCK 4 /* rows of x, and of W, whose products few_rows_multiply has in registers */

static int build_few_rows(struct operations *operations) {
    char one[128] = "", few[128] = "";
    define(one, sizeof one, "-DVEC=%u -DBLOCK_ROWS=1 -DBLOCK_COLUMNS=1", operations->vector);
    define(few, sizeof few, "-DVEC=%u -DBLOCK_ROWS=%d -DBLOCK_COLUMNS=%d", operations->vector, FEW_ROWS_BLOCK,
           FEW_ROWS_BLOCK);
    return BUILD(FILES("few_rows.cl"), one, {&operations->kernels->one_row_multiply, "few_rows_multiply"}) ||
           BUILD(FILES("few_rows.cl"), few, SLOT(few_rows_multiply));
}

static int build_branches(struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    const int64_t head_size = shape->channels / shape->heads;
    const struct attention_tiles tiles = attention_tiles(operations->compute);
    char options[512] = "", attention[512] = "";
    define(options, sizeof options, "-DVEC=%u -DGELU_TANH=%d", operations->vector, shape->gelu_tanh);
    define(attention, sizeof attention, "-DVEC=%u -DKEY_VEC=%u -DHEADS=%" PRId64 " -DHEAD_SIZE=%" PRId64,
           vector_for(operations->compute, head_size), tiles.key_vector, shape->heads, head_size);
    define(attention, sizeof attention, " -DQUERIES=%u -DKEYS=%u -DKEYS_BACKWARD=%u", tiles.queries, tiles.keys,
           tiles.keys_backward);
    if (BUILD(FILES("elementwise.cl"), options, SLOT(gelu_forward), SLOT(gelu_backward), SLOT(bias_add),
              SLOT(dropout_apply)) ||
        BUILD(FILES("reduce.cl"), options, SLOT(column_sums), SLOT(partials_add)) ||
        BUILD(FILES("attention.cl"), attention, SLOT(attention_transpose), SLOT(attention_forward),
              SLOT(attention_backward_queries), SLOT(attention_backward_keys), SLOT(attention_fill),
              SLOT(attention_step)) ||
        build_few_rows(operations)) {
        return -1;
    }
    /* arenas are padded to whole vectors whatever the channels */
    snprintf(options, sizeof options, "-DVEC=%u", operations->compute->vector);
    return BUILD(FILES("reduce.cl"), options, SLOT(square_sums), SLOT(sum_total)) ||
           BUILD(FILES("adamw.cl"), options, SLOT(adamw));
}

static int describe(struct compute *compute, const struct operation_shape *shape, struct operations *operations) {
    *operations = (struct operations){
        .compute = compute,
        .shape = *shape,
        .columns = (size_t)residual_columns(shape->residual, shape->streams),
        .norm_groups = (size_t)residual_norm_groups(shape->residual, shape->streams),
        .theta = (size_t)residual_theta(shape->residual, shape->streams),
        .h_row = (size_t)(shape->streams * (shape->streams + 2)),
        .chunks = row_chunks(compute),
        .map_chunks = map_chunks(compute, shape),
        .key_tile = operations_key_tile(compute),
        .vector = vector_for(compute, shape->channels),
        .item_group = compute->device.is_gpu ? 64 : 1,
        .head_cores = compute->device.native_kernels ? compute->device.compute_units : 0,
        .kernels = calloc(1, sizeof(struct operation_kernels)),
    };
    return operations->kernels ? 0 : error_set("out of memory");
}

int operations_create(struct compute *compute, const struct operation_shape *shape, struct operations *operations) {
    if (describe(compute, shape, operations)) {
        return -1;
    }
    if (buffer_create(compute, &operations->partials, operations_scratch_bytes(compute, shape)) ||
        build_streams(operations) || build_branches(operations)) {
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
    if (operations->partials.memory) {
        buffer_release(operations->compute, &operations->partials);
    }
    attention_units_close(operations->attention_units);
    free(operations->kernels);
    memset(operations, 0, sizeof *operations);
}

/* ---- launching */

#define KERNELS (operations->kernels)

/* A row kernel: `groups` work-groups of one row's lanes. */
#define RUN_ROWS(kernel, groups, ...)                                                                              \
    KERNEL_RUN(operations->compute, &KERNELS->kernel, (size_t)(groups), operations->compute->lanes, __VA_ARGS__)

/* At least `items` work-items, in whole groups. */
#define RUN_ITEMS(kernel, items, ...)                                                                              \
    KERNEL_RUN(operations->compute, &KERNELS->kernel, groups_for(items, operations->item_group),                   \
               operations->item_group, __VA_ARGS__)

static size_t groups_for(size_t items, size_t group) {
    return (items + group - 1) / group;
}

/* Elementwise kernels take one vector an item; larger groups spare a CPU the cost of each group. */
#define ELEMENT_GROUP 64
#define RUN_ELEMENTS(kernel, count, vector, ...)                                                                   \
    KERNEL_RUN(operations->compute, &KERNELS->kernel, groups_for((count) / (vector), ELEMENT_GROUP),               \
               ELEMENT_GROUP, __VA_ARGS__)

struct chunking {
    size_t per_chunk, chunks;
};

static struct chunking chunk_rows(size_t rows, size_t most) {
    const size_t per_chunk = (rows + most - 1) / most;
    return (struct chunking){per_chunk, per_chunk ? (rows + per_chunk - 1) / per_chunk : 0};
}

/* out[out_at ..] += column sums [first, first + count) of the partial sums [chunks, width] */
static void add_partials(struct operations *operations, size_t chunks, size_t width, size_t first, size_t count,
                         const struct buffer *out, size_t out_at) {
    KERNEL_RUN(operations->compute, &KERNELS->partials_add, groups_for(count, ELEMENT_GROUP), ELEMENT_GROUP,
               ARG_BUFFER(&operations->partials), ARG_U64(chunks), ARG_I32(width), ARG_I32(first), ARG_I32(count),
               ARG_BUFFER(out), ARG_U64(out_at));
}

uint64_t dropout_key(uint64_t seed, int64_t iteration, const char *place) {
    char purpose[96];
    snprintf(purpose, sizeof purpose, "dropout %" PRId64 " %s", iteration, place);
    return random_key(seed, purpose);
}

static size_t token_count(struct token_shape tokens) {
    return (size_t)(tokens.batch * tokens.sequence);
}

/* ---- embedding */

void embedding_forward(struct operations *operations, struct token_shape tokens, int64_t first,
                       const struct buffer *ids, const struct buffer *weights, size_t wte_at, size_t wpe_at,
                       struct dropout dropout, const struct buffer *streams, const struct buffer *squares) {
    RUN_ROWS(embedding_forward, token_count(tokens), ARG_BUFFER(ids), ARG_BUFFER(weights), ARG_U64(wte_at),
             ARG_U64(wpe_at), ARG_I32(tokens.sequence), ARG_I32(first), ARG_DROPOUT(dropout), ARG_BUFFER(streams),
             ARG_BUFFER(squares));
}

void embedding_backward(struct operations *operations, struct token_shape tokens, struct token_groups groups,
                        struct dropout dropout, const struct buffer *d_streams, const struct buffer *d_embedding,
                        const struct buffer *gradients, size_t wte_at, size_t wpe_at) {
    RUN_ROWS(embedding_backward_sum, token_count(tokens), ARG_BUFFER(d_streams), ARG_DROPOUT(dropout),
             ARG_BUFFER(d_embedding));
    RUN_ROWS(embedding_backward_tokens, groups.distinct, ARG_BUFFER(d_embedding), ARG_BUFFER(groups.ids),
             ARG_BUFFER(groups.starts), ARG_BUFFER(groups.places), ARG_BUFFER(gradients), ARG_U64(wte_at));
    RUN_ROWS(embedding_backward_positions, tokens.sequence, ARG_BUFFER(d_embedding), ARG_I32(tokens.batch),
             ARG_I32(tokens.sequence), ARG_BUFFER(gradients), ARG_U64(wpe_at));
}

/* ---- hyper-connections */

/* Runs projections_pack or projections_unpack for every projection leaf. */
static void run_projections(struct operations *operations, const struct kernel *kernel,
                            const struct buffer *weights, const uint64_t *projections_at, size_t gain_at,
                            const struct buffer *packed, const struct buffer *gradients) {
    const struct operation_shape *shape = &operations->shape;
    const size_t rows = norm_length(operations);
    size_t column = 0, next = 0;
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const size_t width = leaf->kind == LEAF_PROJECTION ? (size_t)leaf->width(shape->streams) : 0;
        const size_t at = leaf->kind == LEAF_PROJECTION ? projections_at[next++] : 0;
        if (width == 0) {
            continue;
        }
        const struct kernel_argument arguments[] = {ARG_BUFFER(weights),
                                                    ARG_U64(at),
                                                    ARG_U64(gain_at),
                                                    ARG_I32(width),
                                                    ARG_I32(column),
                                                    ARG_BUFFER(packed),
                                                    ARG_BUFFER(gradients ? gradients : packed)};
        kernel_run(operations->compute, kernel, groups_for(rows, ELEMENT_GROUP), ELEMENT_GROUP, arguments,
                   gradients ? 7 : 6);
        column += width;
    }
}

void projections_pack(struct operations *operations, const struct buffer *weights, const uint64_t *projections_at,
                      size_t gain_at, const struct buffer *packed) {
    run_projections(operations, &KERNELS->projections_pack, weights, projections_at, gain_at, packed, NULL);
}

void projections_unpack(struct operations *operations, const struct buffer *weights, const uint64_t *projections_at,
                        size_t gain_at, const struct buffer *d_packed, const struct buffer *gradients) {
    run_projections(operations, &KERNELS->projections_unpack, weights, projections_at, gain_at, d_packed,
                    gradients);
}

bool projections_are_few(const struct operations *operations) {
    return operations->compute->device.native_kernels && operations->columns <= 96;
}

void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *packed, const struct buffer *z) {
    const size_t rows = tokens * operations->norm_groups;
    RUN_ROWS(projections_multiply, groups_for(rows, PROJECTION_ROWS), ARG_BUFFER(streams), ARG_BUFFER(packed),
             ARG_U64(rows), ARG_BUFFER(z));
}

void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, const struct buffer *d_packed) {
    const size_t items = norm_length(operations) / operations->vector / gradient_width(operations);
    RUN_ITEMS(projections_gradient, items, ARG_BUFFER(streams), ARG_BUFFER(d_z),
              ARG_U64(tokens * operations->norm_groups), ARG_BUFFER(d_packed));
}

void map_forward(struct operations *operations, size_t tokens, const struct buffer *weights, size_t theta_at,
                 const struct buffer *squares, const struct buffer *z, const struct buffer *h) {
    RUN_ITEMS(hc_map_forward, tokens, ARG_BUFFER(weights), ARG_U64(theta_at), ARG_BUFFER(squares), ARG_U64(tokens),
              ARG_BUFFER(z), ARG_BUFFER(h));
}

void map_backward(struct operations *operations, size_t tokens, const struct buffer *weights, size_t theta_at,
                  const struct buffer *squares, const struct buffer *z, const struct buffer *h,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  const struct buffer *gradients) {
    const struct chunking chunks = chunk_rows(tokens, operations->map_chunks);
    RUN_ITEMS(hc_map_backward, chunks.chunks, ARG_BUFFER(weights), ARG_U64(theta_at), ARG_BUFFER(squares),
              ARG_BUFFER(z), ARG_BUFFER(h), ARG_BUFFER(d_h), ARG_U64(tokens), ARG_U64(chunks.per_chunk),
              ARG_BUFFER(d_z), ARG_BUFFER(rms_scale), ARG_BUFFER(&operations->partials));
    add_partials(operations, chunks.chunks, operations->theta, 0, operations->theta, gradients, theta_at);
}

void width_mix_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                       const struct buffer *h, const struct buffer *weights, size_t gain_at, size_t bias_at,
                       const struct buffer *normed, const struct buffer *statistics) {
    RUN_ROWS(width_mix_forward, tokens, ARG_BUFFER(streams), ARG_BUFFER(h), ARG_BUFFER(weights), ARG_U64(gain_at),
             ARG_U64(bias_at), ARG_BUFFER(normed), ARG_BUFFER(statistics));
}

/* Partial sums [chunks, 2 C] of a layer norm's gain and bias into the gradients. */
static void add_norm_partials(struct operations *operations, size_t chunks, const struct buffer *gradients,
                              size_t gain_at, size_t bias_at) {
    const size_t channels = (size_t)operations->shape.channels;
    add_partials(operations, chunks, 2 * channels, 0, channels, gradients, gain_at);
    if (operations->shape.bias) {
        add_partials(operations, chunks, 2 * channels, channels, channels, gradients, bias_at);
    }
}

void width_mix_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                        const struct buffer *h, const struct buffer *weights, size_t gain_at, size_t bias_at,
                        const struct buffer *statistics, const struct buffer *d_normed, const struct buffer *d_u,
                        const struct buffer *d_h, const struct buffer *gradients) {
    const struct chunking chunks = chunk_rows(tokens, operations->chunks);
    RUN_ROWS(width_mix_backward, chunks.chunks, ARG_BUFFER(streams), ARG_BUFFER(h), ARG_BUFFER(weights),
             ARG_U64(gain_at), ARG_BUFFER(statistics), ARG_BUFFER(d_normed), ARG_U64(tokens),
             ARG_U64(chunks.per_chunk), ARG_BUFFER(d_u), ARG_BUFFER(d_h), ARG_BUFFER(&operations->partials));
    add_norm_partials(operations, chunks.chunks, gradients, gain_at, bias_at);
}

void depth_mix_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                       const struct buffer *h, const struct buffer *output, const struct buffer *mixed,
                       const struct buffer *squares) {
    RUN_ROWS(depth_mix_forward, tokens, ARG_BUFFER(streams), ARG_BUFFER(h), ARG_BUFFER(output), ARG_BUFFER(mixed),
             ARG_BUFFER(squares));
}

void depth_mix_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                        const struct buffer *h, const struct buffer *output, const struct buffer *d_mixed,
                        const struct buffer *d_output, const struct buffer *d_h) {
    RUN_ROWS(depth_mix_backward, tokens, ARG_BUFFER(streams), ARG_BUFFER(h), ARG_BUFFER(output),
             ARG_BUFFER(d_mixed), ARG_BUFFER(d_output), ARG_BUFFER(d_h));
}

void stream_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                     const struct buffer *h, const struct buffer *d_u, const struct buffer *rms_scale,
                     const struct buffer *d_streams) {
    RUN_ROWS(stream_backward, tokens, ARG_BUFFER(streams), ARG_BUFFER(h), ARG_BUFFER(d_u), ARG_BUFFER(rms_scale),
             ARG_BUFFER(d_streams));
}

void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram) {
    RUN_ROWS(stream_gram, tokens, ARG_BUFFER(streams), ARG_BUFFER(gram));
}

/* ---- branches */

static void transpose_keys(struct operations *operations, struct token_shape tokens, const struct buffer *qkv,
                           int part, const struct buffer *transposed) {
    const size_t padded = operations_padded(operations, tokens.sequence);
    const size_t items = (size_t)(tokens.batch * operations->shape.channels) * padded /
                         attention_tiles(operations->compute).key_vector;
    KERNEL_RUN(operations->compute, &KERNELS->attention_transpose, groups_for(items, ELEMENT_GROUP), ELEMENT_GROUP,
               ARG_BUFFER(qkv), ARG_I32(part), ARG_I32(tokens.batch), ARG_I32(tokens.sequence), ARG_I32(padded),
               ARG_BUFFER(transposed));
}

/* Work-items for all heads of a batch with `block` positions each. */
static size_t attention_items(const struct operations *operations, struct token_shape tokens, size_t block) {
    return (size_t)(tokens.batch * operations->shape.heads) * (((size_t)tokens.sequence + block - 1) / block);
}

#define ARG_TOKENS(operations, tokens)                                                                             \
    ARG_I32((tokens).batch), ARG_I32((tokens).sequence), ARG_I32(operations_padded(operations, (tokens).sequence))

static bool take_attention_units(const struct operations *operations, struct token_shape tokens) {
    return operations->attention_units && attention_units_take(operations->attention_units, tokens);
}

void attention_forward(struct operations *operations, struct token_shape tokens, const struct buffer *qkv,
                       struct dropout dropout, const struct buffer *keys_t, const struct buffer *y,
                       const struct buffer *lse) {
    if (take_attention_units(operations, tokens)) {
        attention_units_forward(operations->attention_units, tokens, qkv, dropout, y, lse);
        return;
    }
    transpose_keys(operations, tokens, qkv, 1, keys_t);
    RUN_ITEMS(attention_forward, attention_items(operations, tokens, attention_tiles(operations->compute).queries),
              ARG_BUFFER(qkv), ARG_BUFFER(keys_t), ARG_TOKENS(operations, tokens), ARG_DROPOUT(dropout),
              ARG_BUFFER(y), ARG_BUFFER(lse));
}

/* Whether a work-item of the backward pass takes a whole head, which saves two of seven products, and not a block of
 * queries or keys: where heads keep the cores of a CPU as busy, at most a tenth of them idle. It adds to dq in memory,
 * block after block, which in 16 bits would round each sum. */
static bool take_whole_heads(const struct operations *operations, struct token_shape tokens) {
    const size_t cores = operations->head_cores;
    if (operations->shape.type != ELEMENT_FP32 || !cores) {
        return false;
    }
    const size_t heads = attention_items(operations, tokens, (size_t)tokens.sequence);
    const size_t rounds = (heads + cores - 1) / cores;
    return 10 * heads >= 9 * rounds * cores;
}

void attention_backward(struct operations *operations, struct token_shape tokens, const struct buffer *qkv,
                        struct dropout dropout, const struct buffer *y, const struct buffer *lse,
                        const struct buffer *d_y, const struct buffer *keys_t, const struct buffer *values_t,
                        const struct buffer *delta, const struct buffer *d_qkv) {
    if (take_attention_units(operations, tokens)) {
        attention_units_backward(operations->attention_units, tokens, qkv, dropout, y, lse, d_y, delta, d_qkv);
        return;
    }
    const struct attention_tiles tiles = attention_tiles(operations->compute);
    transpose_keys(operations, tokens, qkv, 1, keys_t);
    transpose_keys(operations, tokens, qkv, 2, values_t);
    const bool whole_heads = take_whole_heads(operations, tokens);
    if (!whole_heads) {
        RUN_ITEMS(attention_backward_queries, attention_items(operations, tokens, tiles.queries), ARG_BUFFER(qkv),
                  ARG_BUFFER(keys_t), ARG_BUFFER(values_t), ARG_BUFFER(y), ARG_BUFFER(d_y), ARG_BUFFER(lse),
                  ARG_TOKENS(operations, tokens), ARG_DROPOUT(dropout), ARG_BUFFER(d_qkv), ARG_BUFFER(delta));
    }
    const size_t keys = whole_heads ? (size_t)tokens.sequence : tiles.keys_backward;
    RUN_ITEMS(attention_backward_keys, attention_items(operations, tokens, keys), ARG_BUFFER(qkv),
              ARG_BUFFER(keys_t), ARG_BUFFER(values_t), ARG_BUFFER(y), ARG_BUFFER(d_y), ARG_BUFFER(lse),
              ARG_TOKENS(operations, tokens), ARG_DROPOUT(dropout), ARG_I32(whole_heads), ARG_BUFFER(d_qkv),
              ARG_BUFFER(delta));
}

void attention_fill(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int64_t row,
                    struct attention_cache cache) {
    const int64_t head_size = operations->shape.channels / operations->shape.heads;
    RUN_ELEMENTS(attention_fill, token_count(tokens) * (size_t)operations->shape.channels,
                 vector_for(operations->compute, head_size), ARG_BUFFER(qkv), ARG_I32(tokens.batch),
                 ARG_I32(tokens.sequence), ARG_I32(row), ARG_I32(cache.capacity), ARG_BUFFER(cache.keys),
                 ARG_BUFFER(cache.values));
}

void attention_step(struct operations *operations, int64_t batch, int64_t position, const struct buffer *qkv,
                    struct attention_cache cache, const struct buffer *scores, const struct buffer *y) {
    RUN_ROWS(attention_step, batch * operations->shape.heads, ARG_BUFFER(qkv), ARG_I32(position),
             ARG_I32(cache.capacity), ARG_I32(operations_padded(operations, cache.capacity)),
             ARG_BUFFER(cache.keys), ARG_BUFFER(cache.values), ARG_BUFFER(scores), ARG_BUFFER(y));
}

void few_rows_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                       struct span w, const struct buffer *y) {
    const struct kernel *kernel = rows == 1 ? &KERNELS->one_row_multiply : &KERNELS->few_rows_multiply;
    KERNEL_RUN(operations->compute, kernel, rows == 1 ? out : groups_for(out, FEW_ROWS_BLOCK),
               operations->compute->lanes, ARG_SPAN(x), ARG_I32(rows), ARG_I32(in), ARG_SPAN(w), ARG_I32(out),
               ARG_I32(y->type == ELEMENT_FP32), ARG_BUFFER(y));
}

void gelu_forward(struct operations *operations, size_t count, const struct buffer *x, const struct buffer *y) {
    RUN_ELEMENTS(gelu_forward, count, operations->vector, ARG_BUFFER(x), ARG_U64(count), ARG_BUFFER(y));
}

void gelu_backward(struct operations *operations, size_t count, const struct buffer *x, const struct buffer *d) {
    RUN_ELEMENTS(gelu_backward, count, operations->vector, ARG_BUFFER(x), ARG_U64(count), ARG_BUFFER(d));
}

void bias_forward(struct operations *operations, size_t rows, size_t width, const struct buffer *weights,
                  size_t bias_at, const struct buffer *x) {
    RUN_ELEMENTS(bias_add, rows * width, operations->vector, ARG_BUFFER(weights), ARG_U64(bias_at),
                 ARG_U64(rows * width), ARG_I32(width), ARG_BUFFER(x));
}

void bias_backward(struct operations *operations, size_t rows, size_t width, const struct buffer *d,
                   const struct buffer *gradients, size_t bias_at) {
    const struct chunking chunks = chunk_rows(rows, operations->chunks);
    RUN_ROWS(column_sums, chunks.chunks, ARG_BUFFER(d), ARG_U64(rows), ARG_U64(chunks.per_chunk), ARG_I32(width),
             ARG_BUFFER(&operations->partials));
    add_partials(operations, chunks.chunks, width, 0, width, gradients, bias_at);
}

void dropout_apply(struct operations *operations, size_t rows, size_t width, struct dropout dropout,
                   const struct buffer *x) {
    if (dropout.rate > 0.0f) {
        RUN_ELEMENTS(dropout_apply, rows * width, operations->vector, ARG_U64(rows * width), ARG_I32(width),
                     ARG_DROPOUT(dropout), ARG_BUFFER(x));
    }
}

/* ---- head */

void final_norm_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                        const struct buffer *weights, size_t gain_at, size_t bias_at, const struct buffer *output,
                        const struct buffer *statistics) {
    RUN_ROWS(final_norm_forward, tokens, ARG_BUFFER(streams), ARG_BUFFER(weights), ARG_U64(gain_at),
             ARG_U64(bias_at), ARG_BUFFER(output), ARG_BUFFER(statistics));
}

void final_norm_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                         const struct buffer *weights, size_t gain_at, size_t bias_at,
                         const struct buffer *statistics, const struct buffer *d_output,
                         const struct buffer *d_streams, const struct buffer *gradients) {
    const struct chunking chunks = chunk_rows(tokens, operations->chunks);
    RUN_ROWS(final_norm_backward, chunks.chunks, ARG_BUFFER(streams), ARG_BUFFER(weights), ARG_U64(gain_at),
             ARG_BUFFER(statistics), ARG_BUFFER(d_output), ARG_U64(tokens), ARG_U64(chunks.per_chunk),
             ARG_BUFFER(d_streams), ARG_BUFFER(&operations->partials));
    add_norm_partials(operations, chunks.chunks, gradients, gain_at, bias_at);
}

void cross_entropy(struct operations *operations, size_t first, size_t rows, const struct buffer *logits,
                   const struct buffer *targets, float scale, bool gradient, const struct buffer *d_logits,
                   const struct buffer *losses) {
    RUN_ROWS(cross_entropy, rows, ARG_BUFFER(logits), ARG_BUFFER(targets), ARG_U64(first), ARG_F32(scale),
             ARG_I32(gradient), ARG_BUFFER(d_logits), ARG_BUFFER(losses));
}

void sum_total(struct operations *operations, const struct buffer *x, size_t count, float scale, bool add,
               const struct buffer *out, size_t at) {
    RUN_ROWS(sum_total, 1, ARG_BUFFER(x), ARG_U64(count), ARG_F32(scale), ARG_I32(add), ARG_I32(0), ARG_BUFFER(out),
             ARG_U64(at));
}

/* ---- optimiser */

/* out[at] = scale * sum of squares, or the root of that */
static void total_squares(struct operations *operations, const struct buffer *x, size_t first, size_t count,
                          float scale, bool root, const struct buffer *out, size_t at) {
    const size_t most = square_chunks(operations->compute);
    const size_t per_chunk = ((count + most - 1) / most + 63) / 64 * 64; /* whole vectors */
    const size_t chunks = per_chunk ? (count + per_chunk - 1) / per_chunk : 0;
    RUN_ROWS(square_sums, chunks, ARG_BUFFER(x), ARG_U64(first), ARG_U64(count), ARG_U64(per_chunk),
             ARG_BUFFER(&operations->partials));
    RUN_ROWS(sum_total, 1, ARG_BUFFER(&operations->partials), ARG_U64(chunks), ARG_F32(scale), ARG_I32(0),
             ARG_I32(root), ARG_BUFFER(out), ARG_U64(at));
}

void norm_total(struct operations *operations, const struct buffer *x, size_t count, float scale,
                const struct buffer *out, size_t at) {
    total_squares(operations, x, 0, count, scale * scale, true, out, at);
}

void square_total(struct operations *operations, const struct buffer *x, size_t first, size_t count,
                  const struct buffer *out, size_t at) {
    total_squares(operations, x, first, count, 1.0f, false, out, at);
}

void adamw_step(struct operations *operations, struct adamw_range range, size_t decayed,
                struct adamw_settings settings, const struct buffer *norm, const struct buffer *weights,
                const struct buffer *operands, const struct buffer *gradients, const struct buffer *first_moments,
                const struct buffer *second_moments) {
    const double correction1 = 1.0 / (1.0 - pow((double)settings.beta1, (double)settings.step));
    const double correction2 = 1.0 / sqrt(1.0 - pow((double)settings.beta2, (double)settings.step));
    RUN_ELEMENTS(adamw, range.count, operations->compute->vector, ARG_BUFFER(weights), ARG_BUFFER(operands),
                 ARG_BUFFER(gradients), ARG_BUFFER(first_moments), ARG_BUFFER(second_moments), ARG_U64(range.first),
                 ARG_U64(range.moment_first), ARG_U64(range.count), ARG_U64(decayed), ARG_F32(settings.rate),
                 ARG_F32(settings.beta1), ARG_F32(settings.beta2), ARG_F32(settings.decay), ARG_F32(correction1),
                 ARG_F32(correction2), ARG_F32(settings.clip), ARG_F32(settings.unscale), ARG_BUFFER(norm));
}
