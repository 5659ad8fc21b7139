#include "src/operations/kernels.h"

void final_norm_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                        struct layer_norm norm, const struct buffer *output, const struct buffer *statistics) {
    RUN_ROWS(final_norm_forward, tokens, ARG_BUFFER(streams), ARG_SPAN(norm.gain), ARG_U64(norm.bias.offset),
             ARG_BUFFER(output), ARG_BUFFER(statistics));
}

void final_norm_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                         struct layer_norm norm, const struct buffer *statistics, const struct buffer *d_output,
                         const struct buffer *d_streams, struct layer_norm gradients) {
    const struct chunking chunks = chunk_rows(tokens, row_chunks(operations->compute));
    RUN_ROWS(final_norm_backward, chunks.chunks, ARG_BUFFER(streams), ARG_SPAN(norm.gain), ARG_BUFFER(statistics),
             ARG_BUFFER(d_output), ARG_U64(tokens), ARG_U64(chunks.per_chunk), ARG_BUFFER(d_streams),
             ARG_BUFFER(&operations->partials));
    add_norm_partials(operations, chunks.chunks, gradients);
}

size_t loss_lanes(const struct compute *compute) {
    return compute->lanes >= 64 && compute->device.max_work_group >= 256 ? 256 : compute->lanes;
}

void cross_entropy(struct operations *operations, size_t first, size_t rows, const struct buffer *logits,
                   const struct buffer *targets, float scale, const struct buffer *d_logits,
                   const struct buffer *losses) {
    KERNEL_RUN(operations->compute, &operations->kernels->cross_entropy, rows, loss_lanes(operations->compute),
               ARG_BUFFER(logits), ARG_BUFFER(targets), ARG_U64(first), ARG_F32(scale), ARG_I32(d_logits != NULL),
               ARG_BUFFER(d_logits ? d_logits : logits), ARG_BUFFER(losses));
}
