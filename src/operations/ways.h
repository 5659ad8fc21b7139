/* Operations of the residual connections `mudd` and `dense`, whose formulas are at the top of cl/ways.cl; they
 * launch as those of operations.h do. The newest state after layer i is number i + 1, so i + 2 states are mixed. */
#pragma once

#include "src/operations/operations.h"

enum { MOST_WAYS = 4 }; /* mixtures of a layer: of queries, keys, values, and of the stream */

/* Sizes after a layer. Rows of a token in buffers are padded to a multiple of any vector. */
struct way_sizes {
    size_t ways, states;    /* 4 mixtures, after the last layer 1 */
    size_t hidden, weights; /* columns of w_1 [C, hidden] and of w_2 [hidden, weights = ways states] */
    size_t hidden_row, weights_row;
};
struct way_sizes way_sizes(const struct operation_shape *shape, int64_t layer);

/* A matrix to pack, in the form that the kernel reads. */
struct way_matrix {
    uint64_t weight_at, rows, columns, packed_at, packed_rows, packed_row;
};
enum { WAY_MATRIX_INTEGERS = sizeof(struct way_matrix) / sizeof(int32_t) };

/* Fills in both matrices of a layer; w_1_at and w_2_at are offsets in the arena. */
void ways_list(const struct operation_shape *shape, int64_t layer, uint64_t w_1_at, uint64_t w_2_at,
               uint64_t packed_at, struct way_matrix matrices[2]);

/* packed [elements]: the `count` matrices of the table, each transposed and padded. */
void ways_pack(struct operations *operations, const struct buffer *weights_lowp, const struct buffer *table,
               size_t count, size_t elements, const struct buffer *packed);

/* What the forward pass computes after a layer, and the backward pass reads. */
struct way_values {
    struct way_sizes sizes;
    const struct buffer *states; /* [slots, N, C]; the newest is in slot sizes.states - 1 */
    const struct buffer *scales; /* [N] 1 / rms of the newest state, or if states are normed of h */
    const struct buffer *raw;    /* [N, hidden_row]: a GEMM of the same and w_1 */
    const struct buffer *hidden; /* [N, hidden_row] */
    struct span weights; /* [N, weights_row] float: a GEMM of hidden and w_2, to which b is added; fixed: b */
    /* [N, C] of queries (at the top the only one), keys, values and of the stream; NULL where there are none */
    const struct buffer *mixed[MOST_WAYS];
    /* If states are normed: the gains of both norms [2, C], of the embedding one [C]; h, the layer's output [N, C];
     * and the mixture of the stream before its norm [N, C] */
    struct span gains;
    const struct buffer *newest, *unnormed;
};

/* The newest state from x + output, both [N, C], or without an output (NULL) from x; and its scale. */
void ways_state_forward(struct operations *operations, size_t tokens, const struct way_values *values,
                        const struct buffer *x, const struct buffer *output);

/* raw -> hidden */
void ways_hidden_forward(struct operations *operations, size_t tokens, const struct way_values *values);

/* weights += b; bias_backward is its backward pass. */
void ways_bias_forward(struct operations *operations, size_t tokens, const struct way_values *values,
                       struct span bias);

/* states and weights -> mixed */
void ways_mix_forward(struct operations *operations, size_t tokens, const struct way_values *values);

/* Gradients that the backward pass after a layer computes. Comments of functions say which are inputs. */
struct way_gradients {
    const struct buffer *d_states;  /* [states, N, C] */
    const struct buffer *d_weights; /* [N, weights_row] of the activations' type */
    const struct buffer *d_through; /* [N, C] a GEMM of the gradient of raw and w_1; NULL: there is none */
    const struct buffer *along;     /* [N] float */
    const struct buffer *d;         /* [N, C] the whole gradient of the newest state, or of h */
    /* If states are normed: [N, C] the gradient of h from outside its state; and those of the gains */
    const struct buffer *d_newest;
    struct span gains;
};

/* d_mixed (as `mixed`) -> d_weights and d_states, with `adds` added to, and d_newest, which may be one of
 * d_mixed. */
void ways_mix_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                       const struct buffer *const d_mixed[MOST_WAYS], bool adds,
                       const struct way_gradients *gradients, bool accumulate);

/* d_hidden [N, hidden_row] becomes that of raw, in place; along [N] float is what it adds to the gradient of the
 * newest state, as a factor of that state. */
void ways_hidden_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                          const struct buffer *d_hidden, const struct buffer *along);

/* d = gradient in the newest state's slot + d_through + along times that state. If states are normed, d = d_newest
 * + the slot's gradient through the norm + d_through + along h. d may be d_newest, or the first slot of d_states.
 */
void ways_state_backward(struct operations *operations, size_t tokens, const struct way_values *values,
                         const struct way_gradients *gradients, bool accumulate);
