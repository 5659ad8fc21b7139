/* hc, dynamic hyper-connections (Zhu et al. 2024): unconstrained, the norm runs over each stream.
 *
 *   pre_s  = alpha_pre  tanh(z_s . w_pre)     + b_pre_s
 *   post_s = alpha_post tanh(z_s . w_post)    + b_post_s
 *   res_ij = alpha_res  tanh(z_j . w_res[:,i]) + b_res_ij
 *
 * z [S, PROJECTIONS]: a row per stream with its columns pre [READS], post, res [S]. pre has READS rows: one, or S
 * in hc_frac.cl, which includes this file. Where the streams stay unmixed (hc_until) there are no leaves of res,
 * which is the identity.
 */
#include "hc_gates.cl"

#define READS (PRE_ENTRIES / STREAMS)
#ifdef P_alpha_mix /* frac */
#define P_alpha_pre P_alpha_mix
#define P_alpha_res P_alpha_mix
#endif

static inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int s = 0; s < STREAMS; s++) {
        __global const float *row = z + s * PROJECTIONS;
        for (int i = 0; i < READS; i++) {
            h[i * STREAMS + s] = theta[P_alpha_pre] * tanh(row[i]) + theta[P_b_pre + i * STREAMS + s];
        }
        h[PRE_ENTRIES + s] = theta[P_alpha_post] * tanh(row[READS]) + theta[P_b_post + s];
        for (int i = 0; i < STREAMS; i++) {
#ifdef P_b_res
            h[RES_AT(i, s)] = theta[P_alpha_res] * tanh(row[READS + 1 + i]) + theta[P_b_res + i * STREAMS + s];
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
        for (int i = 0; i < READS; i++) {
            const int at = i * STREAMS + s;
            d_row[i] = scaled_tanh_backward(row[i], d_h[at], theta[P_alpha_pre], d_theta + P_alpha_pre,
                                            d_theta + P_b_pre + at);
        }
        d_row[READS] = scaled_tanh_backward(row[READS], d_h[PRE_ENTRIES + s], theta[P_alpha_post],
                                            d_theta + P_alpha_post, d_theta + P_b_post + s);
#ifdef P_b_res
        for (int i = 0; i < STREAMS; i++) {
            d_row[READS + 1 + i] = scaled_tanh_backward(row[READS + 1 + i], d_h[RES_AT(i, s)], theta[P_alpha_res],
                                                        d_theta + P_alpha_res, d_theta + P_b_res + i * STREAMS + s);
        }
#endif
    }
}
