/* frac, Frac-Connections (arXiv 2503.14125): the streams are fractions of a token's channels, each with an RMSNorm
 * of its own, and what a fraction of the branch's input reads is a row of pre.
 *
 *   pre_ij = alpha_mix tanh(z_j . w_pre[:,i]) + b_pre_ij     res_ij = alpha_mix tanh(z_j . w_res[:,i]) + b_res_ij
 *   post_i = alpha_post tanh(z_i . w_post) + b_post_i
 *
 * z [S, PROJECTIONS]: a row per fraction with its columns pre [S], post, res [S]. Where fractions stay unmixed
 * (hc_until) there are no leaves of res, which is the identity. h is pre [S, S] | post [S] | res [S, S].
 */
#include "hc_gates.cl"

#define PRE_AT(i, j) ((i) * STREAMS + (j))
#define POST_AT(i)   (STREAMS * STREAMS + (i))
#define MIX_AT(i, j) (STREAMS * (STREAMS + 1) + (i) * STREAMS + (j))

static inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int j = 0; j < STREAMS; j++) {
        __global const float *row = z + j * PROJECTIONS;
        h[POST_AT(j)] = theta[P_alpha_post] * tanh(row[STREAMS]) + theta[P_b_post + j];
        for (int i = 0; i < STREAMS; i++) {
            h[PRE_AT(i, j)] = theta[P_alpha_mix] * tanh(row[i]) + theta[P_b_pre + i * STREAMS + j];
#ifdef P_b_res
            h[MIX_AT(i, j)] = theta[P_alpha_mix] * tanh(row[STREAMS + 1 + i]) + theta[P_b_res + i * STREAMS + j];
#else
            h[MIX_AT(i, j)] = i == j ? 1.0f : 0.0f;
#endif
        }
    }
}

static inline void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                               __global const float *d_h, __global float *d_z, __global float *d_theta) {
    for (int j = 0; j < STREAMS; j++) {
        __global const float *row = z + j * PROJECTIONS;
        __global float *d_row = d_z + j * PROJECTIONS;
        d_row[STREAMS] = scaled_tanh_backward(row[STREAMS], d_h[POST_AT(j)], theta[P_alpha_post],
                                              d_theta + P_alpha_post, d_theta + P_b_post + j);
        for (int i = 0; i < STREAMS; i++) {
            d_row[i] = scaled_tanh_backward(row[i], d_h[PRE_AT(i, j)], theta[P_alpha_mix], d_theta + P_alpha_mix,
                                            d_theta + P_b_pre + i * STREAMS + j);
#ifdef P_b_res
            d_row[STREAMS + 1 + i] =
                scaled_tanh_backward(row[STREAMS + 1 + i], d_h[MIX_AT(i, j)], theta[P_alpha_mix],
                                     d_theta + P_alpha_mix, d_theta + P_b_res + i * STREAMS + j);
#endif
        }
    }
}
