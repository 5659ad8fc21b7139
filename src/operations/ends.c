/* The ends of the model: the embedding, and the output layer with its loss. */
#include "src/operations/kernels.h"

/* ---- the embedding */

/* Of the token embeddings a row a token: how many differ is not known here, and no more than all of them. */
static size_t token_rows(const struct operations *operations, size_t count) {
    const size_t all = (size_t)operations->shape.vocabulary;
    return (count < all ? count : all) * (size_t)operations->shape.channels;
}

void embedding_forward(struct operations *operations, const struct embedding_input *input, int64_t first,
                       struct embedding weights, const struct buffer *streams, const struct buffer *squares) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const size_t copies = (size_t)stream_copies(&operations->shape);
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
    const size_t width = (size_t)stream_copies(&operations->shape) * channels;
    const struct chunking chunks = chunk_rows(count, operations->policy.row_chunks);
    const bool normed = operations->shape.embed_norm;
    RUN_ROWS(stream_scale_backward, chunks.chunks, ARG_IN(input->ids, count),
             ARG_SPAN_IN(weights.tokens, token_rows(operations, count)), ARG_U64(weights.positions.offset),
             ARG_SPAN_IN(weights.gain, normed ? channels : 0), ARG_I32(input->tokens.sequence),
             ARG_DROPOUT(input->dropout), ARG_IN(d_streams, count * width),
             ARG_IN(normed ? input->scales : d_streams, normed ? count : 0), ARG_U64(count),
             ARG_OUT(&operations->partials, chunks.chunks * width));
    add_columns(operations, chunks.chunks, width, width, gradients, accumulate);
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
    add_columns(operations, chunks.chunks, channels, channels, d_gain, accumulate);
}

void embedding_backward(struct operations *operations, const struct embedding_input *input,
                        struct token_groups groups, struct embedding weights, const struct buffer *d_streams,
                        const struct buffer *d_embedding, struct embedding gradients, bool accumulate) {
    const size_t count = token_count(input->tokens), channels = (size_t)operations->shape.channels;
    const size_t copies = (size_t)stream_copies(&operations->shape), sequence = (size_t)input->tokens.sequence;
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

/* ---- the output layer */

/* Layer norms of a token: one of the sum of its streams, or one of each. */
static size_t norms(const struct operations *operations) {
    return operations->shape.norm_sum ? (size_t)stream_copies(&operations->shape) : 1;
}

void final_norm_forward(struct operations *operations, size_t tokens, const struct stream_mix *top) {
    const size_t channels = (size_t)operations->shape.channels;
    const size_t count = (size_t)stream_copies(&operations->shape);
    RUN_ROWS(final_norm_forward, tokens, ARG_IN(top->streams, tokens * count * channels),
             ARG_SPAN_IN(top->norm.gain, channels), ARG_U64(top->norm.bias.offset),
             ARG_OUT(top->normed, tokens * channels), ARG_OUT(top->statistics, 2 * tokens * norms(operations)));
}

void final_norm_backward(struct operations *operations, size_t tokens, const struct stream_mix *top,
                         const struct buffer *d_normed, const struct buffer *d_streams, struct layer_norm gradients,
                         bool accumulate) {
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t channels = (size_t)operations->shape.channels;
    const size_t count = (size_t)stream_copies(&operations->shape);
    RUN_ROWS(final_norm_backward, chunks.chunks, ARG_IN(top->streams, tokens * count * channels),
             ARG_SPAN_IN(top->norm.gain, channels), ARG_IN(top->statistics, 2 * tokens * norms(operations)),
             ARG_IN(d_normed, tokens * channels), ARG_U64(tokens), ARG_OUT(d_streams, tokens * count * channels),
             ARG_OUT(&operations->partials, chunks.chunks * norm_partials(operations)));
    struct partial_target targets[PARTIAL_TARGETS] = {{0}};
    target_norm(operations, gradients, targets);
    add_partials(operations, chunks.chunks, 2 * channels, targets, accumulate);
}

/* With shape.fixed_top there are no projections: w, z, squares and d_z are not touched. */
void collapse_forward(struct operations *operations, size_t tokens, const struct stream_mix *top) {
    const bool fixed = operations->shape.fixed_top;
    const size_t streams = (size_t)operations->shape.streams;
    const size_t row = streams * (size_t)operations->shape.channels, squares = fixed ? 0 : tokens * streams;
    RUN_ROWS(collapse_forward, tokens, ARG_IN(top->streams, fixed ? 0 : tokens * row),
             ARG_SPAN_IN(fixed ? top->theta : top->packed, fixed ? streams : row * streams + streams + 1),
             ARG_U64(top->theta.offset), ARG_IN(top->squares, squares), ARG_OUT(top->z, squares),
             ARG_OUT(top->h, tokens * streams));
}

void collapse_backward(struct operations *operations, size_t tokens, const struct stream_mix *top,
                       const struct buffer *d_u, const struct buffer *d_h,
                       const struct collapse_gradients *gradients, bool accumulate) {
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const bool fixed = operations->shape.fixed_top;
    const size_t streams = (size_t)operations->shape.streams, channels = (size_t)operations->shape.channels;
    const size_t row = streams * channels, small = fixed ? streams : streams + 1;
    const size_t squares = fixed ? 0 : tokens * streams;
    RUN_ROWS(collapse_backward, chunks.chunks, ARG_IN(top->streams, fixed ? 0 : tokens * row),
             ARG_SPAN_IN(fixed ? top->theta : top->packed, fixed ? 0 : row * streams + 1),
             ARG_U64(top->theta.offset), ARG_IN(top->squares, squares), ARG_IN(top->z, squares),
             ARG_IN(top->h, tokens * streams), ARG_IN(d_h, tokens * streams), ARG_IN(d_u, tokens * channels),
             ARG_U64(tokens), ARG_OUT(gradients->d_z, squares), ARG_OUT(gradients->d_streams, tokens * row),
             ARG_OUT(&operations->partials, chunks.chunks * small));
    add_columns(operations, chunks.chunks, small, small, gradients->d_small, accumulate);
}

/* A work-item of the forward pass adds to so many rows, which is enough for its division by V not to count. */
#define BIAS_ROWS 16

void head_bias_forward(struct operations *operations, size_t rows, struct span bias, const struct buffer *logits) {
    const size_t vocabulary = (size_t)operations->shape.vocabulary;
    RUN_GROUPS(head_bias_forward, groups_for(rows, BIAS_ROWS) * vocabulary, ELEMENT_GROUP,
               ARG_SPAN_IN(bias, vocabulary), ARG_U64(rows), ARG_U64(BIAS_ROWS),
               ARG_IN_OUT(logits, rows * vocabulary));
}

void head_bias_backward(struct operations *operations, size_t rows, const struct buffer *d_logits,
                        struct span d_bias, bool accumulate) {
    const size_t vocabulary = (size_t)operations->shape.vocabulary;
    const struct chunking chunks = chunk_rows(rows, HEAD_BIAS_CHUNKS);
    RUN_GROUPS(head_bias_backward, chunks.chunks * vocabulary, ELEMENT_GROUP, ARG_IN(d_logits, rows * vocabulary),
               ARG_U64(rows), ARG_U64(chunks.per_chunk),
               ARG_OUT(&operations->partials, chunks.chunks * vocabulary));
    add_columns(operations, chunks.chunks, vocabulary, vocabulary, d_bias, accumulate);
}

void cross_entropy(struct operations *operations, size_t first, size_t rows, const struct buffer *logits,
                   const struct buffer *targets, float scale, const struct buffer *d_logits,
                   const struct buffer *losses) {
    const size_t count = rows * (size_t)operations->shape.vocabulary;
    struct kernel_argument in = ARG_IN(logits, count);
    in.reads = d_logits ? 2 : 1; /* rows are longer than caches are large */
    KERNEL_RUN(operations->compute, &operations->kernels->cross_entropy, rows, operations->policy.loss_lanes, in,
               ARG_IN(targets, rows), ARG_U64(first), ARG_F32(scale), ARG_I32(d_logits != NULL),
               ARG_OUT(d_logits ? d_logits : logits, d_logits ? count : 0), ARG_OUT(losses, rows));
}
