#include "src/operations/channel_gates.h"
#include "src/operations/kernels.h"

/* Elements of a token, or of a row of parameters. */
static size_t row_length(const struct operations *operations) {
    return (size_t)(operations->shape.streams * operations->shape.channels);
}

size_t gates_packed_elements(const struct operations *operations) {
    const struct gate_rows rows = gate_rows(&operations->shape);
    return (rows.y + rows.hidden) * row_length(operations);
}

/* Elements of w_down and w_post. */
static size_t leaf_elements(const struct operations *operations, struct gate_table table) {
    const size_t rank = (size_t)gates_rank(&operations->shape), streams = (size_t)operations->shape.streams;
    return row_length(operations) * (table.count * (rank + streams) - (table.has_top ? streams : 0));
}

static size_t gains(const struct operations *operations) {
    return operations->shape.gainless ? 0 : row_length(operations);
}

/* ---- matrices */

#define RUN_PACKING(kernel, count, ...)                                                                            \
    RUN_GROUPS(kernel, (count) * groups_for(row_length(operations), ELEMENT_GROUP) * ELEMENT_GROUP, ELEMENT_GROUP, \
               __VA_ARGS__)

void gates_pack(struct operations *operations, const struct buffer *weights, struct gate_table table,
                const struct buffer *packed) {
    RUN_PACKING(gates_pack, table.count, ARG_IN(weights, 2 * leaf_elements(operations, table)),
                ARG_IN(table.leaves, table.count * GATE_LEAF_INTEGERS),
                ARG_OUT(packed, table.count * gates_packed_elements(operations)));
}

/* The gain's gradients are always added to. */
void gates_unpack(struct operations *operations, const struct buffer *weights, struct gate_table table,
                  const struct buffer *d_packed, const struct buffer *gradients, bool accumulate) {
    const size_t elements = leaf_elements(operations, table), added = table.count * gains(operations);
    const size_t all = table.count * gate_rows(&operations->shape).y * row_length(operations);
    RUN_PACKING(gates_unpack, table.count, ARG_IN(weights, elements),
                ARG_IN(table.leaves, table.count * GATE_LEAF_INTEGERS), ARG_I32(table.first), ARG_IN(d_packed, all),
                ARG_I32(accumulate), ARG_MEMORY_(gradients, 0, elements + added, accumulate || added > 0, 1));
}

/* ---- streams */

void gates_begin(struct operations *operations, size_t tokens, const struct gate_values *values) {
    RUN_ROWS(gates_begin, tokens, ARG_IN(values->squares, tokens * (size_t)operations->shape.streams),
             ARG_IN_OUT(values->streams, tokens * row_length(operations)));
}

void gates_leave(struct operations *operations, size_t tokens, const struct gate_values *values, bool normalises,
                 const struct buffer *next_streams, const struct buffer *next_squares) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(gates_leave, tokens, ARG_IN(values->streams, sizes.streams), ARG_IN(values->squares, sizes.squares),
             ARG_IN(values->post, sizes.squares), ARG_IN(values->output, sizes.channels), ARG_I32(normalises),
             ARG_OUT(next_streams, sizes.streams), ARG_OUT(next_squares, sizes.squares));
}

void gates_leave_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                          const struct buffer *d_next, const struct buffer *d_output, const struct buffer *d_post) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(gates_leave_backward, tokens, ARG_IN(d_next, sizes.streams), ARG_IN(values->post, sizes.squares),
             ARG_IN(values->output, sizes.channels), ARG_OUT(d_output, sizes.channels),
             ARG_OUT(d_post, sizes.squares));
}

void gates_streams_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                            const struct buffer *d_packed, const struct buffer *d_u, const struct buffer *d_streams,
                            bool is_top) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(gates_streams_backward, tokens, ARG_IN(values->streams, sizes.streams),
             ARG_IN(values->squares, sizes.squares), ARG_IN(values->logits, sizes.streams),
             ARG_IN(d_packed, sizes.streams), ARG_IN(d_u, sizes.channels),
             ARG_SPAN_IN(values->gain, gains(operations)), ARG_I32(!is_top),
             ARG_MEMORY_(d_streams, 0, sizes.streams, !is_top, 1));
}

/* ---- hidden and s */

void gates_hidden_forward(struct operations *operations, size_t tokens, const struct gate_values *values) {
    const struct gate_rows rows = gate_rows(&operations->shape);
    const size_t count = tokens * rows.y, posts = tokens * (size_t)operations->shape.streams;
    RUN_ELEMENTS(gates_hidden_forward, count, operations->policy.vector,
                 ARG_IN(values->y, tokens * rows.hidden + posts), ARG_U64(count),
                 ARG_OUT(values->hidden, tokens * rows.hidden), ARG_OUT(values->post, posts));
}

void gates_hidden_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                           const struct buffer *d_hidden, const struct buffer *d_post, const struct buffer *d_y) {
    const struct gate_rows rows = gate_rows(&operations->shape);
    const size_t count = tokens * rows.y, posts = d_post ? tokens * (size_t)operations->shape.streams : 0;
    RUN_ELEMENTS(gates_hidden_backward, count, operations->policy.vector, ARG_IN(values->y, tokens * rows.hidden),
                 ARG_IN(values->post, posts), ARG_IN(d_hidden, tokens * rows.hidden),
                 ARG_IN(d_post ? d_post : values->post, posts), ARG_I32(d_post != NULL), ARG_U64(count),
                 ARG_OUT(d_y, count));
}

/* ---- gates */

void gates_open(struct operations *operations, size_t tokens, const struct buffer *logits,
                const struct buffer *gates) {
    const size_t count = tokens * row_length(operations);
    RUN_ELEMENTS(gates_open, count, operations->policy.vector, ARG_IN(logits, count), ARG_U64(count),
                 ARG_OUT(gates, count));
}

void gates_forward(struct operations *operations, size_t tokens, const struct gate_values *values,
                   const struct buffer *u) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(gates_forward, tokens, ARG_IN(values->streams, sizes.streams), ARG_IN(values->logits, sizes.streams),
             ARG_SPAN_IN(values->gain, gains(operations)), ARG_OUT(u, sizes.channels));
}

void gates_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                    const struct buffer *d_u, const struct buffer *d_logits, struct span d_gain, bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t count = gains(operations);
    RUN_ROWS(gates_backward, chunks.chunks, ARG_IN(values->streams, sizes.streams),
             ARG_IN(values->logits, sizes.streams), ARG_SPAN_IN(values->gain, count), ARG_IN(d_u, sizes.channels),
             ARG_U64(tokens), ARG_OUT(d_logits, sizes.streams),
             ARG_OUT(&operations->partials, chunks.chunks * count));
    if (count) {
        add_columns(operations, chunks.chunks, count, count, d_gain, accumulate);
    }
}
