/* What branches launch beside GEMMs and attention. */
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/operations/kernels.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- queries and keys before attention: RoPE and the norm of heads (cl/head_rows.cl) */

/* What the angle of pair d is multiplied by from one position to the next: theta^(-2d / D). If only the first r of
 * the D/2 pairs turn, theta^(-d / (r - 1)), from 1 to 1 / theta, and 0 for the others. */
static double pair_frequency(int64_t head_size, struct rope rope, int64_t d) {
    const double turning = round(rope.fraction * (double)head_size / 2.0);
    if (rope.fraction >= 1.0) {
        return pow(rope.theta, -2.0 * (double)d / (double)head_size);
    }
    return (double)d >= turning ? 0.0 : d == 0 ? 1.0 : pow(rope.theta, -(double)d / (turning - 1.0));
}

bool head_rows_change(const struct operation_shape *shape) {
    return position_turns_heads(shape->position) || shape->qk_norm != QK_NORM_NONE;
}

size_t head_rows_table(const struct operations *operations, int64_t positions) {
    const struct operation_shape *shape = &operations->shape;
    return position_turns_heads(shape->position) ? (size_t)(positions * head_shape(shape).size) : 0;
}

int head_rows_fill_table(struct operations *operations, struct rope rope, int64_t positions,
                         const struct buffer *table) {
    const int64_t size = head_shape(&operations->shape).size;
    const size_t elements = head_rows_table(operations, positions);
    float *rows = memory_allocate(elements, sizeof *rows);
    for (int64_t i = 0; elements > 0 && i < positions; i++) {
        for (int64_t d = 0; d < size / 2; d++) { /* cosines [D/2], then sines [D/2] */
            const double angle = (double)i * pair_frequency(size, rope, d);
            rows[i * size + d] = (float)cos(angle);
            rows[i * size + size / 2 + d] = (float)sin(angle);
        }
    }
    const int status =
        elements > 0 ? buffer_write(operations->compute, table, 0, rows, elements * sizeof *rows) : 0;
    free(rows);
    return status;
}

/* How many elements the kernels read and write. */
struct sizes {
    size_t tokens, heads; /* of q and k in all tokens */
    size_t turned, all;   /* elements of q and k, and of v, too */
    size_t table, gain;
};

static struct sizes sizes_of(const struct operations *operations, struct token_shape tokens) {
    const struct head_shape heads = head_shape(&operations->shape);
    const size_t count = token_count(tokens);
    return (struct sizes){
        .tokens = count,
        .heads = count * (size_t)(heads.heads + heads.kv_heads),
        .turned = count * (size_t)(heads.y_row + heads.kv_row),
        .all = count * (size_t)heads.qkv_row,
        .table = head_rows_table(operations, tokens.sequence),
        .gain = operations->shape.qk_norm == QK_NORM_GAINED ? (size_t)heads.size : 0,
    };
}

/* Both gains are in one arena, the one of k behind that of q: there may be a gap between them. */
#define ARG_GAINS(gains, count)                                                                                    \
    ARG_MEMORY_((gains).q.buffer, (gains).q.offset, (count) ? (gains).k.offset - (gains).q.offset + (count) : 0,   \
                1, 0),                                                                                             \
        ARG_U64((gains).q.offset), ARG_U64((gains).k.offset)

void head_rows_forward(struct operations *operations, struct token_shape tokens, int64_t position,
                       const struct head_rows *rows) {
    const struct sizes sizes = sizes_of(operations, tokens);
    const bool normed = operations->shape.qk_norm != QK_NORM_NONE;
    const size_t items = normed ? sizes.all / (size_t)head_shape(&operations->shape).size : sizes.heads;
    RUN_GROUPS(head_rows_forward, items, ELEMENT_GROUP, ARG_IN(rows->raw, normed ? sizes.all : sizes.turned),
               ARG_IN(rows->table, sizes.table), ARG_GAINS(rows->gains, sizes.gain), ARG_U64(sizes.tokens),
               ARG_I32(tokens.sequence), ARG_I32(position), ARG_OUT(rows->qkv, normed ? sizes.all : sizes.turned),
               ARG_OUT(rows->scales, normed ? sizes.heads : 0));
}

/* The gains' gradients first: the other kernel replaces what they are computed from. */
void head_rows_backward(struct operations *operations, struct token_shape tokens, const struct head_rows *rows,
                        const struct buffer *d_qkv, struct head_gains gradients, bool accumulate) {
    const struct sizes sizes = sizes_of(operations, tokens);
    const bool normed = operations->shape.qk_norm != QK_NORM_NONE;
    const size_t width = 2 * sizes.gain, steps = (sizes.gain + 1) / 2 / operations->policy.half_head_vector;
    const struct chunking chunks = chunk_rows(sizes.tokens, operations->policy.row_chunks);
    if (sizes.gain) {
        RUN_GROUPS(head_gains_backward, chunks.chunks * steps, ELEMENT_GROUP, ARG_IN(rows->raw, sizes.turned),
                   ARG_IN(rows->table, sizes.table), ARG_IN(rows->scales, sizes.heads), ARG_IN(d_qkv, sizes.turned),
                   ARG_U64(sizes.tokens), ARG_U64(chunks.per_chunk), ARG_I32(tokens.sequence),
                   ARG_OUT(&operations->partials, chunks.chunks * width));
        const struct partial_target targets[PARTIAL_TARGETS] = {{0, sizes.gain, gradients.q},
                                                                {sizes.gain, sizes.gain, gradients.k}};
        add_partials(operations, chunks.chunks, width, targets, accumulate);
    }
    RUN_GROUPS(head_rows_backward, sizes.heads, ELEMENT_GROUP, ARG_IN(rows->raw, normed ? sizes.turned : 0),
               ARG_IN(rows->table, sizes.table), ARG_GAINS(rows->gains, sizes.gain),
               ARG_IN(rows->scales, normed ? sizes.heads : 0), ARG_U64(sizes.tokens), ARG_I32(tokens.sequence),
               ARG_IN_OUT(d_qkv, sizes.turned));
}

/* ---- elements or rows by themselves, whatever they mean: activations, biases, dropout, GEMMs of few rows */

void few_rows_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                       struct span w, struct span y, size_t y_row) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct kernel *kernel = rows == 1 ? &kernels->one_row_multiply : &kernels->few_rows_multiply;
    const size_t group_columns = rows == 1 ? 1 : FEW_ROWS_BLOCK;
    KERNEL_RUN(operations->compute, kernel, groups_for(out, group_columns), operations->compute->lanes,
               ARG_SPAN_IN(x, rows * in), ARG_U32(rows), ARG_I32(in), ARG_SPAN_IN(w, out * in), ARG_I32(out),
               ARG_U32(rows), ARG_I32(group_columns), ARG_I32(y.buffer->type == ELEMENT_FP32),
               ARG_SPAN_OUT(y, rows * out), ARG_I32(y_row));
}

void scale_elements(struct operations *operations, size_t count, float factor, const struct buffer *x) {
    RUN_GROUPS(scale_elements, count, ELEMENT_GROUP, ARG_U64(count), ARG_F32(factor), ARG_IN_OUT(x, count));
}

void adapter_add(struct operations *operations, size_t rows, size_t out, size_t rank,
                 const struct adapter_rows *arrays) {
    RUN_GROUPS(adapter_add, rows * out, ELEMENT_GROUP, ARG_SPAN_IN(arrays->low, rows * rank),
               ARG_I32(arrays->low_row), ARG_U32(rows), ARG_I32(out), ARG_I32(rank),
               ARG_SPAN_IN(arrays->b, out * rank), ARG_SPAN_IN_OUT(arrays->y, rows * out), ARG_I32(arrays->y_row));
}

void narrow_expand(struct operations *operations, struct narrow_weights narrow, size_t first, size_t rows,
                   size_t columns, const struct buffer *weights) {
    const size_t blocks = rows * groups_for(columns, NARROW_BLOCK), count = rows * columns;
    const size_t words = narrow_block_bytes(operations->shape.frozen_weights) / sizeof(cl_uint);
    RUN_ELEMENTS(narrow_expand, count, operations->policy.linear_vector, ARG_IN(narrow.codes, blocks * words),
                 ARG_IN(narrow.scales, blocks), ARG_U64(first), ARG_U32(count), ARG_U32(columns),
                 ARG_OUT(weights, count));
}

void activation_forward(struct operations *operations, size_t count, const struct buffer *x,
                        const struct buffer *y) {
    RUN_ELEMENTS(activation_forward, count, operations->policy.linear_vector, ARG_IN(x, count), ARG_U64(count),
                 ARG_OUT(y, count));
}

void activation_backward(struct operations *operations, size_t count, const struct buffer *x,
                         const struct buffer *d) {
    RUN_ELEMENTS(activation_backward, count, operations->policy.linear_vector, ARG_IN(x, count), ARG_U64(count),
                 ARG_IN_OUT(d, count));
}

void gated_forward(struct operations *operations, size_t rows, const struct buffer *x, const struct buffer *y) {
    const size_t width = (size_t)operations->shape.hidden, count = rows * width;
    RUN_ELEMENTS(gated_forward, count, operations->policy.linear_vector, ARG_IN(x, 2 * count), ARG_U64(count),
                 ARG_I32(width), ARG_OUT(y, count));
}

void gated_backward(struct operations *operations, size_t rows, const struct buffer *d_y, const struct buffer *x) {
    const size_t width = (size_t)operations->shape.hidden, count = rows * width;
    RUN_ELEMENTS(gated_backward, count, operations->policy.linear_vector, ARG_IN(d_y, count), ARG_U64(count),
                 ARG_I32(width), ARG_IN_OUT(x, 2 * count));
}

void bias_forward(struct operations *operations, size_t rows, size_t width, struct span bias,
                  const struct buffer *x) {
    RUN_ELEMENTS(bias_add, rows * width, operations->policy.linear_vector, ARG_SPAN_IN(bias, width),
                 ARG_U64(rows * width), ARG_I32(width), ARG_IN_OUT(x, rows * width));
}

void bias_backward(struct operations *operations, size_t rows, size_t width, size_t count, const struct buffer *d,
                   struct span d_bias, bool accumulate) {
    const struct chunking chunks = chunk_rows(rows, operations->policy.row_chunks);
    RUN_ROWS(column_sums, chunks.chunks, ARG_IN(d, rows * width), ARG_U64(rows), ARG_I32(width),
             ARG_OUT(&operations->partials, chunks.chunks * width));
    add_columns(operations, chunks.chunks, width, count, d_bias, accumulate);
}

uint64_t dropout_key(uint64_t seed, int64_t iteration, const char *place) {
    char purpose[96];
    snprintf(purpose, sizeof purpose, "dropout %" PRId64 " %s", iteration, place);
    return random_key(seed, purpose);
}

void dropout_apply(struct operations *operations, size_t rows, size_t width, struct dropout dropout,
                   const struct buffer *x) {
    if (dropout.rate > 0.0f) {
        RUN_ELEMENTS(dropout_apply, rows * width, operations->policy.linear_vector, ARG_U64(rows * width),
                     ARG_I32(width), ARG_DROPOUT(dropout), ARG_IN_OUT(x, rows * width));
    }
}

/* ---- embeddings of values */

/* The rows of the table of so many tokens: as many at most. */
static size_t table_elements(const struct operations *operations, size_t rows) {
    return size_smaller(rows, (size_t)operations->shape.vocabulary) * (size_t)head_shape(&operations->shape).kv_row;
}

void value_embed_forward(struct operations *operations, size_t tokens, struct value_embed weights,
                         const struct value_embed_values *values, const struct buffer *qkv) {
    const struct head_shape heads = head_shape(&operations->shape);
    const size_t kv_heads = (size_t)heads.kv_heads, qkv_row = (size_t)heads.qkv_row, all = tokens * qkv_row;
    RUN_ROWS(value_embed_forward, tokens, ARG_IN(values->ids, tokens),
             ARG_SPAN_IN(weights.table, table_elements(operations, tokens)),
             ARG_SPAN_IN(weights.gate, kv_heads * VALUE_EMBED_CHANNELS),
             ARG_IN(values->y, tokens * VALUE_EMBED_CHANNELS), ARG_OUT(values->gates, tokens * kv_heads),
             ARG_MEMORY_(qkv, all - tokens * (size_t)heads.kv_row, tokens * (size_t)heads.kv_row, 1, 1));
}

void value_embed_backward(struct operations *operations, size_t tokens, struct value_embed weights,
                          const struct value_embed_values *values, const struct value_embed_gradients *gradients,
                          bool accumulate) {
    const struct head_shape heads = head_shape(&operations->shape);
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const struct token_groups groups = gradients->groups;
    const size_t kv_heads = (size_t)heads.kv_heads, gates = kv_heads * VALUE_EMBED_CHANNELS;
    const size_t read = tokens * (size_t)heads.kv_row;
    RUN_ROWS(value_embed_backward, chunks.chunks, ARG_IN(values->ids, tokens),
             ARG_SPAN_IN(weights.table, table_elements(operations, tokens)), ARG_SPAN_IN(weights.gate, gates),
             ARG_IN(values->y, tokens * VALUE_EMBED_CHANNELS), ARG_IN(values->gates, tokens * kv_heads),
             ARG_IN(gradients->d_qkv, read), ARG_U64(tokens), ARG_OUT(gradients->d_gates, tokens * kv_heads),
             ARG_IN_OUT(gradients->d_y, tokens * VALUE_EMBED_CHANNELS),
             ARG_OUT(&operations->partials, chunks.chunks * gates));
    add_partials(operations, chunks.chunks, gates,
                 (struct partial_target[PARTIAL_TARGETS]){{0, gates, gradients->weights.gate}}, accumulate);
    if (gradients->weights.table.buffer) {
        RUN_ROWS(value_embed_backward_table, groups.distinct, ARG_IN(values->gates, tokens * kv_heads),
                 ARG_IN(gradients->d_qkv, read), ARG_IN(groups.ids, groups.distinct),
                 ARG_IN(groups.starts, groups.distinct + 1), ARG_IN(groups.places, tokens),
                 ARG_SPAN_IN_OUT(gradients->weights.table, groups.distinct * (size_t)heads.kv_row));
    }
}
