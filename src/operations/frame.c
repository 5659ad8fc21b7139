/* The frame of hyper-connections in one kernel each way. */
#include "runtime/system/sizes.h"
#include "src/operations/kernels.h"

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
