/* wide: nothing depends on the token.
 *
 *   pre_s = sigmoid(b_pre_s) + HC_EPS     post_s = 2 sigmoid(b_post_s)
 *   res   = I, or with b_res (wide_retention) diag(1 - FORGET sigmoid(-b_res_s))
 */
#include "hc_gates.cl"

#define FORGET 0.1f /* the most that a stream loses in a sublayer */

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int s = 0; s < STREAMS; s++) {
        const float pre = logistic(theta[P_b_pre + s]);
        h[s] = SHIFTED ? pre + HC_EPS : pre;
        h[STREAMS + s] = 2.0f * logistic(theta[P_b_post + s]);
    }
    EACH_ENTRY(i, j, STREAMS) {
        h[GATE_COLUMNS + i * STREAMS + j] = i == j ? 1.0f : 0.0f;
    }
#ifdef P_b_res
    for (int s = 0; s < STREAMS; s++) {
        h[GATE_COLUMNS + s * (STREAMS + 1)] = 1.0f - FORGET * logistic(-theta[P_b_res + s]);
    }
#endif
}

INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    for (int s = 0; s < STREAMS; s++) {
        const float pre = SHIFTED ? h[s] - HC_EPS : h[s], post = h[STREAMS + s];
        d_theta[P_b_pre + s] += d_h[s] * pre * (1.0f - pre);
        d_theta[P_b_post + s] += d_h[STREAMS + s] * post * (1.0f - 0.5f * post);
    }
#ifdef P_b_res
    for (int s = 0; s < STREAMS; s++) {
        const float lost = logistic(-theta[P_b_res + s]);
        d_theta[P_b_res + s] += d_h[GATE_COLUMNS + s * (STREAMS + 1)] * FORGET * lost * (1.0f - lost);
    }
#endif
}
