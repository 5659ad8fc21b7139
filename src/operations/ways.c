#include "src/operations/ways.h"
#include "src/operations/kernels.h"

#define ROW_UNIT    16 /* elements of the widest vector */
#define LAST_HIDDEN 4  /* after the last layer w_1 has so many times the columns of w_2 */

/* As in cl/ways.cl: work-items of a group, and groups of a matrix. */
enum { PACK_GROUP = 64, PACK_GROUPS = 32 };

static size_t padded(size_t elements) {
    return (elements + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
}

struct way_sizes way_sizes(const struct operation_shape *shape, int64_t layer) {
    const bool last = layer + 1 == shape->sublayers / 2;
    const size_t unit = (size_t)residual_setting_value(&shape->settings, "mudd_round").number;
    struct way_sizes sizes = {.ways = last || ways_are_fixed(shape) ? 1 : MOST_WAYS, .states = (size_t)layer + 2};
    sizes.weights = sizes.ways * sizes.states;
    sizes.weights_row = padded(sizes.weights);
    if (ways_are_fixed(shape)) {
        return sizes;
    }
    sizes.hidden = sizes.weights * (last ? LAST_HIDDEN : 1);
    if (unit > 0) { /* the next multiple, never the same */
        sizes.hidden = (sizes.hidden / unit + 1) * unit;
    }
    sizes.hidden_row = padded(sizes.hidden);
    return sizes;
}

void ways_list(const struct operation_shape *shape, int64_t layer, uint64_t w_1_at, uint64_t w_2_at,
               uint64_t packed_at, struct way_matrix matrices[2]) {
    const struct way_sizes sizes = way_sizes(shape, layer);
    const size_t width = (size_t)shape->channels;
    matrices[0] = (struct way_matrix){w_1_at, width, sizes.hidden, packed_at, sizes.hidden_row, width};
    matrices[1] = (struct way_matrix){
        w_2_at,          sizes.hidden, sizes.weights, packed_at + sizes.hidden_row * width, sizes.weights_row,
        sizes.hidden_row};
}

void ways_pack(struct operations *operations, const struct buffer *weights_lowp, const struct buffer *table,
               size_t count, size_t elements, const struct buffer *packed) {
    RUN_GROUPS(ways_pack, count * PACK_GROUPS * PACK_GROUP, PACK_GROUP, ARG_IN(weights_lowp, elements),
               ARG_IN(table, count * WAY_MATRIX_INTEGERS), ARG_OUT(packed, elements));
}

/* ---- the newest state */

static size_t state_elements(const struct operations *operations, size_t tokens) {
    return tokens * (size_t)operations->shape.channels;
}

/* The first element of its slot. */
static size_t newest_at(const struct operations *operations, size_t tokens, const struct way_values *values) {
    return (values->sizes.states - 1) * state_elements(operations, tokens);
}

void ways_state_forward(struct operations *operations, size_t tokens, const struct way_values *values,
                        const struct buffer *x, const struct buffer *output) {
    const size_t size = state_elements(operations, tokens);
    const size_t normed = ways_are_normed(&operations->shape) ? size : 0;
    const struct span newest = {values->states, newest_at(operations, tokens, values)};
    RUN_ROWS(ways_state_forward, tokens, ARG_IN(x, size), ARG_IN(output ? output : x, output ? size : 0),
             ARG_I32(output != NULL), ARG_SPAN_IN(values->gains, normed ? (size_t)operations->shape.channels : 0),
             ARG_OUT(normed ? values->newest : x, normed), ARG_SPAN_OUT(newest, size),
             ARG_OUT(values->scales, tokens));
}

void ways_state_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                         const struct way_gradients *gradients, bool accumulate) {
    const size_t size = state_elements(operations, tokens), at = newest_at(operations, tokens, values);
    const struct buffer *through = gradients->d_through;
    if (!ways_are_normed(&operations->shape)) {
        RUN_ELEMENTS(ways_state_backward, size, operations->policy.vector,
                     ARG_MEMORY_(values->states, at, size, 1, 0), ARG_MEMORY_(gradients->d_states, at, size, 1, 0),
                     ARG_U64(at), ARG_IN(through, size), ARG_IN(gradients->along, tokens), ARG_U64(size),
                     ARG_OUT(gradients->d, size));
        return;
    }
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t channels = (size_t)operations->shape.channels;
    RUN_ROWS(ways_state_backward, chunks.chunks, ARG_IN(values->newest, size), ARG_SPAN_IN(values->gains, channels),
             ARG_IN(values->scales, tokens), ARG_MEMORY_(gradients->d_states, at, size, 1, 0), ARG_U64(at),
             ARG_IN(through ? through : values->newest, through ? size : 0),
             ARG_IN(through ? gradients->along : values->scales, through ? tokens : 0), ARG_I32(through != NULL),
             ARG_U64(tokens), ARG_IN(gradients->d_newest, size), ARG_OUT(gradients->d, size),
             ARG_OUT(&operations->partials, chunks.chunks * channels));
    add_columns(operations, chunks.chunks, channels, channels, gradients->gains, accumulate);
}

/* ---- weights */

void ways_hidden_forward(struct operations *operations, size_t tokens, const struct way_values *values) {
    const size_t count = tokens * values->sizes.hidden_row;
    RUN_ELEMENTS(ways_hidden_forward, count, operations->policy.vector, ARG_IN(values->raw, count),
                 ARG_IN(values->scales, tokens), ARG_U64(count), ARG_I32(values->sizes.hidden_row),
                 ARG_OUT(values->hidden, count));
}

void ways_hidden_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                          const struct buffer *d_hidden, const struct buffer *along) {
    const size_t count = tokens * values->sizes.hidden_row;
    RUN_ROWS(ways_hidden_backward, tokens, ARG_IN(values->raw, count), ARG_IN(values->scales, tokens),
             ARG_I32(values->sizes.hidden_row), ARG_IN_OUT(d_hidden, count), ARG_OUT(along, tokens));
}

/* What is behind b up to the end of a row lies between parameters in the arena, and is zero. */
void ways_bias_forward(struct operations *operations, size_t tokens, const struct way_values *values,
                       struct span bias) {
    const size_t row = values->sizes.weights_row, count = tokens * row;
    RUN_ELEMENTS(ways_bias_forward, count, operations->policy.vector, ARG_SPAN_IN(bias, row), ARG_U64(count),
                 ARG_I32(row), ARG_IN_OUT(values->weights.buffer, count));
}

/* ---- mixtures: a single one by kernels of their own */

/* The weights of all tokens. */
static size_t weight_elements(const struct operations *operations, size_t tokens, const struct way_values *values) {
    return ways_are_fixed(&operations->shape) ? values->sizes.weights : tokens * values->sizes.weights_row;
}

/* What the kernels read of the norm of the stream's mixture, of which there is none without PREPOST. */
#define ARG_POST(values, channels)                                                                                 \
    ARG_SPAN_IN(((struct span){(values)->gains.buffer, (values)->gains.offset + (channels)}), channels)

void ways_mix_forward(struct operations *operations, size_t tokens, const struct way_values *values) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct way_sizes *sizes = &values->sizes;
    const size_t size = state_elements(operations, tokens), others = sizes->ways > 1 ? size : 0;
    const bool is_normed = ways_are_normed(&operations->shape);
    const size_t normed = is_normed ? size : 0, channels = is_normed ? (size_t)operations->shape.channels : 0;
    const struct buffer *const *y = values->mixed;
    const struct kernel *kernel = sizes->ways == 1 ? &kernels->way_mix_forward : &kernels->ways_mix_forward;
    KERNEL_RUN(operations->compute, kernel, tokens, operations->compute->lanes,
               ARG_IN(values->states, sizes->states * size), ARG_U64(tokens), ARG_I32(sizes->states),
               ARG_SPAN_IN(values->weights, weight_elements(operations, tokens, values)),
               ARG_I32(sizes->weights_row), ARG_IN(is_normed ? values->newest : y[0], normed),
               ARG_POST(values, channels), ARG_OUT(y[0], size), ARG_OUT(y[others ? 1 : 0], others),
               ARG_OUT(y[others ? 2 : 0], others), ARG_OUT(y[others ? 3 : 0], others),
               ARG_OUT(is_normed ? values->unnormed : y[0], normed));
}

void ways_mix_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                       const struct buffer *const d_mixed[MOST_WAYS], bool adds,
                       const struct way_gradients *gradients, bool accumulate) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct way_sizes *sizes = &values->sizes;
    const size_t size = state_elements(operations, tokens), others = sizes->ways > 1 ? size : 0;
    const size_t row = sizes->weights_row, most = operations->policy.row_chunks;
    const bool is_normed = ways_are_normed(&operations->shape);
    const size_t normed = is_normed ? size : 0, channels = is_normed ? (size_t)operations->shape.channels : 0;
    const size_t chunks = is_normed ? chunk_rows(tokens, most).chunks : tokens;
    const struct kernel *kernel = sizes->ways == 1 ? &kernels->way_mix_backward : &kernels->ways_mix_backward;
    KERNEL_RUN(operations->compute, kernel, chunks, operations->compute->lanes,
               ARG_IN(values->states, sizes->states * size), ARG_U64(tokens), ARG_I32(sizes->states),
               ARG_SPAN_IN(values->weights, weight_elements(operations, tokens, values)), ARG_I32(row),
               ARG_IN(d_mixed[0], size), ARG_IN(d_mixed[others ? 1 : 0], others),
               ARG_IN(d_mixed[others ? 2 : 0], others), ARG_IN(d_mixed[others ? 3 : 0], others), ARG_I32(adds),
               ARG_IN(is_normed ? values->unnormed : d_mixed[0], normed), ARG_POST(values, channels),
               ARG_MEMORY_(gradients->d_states, 0, sizes->states * size, adds, 1),
               ARG_OUT(gradients->d_weights, tokens * row),
               ARG_OUT(is_normed ? gradients->d_newest : gradients->d_weights, normed),
               ARG_OUT(&operations->partials, chunks * channels));
    if (is_normed) {
        const struct span post = {gradients->gains.buffer, gradients->gains.offset + channels};
        add_columns(operations, chunks, channels, channels, post, accumulate);
    }
}
