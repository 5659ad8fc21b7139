/* What works on elements or rows by themselves, whatever they mean: activations, biases, dropout, GEMMs of few
 * rows. */
#include "runtime/system/random.h"
#include "src/operations/kernels.h"
#include <inttypes.h>
#include <stdio.h>

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
    add_partials(operations, chunks.chunks, width, (struct partial_target[PARTIAL_TARGETS]){{0, count, d_bias}},
                 accumulate);
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
