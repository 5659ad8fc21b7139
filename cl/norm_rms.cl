/* RMSNorm of a row u of C channels, and its gradients:
 *
 *   n = u scale, scale = 1 / sqrt(mean of u^2 + NORM_EPSILON)     y = gain n
 *   d_n = gain d_y     d_u = scale (d_n - n * mean of d_n n)     d_gain += d_y n
 *
 * The functions are those of norm_layer.cl. A row's statistics are 0, in the place of the mean, and scale.
 *
 * Build constants: CHANNELS (C), NORM_EPSILON.
 */
#include "group.cl"

/* Leaves u as it is; returns 0 and scale. */
INLINED float2 norm_center(vec_t u[SLOTS(CHANNELS)], vec_t sum, __local float *scratch) {
    vec_t squares = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        squares += u[slot] * u[slot];
    }
    return (float2)(0.0f, rsqrt(GROUP_SUM(VEC_SUM(squares), scratch) / CHANNELS + NORM_EPSILON));
}

/* y [C] and statistics [2]; there is no bias. */
INLINED void norm_store(vec_t u[SLOTS(CHANNELS)], float2 row, __global const float *gain,
                        __global const float *bias, __global act_t *y, __global float *statistics) {
    LANE_STEPS(slot, c, CHANNELS) {
        ACT_STORE(u[slot] * row.y * VEC_LOAD(gain + c), y + c);
    }
    if (LANE == 0) {
        statistics[0] = row.x;
        statistics[1] = row.y;
    }
}

/* 0, and the row's mean of d_n n, from the work-item's sum of it. */
INLINED float2 norm_means(float d_normal, float product, __local float *scratch) {
    return (float2)(0.0f, GROUP_SUM(product, scratch) / CHANNELS);
}

/* d_u from d_n and n of the same channels. */
INLINED vec_t norm_gradient(float scale, vec_t d_normal, vec_t normal, float2 means) {
    return scale * (d_normal - normal * means.y);
}

/* A chunk's sums of the gradient of the gain, to the first half of partial [2 C], whose other half nobody reads. */
INLINED void norm_store_partial(vec_t d_gain[SLOTS(CHANNELS)], vec_t d_bias[SLOTS(CHANNELS)],
                                __global float *partial) {
    LANE_STEPS(slot, c, CHANNELS) {
        VEC_STORE(d_gain[slot], partial + c);
    }
}
