/* The gates that all variants but hc, wide and frac (own_gates) share, for one token:
 *
 *   pre_s  =     sigmoid(alpha_pre  z_s     + b_pre_s) + HC_EPS
 *   post_s = 2 * sigmoid(alpha_post z_{S+s} + b_post_s)
 *
 * Conventions of all hc_<variant>.cl files, which include this file, and which hc_token.cl includes:
 *   theta     the sublayer's small parameters; P_<leaf> is the offset of leaf <leaf> in theta. With STATIC, alphas
 *             and taus do not exist: their P_ is 0, and what is read there is multiplied by z = 0.
 *   z         the token's normalised projections, in the columns' order: w_pre [S], w_post [S], others
 *   h, d_h    pre [S] | post [S] | res [S, S], whose entry i, j is at RES_AT(i, j), and its gradient
 *   d_z       gradient of z, written
 *   d_theta   sums of the gradients of theta over tokens, added to; one work-item owns it
 * Settings of the variant are macros by the names that its row gives them. All variants have the macros HC_EPS,
 * H_TRANSPOSED and STATIC; with uses_depth also SUBLAYERS, the model's number of sublayers. A variant defines
 *   void hc_forward(theta, z, h)                        writes all of h
 *   void hc_backward(theta, z, h, d_h, d_z, d_theta)
 * Where the latter needs an array that is too large for registers, that is its last argument, in MAP_SPACE, and
 * MAP_WORK, the array's floats, is defined before this file is included.
 */
#include "group.cl"

/* __local if the floats of local memory that a token has are enough. */
#if defined(MAP_WORK) && MAP_WORK <= MAP_LOCAL
#define MAP_SPACE __local
#else
#define MAP_SPACE __private
#endif

#define GATE_COLUMNS (PRE_ENTRIES + STREAMS)
#define SHIFTED      (HC_EPS > 0.0f)

/* A loop over what a GPU is to keep in registers, unrolled there with up to four streams. */
#if LANES < 32 || STREAMS > 4
#define EACH(i, n) for (int i = 0; i < (n); i++)
#else
#define EACH(i, n) UNROLL(n) for (int i = 0; i < (n); i++)
#endif
#define EACH_ENTRY(i, j, n)                                                                                        \
    EACH(i, n)                                                                                                     \
        EACH(j, n)

/* Where h and d_h have entry i, j of a map's matrix. With H_TRANSPOSED streams are mixed by the map's transpose. */
#define RES_AT(i, j) (GATE_COLUMNS + (H_TRANSPOSED ? (j) * STREAMS + (i) : (i) * STREAMS + (j)))

/* In place. */
INLINED void softmax(float *x) {
    float highest = -INFINITY, sum = 0.0f;
    EACH(i, STREAMS) {
        highest = fmax(highest, x[i]);
    }
    EACH(i, STREAMS) {
        x[i] = exp(x[i] - highest);
        sum += x[i];
    }
    EACH(i, STREAMS) {
        x[i] /= sum;
    }
}

static inline float logistic(float x) {
    return 1.0f / (1.0f + exp(-x));
}

/* Gradient of alpha tanh(z) + b for one entry; returns that of z and adds those of alpha and b. */
static inline float scaled_tanh_backward(float z, float d, float alpha, __global float *d_alpha,
                                         __global float *d_b) {
    const float t = tanh(z);
    *d_alpha += d * t;
    *d_b += d;
    return d * alpha * (1.0f - t * t);
}

/* Entry of d_res for maps whose rows and columns sum to one: a constant along a row or a column then has no effect,
 * and taking out the entries of the first row and column takes out the rounding that comes with it. Where all
 * streams are equal, as in the first sublayer, or all their gradients are, as in the last one with stream_reduce =
 * sum_norm, these gradients are exactly zero, which keeps the optimizer from stepping along noise. */
static inline float res_gradient(__global const float *d_h, int i, int j) {
    return (d_h[RES_AT(i, j)] - d_h[RES_AT(i, 0)]) - (d_h[RES_AT(0, j)] - d_h[RES_AT(0, 0)]);
}

#ifdef P_alpha_pre
/* Streams whose gates are all computed before the first is stored, so that a lane has several on the way: as many
 * as registers hold. */
#define GATES (STREAMS > 4 ? 1 : STREAMS)

INLINED void sigmoid_gates_forward(__global const float *theta, __global const float *z, __global float *h) {
    for (int first = 0; first < STREAMS; first += GATES) {
        float pre[GATES], post[GATES];
        EACH(i, GATES) {
            const int s = first + i;
            pre[i] = logistic(theta[P_alpha_pre] * z[s] + theta[P_b_pre + s]);
            post[i] = 2.0f * logistic(theta[P_alpha_post] * z[STREAMS + s] + theta[P_b_post + s]);
        }
        EACH(i, GATES) {
            h[first + i] = SHIFTED ? pre[i] + HC_EPS : pre[i];
            h[STREAMS + first + i] = post[i];
        }
    }
}

INLINED void sigmoid_gates_backward(__global const float *theta, __global const float *z, __global const float *h,
                                    __global const float *d_h, __global float *d_z, __global float *d_theta) {
    const float alpha_pre = theta[P_alpha_pre], alpha_post = theta[P_alpha_post];
    float d_alpha_pre = 0.0f, d_alpha_post = 0.0f;
    for (int first = 0; first < STREAMS; first += GATES) {
        float d_pre[GATES], d_post[GATES], b_pre[GATES], b_post[GATES];
        EACH(i, GATES) {
            const int s = first + i;
            const float pre = SHIFTED ? h[s] - HC_EPS : h[s], post = h[STREAMS + s];
            d_pre[i] = d_h[s] * pre * (1.0f - pre);
            d_post[i] = d_h[STREAMS + s] * post * (1.0f - 0.5f * post);
            d_alpha_pre += d_pre[i] * z[s];
            d_alpha_post += d_post[i] * z[STREAMS + s];
            b_pre[i] = d_theta[P_b_pre + s] + d_pre[i];
            b_post[i] = d_theta[P_b_post + s] + d_post[i];
        }
        EACH(i, GATES) {
            const int s = first + i;
            d_theta[P_b_pre + s] = b_pre[i];
            d_theta[P_b_post + s] = b_post[i];
            d_z[s] = alpha_pre * d_pre[i];
            d_z[STREAMS + s] = alpha_post * d_post[i];
        }
    }
    d_theta[P_alpha_pre] += d_alpha_pre;
    d_theta[P_alpha_post] += d_alpha_post;
}
#endif

#ifdef P_alpha_res
/* Logit k of res, where a variant makes res of logits: alpha_res z_{2S+k} + b_res_k. */
static inline float residual_logit(__global const float *theta, __global const float *z, int k) {
    return theta[P_alpha_res] * z[GATE_COLUMNS + k] + theta[P_b_res + k];
}

/* From the logit's gradient d. Returns its part of the gradient of alpha_res, which the caller sums. */
static inline float residual_logit_backward(__global const float *theta, __global const float *z, int k, float d,
                                            __global float *d_z, __global float *d_theta) {
    d_theta[P_b_res + k] += d;
    d_z[GATE_COLUMNS + k] = theta[P_alpha_res] * d;
    return d * z[GATE_COLUMNS + k];
}
#endif
