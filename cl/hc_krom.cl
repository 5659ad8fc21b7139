/* krom (KromHC, arXiv 2601.21579): res = U_1 x U_2 x ... x U_K, a Kronecker product with the first factor
 * outermost,
 *
 *   U_k = [[p_k, 1 - p_k], [1 - p_k, p_k]],   p_k the first of softmax(a_2k, a_2k+1),
 *   a = alpha_res z + b_res,   S = 2^K
 *
 * An entry depends only on which bits of its row and column differ: res[i, j] = w[i ^ j], and w[x] is the product
 * over k of 1 - p_k where bit k of x is set, counted from the highest, and of p_k where it is not.
 */
#include "hc_gates.cl"

#define FACTORS     ((PROJECTIONS - GATE_COLUMNS) / 2)
#define FACTOR_ROOM (FACTORS > 1 ? FACTORS : 2) /* clspv fails on arrays of arrays of one element */

/* Whether the factor's bit of x is set. */
#define DIFFERS(x, k) ((x) >> (FACTORS - 1 - (k)) & 1)

/* factors[k]: p_k and 1 - p_k, neither rounded from the other. */
INLINED void krom_factors(__global const float *theta, __global const float *z, float factors[FACTOR_ROOM][2]) {
    EACH(k, FACTORS) {
        const float first = residual_logit(theta, z, 2 * k), second = residual_logit(theta, z, 2 * k + 1);
        factors[k][0] = logistic(first - second);
        factors[k][1] = logistic(second - first);
    }
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float factors[FACTOR_ROOM][2];
    sigmoid_gates_forward(theta, z, h);
    krom_factors(theta, z, factors);
    EACH(x, STREAMS) {
        float weight = 1.0f;
        EACH(k, FACTORS) {
            weight *= DIFFERS(x, k) ? factors[k][1] : factors[k][0];
        }
        EACH(i, STREAMS) {
            h[RES_AT(i, i ^ x)] = weight;
        }
    }
}

/* d w[x] = sum_i d_res[i, i ^ x];  by the difference of a factor's logits  d p_k = p_k (1 - p_k). */
INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float factors[FACTOR_ROOM][2], d_weights[STREAMS], d_alpha = 0.0f;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    krom_factors(theta, z, factors);
    EACH(x, STREAMS) {
        d_weights[x] = 0.0f;
        EACH(i, STREAMS) {
            d_weights[x] += res_gradient(d_h, i, i ^ x);
        }
    }
    EACH(k, FACTORS) {
        float d = 0.0f;
        EACH(x, STREAMS) {
            float others = d_weights[x];
            EACH(m, FACTORS) {
                others *= m == k ? 1.0f : DIFFERS(x, m) ? factors[m][1] : factors[m][0];
            }
            d += DIFFERS(x, k) ? -others : others;
        }
        d *= factors[k][0] * factors[k][1];
        d_alpha += residual_logit_backward(theta, z, 2 * k, d, d_z, d_theta);
        d_alpha += residual_logit_backward(theta, z, 2 * k + 1, -d, d_z, d_theta);
    }
    d_theta[P_alpha_res] += d_alpha;
}
