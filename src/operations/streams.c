/* Hyper-connections and attention over depth. */
#include "runtime/gemm/gemm.h"
#include "runtime/system/array.h"
#include "src/operations/kernels.h"

size_t norm_length(const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    return (size_t)(shape->streams * stream_channels(shape)) / operations->norm_groups;
}

int64_t stream_copies(const struct operation_shape *shape) {
    return shape->residual->has_fractions ? 1 : shape->streams;
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
        if (width > 0 && residual_leaf_exists(shape->residual, leaf, &shape->settings)) {
            *leaves++ = (struct projection_leaf){w_at, gain_at, width, column, packed_at};
            column += width;
        }
    }
}

/* Elements of the projections of so many leaves, which are those of whole sublayers. */
static size_t projection_elements(const struct operations *operations, size_t leaves) {
    return leaves / operations->matrices * operations->columns * norm_length(operations);
}

void projections_pack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                      const struct buffer *packed) {
    const size_t elements = projection_elements(operations, table.count);
    const size_t groups = table.count * groups_for(norm_length(operations), ELEMENT_GROUP);
    RUN_GROUPS(projections_pack, groups * ELEMENT_GROUP, ELEMENT_GROUP, ARG_IN(weights, elements),
               ARG_IN(table.leaves, table.count * LEAF_INTEGERS), ARG_I32(table.first), ARG_OUT(packed, elements));
}

void projections_unpack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                        const struct buffer *d_packed, const struct buffer *gradients, bool accumulate) {
    const size_t each = operations->matrices, sublayers = table.count / each;
    const size_t elements = projection_elements(operations, table.count), length = norm_length(operations);
    const size_t gains = operations->shape.gainless ? 0 : sublayers * length;
    RUN_GROUPS(projections_unpack, sublayers * groups_for(length, ELEMENT_GROUP) * ELEMENT_GROUP, ELEMENT_GROUP,
               ARG_IN(weights, elements), ARG_IN(table.leaves, table.count * LEAF_INTEGERS), ARG_I32(table.first),
               ARG_I32(each), ARG_IN(d_packed, elements), ARG_GRADIENTS(gradients, elements + gains, accumulate));
}

/* Measured on CPUs against the host's BLAS and bf16 instructions. */
bool projections_avoid_gemm(const struct operations *operations) {
    const struct policy *policy = &operations->policy;
    const bool fast_gemm = operations->shape.type != ELEMENT_FP32 && gemm_facts(operations->compute).matrix_cores;
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
        .streams = tokens * streams * (size_t)stream_channels(shape),
        .channels = tokens * width,
        .squares = tokens * streams,
        .z = (shape->settings.is_static ? 1 : tokens) * operations->z_row,
        .pre = tokens * operations->pre,
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
            ARG_U64(tokens), ARG_MEMORY_(mix->z, 0, sizes.z, 1, !operations->shape.settings.is_static),
            ARG_OUT(mix->h, sizes.h));
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
            ARG_U64(chunks.per_chunk), ARG_OUT(d_z, tokens * operations->z_row),
            ARG_OUT(rms_scale, tokens * operations->norm_groups),
            ARG_OUT(&operations->partials, groups * lanes * theta));
    add_columns(operations, groups, lanes * theta, theta, d_theta, accumulate);
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
             ARG_OUT(d_h, sizes.h ? sizes.pre : 0),
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
             ARG_OUT(d_h, sizes.h - sizes.pre)); /* all but H_pre's */
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

void stream_squares(struct operations *operations, size_t tokens, const struct buffer *streams,
                    const struct buffer *squares) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(stream_squares, tokens, ARG_IN(streams, sizes.streams), ARG_OUT(squares, sizes.squares));
}

void lambdas_forward(struct operations *operations, size_t tokens, const struct buffer *streams,
                     const struct buffer *first, struct span lambdas, const struct buffer *mixed,
                     const struct buffer *squares) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(lambdas_forward, tokens, ARG_IN(streams, sizes.streams), ARG_IN(first, sizes.streams),
             ARG_SPAN_IN(lambdas, 2), ARG_OUT(mixed, sizes.streams), ARG_OUT(squares, sizes.squares));
}

void lambdas_backward(struct operations *operations, size_t tokens, const struct buffer *streams,
                      const struct buffer *first, struct span lambdas, const struct lambda_gradients *gradients,
                      bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    RUN_ROWS(lambdas_backward, chunks.chunks, ARG_IN(streams, sizes.streams), ARG_IN(first, sizes.streams),
             ARG_SPAN_IN(lambdas, 2), ARG_I32(streams == first), ARG_U64(tokens),
             ARG_IN_OUT(gradients->d_streams, sizes.streams), ARG_IN_OUT(gradients->d_first, sizes.streams),
             ARG_OUT(&operations->partials, chunks.chunks * 2));
    add_columns(operations, chunks.chunks, 2, 2, gradients->lambdas, accumulate);
}

void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_ROWS(stream_gram, tokens, ARG_IN(streams, sizes.streams),
             ARG_OUT(gram, (size_t)operations->shape.streams * sizes.squares));
}

/* ---- the fused frame: all of it in one kernel each way */

bool frame_is_fused(const struct operations *operations) {
    return operations->policy.frame_rows > 0;
}

size_t frame_partials(const struct operations *operations) {
    const size_t sums = 2 * (size_t)operations->shape.channels + operations->theta;
    return (sums + 15) / 16 * 16; /* in whole vectors */
}

/* Of each row of a work-group, ROW_SCRATCH of cl/frame.cl: d_h, rms_scale and, in 16 bits, d_z in float of its
 * token. */
static size_t row_floats(const struct operations *operations) {
    const size_t z = operations->shape.type == ELEMENT_FP32 ? 0 : operations->columns;
    return operations->h_row + operations->norm_groups * (1 + z);
}

size_t frame_scratch(const struct operations *operations) {
    const struct policy *policy = &operations->policy;
    const size_t rows = policy->frame_rows * (operations->theta + row_floats(operations));
    return policy->frame_rows ? policy->frame_groups * (frame_partials(operations) + rows) : 0;
}

/* ---- launching */

#define RUN_FRAME(kernel, groups, ...)                                                                             \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel, (groups),                                        \
               operations->compute->lanes * operations->policy.frame_rows, __VA_ARGS__)

/* The packed projections, and the parameters with their offsets: theta's and the gain's. */
#define ARG_SUBLAYER(mix)                                                                                          \
    ARG_SPAN_IN((mix)->packed, sizes.packed), ARG_SPAN_IN((mix)->theta, sizes.theta),                              \
        ARG_U64((mix)->norm.gain.offset)

#define ARG_ENTER(mix)                                                                                             \
    ARG_SUBLAYER(mix), ARG_U64((mix)->norm.bias.offset), ARG_OUT((mix)->z, sizes.z), ARG_OUT((mix)->h, sizes.h),   \
        ARG_OUT((mix)->normed, sizes.channels), ARG_OUT((mix)->statistics, 2 * tokens)

void frame_leave(struct operations *operations, const struct stream_mix *from) {
    operations->pending_leave = from;
}

void frame_enter(struct operations *operations, size_t tokens, const struct stream_mix *mix) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const size_t groups = groups_for(tokens, operations->policy.frame_rows);
    const struct stream_mix *from = operations->pending_leave;
    operations->pending_leave = NULL;
    if (from) {
        RUN_FRAME(frame_between, groups, ARG_IN(from->streams, sizes.streams), ARG_IN(from->h, sizes.h),
                  ARG_IN(from->output, sizes.channels), ARG_U64(tokens), ARG_OUT(mix->streams, sizes.streams),
                  ARG_OUT(mix->squares, sizes.squares), ARG_ENTER(mix));
    } else {
        RUN_FRAME(frame_enter, groups, ARG_IN(mix->streams, sizes.streams), ARG_IN(mix->squares, sizes.squares),
                  mix->read ? ARG_IN(mix->read, sizes.squares) : ARG_UNUSED(mix->squares), ARG_U64(tokens),
                  ARG_ENTER(mix));
    }
}

void frame_output_gradient(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                           const struct buffer *d_mixed, const struct buffer *d_output) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_FRAME(frame_output_gradient, groups_for(tokens, operations->policy.frame_rows), ARG_IN(mix->h, sizes.h),
              ARG_IN(d_mixed, sizes.streams), ARG_U64(tokens), ARG_OUT(d_output, sizes.channels));
}

/* Tokens of a work-group in the backward pass: whole rows of work-groups, as equal as they can be. */
static size_t tokens_per_group(const struct operations *operations, size_t tokens) {
    const size_t rows = operations->policy.frame_rows, rounds = groups_for(tokens, rows);
    return groups_for(rounds, size_smaller(rounds, operations->policy.frame_groups)) * rows;
}

void frame_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                    const struct frame_gradients *gradients, bool accumulate) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const size_t each = tokens_per_group(operations, tokens), groups = groups_for(tokens, each);
    const size_t rows = operations->policy.frame_rows, last = size_smaller(rows, tokens - (groups - 1) * each);
    const size_t sums = groups * (norm_partials(operations) + (1 + rows) * sizes.theta);
    RUN_FRAME(frame_backward, groups, ARG_IN(mix->streams, sizes.streams), ARG_IN(mix->h, sizes.h),
              ARG_IN(mix->output, sizes.channels), ARG_IN(mix->squares, sizes.squares), ARG_IN(mix->z, sizes.z),
              ARG_IN(mix->statistics, 2 * tokens), ARG_U64(tokens), ARG_SUBLAYER(mix),
              ARG_OUT(gradients->d_z, sizes.z), ARG_IN_OUT(gradients->d_streams, sizes.streams),
              ARG_IN(gradients->h_before ? gradients->h_before : mix->h, sizes.h),
              ARG_IN_OUT(gradients->d_branch, sizes.channels),
              gradients->d_read ? ARG_IN_OUT(gradients->d_read, sizes.squares) : ARG_UNUSED(gradients->d_branch),
              ARG_OUT(&operations->partials, sums + ((groups - 1) * rows + last) * row_floats(operations)));
    struct partial_target targets[PARTIAL_TARGETS];
    target_norm(operations, gradients->norm, targets);
    targets[2] = (struct partial_target){2 * sizes.width, sizes.theta, gradients->d_theta};
    add_partials(operations, groups, frame_partials(operations), targets, accumulate);
}

/* ---- weights of branch and stream, and a product of low rank */

/* What both passes read. */
#define ARG_LAUREL(values)                                                                                         \
    ARG_IN((values)->streams, size), ARG_IN(low > 0 ? (values)->low : (values)->streams, low),                     \
        ARG_SPAN_IN((values)->up, up), ARG_SPAN_IN((values)->mix, mix), ARG_IN((values)->output, size)

void laurel_low(struct operations *operations, size_t tokens, const struct laurel_values *values) {
    const size_t channels = (size_t)operations->shape.channels, rank = (size_t)laurel_rank(&operations->shape);
    RUN_GROUPS(laurel_low, tokens * rank, ELEMENT_GROUP, ARG_IN(values->streams, tokens * channels),
               ARG_SPAN_IN(values->down, channels * rank), ARG_U64(tokens * rank),
               ARG_OUT(values->low, tokens * rank));
}

void laurel_forward(struct operations *operations, size_t tokens, const struct laurel_values *values,
                    const struct buffer *mixed, const struct buffer *squares) {
    const size_t channels = (size_t)operations->shape.channels, rank = (size_t)laurel_rank(&operations->shape);
    const size_t size = tokens * channels, low = tokens * rank, up = rank * channels;
    const size_t mix = laurel_has_weights(&operations->shape) ? 2 : 0;
    RUN_ROWS(laurel_forward, tokens, ARG_LAUREL(values), ARG_OUT(mixed, size), ARG_OUT(squares, tokens));
}

void laurel_backward(struct operations *operations, size_t tokens, const struct laurel_values *values,
                     const struct buffer *d_streams, const struct buffer *d_output, struct span d_mix,
                     bool accumulate) {
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t channels = (size_t)operations->shape.channels, rank = (size_t)laurel_rank(&operations->shape);
    const size_t mix = laurel_has_weights(&operations->shape) ? 2 : 0;
    const size_t size = tokens * channels, low = mix ? tokens * rank : 0, up = mix ? rank * channels : 0;
    RUN_ROWS(laurel_backward, chunks.chunks, ARG_LAUREL(values), ARG_U64(tokens), ARG_IN_OUT(d_streams, size),
             ARG_OUT(d_output, size), ARG_OUT(&operations->partials, 2 * chunks.chunks));
    if (mix > 0) {
        add_columns(operations, chunks.chunks, 2, 2, d_mix, accumulate);
    }
}

/* ---- attention over depth */

/* As in cl/depth_read.cl: `before` where there is no output, and what becomes of the gradients of states. */
enum { NOTHING_ADDED = -2 };
enum { ADDS = 1, KEEPS_NEWEST = 2, HAS_OUTPUT = 4 };

/* Elements of the gain, if there is one, the query and, if there is one, the gate. */
static size_t leaf_elements(const struct operations *operations) {
    const struct operation_shape *shape = &operations->shape;
    return (shape->gainless ? 1 : 2) * (size_t)shape->channels + depth_is_gated(shape);
}

void depth_read_forward(struct operations *operations, size_t tokens, const struct depth_read *read) {
    const size_t channels = (size_t)operations->shape.channels, size = tokens * channels;
    const size_t count = (size_t)read->count, newest = (size_t)read->newest, leaves = leaf_elements(operations);
    const bool adds = read->output != NULL;
    const int before = adds ? (int)read->before : NOTHING_ADDED;
    RUN_ROWS(depth_read_forward, tokens, ARG_IN(read->states, (count - adds + (before >= 0)) * size),
             ARG_MEMORY_(read->states, adds ? newest * size : 0, adds ? size : 0, 0, 1), ARG_U64(tokens),
             ARG_I32(count - 1), ARG_I32(read->apart), ARG_I32(newest), ARG_I32(before),
             ARG_IN(adds ? read->output : read->states, adds ? size : 0),
             ARG_IN(read->stream ? read->stream : read->states, read->stream ? size : 0),
             ARG_SPAN_IN(read->leaves, leaves), ARG_U64(read->norm.gain.offset), ARG_U64(read->norm.bias.offset),
             ARG_MEMORY_(read->scales, newest * tokens, tokens, count > 1, 1),
             ARG_OUT(read->weights, count * tokens * (size_t)depth_heads(&operations->shape)),
             ARG_OUT(read->mixed, size), ARG_OUT(read->normed, size), ARG_OUT(read->statistics, 2 * tokens));
}

void depth_read_backward(struct operations *operations, size_t tokens, const struct depth_read *read,
                         const struct buffer *d_normed, const struct depth_read_gradients *gradients,
                         bool accumulate) {
    const struct chunking chunks = chunk_rows(tokens, operations->policy.row_chunks);
    const size_t channels = (size_t)operations->shape.channels, size = tokens * channels;
    const size_t count = (size_t)read->count, leaves = leaf_elements(operations);
    const size_t gate =
        depth_is_gated(&operations->shape) ? operations->policy.depth_vector : 0; /* a vector's place */
    const size_t width = (operations->shape.gainless ? 3 : 4) * channels + gate;
    const bool has_output = gradients->d_output != NULL, keeps = !has_output || read->before >= 0;
    const size_t kept = (count - !keeps) * size;
    const int what = ADDS * gradients->adds | KEEPS_NEWEST * keeps | HAS_OUTPUT * has_output;
    const struct buffer *d_output = has_output ? gradients->d_output : gradients->d_stream;
    RUN_ROWS(depth_read_backward, chunks.chunks, ARG_IN(read->states, count * size), ARG_U64(tokens),
             ARG_I32(count), ARG_I32(read->apart), ARG_I32(read->newest), ARG_I32(what), ARG_IN(read->mixed, size),
             ARG_IN(read->stream ? read->stream : read->states, read->stream ? size : 0),
             ARG_IN(read->leaves.buffer, leaves + channels), ARG_U64(read->leaves.offset),
             ARG_U64(read->norm.gain.offset), ARG_IN(read->scales, count * tokens),
             ARG_IN(read->weights, count * tokens * (size_t)depth_heads(&operations->shape)),
             ARG_IN(read->statistics, 2 * tokens), ARG_IN(d_normed, size),
             ARG_MEMORY_(gradients->d_states, 0, kept, gradients->adds, 1),
             ARG_MEMORY_(d_output ? d_output : gradients->d_states, 0, d_output ? size : 0, read->stream != NULL,
                         1),
             ARG_OUT(&operations->partials, chunks.chunks * (norm_partials(operations) + leaves)));
    struct partial_target targets[PARTIAL_TARGETS];
    target_norm(operations, gradients->norm, targets);
    targets[2] = (struct partial_target){2 * channels, leaves, gradients->leaves};
    add_partials(operations, chunks.chunks, width, targets, accumulate);
}

void depth_leave_forward(struct operations *operations, size_t tokens, const struct buffer *stream,
                         const struct buffer *output, int64_t slot, bool adds, const struct buffer *next,
                         const struct buffer *states) {
    const size_t size = tokens * (size_t)operations->shape.channels, at = (size_t)slot * size;
    RUN_ELEMENTS(depth_leave_forward, size, operations->policy.depth_vector, ARG_IN(stream, size),
                 ARG_IN(output, size), ARG_U64(size), ARG_U64(at), ARG_I32(adds), ARG_OUT(next, size),
                 ARG_MEMORY_(states, at, size, adds, 1));
}

void depth_leave_backward(struct operations *operations, size_t tokens, const struct buffer *d_stream,
                          const struct buffer *d_states, int64_t slot, const struct buffer *d_output) {
    const size_t size = tokens * (size_t)operations->shape.channels, at = (size_t)slot * size;
    RUN_ELEMENTS(depth_leave_backward, size, operations->policy.depth_vector, ARG_IN(d_stream, size),
                 ARG_MEMORY_(d_states, at, size, 1, 0), ARG_U64(size), ARG_U64(at), ARG_OUT(d_output, size));
}
