/* What all norms have in common: how a row is stored, and the backward pass.
 *
 *   n = (u - mean) scale     d_n = gain d_y     d_u from n, d_n and the row's means of d_n and d_n n: norm_gradient
 *   d_gain += d_y n          d_bias += d_y
 */
#include "norm_*.cl"

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

/* d_u from d_n and n of the same channels. */
INLINED vec_t norm_gradient(float scale, vec_t d_normal, vec_t normal, float2 means) {
    return scale * (d_normal - means.x - normal * means.y);
}

/* Channels c .. c + VEC - 1 of a row, at this slot: leaves n and d_n, and adds to the row's sums of d_n and d_n n
 * and to d_gain and d_bias. `row` is mean and scale; gain is that of these channels. */
INLINED void norm_backward(int slot, vec_t u, float2 row, vec_t d_y, vec_t gain, vec_t normal[SLOTS(CHANNELS)],
                           vec_t d_normal[SLOTS(CHANNELS)], products_t sums[2], vec_t d_gain[SLOTS(CHANNELS)],
                           vec_t d_bias[SLOTS(CHANNELS)]) {
    normal[slot] = (u - row.x) * row.y;
    d_normal[slot] = d_y * gain;
    sums[0] += PRODUCTS(d_normal[slot]);
    sums[1] += PRODUCTS(d_normal[slot] * normal[slot]);
    d_gain[slot] += d_y * normal[slot];
    d_bias[slot] += d_y;
}

/* The row's means of d_n and d_n n. */
INLINED float2 norm_backward_means(const products_t sums[2], __local float *scratch) {
    return norm_means(PRODUCTS_SUM(sums[0]), PRODUCTS_SUM(sums[1]), scratch);
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
