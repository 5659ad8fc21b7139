/* The frame of hyper-connections in one kernel each way. */
#include "src/operations/kernels.h"

static size_t smaller(size_t a, size_t b) {
    return a < b ? a : b;
}

bool frame_is_fused(const struct operations *operations) {
    return operations->policy.frame_rows > 0;
}

size_t frame_partials(const struct operation_shape *shape) {
    const size_t sums = 2 * (size_t)shape->channels + (size_t)residual_theta(shape->residual, shape->streams);
    return (sums + 15) / 16 * 16; /* in whole vectors */
}

/* ---- launching */

#define RUN_FRAME(kernel, groups, ...)                                                                             \
    KERNEL_RUN(operations->compute, &operations->kernels->kernel, (groups),                                        \
               operations->compute->lanes * operations->policy.frame_rows, __VA_ARGS__)

/* The pointer to packed is one to all sublayers': a span. */
#define ARG_ENTER(frame)                                                                                           \
    ARG_SPAN_IN((frame)->packed, sizes.packed), ARG_SPAN_IN((frame)->map->theta, sizes.theta),                     \
        ARG_U64((frame)->mix->norm.gain.offset), ARG_U64((frame)->mix->norm.bias.offset),                          \
        ARG_OUT((frame)->map->z, sizes.z), ARG_OUT((frame)->map->h, sizes.h),                                      \
        ARG_OUT((frame)->mix->normed, sizes.channels), ARG_OUT((frame)->mix->statistics, 2 * tokens)

void frame_leave(struct operations *operations, const struct stream_mix *from) {
    operations->left = from;
}

void frame_enter(struct operations *operations, size_t tokens, const struct stream_frame *frame) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const size_t groups = groups_for(tokens, operations->policy.frame_rows);
    const struct stream_mix *from = operations->left;
    operations->left = NULL;
    if (from) {
        RUN_FRAME(frame_between, groups, ARG_IN(from->streams, sizes.streams), ARG_IN(from->h, sizes.h),
                  ARG_IN(from->output, sizes.channels), ARG_U64(tokens),
                  ARG_OUT(frame->mix->streams, sizes.streams), ARG_OUT(frame->map->squares, sizes.squares),
                  ARG_ENTER(frame));
    } else {
        RUN_FRAME(frame_enter, groups, ARG_IN(frame->mix->streams, sizes.streams),
                  ARG_IN(frame->map->squares, sizes.squares), ARG_U64(tokens), ARG_ENTER(frame));
    }
}

void frame_output_gradient(struct operations *operations, size_t tokens, const struct stream_mix *mix,
                           const struct buffer *d_mixed, const struct buffer *d_output) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    RUN_FRAME(frame_output_gradient, groups_for(tokens, operations->policy.frame_rows), ARG_IN(mix->h, sizes.h),
              ARG_IN(d_mixed, sizes.streams), ARG_U64(tokens), ARG_OUT(d_output, sizes.channels));
}

/* Tokens of a work-group on the way back: whole rows of groups, as equal as they can be. */
static size_t tokens_per_group(const struct operations *operations, size_t tokens) {
    const size_t rows = operations->policy.frame_rows, turns = groups_for(tokens, rows);
    return groups_for(turns, smaller(turns, operations->policy.frame_groups)) * rows;
}

void frame_backward(struct operations *operations, size_t tokens, const struct stream_frame *frame,
                    const struct buffer *d_normed, const struct frame_gradients *gradients) {
    const struct stream_sizes sizes = stream_sizes(operations, tokens);
    const struct stream_mix *mix = frame->mix;
    const struct stream_map *map = frame->map;
    const size_t each = tokens_per_group(operations, tokens), groups = groups_for(tokens, each);
    const size_t partials = frame_partials(&operations->shape);
    const bool below = gradients->h_below != NULL;
    RUN_FRAME(frame_backward, groups, ARG_IN(mix->streams, sizes.streams), ARG_IN(mix->h, sizes.h),
              ARG_IN(mix->output, sizes.channels), ARG_IN(map->squares, sizes.squares), ARG_IN(map->z, sizes.z),
              ARG_IN(mix->statistics, 2 * tokens), ARG_IN(d_normed, sizes.channels), ARG_U64(tokens), ARG_U64(each),
              ARG_SPAN_IN(frame->packed, sizes.packed), ARG_SPAN_IN(map->theta, sizes.theta),
              ARG_U64(mix->norm.gain.offset), ARG_OUT(gradients->d_h, sizes.h), ARG_OUT(gradients->d_z, sizes.z),
              ARG_OUT(gradients->d_z_operand, gradients->d_z_operand == gradients->d_z ? 0 : sizes.z),
              ARG_OUT(gradients->rms_scale, tokens * operations->norm_groups),
              ARG_IN_OUT(gradients->d_streams, sizes.streams), ARG_I32(below),
              ARG_IN(below ? gradients->h_below : mix->h, below ? sizes.h : 0),
              ARG_OUT(gradients->d_output, below ? sizes.channels : 0),
              ARG_OUT(&operations->partials,
                      groups * (operations->shape.bias ? 2 : 1) * sizes.width + groups * sizes.theta),
              ARG_OUT(&operations->theta_partials, groups * operations->policy.frame_rows * sizes.theta));
    struct partial_target targets[PARTIAL_TARGETS];
    target_norm(operations, gradients->norm, targets);
    targets[2] = (struct partial_target){2 * sizes.width, sizes.theta, gradients->d_theta};
    add_partials(operations, groups, partials, targets);
}
