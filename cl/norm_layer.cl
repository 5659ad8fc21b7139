/* Layer norm of a row u of C channels, and its gradients:
 *
 *   n = (u - mean) scale, scale = 1 / sqrt(mean of (u - mean)^2 + NORM_EPSILON)     y = gain n + bias
 *   d_n = gain d_y     d_u = scale (d_n - mean of d_n - n * mean of d_n n)     d_gain += d_y n     d_bias += d_y
 *
 * A work-item has its share of a row in SLOTS(C) vectors. A row's statistics are mean and scale.
 *
 * Build constants: CHANNELS (C), BIAS (there is one), NORM_EPSILON.
 */
#include "group.cl"

/* u - mean in place; returns mean and scale. `sum` is that of the work-item's share of u. */
INLINED float2 norm_center(vec_t u[SLOTS(CHANNELS)], vec_t sum, __local float *scratch) {
    const float mean = GROUP_SUM(VEC_SUM(sum), scratch) / CHANNELS;
    vec_t squares = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        u[slot] -= mean;
        squares += u[slot] * u[slot];
    }
    return (float2)(mean, rsqrt(GROUP_SUM(VEC_SUM(squares), scratch) / CHANNELS + NORM_EPSILON));
}

/* y [C] and statistics [2] of a centred u. */
INLINED void norm_store(vec_t u[SLOTS(CHANNELS)], float2 row, __global const float *gain,
                        __global const float *bias, __global act_t *y, __global float *statistics) {
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t result = u[slot] * row.y * VEC_LOAD(gain + c);
        if (BIAS) {
            result += VEC_LOAD(bias + c);
        }
        ACT_STORE(result, y + c);
    }
    if (LANE == 0) {
        statistics[0] = row.x;
        statistics[1] = row.y;
    }
}

/* The row's mean of d_n, and of d_n n, from the work-item's sums of them. */
INLINED float2 norm_means(float d_normal, float product, __local float *scratch) {
    const float sums[2] = {d_normal, product};
    GROUP_SUMS(sums, 2, scratch);
    return (float2)(GROUP_TOTAL(sums, scratch, 0) / CHANNELS, GROUP_TOTAL(sums, scratch, 1) / CHANNELS);
}

/* d_u from d_n and n of the same channels. */
INLINED vec_t norm_gradient(float scale, vec_t d_normal, vec_t normal, float2 means) {
    return scale * (d_normal - means.x - normal * means.y);
}

/* A chunk's sums of the gradients of gain and, if there is one, of bias, to partial [2 C]. */
INLINED void norm_store_partial(vec_t d_gain[SLOTS(CHANNELS)], vec_t d_bias[SLOTS(CHANNELS)],
                                __global float *partial) {
    LANE_STEPS(slot, c, CHANNELS) {
        VEC_STORE(d_gain[slot], partial + c);
        if (BIAS) {
            VEC_STORE(d_bias[slot], partial + CHANNELS + c);
        }
    }
}
