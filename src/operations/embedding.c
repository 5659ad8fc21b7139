#include "src/operations/kernels.h"

void embedding_forward(struct operations *operations, struct token_shape tokens, int64_t first,
                       const struct buffer *ids, struct embedding weights, struct dropout dropout,
                       const struct buffer *streams, const struct buffer *squares) {
    RUN_ROWS(embedding_forward, token_count(tokens), ARG_BUFFER(ids), ARG_SPAN(weights.tokens),
             ARG_U64(weights.positions.offset), ARG_I32(tokens.sequence), ARG_I32(first), ARG_DROPOUT(dropout),
             ARG_BUFFER(streams), ARG_BUFFER(squares));
}

void embedding_backward(struct operations *operations, struct token_shape tokens, struct token_groups groups,
                        struct dropout dropout, const struct buffer *d_streams, const struct buffer *d_embedding,
                        struct embedding gradients) {
    RUN_ROWS(embedding_backward_sum, token_count(tokens), ARG_BUFFER(d_streams), ARG_DROPOUT(dropout),
             ARG_BUFFER(d_embedding));
    RUN_ROWS(embedding_backward_tokens, groups.distinct, ARG_BUFFER(d_embedding), ARG_BUFFER(groups.ids),
             ARG_BUFFER(groups.starts), ARG_BUFFER(groups.places), ARG_SPAN(gradients.tokens));
    RUN_ROWS(embedding_backward_positions, tokens.sequence, ARG_BUFFER(d_embedding), ARG_I32(tokens.batch),
             ARG_I32(tokens.sequence), ARG_SPAN(gradients.positions));
}
