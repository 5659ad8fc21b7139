/* The step of AdamW, and sums over whole vectors. */
#include "runtime/system/sizes.h"
#include "src/operations/kernels.h"
#include <math.h>

void sum_total(struct operations *operations, const struct buffer *x, size_t count, float scale, bool add,
               struct span out) {
    RUN_ROWS(sum_total, 1, ARG_IN(x, count), ARG_U64(count), ARG_F32(scale), ARG_I32(add), ARG_I32(0),
             ARG_SPAN_IN_OUT(out, 1));
}

/* out = scale * sum of squares, or the root of that */
static void total_squares(struct operations *operations, struct span x, size_t count, float scale, bool root,
                          struct span out) {
    const size_t most = operations->policy.square_chunks;
    const size_t per_chunk = ((count + most - 1) / most + 63) / 64 * 64; /* whole vectors */
    const size_t chunks = per_chunk ? (count + per_chunk - 1) / per_chunk : 0;
    RUN_ROWS(square_sums, chunks, ARG_SPAN_IN(x, count), ARG_U64(count), ARG_U64(per_chunk),
             ARG_OUT(&operations->partials, chunks));
    RUN_ROWS(sum_total, 1, ARG_IN(&operations->partials, chunks), ARG_U64(chunks), ARG_F32(scale), ARG_I32(0),
             ARG_I32(root), ARG_SPAN_OUT(out, 1));
}

void norm_total(struct operations *operations, const struct buffer *x, size_t count, float scale, struct span out) {
    total_squares(operations, (struct span){x, 0}, count, scale * scale, true, out);
}

void square_total(struct operations *operations, struct span x, size_t count, struct span out) {
    total_squares(operations, x, count, 1.0f, false, out);
}

/* Of ranges that are not whole vectors, which steps have only with rates of their own for small parameters. */
static const struct kernel *any_place_kernel(struct operations *operations) {
    static const char *const files[] = {"adamw.cl", NULL};
    char options[64];
    snprintf(options, sizeof options, "-DVEC=1 -DMOMENTS=%d -DMASTER=%d -DACT=%d", (int)operations->shape.moments,
             (int)operations->shape.master, (int)operations->shape.type);
    return kernel_find(operations->compute, files, options, "adamw");
}

void adamw_step(struct operations *operations, const struct adamw_arenas *arenas, struct optimizer_range range,
                const struct adamw_settings *settings, const struct buffer *norm) {
    const double correction1 = 1.0 / (1.0 - pow((double)settings->beta1, (double)settings->step));
    const double correction2 = 1.0 / sqrt(1.0 - pow((double)settings->beta2, (double)settings->step));
    const size_t count = range.count, rounded = arenas->weights_lowp == arenas->weights ? 0 : count;
    const uint64_t end = range.first + range.count, lowp_first = size_larger(range.first, arenas->lowp_only_from);
    const size_t lowp_only = operations->shape.master && end > lowp_first ? end - lowp_first : 0; /* without fp32 */
    const bool aligned = (range.first | range.count | range.states_first[0] | range.states_first[1]) % 64 == 0;
    const size_t vector = aligned ? operations->policy.arena_vector : 1;
    const struct kernel *kernel = aligned ? &operations->kernels->adamw : any_place_kernel(operations);
    KERNEL_RUN(operations->compute, kernel, groups_for(count / vector, ELEMENT_GROUP), ELEMENT_GROUP,
               ARG_IN_OUT(arenas->weights, count - lowp_only),
               ARG_MEMORY_(arenas->weights_lowp, 0, rounded, lowp_only > 0, 1), ARG_IN(arenas->gradients, count),
               ARG_IN_OUT(arenas->first_moments, count), ARG_IN_OUT(arenas->second_moments, count),
               ARG_U64(range.first), ARG_U64(range.states_first[0]), ARG_U64(range.states_first[1]), ARG_U64(count),
               ARG_U64(arenas->decayed_from), ARG_U64(arenas->lowp_only_from),
               ARG_F32X4(settings->rate, settings->beta1, settings->beta2, settings->decay),
               ARG_F32X4((float)correction1, (float)correction2, settings->clip, settings->unscale),
               ARG_F32X4(settings->epsilon, settings->centre, 0.0f, 0.0f), ARG_U64(settings->key), ARG_IN(norm, 1));
}
