/* hc, dynamic hyper-connections (Zhu et al. 2024): unconstrained, the norm runs over each stream.
 *
 *   pre_s  = alpha_pre  tanh(z_s . w_pre)     + b_pre_s
 *   post_s = alpha_post tanh(z_s . w_post)    + b_post_s
 *   res_ij = alpha_res  tanh(z_j . w_res[:,i]) + b_res_ij
 *
 * z [S, PROJECTIONS]: a row per stream with its columns pre, post, res [S]. Where the streams stay unmixed
 * (hc_until) there are no leaves of res, which is the identity.
 */
#include "hc_gates.cl"

static inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int s = 0; s < STREAMS; s++) {
        __global const float *row = z + s * PROJECTIONS;
        h[s] = theta[P_alpha_pre] * tanh(row[0]) + theta[P_b_pre + s];
        h[STREAMS + s] = theta[P_alpha_post] * tanh(row[1]) + theta[P_b_post + s];
        for (int i = 0; i < STREAMS; i++) {
#ifdef P_b_res
            h[RES_AT(i, s)] = theta[P_alpha_res] * tanh(row[2 + i]) + theta[P_b_res + i * STREAMS + s];
#else
            h[RES_AT(i, s)] = i == s ? 1.0f : 0.0f;
#endif
        }
    }
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
#ifdef P_b_res
        for (int i = 0; i < STREAMS; i++) {
            d_row[2 + i] = scaled_tanh_backward(row[2 + i], d_h[RES_AT(i, s)], theta[P_alpha_res],
                                                d_theta + P_alpha_res, d_theta + P_b_res + i * STREAMS + s);
        }
#endif
    }
}
