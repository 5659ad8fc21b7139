/* The model's operations on one device, forward and backward. Each function launches one or a few kernels of cl/
 * (runtime/gemm has the GEMMs): it returns at once, and failures are kept in the compute
 * (runtime/device/compute.h). Operations know the shapes of a sublayer, but not the order of sublayers: that is
 * src/model/gpt.c.
 *
 * Shapes: N tokens (batch * sequence), S streams, C channels, H heads of D = C / H channels, M channels inside an
 * MLP, V tokens of the vocabulary that are scored. Activations (streams, and the inputs, outputs and hidden layers
 * of branches), their gradients, and the copy of the weights that GEMMs read have the shape's type (act_t in the
 * kernels); tokens are int; all else is float unless said. Parameters are spans of the arena of weights, their
 * gradients are spans of the arena of gradients. Gradients of parameters are overwritten in the first backward pass
 * of a step (`accumulate` false) and added to in later ones (true); all other outputs are overwritten. Kernels load
 * aligned vectors: buffers begin at a multiple of a vector's size, as OpenCL's do, and offsets of spans are
 * multiples of 64 elements, of C or of M. Only spans of theta may begin anywhere.
 * tests/operations/test_operations.c compares each operation with a plain reference in double.
 *
 * A "leaf" is a parameter tensor that the residual variant adds to a sublayer (src/variants/residual.h); "theta"
 * are a sublayer's small leaves, one after the other. Norms and activations are files of cl/, norm_<name>.cl and
 * activation_<name>.cl, with a row in the tables of kernels.c; CONTRIBUTING.md says how to add one. */
#pragma once

#include "runtime/device/compute.h"
#include "src/operations/policy.h"
#include "src/variants/residual.h"

/* Dropout at one place of the model in one iteration; rate 0: none. Reproducible from (key, row, element). */
struct dropout {
    float rate;
    uint64_t key;       /* of seed, iteration and place: see dropout_key */
    uint64_t first_row; /* number of the first token in the global batch */
};

/* As kernels take it: float rate, ulong key, ulong first_row. */
#define ARG_DROPOUT(d) ARG_F32((d).rate), ARG_U64((d).key), ARG_U64((d).first_row)

/* The key of a place ("embedding", "6 attention", "6 output": of sublayer 6) in an iteration. See gpt_dropout. */
uint64_t dropout_key(uint64_t seed, int64_t iteration, const char *place);

/* Sequences in a batch: N = batch * sequence. */
struct token_shape {
    int64_t batch, sequence;
};

struct operations {
    struct compute *compute;
    struct operation_shape shape;
    struct policy policy;
    const struct attention_algorithm *attention;           /* a row of the table in attention.c */
    struct attention_matrix_cores *attention_matrix_cores; /* NULL: all attention runs on the kernels of that row */
    char attention_by[512]; /* what attention runs on, and why not on matrix cores, human-readable */
    bool emulates_bf16;     /* cpu_bf16 does without its instructions, for tests */

    size_t columns;     /* projections per normalised row: numbers of z, columns of the projection matrices */
    size_t matrices;    /* projection matrices of a sublayer */
    size_t theta;       /* small parameters of a sublayer */
    size_t norm_groups; /* normalised rows per token: 1, or S if each stream has its own RMSNorm */
    size_t z_row;       /* numbers of z per token; of a static map of all tokens together, zeros */
    size_t pre;         /* floats of H_pre per token: S, or of fractions S S */
    size_t h_row;       /* floats of H_pre, H_post [S], H_res [S, S] per token */
    const struct stream_mix *pending_leave; /* the mix that frame_leave stored for frame_enter; NULL: none */
    struct buffer partials;                 /* [chunks, widest row of partial sums] */
    struct operation_kernels *kernels;
};

/* Sets what follows from the device and the shape: policy, sizes, the algorithm of attention. Allocates nothing. */
void operations_describe(struct compute *compute, const struct operation_shape *shape,
                         struct operations *operations);

/* Compiles the kernels that the shape needs, unless they are built: all of them (NULL), or those of files of cl/
 * whose names begin with `file`. The parameters' arenas are passed to each operation. -1 with an error;
 * operations_release is needed then, too. */
int operations_build(struct operations *operations, const char *file);
void operations_release(struct operations *operations);

/* Makes the final choice of attention's kernels, once after operations_build:
 *  - if GEMMs run on matrix cores, and attention's kernels for them compile and pass attention_check, they run;
 *  - if the kernels for bf16 instructions of CPUs fail attention_check, the plain ones for CPUs replace them.
 * operations->attention_by is the choice for users. -1 if no kernels can be built, or if compute->verify is set and
 * results are wrong. A check that passed is not repeated for the same device, driver, heads and
 * type (runtime/device/self_test.h). */
int attention_open(struct operations *operations);

/* Self-test for a bug of Mesa 22.3's CPU drivers, which end all loops of a work-item after 65535 iterations. If
 * one work-item may need 32768 or more for a batch of this shape and so many parameters, a loop of 131072 runs on
 * the device, once per device and driver. 0: the model can run; -1: the loop gave a wrong result, with advice in
 * the error, or it could not run. */
int operations_check_loops(struct operations *operations, struct token_shape tokens, size_t parameters);

/* Bytes of the partial-sum buffer, for memory plans. */
size_t operations_scratch_bytes(const struct operations *operations);

/* Sequence length rounded up to whole tiles of keys: elements of keys_t for each channel, and the row length of
 * attention_step's scores. */
size_t operations_padded(const struct operations *operations, int64_t sequence);

/* operations_padded where attention's algorithm reads transposed keys (`transposes` in attention.c); else 0. */
size_t operations_transposed(const struct operations *operations, int64_t sequence);

/* Streams of equal channels that the embedding makes and the top reads: S; of fractions 1. */
int64_t stream_copies(const struct operation_shape *shape);

/* A row that the projections' norm runs over: S C / norm_groups. */
size_t norm_length(const struct operations *operations);

/* ---- embedding */

/* wte [vocab_size, C], wpe [block_size, C] where positions are learned, where streams are scaled their scales
 * [S, C], and with shape.embed_norm the gain of the norm [C]; or their gradients. */
struct embedding {
    struct span tokens, positions, scale, gain;
};

/* A batch of tokens, dropout after their embedding, and what the forward pass keeps for the backward pass. */
struct embedding_input {
    struct token_shape tokens;
    const struct buffer *ids; /* [N] int */
    struct dropout dropout;
    const struct buffer *scales; /* [N] 1 / rms of embeddings, with shape.embed_norm; else not touched */
};

/* Streams [N, S, C] = scale (wte + wpe), with shape.embed_norm scale RMSNorm(wte + wpe), and their squares [N, S],
 * at positions `first`, first + 1, ... in each sequence. */
void embedding_forward(struct operations *operations, const struct embedding_input *input, int64_t first,
                       struct embedding weights, const struct buffer *streams, const struct buffer *squares);

/* Tokens grouped by value, so that rows of d_wte are summed by one owner each. */
struct token_groups {
    const struct buffer *ids;    /* [distinct] int */
    const struct buffer *starts; /* [distinct + 1] int, into places */
    const struct buffer *places; /* [N] int */
    size_t distinct;
};

/* Gradients of wte, of wpe's rows up to the sequence if there is a wpe, and of scales and gain where there are any,
 * for sequences that begin at position 0. d_embedding [N, C] float is scratch. wte's gradient is always added to,
 * whatever `accumulate` is: if the head shares its weights with wte, its GEMM has written rows [0, V) before, and
 * gpt.c clears all others. Where the buffer of wte's or wpe's gradient is NULL, it is not computed. */
void embedding_backward(struct operations *operations, const struct embedding_input *input,
                        struct token_groups groups, struct embedding weights, const struct buffer *d_streams,
                        const struct buffer *d_embedding, struct embedding gradients, bool accumulate);

/* gradients[ids[i]] += rows[i], for rows [count, C] float and ids [count] of different tokens. numbers [count + 1]
 * int must hold 0, 1, 2, ...: it stands for `starts` and `places` of struct token_groups, with a row per token. */
void embedding_add_rows(struct operations *operations, size_t count, const struct buffer *rows,
                        const struct buffer *ids, const struct buffer *numbers, struct span gradients);

/* ---- hyper-connections; for a plain residual (rc) `h` arguments are not read and S = 1 */

/* One projection matrix (w_pre, w_post, ...) of a sublayer, in the form that the kernels read. */
struct projection_leaf {
    uint64_t w_at, gain_at; /* offsets of the matrix and of its RMSNorm's gain in the arenas */
    uint64_t width, column; /* its columns, and the first of them in the sublayer's z */
    uint64_t packed_at;     /* offset of the sublayer's packed matrices */
};
enum { LEAF_INTEGERS = sizeof(struct projection_leaf) / sizeof(int32_t) };

/* Leaves in a buffer on the device. */
struct projection_table {
    const struct buffer *leaves; /* of all sublayers, those of each together */
    size_t first, count;
};

/* Fills leaves[0 .. operations->matrices) for one sublayer; at[i] is the arena offset of the i-th
 * projection matrix in the variant's table. */
void projections_list(const struct operations *operations, const uint64_t *at, uint64_t gain_at, uint64_t packed_at,
                      struct projection_leaf *leaves);

/* packed, for each sublayer [columns, row], of the activations' type: the transposed projection matrices one after
 * the other, times the RMSNorm's gain unless shape.gainless. row = S C / norm_groups. Packs the sublayers of the
 * table, once per forward pass. */
void projections_pack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                      const struct buffer *packed);

/* Backward, of the sublayers of the table: d_packed is float, and laid out like `packed` of all sublayers. */
void projections_unpack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                        const struct buffer *d_packed, const struct buffer *gradients, bool accumulate);

/* True if projections_multiply and projections_gradient are faster than gemm_run here, since a normalised row has
 * few projections (policy.projection_columns). */
bool projections_avoid_gemm(const struct operations *operations);

/* z [N, norm_groups, columns] = streams packed^T, raw projections, float. */
void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          struct span packed, const struct buffer *z);

/* d_packed [columns, row] of a sublayer = d_z^T streams */
void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, struct span d_packed);

/* The parameters [C] of a norm of C channels, or their gradients. The bias exists only if shape.bias, and never for
 * an RMSNorm (has_bias in the table of norms). */
struct layer_norm {
    struct span gain, bias;
};

/* What the hyper-connection around a branch reads and writes in its forward pass, and reads in its backward pass.
 * Without a map (rc) only streams, squares and what comes behind h count; the others are buffers that are not
 * read. At the top it is what collapse_forward and final_norm_forward say. */
struct stream_mix {
    struct span packed;              /* projection matrices [columns, row] */
    struct span theta;               /* small parameters, contiguous */
    const struct buffer *streams;    /* [N, S, C] */
    const struct buffer *squares;    /* [N, S] of the streams */
    const struct buffer *z;          /* [N, norm_groups, columns]: projections, raw until the map normalises them;
                                        of a static map zeros, z_row of them */
    const struct buffer *h;          /* [N, h_row] of the map: pre | post | res */
    const struct buffer *read;       /* [N, h_row] whose pre weighs the streams in the width mix; NULL: h */
    struct layer_norm norm;          /* of the branch */
    const struct buffer *normed;     /* [N, C] layer norm of the width mix: the branch's input */
    const struct buffer *statistics; /* [N, 2] of that layer norm: mean and 1/deviation */
    const struct buffer *output;     /* [N, C] of the branch */
};

/* Normalises z in place, and computes h from it and theta. */
void map_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix);

/* d_h [N, h_row] -> d_z [N, norm_groups, columns] of the raw projections, d_theta, and rms_scale [N, norm_groups]:
 * the RMSNorm adds rms_scale x_j to d_streams (stream_backward). */
void map_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  struct span d_theta, bool accumulate);

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

/* depth_mix_forward of `from`, and with its result width_mix_forward of `to`, whose read is there already: `to`
 * gets streams, squares, normed and statistics. */
void mix_between(struct operations *operations, size_t tokens, const struct stream_mix *from,
                 const struct stream_mix *to);

struct mix_gradients {
    const struct buffer *d_branch;  /* [N, C]: of the normed of `to` in, of the output of `from` out */
    const struct buffer *d_streams; /* [N, S, C]: of the streams of `to` in, but for what comes through its normed
                                       and its RMSNorm; of those of `from` out, but for what comes through its own
                                       normed and its projections */
    const struct buffer *rms_scale; /* [N, norm_groups] of `to`, from map_backward */
    const struct buffer *d_read;    /* [N, h_row], of which the pre part is written */
    const struct buffer *d_h;       /* [N, h_row] of `from`, of which the other parts are written; may be d_read */
    struct layer_norm norm;         /* of `to`; a gain without a buffer: not wanted */
};

/* The backward pass of mix_between. */
void mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *from,
                  const struct stream_mix *to, const struct mix_gradients *gradients, bool accumulate);

/* Turns d_mixed into d_streams in place: d_j = sum_i res_ij d_i + pre_j d_u + rms_scale x_j. The gradient that
 * comes through the projections is still missing: a GEMM of d_z adds it (projections_backward in frame_mixed.c). */
void stream_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                     const struct buffer *d_u, const struct buffer *rms_scale, const struct buffer *d_streams);

/* ---- the fused frame: a hyper-connection without its branch in one kernel forward and one backward */

/* Whether this device and shape use the fused kernels below instead of the separate ones above. policy_make decides
 * (frame_rows in policy.c): not for variants without matrices, fractions (frac) or static maps (hc_dynamic =
 * false), nor on CPUs, with more than 4 streams, or where a token's streams, projections or theta are too large for
 * registers and local memory.
 * `hc_devices --verbose` prints the decision for GPT-2 small in bf16 with mhc and 4 streams. The kernels include
 * the files of the residual variant and of the norm, so a new one of either runs in them, too. Generation with a
 * key/value cache uses the separate kernels in any case (is_fused in frame_mixed.c). */
bool frame_is_fused(const struct operations *operations);

/* Defers the depth mix after a branch: it only stores `from`. The next frame_enter computes it and its own work in
 * one kernel (frame_between), so `from` and its buffers must stay valid until then. Not after the last branch,
 * where the caller runs depth_mix_forward. */
void frame_leave(struct operations *operations, const struct stream_mix *from);

/* Projections, map and width mix: z, h, normed and statistics from streams and squares. After a frame_leave it
 * computes streams and squares, too, by the depth mix that was deferred. */
void frame_enter(struct operations *operations, size_t tokens, const struct stream_mix *mix);

/* d_output [N, C] of the last sublayer's branch from d_mixed [N, S, C]; frame_backward computes all others. */
void frame_output_gradient(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                           const struct buffer *d_mixed, const struct buffer *d_output);

/* What frame_backward writes; h_before it reads. */
struct frame_gradients {
    const struct buffer *d_z;       /* [N, norm_groups, columns] of the raw projections, of the activations' type */
    const struct buffer *d_streams; /* [N, S, C]: d_mixed in, d_streams out */
    const struct buffer *h_before;  /* [N, h_row], h of the sublayer before; NULL: this is the first. With
                                       shape.read_delay it is mix->read, of the first too. */
    const struct buffer *d_branch;  /* [N, C]: of normed in, of the output of the branch before out; in the first
                                       sublayer the latter is only scratch */
    const struct buffer *d_read;    /* [N, h_row] with shape.read_delay, of which the pre part counts: of h in, of
                                       h_before out; else NULL */
    struct layer_norm norm;
    struct span d_theta;
};

/* Computes the gradients of this sublayer's depth mix, map, width mix and layer norm, and turns d_mixed into
 * d_streams in place, including the part that comes through the projections. The gradients of the projection
 * matrices and of the RMSNorm's gain are left to the caller: a GEMM of d_z, then projections_unpack. Also computes
 * d_output of the sublayer before, whose branch runs backward next; this sublayer's own was computed by the
 * frame_backward of the sublayer behind it, or in the last sublayer by frame_output_gradient. Reads streams,
 * squares, z, h, statistics and output of this sublayer as the forward pass left them, and h of the one before;
 * normed may have been overwritten. */
void frame_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                    const struct frame_gradients *gradients, bool accumulate);

/* squares [N, S] of streams that no mix has written */
void stream_squares(struct operations *operations, size_t tokens, const struct buffer *streams,
                    const struct buffer *squares);

/* What a layer begins with: mixed = lambdas[0] streams + lambdas[1] first, all [N, S, C], and its squares [N, S].
 * mixed may be the streams. */
void lambdas_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                     const struct buffer *first, struct span lambdas, const struct buffer *mixed,
                     const struct buffer *squares);

struct lambda_gradients {
    const struct buffer *d_streams; /* [N, S, C]: gradient of mixed in, of streams out, in place */
    const struct buffer *d_first;   /* [N, S, C]: added to */
    struct span lambdas;
};

/* Backward pass of lambdas_forward. If streams == first, all of the gradient goes to d_first, and d_streams is not
 * read afterwards. */
void lambdas_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                      const struct buffer *first, struct span lambdas, const struct lambda_gradients *gradients,
                      bool accumulate);

/* gram [N, S, S] = <x_i, x_j> */
void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram);

/* ---- weights of branch and stream, and a product of low rank (laurel); cl/laurel.cl has the formulas */

/* Spans of what the shape lacks are not read. */
struct laurel_values {
    const struct buffer *streams; /* [N, C] */
    const struct buffer *low;     /* [N, rank] = streams w_down */
    const struct buffer *output;  /* [N, C] of the branch */
    struct span mix;              /* b_mix [2] */
    struct span down, up;         /* w_down [C, rank] and w_up [rank, C], of the activations' type */
};

/* Computes low, of so few tokens that a GEMM would be slow, and with the same bits whatever their number. */
void laurel_low(struct operations *operations, size_t tokens, const struct laurel_values *values);

/* mixed [N, C], which may be the streams, and squares [N] of it. */
void laurel_forward(struct operations *operations, size_t tokens, const struct laurel_values *values,
                    const struct buffer *mixed, const struct buffer *squares);

/* d_streams [N, C]: gradient of mixed in, b times that out. This is the gradient of m, and of streams without the
 * path through w_down, which the caller's GEMMs add. Writes d_output [N, C] and the gradient of b_mix. */
void laurel_backward(struct operations *operations, size_t tokens, const struct laurel_values *values,
                     const struct buffer *d_streams, const struct buffer *d_output, struct span d_mix,
                     bool accumulate);

/* ---- attention over depth: branches read earlier states of the residual stream (attnres), or add what they read
 * of them to the stream (dar) */

/* What the input of one branch is read from, and what the forward pass keeps of it. State s < count is in slot
 * min(s apart, newest) of `states`. */
struct depth_read {
    const struct buffer *states; /* [slots, N, C] */
    int64_t count, apart, newest;
    const struct buffer
        *output;    /* [N, C] of the branch before, which becomes the newest state; NULL: it is there */
    int64_t before; /* slot of the state that the output is added to; -1: none */
    const struct buffer *stream; /* dar: [N, C] that goes on beside the states; else NULL */
    /* the gain [C] of the scores' RMSNorm unless shape.gainless, then the query [C], and dar's gate */
    struct span leaves;
    struct layer_norm norm;
    const struct buffer *scales;     /* [slots, N] 1 / rms of states; the forward pass adds that of the newest */
    const struct buffer *weights;    /* [N, heads, count]: the softmax of each head */
    const struct buffer *mixed;      /* [N, C] the sum of states with these weights */
    const struct buffer *normed;     /* [N, C] layer norm of it, or of the stream + gate times it */
    const struct buffer *statistics; /* [N, 2] of the layer norm */
};

/* What depth_read_backward writes. */
struct depth_read_gradients {
    const struct buffer *d_states; /* [count, N, C], added to with `adds`; else written */
    bool adds;
    const struct buffer *d_output; /* [N, C] of the branch before; NULL: the newest state is not made of one */
    const struct buffer *d_stream; /* dar: [N, C] of the stream, added to */
    struct layer_norm norm;
    struct span leaves;
};

/* The newest state, and scales, weights, mixed, normed and statistics. cl/depth_read.cl has the formulas. */
void depth_read_forward(struct operations *operations, size_t tokens, const struct depth_read *read);

/* From d_normed [N, C]. The gradient of the newest state is that of d_output, too; to d_states it is stored only if
 * it is the gradient of slot `before`, too, or if there is no output: else nothing reads it any more. */
void depth_read_backward(struct operations *operations, size_t tokens, const struct depth_read *read,
                         const struct buffer *d_normed, const struct depth_read_gradients *gradients,
                         bool accumulate);

/* Behind a branch of dar: next [N, C] = stream + output, which may be the stream, and the state in this slot =
 * output, or with `adds` is added to. Backward: d_output [N, C] = d_stream + the gradient of that state; it may be
 * d_stream. */
void depth_leave_forward(struct operations *operations, size_t tokens, const struct buffer *stream,
                         const struct buffer *output, int64_t slot, bool adds, const struct buffer *next,
                         const struct buffer *states);
void depth_leave_backward(struct operations *operations, size_t tokens, const struct buffer *d_stream,
                          const struct buffer *d_states, int64_t slot, const struct buffer *d_output);

/* ---- branches */

/* ---- queries and keys before attention */

/* Gains [D] of the norms of q and k, or their gradients; read and written where the norms have gains. */
struct head_gains {
    struct span q, k;
};

/* What the functions below read and write. Without qk_norm qkv is `raw`, which is changed in place. */
struct head_rows {
    const struct buffer *raw, *qkv; /* [N, (H + 2 K) D]: c_attn's output, and what attention reads */
    const struct buffer *table;     /* [positions, D], see head_rows_fill_table */
    const struct buffer *scales;    /* [N, H + K] float, of qk_norm: for the backward pass */
    struct head_gains gains;
};

/* Whether q and k are changed before attention: by the kind of positions or by qk_norm. If not, the functions below
 * are not to be called. */
bool head_rows_change(const struct operation_shape *shape);

/* Floats of the table of cosines and sines of so many positions, 0 unless the kind of positions reads one; and
 * fills it. */
struct rope {
    double theta;    /* base of the wavelengths */
    double fraction; /* of a head's pairs of channels, those that turn */
};
size_t head_rows_table(const struct operations *operations, int64_t positions);
int head_rows_fill_table(struct operations *operations, struct rope rope, int64_t positions,
                         const struct buffer *table);

/* raw -> qkv and scales; the first token of each sequence is at `position`. */
void head_rows_forward(struct operations *operations, struct token_shape tokens, int64_t position,
                       const struct head_rows *rows);

/* d_qkv [N, (H + 2 K) D] becomes the gradient of raw. Reads raw and scales, of qk_norm only. Sequences begin at
 * position 0. */
void head_rows_backward(struct operations *operations, struct token_shape tokens, const struct head_rows *rows,
                        const struct buffer *d_qkv, struct head_gains gradients, bool accumulate);

/* ---- embeddings of values */

/* The table [vocab_size, K D], of the type of embeddings, and the matrix [K, VALUE_EMBED_CHANNELS] of the gates, or
 * their gradients; a table without a buffer has none. */
struct value_embed {
    struct span table, gate;
};

/* What the forward pass reads, and keeps for the backward pass. */
struct value_embed_values {
    const struct buffer *ids;   /* [N] int, the tokens */
    const struct buffer *y;     /* [N, C] what values are made of */
    const struct buffer *gates; /* [N, K] float, in (0, 3) */
};

/* Adds to the values in qkv [N, (H + 2 K) D]. */
void value_embed_forward(struct operations *operations, size_t tokens, struct value_embed weights,
                         const struct value_embed_values *values, const struct buffer *qkv);

/* What value_embed_backward reads and writes. */
struct value_embed_gradients {
    const struct buffer *d_qkv;   /* [N, (H + 2 K) D], read */
    const struct buffer *d_y;     /* [N, C], added to */
    const struct buffer *d_gates; /* [N, K] float, scratch */
    struct token_groups groups;
    struct value_embed weights; /* the table's are added to whatever `accumulate` is, as those of wte */
};
void value_embed_backward(struct operations *operations, size_t tokens, struct value_embed weights,
                          const struct value_embed_values *values, const struct value_embed_gradients *gradients,
                          bool accumulate);

/* What attention reads and writes in its forward pass. */
struct attention_values {
    const struct buffer *qkv; /* [N, (H + 2 K) D], see struct head_shape */
    const struct buffer *y;   /* [N, H D] */
    const struct buffer *lse; /* [batch, H, sequence], float */
};

/* Scratch buffers. keys_t is used by both passes, the others by the backward pass only. keys_t and values_t are
 * transposed copies of keys and values in the tiles that cl/attention_cpu.cl describes: batch * K D *
 * operations_transposed elements, not touched where that is 0. */
struct attention_scratch {
    const struct buffer *keys_t, *values_t;
    const struct buffer *delta;     /* [batch, H, sequence], float: <y, d_y> of each query, for the kernel of dk */
    const struct buffer *d_queries; /* [N, H D], float sums of a 16-bit dq, on CPUs with whole heads */
};

void attention_forward(struct operations *operations, struct token_shape tokens,
                       const struct attention_values *values, const struct attention_scratch *scratch,
                       struct dropout dropout);

/* d_y [N, H D] -> d_qkv [N, (H + 2 K) D] */
void attention_backward(struct operations *operations, struct token_shape tokens,
                        const struct attention_values *values, const struct attention_scratch *scratch,
                        struct dropout dropout, const struct buffer *d_y, const struct buffer *d_qkv);

/* Keys and values of sequences that are being generated, a row each. */
struct attention_cache {
    const struct buffer *keys, *values; /* [rows, K, capacity, D] */
    int64_t capacity;                   /* positions */
};

/* Copies keys and values of qkv [N, (H + 2 K) D] to the cache: sequence i of the batch goes to cache row `row` + i,
 * at positions from `position` on. */
void attention_fill(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int64_t row,
                    int64_t position, struct attention_cache cache);

/* One token of each of the first `batch` rows, all at `position` < capacity: qkv [batch, (H + 2 K) D] -> y
 * [batch, H D]. Adds its keys and values to the cache, which has those of all positions before. scores
 * [batch, H, padded] is scratch, padded as for a sequence of the capacity. */
void attention_step(struct operations *operations, int64_t batch, int64_t position, const struct buffer *qkv,
                    struct attention_cache cache, const struct buffer *scores, const struct buffer *y);

/* With so few rows few_rows_multiply is faster than gemm_run. */
enum { FEW_ROWS = 16 };

/* y [rows, out], whose rows are y_row elements apart, = x [rows, in] w^T, w [out, in]; `in` a multiple of C, of M,
 * of the projections' row or of 16. x and w are of the activations' type, y of its buffer's. A row of the result
 * has the same bits whatever the number of rows. */
void few_rows_multiply(struct operations *operations, size_t rows, size_t out, size_t in, struct span x,
                       struct span w, struct span y, size_t y_row);

/* Of adapters: x [count] *= factor; and y [rows, out] += low [rows, rank] b^T, b [out, rank], of few rows, the bits
 * of each the same whatever their number. All are of the activations' type. */
void scale_elements(struct operations *operations, size_t count, float factor, const struct buffer *x);
struct adapter_rows {
    struct span low, b, y;
    size_t low_row, y_row; /* elements from row to row */
};
void adapter_add(struct operations *operations, size_t rows, size_t out, size_t rank,
                 const struct adapter_rows *arrays);

/* Weights kept in blocks (enum frozen_weights), and how they become weights [rows, columns] of the activations'
 * type, from the start of a buffer; their first block is `first`, and each row begins with a block. */
struct narrow_weights {
    const struct buffer *codes, *scales;
};
void narrow_expand(struct operations *operations, struct narrow_weights narrow, size_t first, size_t rows,
                   size_t columns, const struct buffer *weights);

/* y = f(x), and d becomes d * f'(x), for count elements (a multiple of C or M). f is the activation of the model's
 * MLPs (shape.mlp or, for MLP_GELU, shape.activation), which is in cl/activation_<name>.cl. */
void activation_forward(struct operations *operations, size_t count, const struct buffer *x,
                        const struct buffer *y);
void activation_backward(struct operations *operations, size_t count, const struct buffer *x,
                         const struct buffer *d);

/* Gated MLPs: y [rows, M] = f(g) u, x [rows, 2 M] having g and then u in each row; x becomes its gradient from
 * d_y [rows, M]. */
void gated_forward(struct operations *operations, size_t rows, const struct buffer *x, const struct buffer *y);
void gated_backward(struct operations *operations, size_t rows, const struct buffer *d_y, const struct buffer *x);

/* x [rows, width] += bias; its gradient from the first `count` columns of d [rows, width]. width a multiple of C,
 * of M or of 16. */
void bias_forward(struct operations *operations, size_t rows, size_t width, struct span bias,
                  const struct buffer *x);
void bias_backward(struct operations *operations, size_t rows, size_t width, size_t count, const struct buffer *d,
                   struct span d_bias, bool accumulate);

/* x [rows, width] in place, forward and backward alike. rate 0 launches nothing. */
void dropout_apply(struct operations *operations, size_t rows, size_t width, struct dropout dropout,
                   const struct buffer *x);

/* ---- output layer ("head") */

/* normed [N, C] = LN(sum_s x_s), or with shape.norm_sum sum_s LN(x_s), whose statistics are [N, S, 2]. */
void final_norm_forward(struct operations *operations, size_t tokens, const struct stream_mix *top);
void final_norm_backward(struct operations *operations, size_t tokens, const struct stream_mix *top,
                         const struct buffer *d_normed, const struct buffer *d_streams, struct layer_norm gradients,
                         bool accumulate);

/* The collapse of the streams with weights of their own (shape.collapsed): z [N, S], and the weights, the first S
 * numbers of rows of h; width_mix_forward then makes norm(sum_s h_s x_s) of them. Of `top`, packed is w_pre
 * [S C, S] as it is in the arena, and theta b_pre [S] with alpha_pre behind it; with shape.fixed_top b_pre alone,
 * and no z, squares and d_z. */
void collapse_forward(struct operations *operations, size_t tokens, const struct stream_mix *top);

/* What collapse_backward writes. */
struct collapse_gradients {
    const struct buffer *d_z;       /* [N, S] of the raw projections, of the activations' type */
    const struct buffer *d_streams; /* [N, S, C] */
    struct span d_small;
};

/* After width_mix_backward, from its d_u [N, C] and d_h [N, h_row]. The gradient of w is left to a GEMM: streams^T
 * d_z. */
void collapse_backward(struct operations *operations, size_t tokens, const struct stream_mix *top,
                       const struct buffer *d_u, const struct buffer *d_h,
                       const struct collapse_gradients *gradients, bool accumulate);

/* logits [rows, V], float, += bias [V]; its gradient from d_logits [rows, V], of the activations' type. With
 * shape.head_bias. */
void head_bias_forward(struct operations *operations, size_t rows, struct span bias, const struct buffer *logits);
void head_bias_backward(struct operations *operations, size_t rows, const struct buffer *d_logits,
                        struct span d_bias, bool accumulate);

/* losses[first + r] from row r of logits [rows, V], float, and targets[first + r]. The softmax is of the logits, or
 * with shape.softcap of softcap tanh(logits / softcap), or of what shape.softcap_kind says. d_logits [rows, V], of
 * the activations' type, becomes scale * (softmax - one-hot), times the slope of that function, unless it is NULL;
 * if activations are fp32, it may be the same buffer as logits. A target of -1 gives loss 0 and no gradient. */
void cross_entropy(struct operations *operations, size_t first, size_t rows, const struct buffer *logits,
                   const struct buffer *targets, float scale, const struct buffer *d_logits,
                   const struct buffer *losses);

/* out = scale * sum of x[0 .. count) (added to the old value with `add`) */
void sum_total(struct operations *operations, const struct buffer *x, size_t count, float scale, bool add,
               struct span out);

/* ---- optimizer */

/* out = scale * sqrt(sum of squares of x[0 .. count)); count a multiple of 64 */
void norm_total(struct operations *operations, const struct buffer *x, size_t count, float scale, struct span out);

/* out = sum of squares of the `count` elements at x; x.offset and count are multiples of 64. */
void square_total(struct operations *operations, struct span x, size_t count, struct span out);

/* Of a step; the last ones are of AdamW or of Muon (muon.h) alone. */
struct update_settings {
    float rate, decay;
    float clip;    /* largest global norm; 0: none */
    float unscale; /* what the gradients are multiplied with: 1, or 1 / the loss's scale */
    uint64_t key;  /* of the step's random bits, which round states of bf16 */
    float beta1, beta2, epsilon;
    int64_t step;          /* from 1, for bias correction */
    float centre;          /* that weights decay to: 0, or 1 */
    float momentum, scale; /* scale: of the orthogonal matrix */
};

/* What the optimizer reads and writes. Muon has one state, its momentum. */
struct update_arenas {
    const struct buffer *weights, *gradients;
    /* The copy of the weights in the activations' type, which the step updates as well. In fp32 there is none:
     * pass the weights again. */
    const struct buffer *weights_lowp;
    const struct buffer *first_moments, *second_moments; /* of shape.moments: of all weights or a rank's shard */
    size_t decayed_from;                                 /* weights from this one on take weight decay */
    size_t lowp_only_from; /* with shape.master in bf16 weights from this one on are in weights_lowp alone */
};

/* Elements [first, first + count) of weights and gradients; their states begin at these places. */
struct optimizer_range {
    uint64_t first, count, states_first[2];
};

/* One step on a part of the arenas, fast if all numbers of its range are multiples of 64. norm [1]: the
 * gradients' global norm, unscaled. If it is not finite nothing changes. */
void adamw_step(struct operations *operations, const struct update_arenas *arenas, struct optimizer_range range,
                const struct update_settings *settings, const struct buffer *norm);
