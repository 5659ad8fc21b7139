/* mock, for tests: res = (1 - s) I + s J / S, a step from the identity towards the mean of the streams with the
 * strength s = MOCK_LARGEST logistic(alpha_res z + b_res). Rows and columns sum to 1.
 */
#include "hc_gates.cl"

static inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    sigmoid_gates_forward(theta, z, h);
    const float s = MOCK_LARGEST * logistic(theta[P_alpha_res] * z[GATE_COLUMNS] + theta[P_b_res]);
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            h[GATE_COLUMNS + i * STREAMS + j] = s / STREAMS + (i == j ? 1.0f - s : 0.0f);
        }
    }
}

static inline void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                               __global const float *d_h, __global float *d_z, __global float *d_theta) {
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    const float gate = logistic(theta[P_alpha_res] * z[GATE_COLUMNS] + theta[P_b_res]);
    float d_s = 0.0f;
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            d_s += res_gradient(d_h, i, j) * (1.0f / STREAMS - (i == j ? 1.0f : 0.0f));
        }
    }
    const float d_logit = d_s * MOCK_LARGEST * gate * (1.0f - gate);
    d_theta[P_b_res] += d_logit;
    d_theta[P_alpha_res] += d_logit * z[GATE_COLUMNS];
    d_z[GATE_COLUMNS] = theta[P_alpha_res] * d_logit;
}
