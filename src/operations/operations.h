/* The operations of the model on one device: every kernel of cl/ behind a function. All are launches (see
 * runtime/device/compute.h): they return at once and keep failures in the compute. Nothing here knows about layers.
 *
 * Shapes: N tokens (batch * sequence), S streams, C channels, H heads, V vocabulary. Activations are stored in the
 * shape's type (act_t in the kernels), and so are the weights that products read; all else is float. Parameters are
 * spans of the arena of weights, and their gradients, of the arena of gradients, which are added to what is there
 * with `accumulate`; all other outputs are overwritten. Kernels move whole aligned vectors: buffers begin on a
 * multiple of a vector's size, as OpenCL's do, and offsets of spans are multiples of 64 elements or of C; theta is
 * read number by number. tests/operations/test_operations.c holds each to a plain double reference. */
#pragma once

#include "runtime/device/compute.h"
#include "src/operations/batch.h"
#include "src/operations/policy.h"
#include "src/variants/residual.h"

struct operations {
    struct compute *compute;
    struct operation_shape shape;
    struct policy policy;
    const struct attention_algorithm *attention;           /* a row of the table in attention.c */
    struct attention_matrix_cores *attention_matrix_cores; /* NULL: all attention runs on the kernels of that row */
    char attention_by[160]; /* what attention runs on, and why not on matrix cores, human-readable */
    bool emulates_bf16;     /* cpu_bf16 does without its instructions, for tests */

    size_t columns;                /* projections per normalised row */
    size_t norm_groups;            /* normalised rows per token */
    size_t h_row;                  /* floats of H per token: S (S + 2) */
    const struct stream_mix *left; /* of frame_leave until the next frame_enter, else NULL */
    struct buffer partials;        /* [chunks, widest row of partial sums], created by operations_create */
    struct buffer theta_partials;  /* [chunks, theta] of the fused frame */
    struct operation_kernels *kernels;
};

/* Compiles what this shape needs. The parameters' arenas are passed to each operation. */
int operations_create(struct compute *compute, const struct operation_shape *shape, struct operations *operations);
void operations_release(struct operations *operations);

/* Chooses attention's kernels for good, after operations_create: leaves those for bf16 instructions if they fail
 * attention_check, and takes the device's matrix cores if products run there and their kernels compile and pass it;
 * operations->attention_by says what runs. -1 where no kernels can be built, or where results are to be verified
 * (compute_options) and are wrong. Each kind of heads is checked once per device and driver, see self_test.h. */
int attention_open(struct operations *operations);

/* Whether a device comes to the end of long loops: Mesa's CPU drivers of release 22.3 leave all loops of a
 * work-item after 65535 turns in all. If work-items of the model would make more turns than half of that, for a
 * batch of this shape and so many parameters, tries four times as many on the device, once per device and driver.
 * -1 with what to do if they do not come out right. */
int operations_check_loops(struct operations *operations, struct token_shape tokens, size_t parameters);

/* Bytes of the partial-sum buffer, for memory plans. */
size_t operations_scratch_bytes(const struct compute *compute, const struct operation_shape *shape);

/* A sequence padded for transposed keys, which are stored in whole tiles, and for scores of one query. */
size_t operations_padded(const struct compute *compute, int64_t sequence);

/* The same where attention transposes keys, 0 where it does not. */
size_t operations_transposed(const struct compute *compute, int64_t sequence);

/* ---- embedding */

/* wte [V, C], wpe [block_size, C] and, where streams are scaled, their gains [S, C]; or their gradients. */
struct embedding {
    struct span tokens, positions, scale;
};

/* A batch of tokens, and dropout behind their embedding. */
struct embedding_input {
    struct token_shape tokens;
    const struct buffer *ids; /* [N] int */
    struct dropout dropout;
};

/* Streams [N, S, C] = gain (wte + wpe), and their squares [N, S], at positions `first`, first + 1, ... in each
 * sequence. */
void embedding_forward(struct operations *operations, const struct embedding_input *input, int64_t first,
                       struct embedding weights, const struct buffer *streams, const struct buffer *squares);

/* Tokens grouped by value, so that rows of d_wte are summed by one owner each. */
struct token_groups {
    const struct buffer *ids;    /* [distinct] int */
    const struct buffer *starts; /* [distinct + 1] int, into places */
    const struct buffer *places; /* [N] int */
    size_t distinct;
};

/* Gradients of wte, of wpe's rows up to the sequence and, where streams are scaled, of the gains, of sequences that
 * begin at position 0. d_embedding [N, C] float is scratch. To wte's rows it always adds: with tied weights the
 * head's GEMM comes first, and writes all that are scored. */
void embedding_backward(struct operations *operations, const struct embedding_input *input,
                        struct token_groups groups, struct embedding weights, const struct buffer *d_streams,
                        const struct buffer *d_embedding, struct embedding gradients, bool accumulate);

/* gradients[ids[i]] += rows[i], for rows [count, C] float and ids [count] of different tokens. numbers [count +
 * 1] int: 0, 1, 2 ... */
void embedding_add_rows(struct operations *operations, size_t count, const struct buffer *rows,
                        const struct buffer *ids, const struct buffer *numbers, struct span gradients);

/* ---- hyper-connections; for a plain residual (rc) `h` arguments are not read and S = 1 */

/* A projection matrix of a sublayer, as kernels find it: where it and the gain of its RMSNorm begin in the arenas,
 * its columns and the first of them among the sublayer's, and where the sublayer's packed projections begin. */
struct projection_leaf {
    uint64_t w_at, gain_at, width, column, packed_at;
};
enum { LEAF_INTEGERS = sizeof(struct projection_leaf) / sizeof(int32_t) };

/* Leaves in a buffer on the device. */
struct projection_table {
    const struct buffer *leaves; /* of all sublayers, those of each together */
    size_t first, count;
};

/* The residual_projections leaves of a sublayer. `at` has the matrices' places, in the variant's order. */
void projections_list(const struct operations *operations, const uint64_t *at, uint64_t gain_at, uint64_t packed_at,
                      struct projection_leaf *leaves);

/* packed, for each sublayer [columns, row], of the activations' type: the transposed projection matrices one
 * after the other, with the RMSNorm's gain folded in. row = S C / norm_groups. All leaves from the table's
 * beginning on. */
void projections_pack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                      const struct buffer *packed);

/* Backward, of one sublayer: d_packed [columns, row] is float. */
void projections_unpack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                        const struct buffer *d_packed, const struct buffer *gradients, bool accumulate);

/* Whether the two functions below are faster than general matrix products (gemm_run) for this shape on this device.
 */
bool projections_are_few(const struct operations *operations);

/* z [N, norm_groups, columns] = streams packed^T, raw projections, float. */
void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          struct span packed, const struct buffer *z);

/* d_packed [columns, row] = d_z^T streams */
void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, const struct buffer *d_packed);

/* What a variant's map reads and writes in its forward pass, which the backward pass needs, too. */
struct stream_map {
    struct span theta;            /* the sublayer's small parameters, contiguous */
    const struct buffer *squares; /* [N, S] of the streams */
    const struct buffer *z;       /* [N, norm_groups, columns]: raw projections in, normalised out */
    const struct buffer *h;       /* [N, h_row] out: pre | post | res */
};
void map_forward(struct operations *operations, size_t tokens, const struct stream_map *map);

/* d_h [N, h_row] -> d_z [N, norm_groups, columns] of the raw projections, rms_scale [N, norm_groups], d_theta. */
void map_backward(struct operations *operations, size_t tokens, const struct stream_map *map,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  struct span d_theta, bool accumulate);

/* A layer norm's parameters [C], or their gradients. The bias is read, and its gradient written, with shape.bias
 * only. */
struct layer_norm {
    struct span gain, bias;
};

/* What the frame around a branch reads and writes in its forward pass. */
struct stream_mix {
    const struct buffer *streams, *h; /* [N, S, C], [N, h_row] */
    struct layer_norm norm;
    const struct buffer *normed;     /* [N, C] of the width mix, the branch's input */
    const struct buffer *statistics; /* [N, 2] of its layer norm: mean and 1/deviation */
    const struct buffer *output;     /* [N, C] of the branch */
};

/* normed [N, C] = LN(sum_s pre_s x_s) */
void width_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix);

/* d_normed [N, C] -> d_u [N, C] (may be the same buffer), d_h's pre part, gradients of gain and bias. */
void width_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_normed, const struct buffer *d_u, const struct buffer *d_h,
                        struct layer_norm gradients, bool accumulate);

/* mixed_i = sum_j res_ij x_j + post_i output [N, C]; squares [N, S] of mixed. */
void depth_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                       const struct buffer *mixed, const struct buffer *squares);

/* d_mixed [N, S, C] -> d_output [N, C], d_h's post and res parts. Not for plain residuals, where d_output is
 * d_mixed. */
void depth_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_mixed, const struct buffer *d_output, const struct buffer *d_h);

/* In place, d_mixed becomes d_streams but for the projections' part: sum_i res_ij d_i + pre_j d_u + rms_scale x_j.
 */
void stream_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                     const struct buffer *d_u, const struct buffer *rms_scale, const struct buffer *d_streams);

/* ---- the frame in one kernel each way, where the device gains by it */

/* Whether the functions below are there: not for plain residuals, nor on CPUs, nor for rows that are too long. */
bool frame_is_fused(const struct operations *operations);

/* What surrounds a branch: its streams' map and mix, and its projections [columns, row] as packed. */
struct stream_frame {
    const struct stream_map *map;
    const struct stream_mix *mix;
    struct span packed;
};

/* Leaves a branch that another one follows. Launches nothing: the next frame_enter computes the depth mix behind
 * the branch together with its own work, in one kernel. `from` must stay until then. */
void frame_leave(struct operations *operations, const struct stream_mix *from);

/* Projections, map and width mix: z, h, normed and statistics from streams and squares, which are written first
 * after a frame_leave. */
void frame_enter(struct operations *operations, size_t tokens, const struct stream_frame *frame);

/* d_output [N, C] of the topmost branch from d_mixed [N, S, C]. */
void frame_output_gradient(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                           const struct buffer *d_mixed, const struct buffer *d_output);

/* What frame_backward writes. */
struct frame_gradients {
    const struct buffer *d_z;       /* [N, norm_groups, columns] of the raw projections, of the activations' type */
    const struct buffer *d_streams; /* [N, S, C]; d_mixed before */
    const struct buffer *h_below;   /* [N, h_row] of the branch below, NULL: there is none */
    const struct buffer *d_output;  /* [N, C] of the branch below; scratch if there is none */
    struct layer_norm norm;
    struct span d_theta;
};

/* The way back of the depth mix behind the branch and of frame_enter before it, but for the projections'
 * gradient. */
void frame_backward(struct operations *operations, size_t tokens, const struct stream_frame *frame,
                    const struct buffer *d_normed, const struct frame_gradients *gradients, bool accumulate);

/* gram [N, S, S] = <x_i, x_j> */
void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram);

/* ---- branches */

/* What attention reads and writes in its forward pass. */
struct attention_values {
    const struct buffer *qkv; /* [N, 3 C] */
    const struct buffer *y;   /* [N, C] */
    const struct buffer *lse; /* [batch, H, sequence], float */
};

/* What is overwritten on the way; all but keys_t on the way back alone. */
struct attention_scratch {
    const struct buffer *keys_t,
        *values_t;                  /* [batch, H, C/H, operations_transposed]: not touched where that is 0 */
    const struct buffer *delta;     /* [batch, H, sequence], float */
    const struct buffer *d_queries; /* [N, C], float: dq of 16 bits while it is added up, on CPUs */
};

void attention_forward(struct operations *operations, struct token_shape tokens,
                       const struct attention_values *values, const struct attention_scratch *scratch,
                       struct dropout dropout);

/* d_y [N, C] -> d_qkv [N, 3 C] */
void attention_backward(struct operations *operations, struct token_shape tokens,
                        const struct attention_values *values, const struct attention_scratch *scratch,
                        struct dropout dropout, const struct buffer *d_y, const struct buffer *d_qkv);

/* Keys and values of sequences that are being generated, a row each. */
struct attention_cache {
    const struct buffer *keys, *values; /* [rows, H, capacity, C/H] */
    int64_t capacity;                   /* positions */
};

/* Keys and values of qkv [N, 3 C] to the cache from position 0 on: the batch's sequences to rows `row` and after.
 */
void attention_fill(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int64_t row,
                    struct attention_cache cache);

/* One token of each of the first `batch` rows, all at `position` < capacity: qkv [batch, 3 C] -> y [batch, C]. Adds
 * its keys and values to the cache, which has those of all positions before. scores [batch, H, padded] is scratch,
 * padded as for a sequence of the capacity. */
void attention_step(struct operations *operations, int64_t batch, int64_t position, const struct buffer *qkv,
                    struct attention_cache cache, const struct buffer *scores, const struct buffer *y);

/* Products with so few rows are better done by few_rows_multiply than by gemm_run. */
enum { FEW_ROWS = 16 };

/* y [rows, out] = x [rows, in] w^T, w [out, in]; `in` a multiple of C or of the projections' row. x and w are of
 * the activations' type, y of its buffer's. A row of the result has the same bits whatever the number of rows. */
void few_rows_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                       struct span w, const struct buffer *y);

/* y = gelu(x), and d becomes d * gelu'(x), for count elements (a multiple of C). */
void activation_forward(struct operations *operations, size_t count, const struct buffer *x,
                        const struct buffer *y);
void activation_backward(struct operations *operations, size_t count, const struct buffer *x,
                         const struct buffer *d);

/* x [rows, width] += bias; its gradient from d [rows, width]. width a multiple of C. */
void bias_forward(struct operations *operations, size_t rows, size_t width, struct span bias,
                  const struct buffer *x);
void bias_backward(struct operations *operations, size_t rows, size_t width, const struct buffer *d,
                   struct span d_bias, bool accumulate);

/* x [rows, width] in place, forward and backward alike. rate 0 launches nothing. */
void dropout_apply(struct operations *operations, size_t rows, size_t width, struct dropout dropout,
                   const struct buffer *x);

/* ---- head */

/* y = LN(sum_s x_s), or with shape.norm_sum y = sum_s LN(x_s). */
struct final_norm {
    const struct buffer *streams; /* [N, S, C] */
    struct layer_norm norm;
    const struct buffer *output;     /* [N, C] */
    const struct buffer *statistics; /* [N, norms, 2], one norm or one of each stream: mean and 1/deviation */
};

void final_norm_forward(struct operations *operations, size_t tokens, const struct final_norm *final);
void final_norm_backward(struct operations *operations, size_t tokens, const struct final_norm *final,
                         const struct buffer *d_output, const struct buffer *d_streams, struct layer_norm gradients,
                         bool accumulate);

/* logits [rows, V], float, for targets[first ..]: losses[first ..] are written. d_logits [rows, V], of the
 * activations' type, becomes scale * (softmax - one-hot), unless it is NULL; in fp32 it may be the logits
 * themselves. A target of -1 gives loss 0 and no gradient. */
void cross_entropy(struct operations *operations, size_t first, size_t rows, const struct buffer *logits,
                   const struct buffer *targets, float scale, const struct buffer *d_logits,
                   const struct buffer *losses);

/* out = scale * sum of x[0 .. count) (added to the old value with `add`) */
void sum_total(struct operations *operations, const struct buffer *x, size_t count, float scale, bool add,
               struct span out);

/* ---- optimiser */

/* out = scale * sqrt(sum of squares of x[0 .. count)); count a multiple of 64 */
void norm_total(struct operations *operations, const struct buffer *x, size_t count, float scale, struct span out);

/* out = sum of squares of the `count` elements at x; x.offset and count are multiples of 64. */
void square_total(struct operations *operations, struct span x, size_t count, struct span out);

struct adamw_settings {
    float rate, beta1, beta2, decay;
    float clip;    /* largest global norm; 0: none */
    int64_t step;  /* from 1, for bias correction */
    float unscale; /* what the gradients are multiplied with: 1, or 1 / the loss's scale */
};

/* What the optimiser works on. */
struct adamw_arenas {
    const struct buffer *weights, *gradients;
    /* The copy of the weights in the activations' type, which the step updates as well. In fp32 there is none:
     * pass the weights again. */
    const struct buffer *weights_lowp;
    const struct buffer *first_moments, *second_moments; /* of all weights, or of a rank's part of them */
    size_t decayed;                                      /* weights before this one take weight decay */
};

/* Elements [first, first + count) of weights and gradients; their moments begin at `moment_first`. All multiples of
 * 64. */
struct adamw_range {
    uint64_t first, count, moment_first;
};

/* One step on a part of the arenas. norm [1]: the gradients' global norm, unscaled. If it is not finite nothing
 * changes. */
void adamw_step(struct operations *operations, const struct adamw_arenas *arenas, struct adamw_range range,
                const struct adamw_settings *settings, const struct buffer *norm);
