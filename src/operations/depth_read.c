#include "src/operations/kernels.h"

/* As in cl/depth_read.cl: `before` where there is no output, and what becomes of the gradients of states. */
enum { NOTHING_ADDED = -2 };
enum { ADDS = 1, KEEPS_NEWEST = 2, HAS_OUTPUT = 4 };

/* Elements of the gain, if there is one, and the query. */
static size_t leaf_elements(const struct operations *operations) {
    return (operations->shape.gainless ? 1 : 2) * (size_t)operations->shape.channels;
}

void depth_read_forward(struct operations *operations, size_t tokens, const struct depth_read *read) {
    const size_t channels = (size_t)operations->shape.channels, size = tokens * channels;
    const size_t count = (size_t)read->count, newest = (size_t)read->newest, leaves = leaf_elements(operations);
    const bool adds = read->output != NULL;
    const int before = adds ? (int)read->before : NOTHING_ADDED;
    RUN_ROWS(depth_read_forward, tokens, ARG_IN(read->states, (count - adds + (before >= 0)) * size),
             ARG_MEMORY_(read->states, adds ? newest * size : 0, adds ? size : 0, 0, 1), ARG_U64(tokens),
             ARG_I32(count - 1), ARG_I32(read->apart), ARG_I32(newest), ARG_I32(before),
             ARG_IN(adds ? read->output : read->states, adds ? size : 0), ARG_SPAN_IN(read->leaves, leaves),
             ARG_U64(read->norm.gain.offset), ARG_U64(read->norm.bias.offset),
             ARG_MEMORY_(read->scales, newest * tokens, tokens, 0, 1), ARG_OUT(read->weights, count * tokens),
             ARG_OUT(read->mixed, size), ARG_OUT(read->normed, size), ARG_OUT(read->statistics, 2 * tokens));
}

void depth_read_backward(struct operations *operations, size_t tokens, const struct depth_read *read,
                         const struct buffer *d_normed, const struct depth_read_gradients *gradients,
                         bool accumulate) {
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t channels = (size_t)operations->shape.channels, size = tokens * channels;
    const size_t count = (size_t)read->count, leaves = leaf_elements(operations);
    const bool has_output = gradients->d_output != NULL, keeps = !has_output || read->before >= 0;
    const size_t kept = (count - !keeps) * size;
    const int what = ADDS * gradients->adds | KEEPS_NEWEST * keeps | HAS_OUTPUT * has_output;
    RUN_ROWS(depth_read_backward, chunks.chunks, ARG_IN(read->states, count * size), ARG_U64(tokens),
             ARG_I32(count), ARG_I32(read->apart), ARG_I32(read->newest), ARG_I32(what), ARG_IN(read->mixed, size),
             ARG_IN(read->leaves.buffer, leaves + channels), ARG_U64(read->leaves.offset),
             ARG_U64(read->norm.gain.offset), ARG_IN(read->scales, count * tokens),
             ARG_IN(read->weights, count * tokens), ARG_IN(read->statistics, 2 * tokens), ARG_IN(d_normed, size),
             ARG_MEMORY_(gradients->d_states, 0, kept, gradients->adds, 1),
             ARG_OUT(has_output ? gradients->d_output : gradients->d_states, has_output ? size : 0),
             ARG_OUT(&operations->partials, chunks.chunks * (norm_partials(operations) + leaves)));
    struct partial_target targets[PARTIAL_TARGETS];
    target_norm(operations, gradients->norm, targets);
    targets[2] = (struct partial_target){2 * channels, leaves, gradients->leaves};
    add_partials(operations, chunks.chunks, 2 * channels + leaves, targets, accumulate);
}
