/* RMSNorm of a row u of C channels; norm.cl has its gradients:
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

/* 0, and the row's mean of d_n n, from the work-item's sum of it. */
INLINED float2 norm_means(float d_normal, float product, __local float *scratch) {
    return (float2)(0.0f, GROUP_SUM(product, scratch) / CHANNELS);
}
