/* circulant (C-mHC, contactsebi/circulant-hyper-connections): res = sum_k c_k P^k, where P^k moves stream (i + k)
 * mod S to i,
 *
 *   c = (1 - g) e_0 + g softmax(a),   a = alpha_res z + b_res,   g = min(1, circulant_beta / (2 SUBLAYERS))
 *
 * With less to give away the deeper the model is, products over all sublayers keep differences between streams.
 * Circulant matrices commute, and so do their products.
 */
#include "hc_gates.cl"

#define SHARE fmin(CIRCULANT_BETA / (2 * SUBLAYERS), 1.0f)

INLINED void circulant_weights(__global const float *theta, __global const float *z, float *weights) {
    EACH(k, STREAMS) {
        weights[k] = residual_logit(theta, z, k);
    }
    softmax(weights);
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float weights[STREAMS];
    sigmoid_gates_forward(theta, z, h);
    circulant_weights(theta, z, weights);
    EACH(k, STREAMS) {
        const float c = SHARE * weights[k] + (k == 0 ? 1.0f - SHARE : 0.0f);
        EACH(i, STREAMS) {
            h[RES_AT(i, (i + k) % STREAMS)] = c;
        }
    }
}

/* d c_k = sum_i d_res[i, (i + k) mod S], then through the softmax. */
INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float weights[STREAMS], d_weights[STREAMS], product = 0.0f, d_alpha = 0.0f;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    circulant_weights(theta, z, weights);
    EACH(k, STREAMS) {
        d_weights[k] = 0.0f;
        EACH(i, STREAMS) {
            d_weights[k] += res_gradient(d_h, i, (i + k) % STREAMS);
        }
        d_weights[k] *= SHARE;
        product += weights[k] * d_weights[k];
    }
    EACH(k, STREAMS) {
        d_alpha += residual_logit_backward(theta, z, k, weights[k] * (d_weights[k] - product), d_z, d_theta);
    }
    d_theta[P_alpha_res] += d_alpha;
}
