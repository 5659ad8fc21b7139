#include "src/operations/attention_units.h"
#include "src/operations/kernels.h"

struct attention_tiles attention_tiles(const struct compute *compute) {
    return compute->device.native_kernels
               ? (struct attention_tiles){8, 64, 64, compute->vector}
               : (struct attention_tiles){1, 8, 4, compute->vector < 4 ? compute->vector : 4};
}

size_t operations_padded(const struct compute *compute, int64_t sequence) {
    const size_t tile = attention_tiles(compute).keys;
    return ((size_t)sequence + tile - 1) / tile * tile;
}

/* ---- launching */

/* Keys (part 1) or values (part 2) of qkv. */
static void transpose(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int part,
                      const struct buffer *transposed) {
    const size_t padded = operations_padded(operations->compute, tokens.sequence);
    const size_t elements = (size_t)(tokens.batch * operations->shape.channels) * padded;
    RUN_ELEMENTS(attention_transpose, elements, attention_tiles(operations->compute).key_vector,
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

static bool take_units(const struct operations *operations, struct token_shape tokens) {
    return operations->attention_units && attention_units_take(operations->attention_units, tokens);
}

void attention_forward(struct operations *operations, struct token_shape tokens,
                       const struct attention_values *values, const struct attention_scratch *scratch,
                       struct dropout dropout) {
    if (take_units(operations, tokens)) {
        attention_units_forward(operations->attention_units, tokens, values->qkv, dropout, values->y, values->lse);
        return;
    }
    const struct attention_sizes sizes = sizes_of(operations, tokens);
    transpose(operations, tokens, values->qkv, 1, scratch->keys_t);
    const struct launch pass = pass_of(operations, &operations->kernels->attention_forward, tokens,
                                       attention_tiles(operations->compute).queries, 2);
    KERNEL_LAUNCH(operations->compute, &pass, ARG_IN(values->qkv, 3 * sizes.y),
                  ARG_IN(scratch->keys_t, sizes.transposed), ARG_TOKENS(tokens), ARG_DROPOUT(dropout),
                  ARG_OUT(values->y, sizes.y), ARG_OUT(values->lse, sizes.rows));
}

/* Whether a work-item of the backward pass takes a whole head, which saves two of seven products, and not a block of
 * queries or keys: where heads keep the cores of a CPU as busy, at most a tenth of them idle. It adds to dq in memory,
 * block after block, which in 16 bits would round each sum. */
static bool take_whole_heads(const struct operations *operations, struct token_shape tokens) {
    const size_t cores = operations->head_cores;
    if (operations->shape.type != ELEMENT_FP32 || !cores) {
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
        attention_units_backward(operations->attention_units, tokens, values, dropout, d_y, scratch->delta, d_qkv);
        return;
    }
    const struct attention_tiles tiles = attention_tiles(operations->compute);
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
                  ARG_MEMORY_(scratch->delta, 0, sizes.rows, !whole_heads, whole_heads));
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
