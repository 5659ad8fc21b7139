/* Operations of the residual connection `gated`, whose formulas are at the top of cl/channel_gates.cl; they launch
 * as those of operations.h do. Its streams are stored normalised: v [N, S, C], beside their sums of squares [N, S].
 * A token's rows of `hidden` and y are those of gate_rows. */
#pragma once

#include "src/operations/operations.h"

/* Elements of a sublayer's packed matrices: [rows.y, S C], which GEMMs multiply streams with, and behind them
 * [S C, rows.hidden]. */
size_t gates_packed_elements(const struct operations *operations);

/* Where a sublayer's parameters are in the arenas, in the form that the kernels read. */
struct gate_leaves {
    uint64_t gain_at, down_at, up_at;
    uint64_t post_at;   /* GATES_NO_POST at the top */
    uint64_t packed_at; /* where its packed matrices begin */
};
#define GATES_NO_POST UINT64_MAX
enum { GATE_LEAF_INTEGERS = sizeof(struct gate_leaves) / sizeof(int32_t) };

/* Leaves [first, first + count) in a buffer on the device that has those of all sublayers and of the top. */
struct gate_table {
    const struct buffer *leaves;
    size_t first, count;
    bool has_top; /* the last of them is the top */
};

/* packed, of the activations' type: the matrices of all `count` sublayers of the table, whose `first` is 0. */
void gates_pack(struct operations *operations, const struct buffer *weights, struct gate_table table,
                const struct buffer *packed);

/* The gradients of w_down, w_post and, added to what gates_backward wrote, of the gain; from d_packed, float, with
 * rows.y S C elements for each sublayer of all. */
void gates_unpack(struct operations *operations, const struct buffer *weights, struct gate_table table,
                  const struct buffer *d_packed, const struct buffer *gradients, bool accumulate);

/* What a sublayer reads and writes in its forward pass, and reads in its backward pass. */
struct gate_values {
    struct span gain;             /* [S, C] in the arena of weights */
    const struct buffer *streams; /* [N, S, C], normalised */
    const struct buffer *squares; /* [N, S] */
    const struct buffer *y;       /* [N, rows.y] float: a GEMM of streams and packed matrices */
    const struct buffer *hidden;  /* [N, rows.hidden] */
    const struct buffer *post;    /* [N, S] float: s */
    const struct buffer *logits;  /* [N, S, C]: a GEMM of hidden and packed matrices */
    const struct buffer *output;  /* [N, C] of the branch */
};

/* Normalises streams in place. */
void gates_begin(struct operations *operations, size_t tokens, const struct gate_values *values);

/* y -> hidden and post */
void gates_hidden_forward(struct operations *operations, size_t tokens, const struct gate_values *values);

/* d_hidden [N, rows.hidden] float, and d_post [N, S] (NULL: zero) -> d_y [N, rows.y] of the activations' type */
void gates_hidden_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                           const struct buffer *d_hidden, const struct buffer *d_post, const struct buffer *d_y);

/* logits -> the gates [N, S, C], of the activations' type, for whoever wants to see them */
void gates_open(struct operations *operations, size_t tokens, const struct buffer *logits,
                const struct buffer *gates);

/* logits and streams -> u [N, C] */
void gates_forward(struct operations *operations, size_t tokens, const struct gate_values *values,
                   const struct buffer *u);

/* d_u [N, C] -> d_logits [N, S, C], and that part of the gain's gradient which comes through u */
void gates_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                    const struct buffer *d_u, const struct buffer *d_logits, struct span d_gain, bool accumulate);

/* The streams after the branch, normalised or as they are, and their squares. */
void gates_leave(struct operations *operations, size_t tokens, const struct gate_values *values, bool normalises,
                 const struct buffer *next_streams, const struct buffer *next_squares);

/* d_next [N, S, C], of the streams after the branch before they are normalised -> d_output [N, C], d_post [N, S] */
void gates_leave_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                          const struct buffer *d_next, const struct buffer *d_output, const struct buffer *d_post);

/* d_u [N, C] and d_packed [N, S, C], the gradient of the normalised streams that comes through y (a GEMM of d_y) ->
 * d_streams [N, S, C]: the gradient of the streams after the branch, unless is_top, becomes that of those before */
void gates_streams_backward(struct operations *operations, size_t tokens, const struct gate_values *values,
                            const struct buffer *d_packed, const struct buffer *d_u, const struct buffer *d_streams,
                            bool is_top);
