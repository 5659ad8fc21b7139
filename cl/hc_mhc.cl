/* mhc (Xie et al. 2025): res = SK(alpha_res mat(z) + b_res), Sinkhorn-Knopp in the log domain.
 *
 * SINKHORN_ITERATIONS times: columns normalised (sum over i), then rows. With potentials c_j and r_i the matrix after any
 * half-step is exp(L_ij - r_i - c_j), so the backward pass needs the potentials only, which it computes again.
 */
struct potentials {
    float rows[SINKHORN_ITERATIONS][STREAMS];    /* r after iteration k */
    float columns[SINKHORN_ITERATIONS][STREAMS]; /* c after iteration k */
};

inline void mhc_logits(__global const float *theta, __global const float *z, float logits[STREAMS][STREAMS]) {
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            const int entry = i * STREAMS + j;
            logits[i][j] = theta[P_alpha_res] * z[GATE_COLUMNS + entry] + theta[P_b_res + entry];
        }
    }
}

/* Potentials that normalise exp(L - r - c): c_j = log sum_i exp(L_ij - r_i), then r_i = log sum_j exp(L_ij - c_j). */
inline void sinkhorn(float logits[STREAMS][STREAMS], struct potentials *p) {
    float rows[STREAMS], columns[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        rows[i] = 0.0f;
    }
    for (int iteration = 0; iteration < SINKHORN_ITERATIONS; iteration++) {
        for (int j = 0; j < STREAMS; j++) {
            float highest = -INFINITY, sum = 0.0f;
            for (int i = 0; i < STREAMS; i++) {
                highest = fmax(highest, logits[i][j] - rows[i]);
            }
            for (int i = 0; i < STREAMS; i++) {
                sum += exp(logits[i][j] - rows[i] - highest);
            }
            p->columns[iteration][j] = columns[j] = highest + log(sum);
        }
        for (int i = 0; i < STREAMS; i++) {
            float highest = -INFINITY, sum = 0.0f;
            for (int j = 0; j < STREAMS; j++) {
                highest = fmax(highest, logits[i][j] - columns[j]);
            }
            for (int j = 0; j < STREAMS; j++) {
                sum += exp(logits[i][j] - columns[j] - highest);
            }
            p->rows[iteration][i] = rows[i] = highest + log(sum);
        }
    }
}

inline void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float logits[STREAMS][STREAMS];
    struct potentials p;
    sigmoid_gates_forward(theta, z, h);
    mhc_logits(theta, z, logits);
    sinkhorn(logits, &p);
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            h[GATE_COLUMNS + i * STREAMS + j] =
                exp(logits[i][j] - p.rows[SINKHORN_ITERATIONS - 1][i] - p.columns[SINKHORN_ITERATIONS - 1][j]);
        }
    }
}

/* Through y = L - logsumexp(L) along a line: d_L = d_y - exp(y) sum(d_y), from the last half-step to the first. */
inline void sinkhorn_backward(float logits[STREAMS][STREAMS], const struct potentials *p,
                              float d[STREAMS][STREAMS]) {
    for (int iteration = SINKHORN_ITERATIONS - 1; iteration >= 0; iteration--) {
        for (int i = 0; i < STREAMS; i++) {
            float sum = 0.0f;
            for (int j = 0; j < STREAMS; j++) {
                sum += d[i][j];
            }
            for (int j = 0; j < STREAMS; j++) {
                d[i][j] -= exp(logits[i][j] - p->rows[iteration][i] - p->columns[iteration][j]) * sum;
            }
        }
        for (int j = 0; j < STREAMS; j++) {
            float sum = 0.0f;
            for (int i = 0; i < STREAMS; i++) {
                sum += d[i][j];
            }
            for (int i = 0; i < STREAMS; i++) {
                const float row = iteration > 0 ? p->rows[iteration - 1][i] : 0.0f;
                d[i][j] -= exp(logits[i][j] - row - p->columns[iteration][j]) * sum;
            }
        }
    }
}

inline void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                        __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float logits[STREAMS][STREAMS], d[STREAMS][STREAMS], d_alpha = 0.0f;
    struct potentials p;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    mhc_logits(theta, z, logits);
    sinkhorn(logits, &p);
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            const int entry = GATE_COLUMNS + i * STREAMS + j;
            d[i][j] = row_gradient(d_h, i, j) * h[entry];
        }
    }
    sinkhorn_backward(logits, &p, d);
    for (int i = 0; i < STREAMS; i++) {
        for (int j = 0; j < STREAMS; j++) {
            const int entry = i * STREAMS + j;
            d_theta[P_b_res + entry] += d[i][j];
            d_alpha += d[i][j] * z[GATE_COLUMNS + entry];
            d_z[GATE_COLUMNS + entry] = theta[P_alpha_res] * d[i][j];
        }
    }
    d_theta[P_alpha_res] += d_alpha;
}
