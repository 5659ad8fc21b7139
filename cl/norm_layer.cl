/* Layer norm of a row u of C channels; norm.cl has its gradients:
 *
 *   n = (u - mean) scale, scale = 1 / sqrt(mean of (u - mean)^2 + NORM_EPSILON)     y = gain n + bias
 *   d_n = gain d_y     d_u = scale (d_n - mean of d_n - n * mean of d_n n)     d_gain += d_y n     d_bias += d_y
 *
 * A work-item has its share of a row in SLOTS(C) vectors. A row's statistics are mean and scale.
 *
 * Build constants: CHANNELS (C), NORM_EPSILON.
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

/* The row's mean of d_n, and of d_n n, from the work-item's sums of them. */
INLINED float2 norm_means(float d_normal, float product, __local float *scratch) {
    const float sums[2] = {d_normal, product};
    GROUP_SUMS(sums, 2, scratch);
    return (float2)(GROUP_TOTAL(sums, scratch, 0) / CHANNELS, GROUP_TOTAL(sums, scratch, 1) / CHANNELS);
}
