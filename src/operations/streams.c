#include "runtime/gemm/gemm.h"
#include "src/operations/kernels.h"

size_t norm_length(const struct operations *operations) {
    return (size_t)(operations->shape.streams * operations->shape.channels) / operations->norm_groups;
}

/* ---- projections */

void projections_list(const struct operations *operations, const uint64_t *at, uint64_t gain_at, uint64_t packed_at,
                      struct projection_leaf *leaves) {
    const struct operation_shape *shape = &operations->shape;
    uint64_t column = 0;
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        if (leaf->kind != LEAF_PROJECTION) {
            continue;
        }
        const uint64_t w_at = *at++, width = (uint64_t)leaf->width(shape->streams);
        if (width > 0) {
            *leaves++ = (struct projection_leaf){w_at, gain_at, width, column, packed_at};
            column += width;
        }
    }
}

/* Projection matrices of a sublayer. */
static size_t leaves_of_sublayer(const struct operations *operations) {
    return (size_t)residual_projection_matrices(operations->shape.residual, operations->shape.streams);
}

/* Elements of the projections of so many leaves, which are those of whole sublayers. */
static size_t projection_elements(const struct operations *operations, size_t leaves) {
    return leaves / leaves_of_sublayer(operations) * operations->columns * norm_length(operations);
}

void projections_pack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                      const struct buffer *packed) {
    const size_t elements = projection_elements(operations, table.count);
    const size_t groups = table.count * groups_for(norm_length(operations), ELEMENT_GROUP);
    RUN_GROUPS(projections_pack, groups * ELEMENT_GROUP, ELEMENT_GROUP, ARG_IN(weights, elements),
               ARG_IN(table.leaves, table.count * LEAF_INTEGERS), ARG_OUT(packed, elements));
}

void projections_unpack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                        const struct buffer *d_packed, const struct buffer *gradients, bool accumulate) {
    const size_t each = leaves_of_sublayer(operations), sublayers = table.count / each;
    const size_t elements = projection_elements(operations, table.count), length = norm_length(operations);
    const size_t gains = operations->shape.gainless ? 0 : sublayers * length;
    RUN_GROUPS(projections_unpack, sublayers * groups_for(length, ELEMENT_GROUP) * ELEMENT_GROUP, ELEMENT_GROUP,
               ARG_IN(weights, elements), ARG_IN(table.leaves, table.count * LEAF_INTEGERS), ARG_I32(table.first),
               ARG_I32(each), ARG_IN(d_packed, elements), ARG_GRADIENTS(gradients, elements + gains, accumulate));
}

/* Measured on CPUs against the host's BLAS and bf16 instructions. */
bool projections_avoid_gemm(const struct operations *operations) {
    const struct policy *policy = &operations->policy;
    const bool fast_gemm = operations->shape.type != ELEMENT_FP32 && gemm_matrix_cores(operations->compute).name;
    return operations->columns <= (fast_gemm ? policy->projection_columns_16_bit : policy->projection_columns);
}

void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          struct span packed, const struct buffer *z) {
    const size_t rows = tokens * operations->norm_groups;
    const size_t length = norm_length(operations), columns = operations->columns;
    const size_t group_rows = operations->policy.projection_rows;
    RUN_ROWS(projections_multiply, groups_for(rows, group_rows), ARG_IN(streams, rows * length), ARG_U64(0),
             ARG_U32(rows), ARG_I32(length), ARG_SPAN_IN(packed, columns * length), ARG_I32(columns),
             ARG_U32(group_rows), ARG_I32(columns), ARG_I32(1), ARG_OUT(z, rows * columns), ARG_U64(0),
             ARG_I32(columns));
}

void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, struct span d_packed) {
    const size_t rows = tokens * operations->norm_groups, columns = operations->columns;
    const size_t length = norm_length(operations);
    const size_t items = length / operations->policy.vector / operations->policy.projection_vectors;
    RUN_ITEMS(projections_gradient, items, ARG_IN(streams, rows * length), ARG_IN(d_z, rows * columns),
              ARG_U64(rows), ARG_SPAN_OUT(d_packed, columns * length));
}

/* ---- map */

struct stream_sizes stream_sizes(const struct operations *operations, size_t tokens) {
    const struct operation_shape *shape = &operations->shape;
    const size_t streams = (size_t)shape->streams, width = (size_t)shape->channels;
    return (struct stream_sizes){
        .streams = tokens * streams * width,
        .channels = tokens * width,
        .squares = tokens * streams,
        .z = tokens * operations->norm_groups * operations->columns,
        .h = residual_has_matrices(shape->residual) ? tokens * operations->h_row : 0,
        .theta = operations->theta,
        .packed = operations->columns * norm_length(operations),
        .width = width,
    };
}

/* The map's kernels take an item a token or a chunk of tokens, in groups of map_lanes. */
#define RUN_MAP(kernel, items, ...)                                                                                \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel, groups_for(items, operations->policy.map_lanes), \
               operations->policy.map_lanes, __VA_ARGS__)

void map_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_MAP(hc_map_forward, tokens, ARG_SPAN_IN(mix->theta, sizes.theta), ARG_IN(mix->squares, sizes.squares),
            ARG_U64(tokens), ARG_IN_OUT(mix->z, sizes.z), ARG_OUT(mix->h, sizes.h));
}

void map_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  struct span d_theta, bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const size_t theta = sizes.theta, lanes = operations->policy.map_lanes;
    const struct chunking chunks = chunk_rows(tokens, operations->policy.map_chunks);
    const size_t groups = groups_for(chunks.chunks, lanes);
    RUN_MAP(hc_map_backward, chunks.chunks, ARG_SPAN_IN(mix->theta, theta), ARG_IN(mix->squares, sizes.squares),
            ARG_IN(mix->z, sizes.z), ARG_IN(mix->h, sizes.h), ARG_IN(d_h, sizes.h), ARG_U64(tokens),
            ARG_U64(chunks.per_chunk), ARG_OUT(d_z, sizes.z), ARG_OUT(rms_scale, tokens * operations->norm_groups),
            ARG_OUT(&operations->partials, groups * lanes * theta));
    add_partials(operations, groups, lanes * theta, (struct partial_target[PARTIAL_TARGETS]){{0, theta, d_theta}},
                 accumulate);
}

/* ---- the frame */

/* H whose pre part weighs the streams in the width mix. */
static const struct buffer *read_of(const struct stream_mix *mix) {
    return mix->read ? mix->read : mix->h;
}

void width_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(width_mix_forward, tokens, ARG_IN(mix->streams, sizes.streams), ARG_IN(read_of(mix), sizes.h),
             ARG_SPAN_IN(mix->norm.gain, sizes.width), ARG_U64(mix->norm.bias.offset),
             ARG_OUT(mix->normed, sizes.channels), ARG_OUT(mix->statistics, 2 * tokens));
}

void width_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_normed, const struct buffer *d_u, const struct buffer *d_h,
                        struct layer_norm gradients, bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    RUN_ROWS(width_mix_backward, chunks.chunks, ARG_IN(mix->streams, sizes.streams), ARG_IN(read_of(mix), sizes.h),
             ARG_SPAN_IN(mix->norm.gain, sizes.width), ARG_IN(mix->statistics, 2 * tokens),
             ARG_IN(d_normed, sizes.channels), ARG_U64(tokens), ARG_OUT(d_u, sizes.channels),
             ARG_OUT(d_h, sizes.h ? sizes.squares : 0),
             ARG_OUT(&operations->partials, chunks.chunks * norm_partials(operations)));
    struct partial_target targets[PARTIAL_TARGETS] = {{0}};
    target_norm(operations, gradients, targets);
    add_partials(operations, chunks.chunks, 2 * sizes.width, targets, accumulate);
}

void depth_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                       const struct buffer *mixed, const struct buffer *squares) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(depth_mix_forward, tokens, ARG_IN(mix->streams, sizes.streams), ARG_IN(mix->h, sizes.h),
             ARG_IN(mix->output, sizes.channels), ARG_OUT(mixed, sizes.streams), ARG_OUT(squares, sizes.squares));
}

void depth_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_mixed, const struct buffer *d_output, const struct buffer *d_h) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(depth_mix_backward, tokens, ARG_IN(mix->streams, sizes.streams), ARG_IN(mix->h, sizes.h),
             ARG_IN(mix->output, sizes.channels), ARG_IN(d_mixed, sizes.streams), ARG_OUT(d_output, sizes.channels),
             ARG_OUT(d_h, sizes.h - sizes.squares)); /* all but H_pre's */
}

void mix_between(struct operations *operations, size_t tokens, const struct stream_mix *from,
                 const struct stream_mix *to) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(mix_between, tokens, ARG_IN(from->streams, sizes.streams), ARG_IN(from->h, sizes.h),
             ARG_IN(from->output, sizes.channels), ARG_IN(read_of(to), sizes.squares),
             ARG_SPAN_IN(to->norm.gain, sizes.width), ARG_U64(to->norm.bias.offset),
             ARG_OUT(to->streams, sizes.streams), ARG_OUT(to->squares, sizes.squares),
             ARG_OUT(to->normed, sizes.channels), ARG_OUT(to->statistics, 2 * tokens));
}

void mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *from,
                  const struct stream_mix *to, const struct mix_gradients *gradients, bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    RUN_ROWS(mix_backward, chunks.chunks, ARG_IN(to->streams, sizes.streams), ARG_IN(read_of(to), sizes.squares),
             ARG_SPAN_IN(to->norm.gain, sizes.width), ARG_IN(to->statistics, 2 * tokens),
             ARG_IN(gradients->rms_scale, tokens * operations->norm_groups), ARG_IN(from->streams, sizes.streams),
             ARG_IN(from->h, sizes.h), ARG_IN(from->output, sizes.channels), ARG_U64(tokens),
             ARG_IN_OUT(gradients->d_branch, sizes.channels), ARG_IN_OUT(gradients->d_streams, sizes.streams),
             ARG_OUT(gradients->d_read, sizes.squares), ARG_OUT(gradients->d_h, sizes.h - sizes.squares),
             ARG_OUT(&operations->partials, chunks.chunks * norm_partials(operations)));
    if (gradients->norm.gain.buffer) {
        struct partial_target targets[PARTIAL_TARGETS] = {{0}};
        target_norm(operations, gradients->norm, targets);
        add_partials(operations, chunks.chunks, 2 * sizes.width, targets, accumulate);
    }
}

void stream_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                     const struct buffer *d_u, const struct buffer *rms_scale, const struct buffer *d_streams) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const bool plain = !residual_has_matrices(operations->shape.residual);
    RUN_ROWS(stream_backward, tokens, ARG_IN(mix->streams, plain ? 0 : sizes.streams), ARG_IN(mix->h, sizes.h),
             ARG_IN(d_u, sizes.channels), ARG_IN(rms_scale, plain ? 0 : tokens * operations->norm_groups),
             ARG_IN_OUT(d_streams, sizes.streams));
}

void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(stream_gram, tokens, ARG_IN(streams, sizes.streams),
             ARG_OUT(gram, (size_t)operations->shape.streams * sizes.squares));
}
