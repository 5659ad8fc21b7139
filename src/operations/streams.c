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

/* Runs projections_pack or projections_unpack for every projection leaf. */
static void run_projections(struct operations *operations, const struct kernel *kernel,
                            const uint64_t *projections_at, struct span gain, const struct buffer *packed,
                            const struct buffer *gradients) {
    const struct operation_shape *shape = &operations->shape;
    size_t column = 0, next = 0;
    for (const struct residual_leaf *leaf = shape->residual->leaves; leaf && leaf->name; leaf++) {
        const size_t width = leaf->kind == LEAF_PROJECTION ? (size_t)leaf->width(shape->streams) : 0;
        const size_t at = leaf->kind == LEAF_PROJECTION ? projections_at[next++] : 0;
        if (width == 0) {
            continue;
        }
        const struct kernel_argument arguments[] = {ARG_BUFFER(gain.buffer),
                                                    ARG_U64(at),
                                                    ARG_U64(gain.offset),
                                                    ARG_I32(width),
                                                    ARG_I32(column),
                                                    ARG_BUFFER(packed),
                                                    ARG_BUFFER(gradients ? gradients : packed)};
        kernel_run(operations->compute, kernel, groups_for(norm_length(operations), ELEMENT_GROUP), ELEMENT_GROUP,
                   arguments, gradients ? 7 : 6);
        column += width;
    }
}

void projections_pack(struct operations *operations, const uint64_t *projections_at, struct span gain,
                      const struct buffer *packed) {
    run_projections(operations, &operations->kernels->projections_pack, projections_at, gain, packed, NULL);
}

void projections_unpack(struct operations *operations, const uint64_t *projections_at, struct span gain,
                        const struct buffer *d_packed, const struct buffer *gradients) {
    run_projections(operations, &operations->kernels->projections_unpack, projections_at, gain, d_packed,
                    gradients);
}

bool projections_are_few(const struct operations *operations) {
    return operations->compute->device.native_kernels && operations->columns <= 96;
}

void projections_multiply(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *packed, const struct buffer *z) {
    const size_t rows = tokens * operations->norm_groups;
    RUN_ROWS(projections_multiply, groups_for(rows, projection_rows(operations)), ARG_BUFFER(streams),
             ARG_BUFFER(packed), ARG_U64(rows), ARG_BUFFER(z));
}

void projections_gradient(struct operations *operations, size_t tokens, const struct buffer *streams,
                          const struct buffer *d_z, const struct buffer *d_packed) {
    const size_t items = norm_length(operations) / operations->vector / gradient_width(operations);
    RUN_ITEMS(projections_gradient, items, ARG_BUFFER(streams), ARG_BUFFER(d_z),
              ARG_U64(tokens * operations->norm_groups), ARG_BUFFER(d_packed));
}

/* ---- map */

/* The map's kernels take an item a token or a chunk of tokens, in groups of map_lanes. */
#define RUN_MAP(kernel, items, ...)                                                                                \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel,                                                  \
               groups_for(items, map_lanes(operations->compute)), map_lanes(operations->compute), __VA_ARGS__)

void map_forward(struct operations *operations, size_t tokens, const struct stream_map *map) {
    RUN_MAP(hc_map_forward, tokens, ARG_SPAN(map->theta), ARG_BUFFER(map->squares), ARG_U64(tokens),
            ARG_BUFFER(map->z), ARG_BUFFER(map->h));
}

void map_backward(struct operations *operations, size_t tokens, const struct stream_map *map,
                  const struct buffer *d_h, const struct buffer *d_z, const struct buffer *rms_scale,
                  struct span d_theta) {
    const size_t theta = (size_t)residual_theta(operations->shape.residual, operations->shape.streams);
    const size_t lanes = map_lanes(operations->compute);
    const struct chunking chunks = chunk_rows(tokens, map_chunks(operations->compute, &operations->shape));
    RUN_MAP(hc_map_backward, chunks.chunks, ARG_SPAN(map->theta), ARG_BUFFER(map->squares), ARG_BUFFER(map->z),
            ARG_BUFFER(map->h), ARG_BUFFER(d_h), ARG_U64(tokens), ARG_U64(chunks.per_chunk), ARG_BUFFER(d_z),
            ARG_BUFFER(rms_scale), ARG_BUFFER(&operations->partials));
    add_partials(operations, groups_for(chunks.chunks, lanes), lanes * theta, 0, theta, d_theta);
}

/* ---- the frame */

void width_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix) {
    RUN_ROWS(width_mix_forward, tokens, ARG_BUFFER(mix->streams), ARG_BUFFER(mix->h), ARG_SPAN(mix->norm.gain),
             ARG_U64(mix->norm.bias.offset), ARG_BUFFER(mix->normed), ARG_BUFFER(mix->statistics));
}

void width_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_normed, const struct buffer *d_u, const struct buffer *d_h,
                        struct layer_norm gradients) {
    const struct chunking chunks = chunk_rows(tokens, row_chunks(operations->compute));
    RUN_ROWS(width_mix_backward, chunks.chunks, ARG_BUFFER(mix->streams), ARG_BUFFER(mix->h),
             ARG_SPAN(mix->norm.gain), ARG_BUFFER(mix->statistics), ARG_BUFFER(d_normed), ARG_U64(tokens),
             ARG_U64(chunks.per_chunk), ARG_BUFFER(d_u), ARG_BUFFER(d_h), ARG_BUFFER(&operations->partials));
    add_norm_partials(operations, chunks.chunks, gradients);
}

void depth_mix_forward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                       const struct buffer *mixed, const struct buffer *squares) {
    RUN_ROWS(depth_mix_forward, tokens, ARG_BUFFER(mix->streams), ARG_BUFFER(mix->h), ARG_BUFFER(mix->output),
             ARG_BUFFER(mixed), ARG_BUFFER(squares));
}

void depth_mix_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                        const struct buffer *d_mixed, const struct buffer *d_output, const struct buffer *d_h) {
    RUN_ROWS(depth_mix_backward, tokens, ARG_BUFFER(mix->streams), ARG_BUFFER(mix->h), ARG_BUFFER(mix->output),
             ARG_BUFFER(d_mixed), ARG_BUFFER(d_output), ARG_BUFFER(d_h));
}

void stream_backward(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                     const struct buffer *d_u, const struct buffer *rms_scale, const struct buffer *d_streams) {
    RUN_ROWS(stream_backward, tokens, ARG_BUFFER(mix->streams), ARG_BUFFER(mix->h), ARG_BUFFER(d_u),
             ARG_BUFFER(rms_scale), ARG_BUFFER(d_streams));
}

void stream_gram(struct operations *operations, size_t tokens, const struct buffer *streams,
                 const struct buffer *gram) {
    RUN_ROWS(stream_gram, tokens, ARG_BUFFER(streams), ARG_BUFFER(gram));
}
