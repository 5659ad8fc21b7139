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
    const size_t unit = (size_t)shape->settings.values[residual_setting_find("mudd_round")].number;
    struct way_sizes sizes = {.ways = last ? 1 : MOST_WAYS, .states = (size_t)layer + 2};
    sizes.weights = sizes.ways * sizes.states;
    sizes.hidden = sizes.weights * (last ? LAST_HIDDEN : 1);
    if (unit > 0) { /* the next multiple, never the same */
        sizes.hidden = (sizes.hidden / unit + 1) * unit;
    }
    sizes.hidden_row = padded(sizes.hidden);
    sizes.weights_row = padded(sizes.weights);
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
    const struct span newest = {values->states, newest_at(operations, tokens, values)};
    RUN_ROWS(ways_state_forward, tokens, ARG_IN(x, size), ARG_IN(output, size), ARG_SPAN_OUT(newest, size),
             ARG_OUT(values->scales, tokens));
}

void ways_state_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                         const struct buffer *d_states, const struct buffer *d_through, const struct buffer *along,
                         const struct buffer *d) {
    const size_t size = state_elements(operations, tokens), at = newest_at(operations, tokens, values);
    RUN_ELEMENTS(ways_state_backward, size, operations->policy.vector, ARG_MEMORY_(values->states, at, size, 1, 0),
                 ARG_MEMORY_(d_states, at, size, 1, 0), ARG_U64(at), ARG_IN(d_through, size), ARG_IN(along, tokens),
                 ARG_U64(size), ARG_OUT(d, size));
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
                 ARG_I32(row), ARG_IN_OUT(values->weights, count));
}

/* ---- mixtures: at the top a kernel of its own, built for one of them */

void ways_mix_forward(struct operations *operations, size_t tokens, const struct way_values *values) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct way_sizes *sizes = &values->sizes;
    const size_t size = state_elements(operations, tokens), others = sizes->ways > 1 ? size : 0;
    const struct buffer *const *y = values->mixed;
    const struct kernel *kernel = sizes->ways == 1 ? &kernels->way_mix_forward : &kernels->ways_mix_forward;
    KERNEL_RUN(operations->compute, kernel, tokens, operations->compute->lanes,
               ARG_IN(values->states, sizes->states * size), ARG_U64(tokens), ARG_I32(sizes->states),
               ARG_IN(values->weights, tokens * sizes->weights_row), ARG_I32(sizes->weights_row),
               ARG_OUT(y[0], size), ARG_OUT(y[others ? 1 : 0], others), ARG_OUT(y[others ? 2 : 0], others),
               ARG_OUT(y[others ? 3 : 0], others));
}

void ways_mix_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                       const struct buffer *const d_mixed[MOST_WAYS], bool adds, const struct buffer *d_states,
                       const struct buffer *d_weights) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct way_sizes *sizes = &values->sizes;
    const size_t size = state_elements(operations, tokens), others = sizes->ways > 1 ? size : 0;
    const size_t row = sizes->weights_row;
    const struct kernel *kernel = sizes->ways == 1 ? &kernels->way_mix_backward : &kernels->ways_mix_backward;
    KERNEL_RUN(operations->compute, kernel, tokens, operations->compute->lanes,
               ARG_IN(values->states, sizes->states * size), ARG_U64(tokens), ARG_I32(sizes->states),
               ARG_IN(values->weights, tokens * row), ARG_I32(row), ARG_IN(d_mixed[0], size),
               ARG_IN(d_mixed[others ? 1 : 0], others), ARG_IN(d_mixed[others ? 2 : 0], others),
               ARG_IN(d_mixed[others ? 3 : 0], others), ARG_I32(adds),
               ARG_MEMORY_(d_states, 0, sizes->states * size, adds, 1), ARG_OUT(d_weights, tokens * row));
}
