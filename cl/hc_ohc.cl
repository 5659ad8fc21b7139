/* ohc (oHC, arXiv 2609.02672): res is a rotation of the four streams, x -> q x conj(r) on them as a quaternion
 * (w, x, y, z) = w + x i + y j + z k, so orthogonal, as are products of such matrices:
 *
 *   l = alpha_res z + b_res   [8]      v = (1 + l_0, l_1, l_2, l_3)   q = v / sqrt(|v|^2 + 1e-12)
 *   column j of res = q e_j conj(r)    r is made of l_4 .. l_7 as q is of l_0 .. l_3
 *
 * All logits 0: q = r = 1 and res is the identity, to the bit. The components of a float4 are w, x, y, z in this
 * order.
 */
#include "hc_gates.cl"

#define QUATERNION_EPSILON 1e-12f

INLINED float4 quaternion_product(float4 a, float4 b) {
    return (float4)(a.s0 * b.s0 - a.s1 * b.s1 - a.s2 * b.s2 - a.s3 * b.s3,
                    a.s0 * b.s1 + a.s1 * b.s0 + a.s2 * b.s3 - a.s3 * b.s2,
                    a.s0 * b.s2 + a.s2 * b.s0 + a.s3 * b.s1 - a.s1 * b.s3,
                    a.s0 * b.s3 + a.s3 * b.s0 + a.s1 * b.s2 - a.s2 * b.s1);
}

INLINED float4 quaternion_conjugate(float4 a) {
    return (float4)(a.s0, -a.s1, -a.s2, -a.s3);
}

/* e_j */
INLINED float4 quaternion_unit(int j) {
    return (float4)(j == 0 ? 1.0f : 0.0f, j == 1 ? 1.0f : 0.0f, j == 2 ? 1.0f : 0.0f, j == 3 ? 1.0f : 0.0f);
}

/* The quaternion of logits `first` on, of length 1, and 1 / sqrt(|v|^2 + 1e-12), by which v was multiplied. What is
 * squared is v / max(1, its largest component), so that squares are finite. */
INLINED float4 quaternion_of_logits(__global const float *theta, __global const float *z, int first,
                                    float *inverse) {
    const float4 v = (float4)(1.0f + residual_logit(theta, z, first), residual_logit(theta, z, first + 1),
                              residual_logit(theta, z, first + 2), residual_logit(theta, z, first + 3));
    const float4 size = fabs(v);
    const float largest = fmax(1.0f, fmax(fmax(size.s0, size.s1), fmax(size.s2, size.s3)));
    const float4 u = v / largest;
    const float inverse_u = 1.0f / sqrt(dot(u, u) + QUATERNION_EPSILON / largest / largest);
    *inverse = inverse_u / largest;
    return u * inverse_u;
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float unused;
    sigmoid_gates_forward(theta, z, h);
    const float4 q = quaternion_of_logits(theta, z, 0, &unused);
    const float4 r = quaternion_conjugate(quaternion_of_logits(theta, z, 4, &unused));
    EACH(j, STREAMS) {
        const float4 column = quaternion_product(quaternion_product(q, quaternion_unit(j)), r);
        h[RES_AT(0, j)] = column.s0;
        h[RES_AT(1, j)] = column.s1;
        h[RES_AT(2, j)] = column.s2;
        h[RES_AT(3, j)] = column.s3;
    }
}

/* From d, the gradient of q of length 1: d v = (d - (d . q) q) / sqrt(|v|^2 + 1e-12). Returns the part of the
 * gradient of alpha_res. */
INLINED float quaternion_backward(__global const float *theta, __global const float *z, int first, float4 q,
                                  float inverse, float4 d, __global float *d_z, __global float *d_theta) {
    const float4 d_v = inverse * (d - dot(d, q) * q);
    return residual_logit_backward(theta, z, first, d_v.s0, d_z, d_theta) +
           residual_logit_backward(theta, z, first + 1, d_v.s1, d_z, d_theta) +
           residual_logit_backward(theta, z, first + 2, d_v.s2, d_z, d_theta) +
           residual_logit_backward(theta, z, first + 3, d_v.s3, d_z, d_theta);
}

/* A product a b with gradient d has d conj(b) for a and conj(a) d for b. So with D_j, the gradient of column j,
 * d q = sum_j D_j r conj(e_j)  and  d r = sum_j conj(D_j) q e_j. */
INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float inverse_q, inverse_r;
    float4 d_q = (float4)(0.0f), d_r = (float4)(0.0f);
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    const float4 q = quaternion_of_logits(theta, z, 0, &inverse_q),
                 r = quaternion_of_logits(theta, z, 4, &inverse_r);
    EACH(j, STREAMS) {
        const float4 unit = quaternion_unit(j);
        const float4 d = (float4)(d_h[RES_AT(0, j)], d_h[RES_AT(1, j)], d_h[RES_AT(2, j)], d_h[RES_AT(3, j)]);
        d_q += quaternion_product(quaternion_product(d, r), quaternion_conjugate(unit));
        d_r += quaternion_product(quaternion_conjugate(d), quaternion_product(q, unit));
    }
    float d_alpha = quaternion_backward(theta, z, 0, q, inverse_q, d_q, d_z, d_theta);
    d_alpha += quaternion_backward(theta, z, 4, r, inverse_r, d_r, d_z, d_theta);
    d_theta[P_alpha_res] += d_alpha;
}
