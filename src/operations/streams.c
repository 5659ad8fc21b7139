#include "src/operations/kernels.h"

size_t norm_length(const struct operations *operations) {
    return (size_t)(operations->shape.streams * operations->shape.channels) / operations->norm_groups;
}

size_t gradient_width(const struct operations *operations) {
    const size_t vectors = norm_length(operations) / operations->vector;
    size_t width = 4;
    while (width > 1 &&
           (vectors % width != 0 || vectors / width < 4 * (size_t)operations->compute->device.compute_units)) {
        width /= 2;
    }
    return width;
}

size_t projection_rows(const struct operations *operations) {
    return operations->compute->device.is_gpu ? 4 : 8;
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

/* Elements of the projections of so many leaves, which are those of whole sublayers. */
static size_t projection_elements(const struct operations *operations, size_t leaves) {
    const size_t each = (size_t)residual_projections(operations->shape.residual, operations->shape.streams);
    return each ? leaves / each * operations->columns * norm_length(operations) : 0;
}

void projections_pack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                      const struct buffer *packed) {
    const size_t elements = projection_elements(operations, table.count);
    const size_t groups = table.count * groups_for(norm_length(operations), ELEMENT_GROUP);
    RUN_GROUPS(projections_pack, groups * ELEMENT_GROUP, ELEMENT_GROUP, ARG_IN(weights, elements),
               ARG_IN(table.leaves, table.count * LEAF_FLOATS), ARG_OUT(packed, elements));
}

void projections_unpack(struct operations *operations, const struct buffer *weights, struct projection_table table,
                        const struct buffer *d_packed, const struct buffer *gradients) {
    const size_t elements = projection_elements(operations, table.count);
    RUN_GROUPS(projections_unpack, norm_length(operations), ELEMENT_GROUP, ARG_IN(weights, elements),
               ARG_IN(table.leaves, table.count * LEAF_FLOATS), ARG_I32(table.first), ARG_I32(table.count),
               ARG_IN(d_packed, elements),
               ARG_IN_OUT(gradients, elements + norm_length(operations))); /* the gain's, too */
}

bool projections_are_few(const struct operations *operations) {
    return operations->compute->device.native_kernels && operations->columns <= 96;
}

void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          struct span packed, const struct buffer *z) {
    const size_t rows = tokens * operations->norm_groups;
    const size_t length = norm_length(operations), columns = operations->columns;
    RUN_ROWS(projections_multiply, groups_for(rows, projection_rows(operations)), ARG_IN(streams, rows * length),
             ARG_SPAN_IN(packed, columns * length), ARG_U64(rows), ARG_OUT(z, rows * columns));
}

void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, const struct buffer *d_packed) {
    const size_t rows = tokens * operations->norm_groups, columns = operations->columns;
    const size_t length = norm_length(operations);
    const size_t items = length / operations->vector / gradient_width(operations);
    RUN_ITEMS(projections_gradient, items, ARG_IN(streams, rows * length), ARG_IN(d_z, rows * columns),
              ARG_U64(rows), ARG_OUT(d_packed, columns * length));
}

/* ---- map */

static size_t theta_elements(const struct operations *operations) {
    return (size_t)residual_theta(operations->shape.residual, operations->shape.streams);
}

/* Elements of all tokens: of z, of the squares, of H, of the streams, and of one of them. */
static size_t z_elements(const struct operations *operations, size_t tokens) {
    return tokens * operations->norm_groups * operations->columns;
}
static size_t square_elements(const struct operations *operations, size_t tokens) {
    return tokens * (size_t)operations->shape.streams;
}
static size_t h_elements(const struct operations *operations, size_t tokens) {
    return residual_is_plain(operations->shape.residual) ? 0 : tokens * operations->h_row;
}
static size_t channel_elements(const struct operations *operations, size_t tokens) {
    return tokens * (size_t)operations->shape.channels;
}
static size_t stream_elements(const struct operations *operations, size_t tokens) {
    return (size_t)operations->shape.streams * channel_elements(operations, tokens);
}

/* The map's kernels take an item a token or a chunk of tokens, in groups of map_lanes. */
#define RUN_MAP(kernel, items, ...)                                                                                \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel,                                                  \
               groups_for(items, map_lanes(operations->compute)), map_lanes(operations->compute), __VA_ARGS__)

void map_forward(struct operations *operations, size_t tokens, const struct stream_map *map) {
    RUN_MAP(hc_map_forward, tokens, ARG_SPAN_IN(map->theta, theta_elements(operations)),
            ARG_IN(map->squares, square_elements(operations, tokens)), ARG_U64(tokens),
            ARG_IN_OUT(map->z, z_elements(operations, tokens)), ARG_OUT(map->h, h_elements(operations, tokens)));
}

void map_backward(struct operations *operations, size_t tokens, const struct stream_map *map,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  struct span d_theta) {
    const size_t theta = theta_elements(operations), z = z_elements(operations, tokens);
    const size_t h = h_elements(operations, tokens), lanes = map_lanes(operations->compute);
    const struct chunking chunks = chunk_rows(tokens, map_chunks(operations->compute, &operations->shape));
    const size_t groups = groups_for(chunks.chunks, lanes);
    RUN_MAP(hc_map_backward, chunks.chunks, ARG_SPAN_IN(map->theta, theta),
            ARG_IN(map->squares, square_elements(operations, tokens)), ARG_IN(map->z, z), ARG_IN(map->h, h),
            ARG_IN(d_h, h), ARG_U64(tokens), ARG_U64(chunks.per_chunk), ARG_OUT(d_z, z),
            ARG_OUT(rms_scale, tokens * operations->norm_groups),
            ARG_OUT(&operations->partials, groups * lanes * theta));
    add_partials(operations, groups, lanes * theta, 0, theta, d_theta);
}

/* ---- the frame */

void width_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix) {
    const size_t channels = (size_t)operations->shape.channels;
    RUN_ROWS(width_mix_forward, tokens, ARG_IN(mix->streams, stream_elements(operations, tokens)),
             ARG_IN(mix->h, h_elements(operations, tokens)), ARG_SPAN_IN(mix->norm.gain, channels),
             ARG_U64(mix->norm.bias.offset), ARG_OUT(mix->normed, tokens * channels),
             ARG_OUT(mix->statistics, 2 * tokens));
}

void width_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_normed, const struct buffer *d_u, const struct buffer *d_h,
                        struct layer_norm gradients) {
    const size_t channels = (size_t)operations->shape.channels, streams = (size_t)operations->shape.streams;
    const struct chunking chunks = chunk_rows(tokens, row_chunks(operations->compute));
    RUN_ROWS(width_mix_backward, chunks.chunks, ARG_IN(mix->streams, streams * tokens * channels),
             ARG_IN(mix->h, h_elements(operations, tokens)), ARG_SPAN_IN(mix->norm.gain, channels),
             ARG_IN(mix->statistics, 2 * tokens), ARG_IN(d_normed, tokens * channels), ARG_U64(tokens),
             ARG_U64(chunks.per_chunk), ARG_OUT(d_u, tokens * channels),
             ARG_OUT(d_h, residual_is_plain(operations->shape.residual) ? 0 : tokens * streams),
             ARG_OUT(&operations->partials, chunks.chunks * 2 * channels));
    add_norm_partials(operations, chunks.chunks, gradients);
}

void depth_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                       const struct buffer *mixed, const struct buffer *squares) {
    const size_t streams = stream_elements(operations, tokens);
    RUN_ROWS(depth_mix_forward, tokens, ARG_IN(mix->streams, streams),
             ARG_IN(mix->h, h_elements(operations, tokens)),
             ARG_IN(mix->output, channel_elements(operations, tokens)), ARG_OUT(mixed, streams),
             ARG_OUT(squares, square_elements(operations, tokens)));
}

void depth_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_mixed, const struct buffer *d_output, const struct buffer *d_h) {
    const size_t streams = stream_elements(operations, tokens), channels = channel_elements(operations, tokens);
    const size_t h = h_elements(operations, tokens);
    RUN_ROWS(depth_mix_backward, tokens, ARG_IN(mix->streams, streams), ARG_IN(mix->h, h),
             ARG_IN(mix->output, channels), ARG_IN(d_mixed, streams), ARG_OUT(d_output, channels),
             ARG_OUT(d_h, h - square_elements(operations, tokens))); /* all but H_pre's */
}

void stream_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                     const struct buffer *d_u, const struct buffer *rms_scale, const struct buffer *d_streams) {
    const bool plain = residual_is_plain(operations->shape.residual);
    const size_t streams = stream_elements(operations, tokens);
    RUN_ROWS(stream_backward, tokens, ARG_IN(mix->streams, plain ? 0 : streams),
             ARG_IN(mix->h, h_elements(operations, tokens)), ARG_IN(d_u, channel_elements(operations, tokens)),
             ARG_IN(rms_scale, plain ? 0 : tokens * operations->norm_groups), ARG_IN_OUT(d_streams, streams));
}

void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram) {
    RUN_ROWS(stream_gram, tokens, ARG_IN(streams, stream_elements(operations, tokens)),
             ARG_OUT(gram, (size_t)operations->shape.streams * square_elements(operations, tokens)));
}
