#include "src/operations/attention_matrix_cores.h"
#include "src/operations/kernels.h"

#define SMALLEST_SIDE 8 /* of a group's work-items in a tile */

/* Keys of a tile. */
static unsigned tile_keys(const struct compute *compute) {
    return compute->device.native_kernels ? 64 : 8;
}

/* Of pairs more queries: what is rounded and zipped for a tile is for all of them. */
struct attention_cpu_tiles attention_cpu_tiles(const struct operations *operations) {
    const struct compute *compute = operations->compute;
    const unsigned keys = tile_keys(compute);
    return compute->device.native_kernels
               ? (struct attention_cpu_tiles){operations->attention_products ? 32 : 8, keys, keys, compute->vector}
               : (struct attention_cpu_tiles){1, keys, 4, compute->vector < 4 ? compute->vector : 4};
}

bool attention_is_tiled(const struct compute *compute) {
    return compute->lanes > 1 && compute->device.max_work_group >= SMALLEST_SIDE * SMALLEST_SIDE;
}

/* So many side by side that a work-item adds up two quads of a row at most, or one of each of two where keys stay, in heads of up
 * to 128 channels: more do not fit into 128 registers beside the rest. */
struct attention_gpu_group attention_gpu_group(const struct operations *operations, bool keys_stay) {
    const int64_t head_size = operations->shape.channels / operations->shape.heads;
    const bool wide = head_size > (keys_stay ? 64 : 128);
    struct attention_gpu_group group = head_size <= 32 ? (struct attention_gpu_group){8, 16}
                                       : wide          ? (struct attention_gpu_group){32, 8}
                                                       : (struct attention_gpu_group){16, 16};
    while (group.across * group.down > operations->compute->device.max_work_group) {
        unsigned *side = group.down > SMALLEST_SIDE ? &group.down : &group.across;
        *side /= 2;
    }
    return group;
}

size_t operations_padded(const struct compute *compute, int64_t sequence) {
    const size_t tile = tile_keys(compute);
    return ((size_t)sequence + tile - 1) / tile * tile;
}

size_t operations_transposed(const struct compute *compute, int64_t sequence) {
    return attention_is_tiled(compute) ? 0 : operations_padded(compute, sequence);
}

/* ---- launching */

/* Keys (part 1) or values (part 2) of qkv. */
static void transpose(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int part,
                      const struct buffer *transposed) {
    const size_t padded = operations_padded(operations->compute, tokens.sequence);
    const size_t elements = (size_t)(tokens.batch * operations->shape.channels) * padded;
    RUN_ELEMENTS(attention_transpose, elements,
                 attention_cpu_tiles(operations).key_vector * (operations->attention_products ? 2 : 1),
                 ARG_IN(qkv, token_count(tokens) * (size_t)operations->shape.channels), ARG_I32(part),
                 ARG_I32(tokens.batch), ARG_I32(tokens.sequence), ARG_I32(padded), ARG_OUT(transposed, elements));
}

/* Work-items for all heads of a batch with `block` positions each. */
static size_t item_count(const struct operations *operations, struct token_shape tokens, size_t block) {
    return (size_t)(tokens.batch * operations->shape.heads) * (((size_t)tokens.sequence + block - 1) / block);
}

/* Elements of all tokens: of y, of transposed keys, and of one number per row of scores. */
struct attention_sizes {
    size_t y, transposed, rows;
};

static struct attention_sizes sizes_of(const struct operations *operations, struct token_shape tokens) {
    const size_t channels = (size_t)operations->shape.channels;
    return (struct attention_sizes){
        .y = token_count(tokens) * channels,
        .transposed = (size_t)tokens.batch * operations_padded(operations->compute, tokens.sequence) * channels,
        .rows = token_count(tokens) * (size_t)operations->shape.heads,
    };
}

/* A pass over all heads with so many products, of which a work-item does `block` positions: much work, so groups of one
 * on a CPU. */
static struct launch pass_of(const struct operations *operations, const struct kernel *kernel,
                             struct token_shape tokens, size_t block, int products) {
    const struct operation_shape *shape = &operations->shape;
    const size_t group = operations->compute->device.is_gpu ? 64 : 1;
    return (struct launch){
        .kernel = kernel,
        .groups = groups_for(item_count(operations, tokens, block), group),
        .local = group,
        .flops = attention_flops(shape->heads, shape->channels / shape->heads, tokens, products),
    };
}

#define ARG_TOKENS(tokens)                                                                                         \
    ARG_I32((tokens).batch), ARG_I32((tokens).sequence),                                                           \
        ARG_I32(operations_padded(operations->compute, (tokens).sequence))

/* A pass with so many products of cl/attention_gpu.cl: groups of work-items for blocks of rows of all heads. */
static struct launch tiles_of(const struct operations *operations, const struct kernel *kernel,
                              struct token_shape tokens, struct attention_gpu_group group, int products) {
    const struct operation_shape *shape = &operations->shape;
    return (struct launch){
        .kernel = kernel,
        .groups = item_count(operations, tokens, 4 * group.down),
        .local = (size_t)group.across * group.down,
        .flops = attention_flops(shape->heads, shape->channels / shape->heads, tokens, products),
    };
}

/* The sequence, how many blocks there are in a head, and the inverse of that. */
#define ARG_BLOCKS(group)                                                                                          \
    ARG_I32(tokens.sequence), ARG_U32(block_count(tokens, group)), ARG_U32(UINT32_MAX / block_count(tokens, group))

static uint32_t block_count(struct token_shape tokens, struct attention_gpu_group group) {
    return (uint32_t)groups_for((size_t)tokens.sequence, 4 * group.down);
}

static void forward_tiles(struct operations *operations, struct token_shape tokens,
                          const struct attention_values *values, struct dropout dropout) {
    const struct attention_gpu_group group = attention_gpu_group(operations, false);
    const struct attention_sizes sizes = sizes_of(operations, tokens);
    const struct launch launch = tiles_of(operations, &operations->kernels->attention_forward, tokens, group, 2);
    KERNEL_LAUNCH(operations->compute, &launch, ARG_IN(values->qkv, 3 * sizes.y), ARG_BLOCKS(group),
                  ARG_DROPOUT(dropout), ARG_OUT(values->y, sizes.y), ARG_OUT(values->lse, sizes.rows));
}

static void backward_tiles(struct operations *operations, struct token_shape tokens,
                           const struct attention_values *values, const struct buffer *delta,
                           struct dropout dropout, const struct buffer *d_y, const struct buffer *d_qkv) {
    const struct attention_gpu_group queries = attention_gpu_group(operations, false);
    const struct attention_gpu_group keys = attention_gpu_group(operations, true);
    const struct operation_kernels *kernels = operations->kernels;
    const struct attention_sizes sizes = sizes_of(operations, tokens);
    const struct launch to_queries = tiles_of(operations, &kernels->attention_backward_queries, tokens, queries, 3);
    const struct launch to_keys = tiles_of(operations, &kernels->attention_backward_keys, tokens, keys, 4);
    KERNEL_LAUNCH(operations->compute, &to_queries, ARG_IN(values->qkv, 3 * sizes.y), ARG_IN(values->y, sizes.y),
                  ARG_IN(d_y, sizes.y), ARG_IN(values->lse, sizes.rows), ARG_BLOCKS(queries), ARG_DROPOUT(dropout),
                  ARG_OUT(d_qkv, sizes.y), ARG_OUT(delta, sizes.rows));
    KERNEL_LAUNCH(operations->compute, &to_keys, ARG_IN(values->qkv, 3 * sizes.y), ARG_IN(d_y, sizes.y),
                  ARG_IN(values->lse, sizes.rows), ARG_IN(delta, sizes.rows), ARG_BLOCKS(keys),
                  ARG_DROPOUT(dropout), ARG_OUT(d_qkv, 2 * sizes.y));
}

static bool take_units(const struct operations *operations, struct token_shape tokens) {
    return operations->attention_matrix_cores &&
           attention_matrix_cores_take(operations->attention_matrix_cores, tokens);
}

void attention_forward(struct operations *operations, struct token_shape tokens,
                       const struct attention_values *values, const struct attention_scratch *scratch,
                       struct dropout dropout) {
    if (take_units(operations, tokens)) {
        attention_matrix_cores_forward(operations->attention_matrix_cores, tokens, values->qkv, dropout, values->y,
                                       values->lse);
        return;
    }
    if (attention_is_tiled(operations->compute)) {
        forward_tiles(operations, tokens, values, dropout);
        return;
    }
    const struct attention_sizes sizes = sizes_of(operations, tokens);
    transpose(operations, tokens, values->qkv, 1, scratch->keys_t);
    const struct launch pass = pass_of(operations, &operations->kernels->attention_forward, tokens,
                                       attention_cpu_tiles(operations).queries, 2);
    KERNEL_LAUNCH(operations->compute, &pass, ARG_IN(values->qkv, 3 * sizes.y),
                  ARG_IN(scratch->keys_t, sizes.transposed), ARG_TOKENS(tokens), ARG_DROPOUT(dropout),
                  ARG_OUT(values->y, sizes.y), ARG_OUT(values->lse, sizes.rows));
}

/* Whether a work-item of the backward pass takes a whole head, which saves two of seven products, and not a block of
 * queries or keys: where heads keep the cores of a CPU as busy, at most a tenth of them idle. */
static bool take_whole_heads(const struct operations *operations, struct token_shape tokens) {
    const size_t cores = operations->head_cores;
    if (!cores) {
        return false;
    }
    const size_t heads = item_count(operations, tokens, (size_t)tokens.sequence);
    const size_t rounds = (heads + cores - 1) / cores;
    return 10 * heads >= 9 * rounds * cores;
}

/* What both kernels of the way back read. */
#define ARG_BACKWARD                                                                                               \
    ARG_IN(values->qkv, 3 * sizes.y), ARG_IN(scratch->keys_t, sizes.transposed),                                   \
        ARG_IN(scratch->values_t, sizes.transposed), ARG_IN(values->y, sizes.y), ARG_IN(d_y, sizes.y),             \
        ARG_IN(values->lse, sizes.rows), ARG_TOKENS(tokens), ARG_DROPOUT(dropout)

void attention_backward(struct operations *operations, struct token_shape tokens,
                        const struct attention_values *values, const struct attention_scratch *scratch,
                        struct dropout dropout, const struct buffer *d_y, const struct buffer *d_qkv) {
    if (take_units(operations, tokens)) {
        attention_matrix_cores_backward(operations->attention_matrix_cores, tokens, values, dropout, d_y,
                                        scratch->delta, d_qkv);
        return;
    }
    if (attention_is_tiled(operations->compute)) {
        backward_tiles(operations, tokens, values, scratch->delta, dropout, d_y, d_qkv);
        return;
    }
    const struct attention_cpu_tiles tiles = attention_cpu_tiles(operations);
    const struct attention_sizes sizes = sizes_of(operations, tokens);
    transpose(operations, tokens, values->qkv, 1, scratch->keys_t);
    transpose(operations, tokens, values->qkv, 2, scratch->values_t);
    const bool whole_heads = take_whole_heads(operations, tokens);
    if (!whole_heads) {
        const struct launch queries =
            pass_of(operations, &operations->kernels->attention_backward_queries, tokens, tiles.queries, 3);
        KERNEL_LAUNCH(operations->compute, &queries, ARG_BACKWARD, ARG_OUT(d_qkv, sizes.y),
                      ARG_OUT(scratch->delta, sizes.rows));
    }
    const struct launch keys =
        pass_of(operations, &operations->kernels->attention_backward_keys, tokens,
                whole_heads ? (size_t)tokens.sequence : tiles.keys_backward, whole_heads ? 5 : 4);
    KERNEL_LAUNCH(operations->compute, &keys, ARG_BACKWARD, ARG_I32(whole_heads),
                  ARG_OUT(d_qkv, (whole_heads ? 3 : 2) * sizes.y),
                  ARG_MEMORY_(scratch->delta, 0, sizes.rows, !whole_heads, whole_heads),
                  whole_heads && operations->shape.type != ELEMENT_FP32 ? ARG_IN_OUT(scratch->d_queries, sizes.y)
                                                                        : ARG_UNUSED(d_qkv));
}

void attention_fill(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int64_t row,
                    struct attention_cache cache) {
    const int64_t head_size = operations->shape.channels / operations->shape.heads;
    const size_t elements = token_count(tokens) * (size_t)operations->shape.channels;
    RUN_ELEMENTS(attention_fill, elements, vector_for(operations->compute, head_size), ARG_IN(qkv, 2 * elements),
                 ARG_I32(tokens.batch), ARG_I32(tokens.sequence), ARG_I32(row), ARG_I32(cache.capacity),
                 ARG_OUT(cache.keys, elements), ARG_OUT(cache.values, elements));
}

void attention_step(struct operations *operations, int64_t batch, int64_t position, const struct buffer *qkv,
                    struct attention_cache cache, const struct buffer *scores, const struct buffer *y) {
    const size_t row = (size_t)(batch * operations->shape.channels),
                 rows = (size_t)(batch * operations->shape.heads);
    const size_t known = (size_t)position + 1;
    RUN_ROWS(attention_step, rows, ARG_IN(qkv, 3 * row), ARG_I32(position), ARG_I32(cache.capacity),
             ARG_I32(operations_padded(operations->compute, cache.capacity)), ARG_IN_OUT(cache.keys, known * row),
             ARG_IN_OUT(cache.values, known * row), ARG_IN_OUT(scores, known * rows), ARG_OUT(y, row));
}
