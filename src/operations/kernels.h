/* For the functions of operations.h, in a file for each family of kernels: what is compiled, and how it is
 * launched.
 */
#pragma once

#include "runtime/system/array.h"
#include "src/operations/operations.h"

struct operation_kernels {
    struct kernel embedding_forward, embedding_backward_sum, embedding_backward_tokens,
        embedding_backward_positions, stream_scale_backward, embedding_norm_backward;
    struct kernel projections_pack, projections_unpack, projections_multiply, projections_gradient;
    struct kernel hc_map_forward, hc_map_backward;
    struct kernel width_mix_forward, width_mix_backward, depth_mix_forward, depth_mix_backward, stream_backward;
    struct kernel lambdas_forward, lambdas_backward, stream_squares, stream_gram, mix_between, mix_backward;
    struct kernel laurel_low, laurel_forward, laurel_backward;
    struct kernel depth_read_forward, depth_read_backward, depth_leave_forward, depth_leave_backward;
    struct kernel ways_pack, ways_state_forward, ways_state_backward, ways_hidden_forward, ways_hidden_backward;
    struct kernel ways_bias_forward, ways_mix_forward, ways_mix_backward, way_mix_forward, way_mix_backward;
    struct kernel frame_enter, frame_between, frame_output_gradient, frame_backward;
    struct kernel attention_transpose, attention_forward, attention_backward_queries, attention_backward_keys;
    struct kernel attention_fill, attention_step;
    struct kernel value_embed_forward, value_embed_backward, value_embed_backward_table;
    struct kernel head_rows_forward, head_rows_backward, head_gains_backward;
    struct kernel one_row_multiply, few_rows_multiply;
    struct kernel activation_forward, activation_backward, bias_add, dropout_apply;
    struct kernel scale_elements, adapter_add, narrow_expand;
    struct kernel gated_forward, gated_backward;
    struct kernel collapse_forward, collapse_backward;
    struct kernel gates_pack, gates_unpack, gates_begin, gates_leave, gates_leave_backward, gates_streams_backward;
    struct kernel gates_hidden_forward, gates_hidden_backward, gates_open, gates_forward, gates_backward;
    struct kernel final_norm_forward, final_norm_backward, cross_entropy, head_bias_forward, head_bias_backward;
    struct kernel column_sums, partials_add, square_sums, sum_total, adamw;
    struct kernel muon_momentum, muon_normalise, muon_polynomial, muon_update;
};

/* ---- attention */

#define ATTENTION_BF16_INSTRUCTIONS "AVX512_BF16" /* as runtime/system/host.h has it */

/* Whether operations->attention is the algorithm of this name. */
bool attention_is(const struct operations *operations, const char *name);

/* Goes on to the next algorithm that takes device and shape, which is not built yet. -1: there is none. */
int attention_next(struct operations *operations);

/* Releases the kernels of all algorithms but matrix cores, and those for matrix cores. */
void operations_release_attention(struct operations *operations);
void attention_matrix_cores_close(struct operations *operations);

/* ---- sizes */

#define FEW_ROWS_BLOCK 4 /* rows of x, and of W, whose dot products few_rows_multiply has in registers */

#define HEAD_BIAS_CHUNKS 32 /* of rows of logits, at most, for the gradient of their bias */

/* ---- launching */

static inline size_t token_count(struct token_shape tokens) {
    return (size_t)(tokens.batch * tokens.sequence);
}

/* A row kernel: `groups` work-groups of one row's lanes. */
#define RUN_ROWS(kernel, groups, ...)                                                                              \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel, (size_t)(groups), operations->compute->lanes,    \
               __VA_ARGS__)

/* At least `items` work-items, in whole groups. */
#define RUN_GROUPS(kernel, items, group, ...)                                                                      \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel, groups_for(items, group), group, __VA_ARGS__)

/* A kernel of which an item is much work: groups of one on a CPU. */
#define RUN_ITEMS(kernel, items, ...) RUN_GROUPS(kernel, items, operations->policy.item_group, __VA_ARGS__)

/* Elementwise kernels take one vector an item; larger groups spare a CPU the cost of each group. */
#define ELEMENT_GROUP                            64
#define RUN_ELEMENTS(kernel, count, vector, ...) RUN_GROUPS(kernel, (count) / (vector), ELEMENT_GROUP, __VA_ARGS__)

/* Gradients of parameters, which a kernel adds to or writes, and how it does: its argument `keep`. */
#define ARG_GRADIENTS(b, count, accumulate)      ARG_I32(accumulate), ARG_MEMORY_(b, 0, count, accumulate, 1)
#define ARG_SPAN_GRADIENTS(s, count, accumulate) ARG_I32(accumulate), ARG_SPAN_(s, count, accumulate, 1)

/* Row kernels sum parameter gradients over chunks of rows: enough chunks to fill the device, the same number on
 * every run. */
struct chunking {
    size_t per_chunk, chunks;
};
struct chunking chunk_rows(size_t rows, size_t most);

/* Columns [first, first + count) of partial sums, and the gradients that their sums over the chunks are part of; a
 * count of 0: none. */
struct partial_target {
    size_t first, count;
    struct span out;
};
enum { PARTIAL_TARGETS = 3 };

/* Adds up operations->partials [chunks, width]. The targets' outs are of one arena. */
void add_partials(struct operations *operations, size_t chunks, size_t width,
                  const struct partial_target targets[PARTIAL_TARGETS], bool accumulate);
/* The same for the first `count` columns alone. */
void add_columns(struct operations *operations, size_t chunks, size_t width, size_t count, struct span out,
                 bool accumulate);

/* The first two targets of partial sums that begin with those of a layer norm's gain and bias [2 C]. */
void target_norm(const struct operations *operations, struct layer_norm gradients,
                 struct partial_target targets[2]);

/* Whether norms have a bias. */
static inline bool has_norm_bias(const struct operations *operations) {
    return operations->shape.bias && norm_has_bias(operations->shape.norm);
}

/* Partial sums that a chunk writes of a norm's gradients: of the gain [C] and, if there is one, of the bias [C]. */
static inline size_t norm_partials(const struct operations *operations) {
    return (has_norm_bias(operations) ? 2 : 1) * (size_t)operations->shape.channels;
}

/* Elements of what the kernels of hyper-connections read and write: of all streams, of a branch's input, of
 * squares, z, H_pre and H of so many tokens; and of theta and the packed projections of a sublayer, and of a row of
 * channels. H is not read with plain residuals. */
struct stream_sizes {
    size_t streams, channels, squares, z, pre, h, theta, packed, width;
};
struct stream_sizes stream_sizes(const struct operations *operations, size_t tokens);

/* Partial sums of a work-group of the fused frame: of the gradients of gain and bias [2 C], and of theta. */
size_t frame_partials(const struct operations *operations);

/* Floats of scratch of the fused frame: the partial sums of all work-groups, and what each row of them needs. 0:
 * not fused. */
size_t frame_scratch(const struct operations *operations);
