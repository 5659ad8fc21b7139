/* shc, spectral-sphere hyper-connections (the paper's Eq. for H_res): with m = S - 1 and Helmert basis Z [S, m]
 *
 *   res = J + Z K Z^T,   K = Q_u diag(sigma) Q_v^T,   Q = Cayley(skew(q)) = (I + A)^-1 (I - A)
 *   q_u = gamma_u tanh(tau_u z_u + b_u),  q_v likewise,  sigma = tanh(tau_s z_s + b_s),  J = ones / S
 *
 * Q_u and Q_v are orthogonal, so the norm of K is max |sigma| <= 1 and that of res is 1, with unit row and column
 * sums. Columns of z after the gates: z_u [k], z_v [k], z_s [m], k = m(m-1)/2. For S = 2, k = 0 and Q = 1.
 * FREEZE_GAMMA: no gradient for gamma, which is 1 with STATIC.
 */
#include "hc_gates.cl"

#define M          (STREAMS - 1)
#define ANGLES     (M * (M - 1) / 2)
#define ANGLE_ROOM (ANGLES > 0 ? ANGLES : 1)
#define Z_U        GATE_COLUMNS
#define Z_V        (GATE_COLUMNS + ANGLES)
#define Z_S        (GATE_COLUMNS + 2 * ANGLES)

/* Loops over the entries of a matrix. */
#define ENTRIES(i, rows, j, columns)                                                                               \
    for (int i = 0; i < (rows); i++)                                                                               \
        for (int j = 0; j < (columns); j++)

/* A side of the arrays for m x m matrices. Not 1 for S = 2: clspv fails on arrays of arrays of one element. */
#define SIDE (M > 1 ? M : 2)

#define GAMMA(at) (STATIC ? 1.0f : theta[at])

/* 1/sqrt(k (k + 1)) for k = 1..7 */
__constant float helmert_scale[7] = {0.70710678118654752f, 0.40824829046386302f, 0.28867513459481288f,
                                     0.22360679774997897f, 0.18257418583505537f, 0.15430334996209191f,
                                     0.13363062095621219f};

/* Z[i, k], both from 0: the same positive value in rows 0..k, minus their sum in row k + 1. */
INLINED float helmert(int i, int k) {
    return i <= k ? helmert_scale[k] : i == k + 1 ? -(k + 1) * helmert_scale[k] : 0.0f;
}

/* Q = (I + A)^-1 (I - A) by elimination, without pivoting for the reason that hc_go_mhc.cl gives. */
INLINED void cayley(const float *angles, float q[SIDE][SIDE]) {
    float left[SIDE][SIDE];
    for (int i = 0, next = 0; i < M; i++) {
        left[i][i] = q[i][i] = 1.0f;
        for (int j = i + 1; j < M; j++, next++) {
            left[i][j] = q[j][i] = angles[next];
            left[j][i] = q[i][j] = -angles[next];
        }
    }
    for (int pivot = 0; pivot < M; pivot++) {
        for (int i = pivot + 1; i < M; i++) {
            const float factor = left[i][pivot] / left[pivot][pivot];
            for (int j = pivot + 1; j < M; j++) {
                left[i][j] -= factor * left[pivot][j];
            }
            for (int j = 0; j < M; j++) {
                q[i][j] -= factor * q[pivot][j];
            }
        }
    }
    for (int i = M - 1; i >= 0; i--) {
        for (int j = 0; j < M; j++) {
            float sum = q[i][j];
            for (int k = i + 1; k < M; k++) {
                sum -= left[i][k] * q[k][j];
            }
            q[i][j] = sum / left[i][i];
        }
    }
}

/* Given d_Q: d_A = -1/2 (I + Q)^T d_Q (I + Q)^T, from (I + A) dQ = -dA (I + Q) and (I + A)^-1 = (I + Q) / 2.
 * Then the angles' gradients, the antisymmetric part of d_A. */
INLINED void cayley_backward(float q[SIDE][SIDE], float d_q[SIDE][SIDE], float *d_angles) {
    float t[SIDE][SIDE], d_a[SIDE][SIDE];
    ENTRIES(i, M, j, M) {
        t[i][j] = d_q[i][j];
        for (int k = 0; k < M; k++) {
            t[i][j] += d_q[i][k] * q[j][k];
        }
    }
    ENTRIES(i, M, j, M) {
        float sum = t[i][j];
        for (int k = 0; k < M; k++) {
            sum += q[k][i] * t[k][j];
        }
        d_a[i][j] = -0.5f * sum;
    }
    for (int i = 0, next = 0; i < M; i++) {
        for (int j = i + 1; j < M; j++, next++) {
            d_angles[next] = d_a[i][j] - d_a[j][i];
        }
    }
}

INLINED float angle_tanh(__global const float *z, float tau, __global const float *b, int k) {
    return tanh(tau * z[k] + b[k]);
}

INLINED void orthogonal(__global const float *z, float gamma, float tau, __global const float *b,
                        float q[SIDE][SIDE]) {
    float angles[ANGLE_ROOM];
    for (int k = 0; k < ANGLES; k++) {
        angles[k] = gamma * angle_tanh(z, tau, b, k);
    }
    cayley(angles, q);
}

/* Gradients of everything behind one orthogonal factor. */
INLINED void orthogonal_backward(__global const float *z, float gamma, float tau, __global const float *b,
                                 float q[SIDE][SIDE], float d_q[SIDE][SIDE], __global float *d_z,
                                 __global float *d_gamma, __global float *d_tau, __global float *d_b) {
    float d[ANGLE_ROOM], sums[ANGLE_ROOM], of_gamma = 0.0f, of_tau = 0.0f;
    cayley_backward(q, d_q, d);
    for (int k = 0; k < ANGLES; k++) { /* all before the first is stored, so that a lane has several on the way */
        const float t = angle_tanh(z, tau, b, k);
        of_gamma += d[k] * t;
        d[k] *= gamma * (1.0f - t * t);
        of_tau += d[k] * z[k];
        sums[k] = d_b[k] + d[k];
    }
    for (int k = 0; k < ANGLES; k++) {
        d_b[k] = sums[k];
        d_z[k] = tau * d[k];
    }
    *d_tau += of_tau;
    if (!(FREEZE_GAMMA | STATIC)) {
        *d_gamma += of_gamma;
    }
}

/* For S = 2 the leaves of the angles do not exist; nothing reads them. */
#ifndef P_b_u
#define P_b_u 0
#define P_b_v 0
#endif

INLINED void shc_factors(__global const float *theta, __global const float *z, float q_u[SIDE][SIDE],
                         float q_v[SIDE][SIDE], float *sigma) {
    orthogonal(z + Z_U, GAMMA(P_gamma_u), theta[P_tau_u], theta + P_b_u, q_u);
    orthogonal(z + Z_V, GAMMA(P_gamma_v), theta[P_tau_v], theta + P_b_v, q_v);
    for (int k = 0; k < M; k++) {
        sigma[k] = tanh(theta[P_tau_s] * z[Z_S + k] + theta[P_b_s + k]);
    }
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float q_u[SIDE][SIDE], q_v[SIDE][SIDE], sigma[M], zk[STREAMS][SIDE];
    sigmoid_gates_forward(theta, z, h);
    shc_factors(theta, z, q_u, q_v, sigma);
    for (int j = 0; j < M; j++) {
        float k_column[M];
        for (int a = 0; a < M; a++) {
            k_column[a] = 0.0f;
            for (int k = 0; k < M; k++) {
                k_column[a] += q_u[a][k] * sigma[k] * q_v[j][k];
            }
        }
        for (int i = 0; i < STREAMS; i++) {
            zk[i][j] = 0.0f;
            for (int a = 0; a < M; a++) {
                zk[i][j] += helmert(i, a) * k_column[a];
            }
        }
    }
    ENTRIES(i, STREAMS, j, STREAMS) {
        float sum = 1.0f / STREAMS;
        for (int a = 0; a < M; a++) {
            sum += zk[i][a] * helmert(j, a);
        }
        h[RES_AT(i, j)] = sum;
    }
}

/* D = Z^T d_res Z, the gradient of K. */
INLINED void core_gradient(__global const float *d_h, float d[SIDE][SIDE]) {
    float t[STREAMS][SIDE];
    ENTRIES(i, STREAMS, b, M) {
        t[i][b] = 0.0f;
        for (int j = 0; j < STREAMS; j++) {
            t[i][b] += res_gradient(d_h, i, j) * helmert(j, b);
        }
    }
    ENTRIES(a, M, b, M) {
        d[a][b] = 0.0f;
        for (int i = 0; i < STREAMS; i++) {
            d[a][b] += helmert(i, a) * t[i][b];
        }
    }
}

/* d_Q_u = D Q_v diag(sigma),  d_Q_v = D^T Q_u diag(sigma),  d_sigma_k = (Q_u^T D Q_v)_kk. */
INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float q_u[SIDE][SIDE], q_v[SIDE][SIDE], sigma[M], d[SIDE][SIDE], d_u[SIDE][SIDE], d_v[SIDE][SIDE];
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    shc_factors(theta, z, q_u, q_v, sigma);
    core_gradient(d_h, d);
    for (int k = 0; k < M; k++) {
        float d_sigma = 0.0f;
        for (int a = 0; a < M; a++) {
            float from_v = 0.0f, from_u = 0.0f;
            for (int b = 0; b < M; b++) {
                from_v += d[a][b] * q_v[b][k];
                from_u += d[b][a] * q_u[b][k];
            }
            d_sigma += q_u[a][k] * from_v;
            d_u[a][k] = from_v * sigma[k];
            d_v[a][k] = from_u * sigma[k];
        }
        const float d_logit = d_sigma * (1.0f - sigma[k] * sigma[k]);
        d_theta[P_tau_s] += d_logit * z[Z_S + k];
        d_theta[P_b_s + k] += d_logit;
        d_z[Z_S + k] = theta[P_tau_s] * d_logit;
    }
    orthogonal_backward(z + Z_U, GAMMA(P_gamma_u), theta[P_tau_u], theta + P_b_u, q_u, d_u, d_z + Z_U,
                        d_theta + P_gamma_u, d_theta + P_tau_u, d_theta + P_b_u);
    orthogonal_backward(z + Z_V, GAMMA(P_gamma_v), theta[P_tau_v], theta + P_b_v, q_v, d_v, d_z + Z_V,
                        d_theta + P_gamma_v, d_theta + P_tau_v, d_theta + P_b_v);
}
