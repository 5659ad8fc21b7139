#include "src/operations/kernels.h"

/* Of the token embeddings a row a token: how many differ is not known here, and no more than all of them. */
static size_t token_rows(const struct operations *operations, size_t count) {
    const size_t all = (size_t)operations->shape.vocabulary;
    return (count < all ? count : all) * (size_t)operations->shape.channels;
}

void embedding_forward(struct operations *operations, const struct embedding_input *input, int64_t first,
                       struct embedding weights, const struct buffer *streams, const struct buffer *squares) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const size_t copies = (size_t)operations->shape.streams;
    const bool normed = operations->shape.embed_norm;
    RUN_ROWS(embedding_forward, count, ARG_IN(input->ids, count),
             ARG_SPAN_IN(weights.tokens, token_rows(operations, count)), ARG_U64(weights.positions.offset),
             ARG_SPAN_IN(weights.scale, operations->shape.scaled ? copies * channels : 0),
             ARG_U64(weights.gain.offset), ARG_I32(input->tokens.sequence), ARG_I32(first),
             ARG_DROPOUT(input->dropout), ARG_OUT(streams, count * copies * channels),
             ARG_OUT(squares, count * copies), ARG_OUT(normed ? input->scales : squares, normed ? count : 0));
}

static void scale_backward(struct operations *operations, const struct embedding_input *input,
                           struct embedding weights, const struct buffer *d_streams, struct span gradients,
                           bool accumulate) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const size_t width = (size_t)operations->shape.streams * channels;
    const struct chunking chunks = chunk_rows(count, operations->policy.row_chunks);
    const bool normed = operations->shape.embed_norm;
    RUN_ROWS(stream_scale_backward, chunks.chunks, ARG_IN(input->ids, count),
             ARG_SPAN_IN(weights.tokens, token_rows(operations, count)), ARG_U64(weights.positions.offset),
             ARG_SPAN_IN(weights.gain, normed ? channels : 0), ARG_I32(input->tokens.sequence),
             ARG_DROPOUT(input->dropout), ARG_IN(d_streams, count * width),
             ARG_IN(normed ? input->scales : d_streams, normed ? count : 0), ARG_U64(count),
             ARG_OUT(&operations->partials, chunks.chunks * width));
    add_partials(operations, chunks.chunks, width, (struct partial_target[PARTIAL_TARGETS]){{0, width, gradients}},
                 accumulate);
}

/* d_embedding [N, C], the gradient behind the norm, becomes the one before it. */
static void norm_backward(struct operations *operations, const struct embedding_input *input,
                          struct embedding weights, const struct buffer *d_embedding, struct span d_gain,
                          bool accumulate) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const struct chunking chunks = chunk_rows(count, operations->policy.row_chunks);
    RUN_ROWS(embedding_norm_backward, chunks.chunks, ARG_IN(input->ids, count),
             ARG_SPAN_IN(weights.tokens, token_rows(operations, count)), ARG_U64(weights.positions.offset),
             ARG_SPAN_IN(weights.gain, channels), ARG_I32(input->tokens.sequence), ARG_IN(input->scales, count),
             ARG_U64(count), ARG_IN_OUT(d_embedding, count * channels),
             ARG_OUT(&operations->partials, chunks.chunks * channels));
    add_partials(operations, chunks.chunks, channels,
                 (struct partial_target[PARTIAL_TARGETS]){{0, channels, d_gain}}, accumulate);
}

void embedding_backward(struct operations *operations, const struct embedding_input *input,
                        struct token_groups groups, struct embedding weights, const struct buffer *d_streams,
                        const struct buffer *d_embedding, struct embedding gradients, bool accumulate) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const size_t copies = (size_t)operations->shape.streams, sequence = (size_t)input->tokens.sequence;
    const bool scaled = operations->shape.scaled;
    RUN_ROWS(embedding_backward_sum, count, ARG_IN(d_streams, count * copies * channels),
             ARG_SPAN_IN(weights.scale, scaled ? copies * channels : 0), ARG_DROPOUT(input->dropout),
             ARG_OUT(d_embedding, count * channels));
    if (operations->shape.embed_norm) {
        norm_backward(operations, input, weights, d_embedding, gradients.gain, accumulate);
    }
    if (gradients.tokens.buffer) {
        RUN_ROWS(embedding_backward_tokens, groups.distinct, ARG_IN(d_embedding, count * channels),
                 ARG_IN(groups.ids, groups.distinct), ARG_IN(groups.starts, groups.distinct + 1),
                 ARG_IN(groups.places, count), ARG_SPAN_IN_OUT(gradients.tokens, groups.distinct * channels));
    }
    if (operations->shape.position == POSITION_LEARNED && gradients.positions.buffer) {
        RUN_ROWS(embedding_backward_positions, sequence, ARG_IN(d_embedding, count * channels),
                 ARG_I32(input->tokens.batch), ARG_I32(sequence),
                 ARG_SPAN_GRADIENTS(gradients.positions, sequence * channels, accumulate));
    }
    if (scaled) {
        scale_backward(operations, input, weights, d_streams, gradients.scale, accumulate);
    }
}

/* As tokens of which each has one place, its own. */
void embedding_add_rows(struct operations *operations, size_t count, const struct buffer *rows,
                        const struct buffer *ids, const struct buffer *numbers, struct span gradients) {
    const size_t elements = count * (size_t)operations->shape.channels;
    RUN_ROWS(embedding_backward_tokens, count, ARG_IN(rows, elements), ARG_IN(ids, count),
             ARG_IN(numbers, count + 1), ARG_IN(numbers, count), ARG_SPAN_IN_OUT(gradients, elements));
}
