/* hc, dynamic hyper-connections (Zhu et al. 2024): unconstrained, the norm runs over each stream.
 *
 *   pre_s  = alpha_pre  tanh(z_s . w_pre)     + b_pre_s
 *   post_s = alpha_post tanh(z_s . w_post)    + b_post_s
 *   res_ij = alpha_res  tanh(z_j . w_res[:,i]) + b_res_ij
 *
 * z [S, PROJECTIONS]: a row per stream with its columns pre, post, res [S].
 */
#include "hc_gates.cl"

static inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int s = 0; s < STREAMS; s++) {
        __global const float *row = z + s * PROJECTIONS;
        h[s] = theta[P_alpha_pre] * tanh(row[0]) + theta[P_b_pre + s];
        h[STREAMS + s] = theta[P_alpha_post] * tanh(row[1]) + theta[P_b_post + s];
        for (int i = 0; i < STREAMS; i++) {
            h[RES_AT(i, s)] = theta[P_alpha_res] * tanh(row[2 + i]) + theta[P_b_res + i * STREAMS + s];
        }
    }
}

/* Gradient of alpha tanh(z) + b for one entry; returns that of z and adds those of alpha and b. */
static inline float scaled_tanh_backward(float z, float d, float alpha, __global float *d_alpha,
                                         __global float *d_b) {
    const float t = tanh(z);
    *d_alpha += d * t;
    *d_b += d;
    return d * alpha * (1.0f - t * t);
}

static inline void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                               __global const float *d_h, __global float *d_z, __global float *d_theta) {
    for (int s = 0; s < STREAMS; s++) {
        __global const float *row = z + s * PROJECTIONS;
        __global float *d_row = d_z + s * PROJECTIONS;
        d_row[0] =
            scaled_tanh_backward(row[0], d_h[s], theta[P_alpha_pre], d_theta + P_alpha_pre, d_theta + P_b_pre + s);
        d_row[1] = scaled_tanh_backward(row[1], d_h[STREAMS + s], theta[P_alpha_post], d_theta + P_alpha_post,
                                        d_theta + P_b_post + s);
        for (int i = 0; i < STREAMS; i++) {
            d_row[2 + i] = scaled_tanh_backward(row[2 + i], d_h[RES_AT(i, s)], theta[P_alpha_res],
                                                d_theta + P_alpha_res, d_theta + P_b_res + i * STREAMS + s);
        }
    }
}
