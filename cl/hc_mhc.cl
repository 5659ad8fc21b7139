/* mhc (Xie et al. 2025): res = SK(alpha_res mat(z) + b_res), Sinkhorn-Knopp.
 *
 * SINKHORN_ITERATIONS times: columns normalised (sum over i), then rows. The matrix after any half-step is
 *   exp(L_ij - r_i - c_j) = K_ij R_i C_j,   K = exp(L - max L), R = exp(-r), C = exp(max L - c),
 * so the backward pass needs r and c, or R and C, of each iteration only, which it computes again. With the factors
 * R and C the iterations are products of K with vectors, without a single exp. They are taken as long as they stay
 * below 1e15, so that what underflows in K is nothing in the matrix; a token with wilder logits goes the long way
 * over the potentials r and c. These are rounded as coarsely as the logits are large, so the matrix after a
 * half-step is the softmax of its lines then, which sum to 1 whatever the potentials are.
 *
 * With HC_EPS, DeepSeek-V4's form, the first half-step is a softmax of each column, + HC_EPS, and each later one
 * divides a column or row by its sum + HC_EPS. Then K is what the first half-step makes, and C, R begin with ones:
 *   C_j <- C_j / (C_j sum_i K_ij R_i + HC_EPS)   from the second iteration on,
 *   R_i <- R_i / (R_i sum_j K_ij C_j + HC_EPS).
 */
#define MAP_WORK (2 * SINKHORN_ITERATIONS * STREAMS) /* floats of struct scaling */
#include "hc_gates.cl"

#define FACTOR_LIMIT 1e15f

/* Of rows after each iteration and of columns: factors R and C, or potentials r and c. The forward pass needs the
 * last ones only and keeps none, which leaves it in registers. */
struct scaling {
    float rows[SINKHORN_ITERATIONS][STREAMS];
    float columns[SINKHORN_ITERATIONS][STREAMS];
};

INLINED void mhc_logits(__global const float *theta, __global const float *z, float logits[STREAMS][STREAMS]) {
    EACH_ENTRY(i, j, STREAMS) {
        logits[i][j] = residual_logit(theta, z, i * STREAMS + j);
    }
}

INLINED void exponentials(float logits[STREAMS][STREAMS], float k[STREAMS][STREAMS]) {
    float highest = -INFINITY;
    EACH_ENTRY(i, j, STREAMS) {
        highest = fmax(highest, logits[i][j]);
    }
    EACH_ENTRY(i, j, STREAMS) {
        k[i][j] = exp(logits[i][j] - highest);
    }
}

/* Entry n of line i: of column i if `columns`, else of row i. */
#define LINE_ENTRY(matrix, columns, i, n) (matrix)[(columns) ? (n) : (i)][(columns) ? (i) : (n)]

/* Half a step: factors of the columns (or rows) from those of the others, and with HC_EPS those before. Returns the
 * largest. */
INLINED float factors_next(float k[STREAMS][STREAMS], const float others[STREAMS], bool columns,
                           float factors[STREAMS]) {
    float largest = 0.0f;
    EACH(i, STREAMS) {
        float sum = 0.0f;
        EACH(n, STREAMS) {
            sum += LINE_ENTRY(k, columns, i, n) * others[n];
        }
        factors[i] = SHIFTED ? factors[i] / (factors[i] * sum + HC_EPS) : 1.0f / sum;
        largest = fmax(largest, factors[i]);
    }
    return largest;
}

INLINED void potentials_next(float logits[STREAMS][STREAMS], const float others[STREAMS], bool columns,
                             float potentials[STREAMS]) {
    EACH(i, STREAMS) {
        float highest = -INFINITY, sum = 0.0f;
        EACH(n, STREAMS) {
            highest = fmax(highest, LINE_ENTRY(logits, columns, i, n) - others[n]);
        }
        EACH(n, STREAMS) {
            sum += exp(LINE_ENTRY(logits, columns, i, n) - others[n] - highest);
        }
        potentials[i] = highest + log(sum);
    }
}

/* `keeps`: whether there is a place for them. (Local memory may begin at address 0, so `kept` does not tell.) */
INLINED void scaling_keep(bool keeps, MAP_SPACE struct scaling *kept, int iteration, const float rows[STREAMS],
                          const float columns[STREAMS]) {
    for (int i = 0; i < STREAMS && keeps; i++) {
        kept->rows[iteration][i] = rows[i];
        kept->columns[iteration][i] = columns[i];
    }
}

/* With `factors`, of K:    C_j = 1 / sum_i K_ij R_i, then R_i = 1 / sum_j K_ij C_j. False if one exceeds the limit.
 * Else potentials, of L:   c_j = log sum_i exp(L_ij - r_i), then r_i = log sum_j exp(L_ij - c_j). */
INLINED bool sinkhorn_iterate(bool factors, float matrix[STREAMS][STREAMS], float rows[STREAMS],
                              float columns[STREAMS], bool keeps, MAP_SPACE struct scaling *kept) {
    float largest = 0.0f;
    EACH(i, STREAMS) {
        rows[i] = factors ? 1.0f : 0.0f;
    }
    for (int iteration = 0; iteration < SINKHORN_ITERATIONS; iteration++) {
        if (factors) {
            largest = fmax(largest, factors_next(matrix, rows, true, columns));
            largest = fmax(largest, factors_next(matrix, columns, false, rows));
        } else {
            potentials_next(matrix, rows, true, columns);
            potentials_next(matrix, columns, false, rows);
        }
        scaling_keep(keeps, kept, iteration, rows, columns);
    }
    return largest <= FACTOR_LIMIT;
}

/* The matrix after a half-step, of columns or rows, from logits and the potentials of the others: the softmax of
 * its lines. It may take the place of the logits. */
INLINED void lines_softmax(float logits[STREAMS][STREAMS], const float others[STREAMS], bool columns,
                           float matrix[STREAMS][STREAMS]) {
    EACH(i, STREAMS) {
        float highest = -INFINITY, sum = 0.0f;
        EACH(n, STREAMS) {
            LINE_ENTRY(matrix, columns, i, n) = LINE_ENTRY(logits, columns, i, n) - others[n];
            highest = fmax(highest, LINE_ENTRY(matrix, columns, i, n));
        }
        EACH(n, STREAMS) {
            LINE_ENTRY(matrix, columns, i, n) = exp(LINE_ENTRY(matrix, columns, i, n) - highest);
            sum += LINE_ENTRY(matrix, columns, i, n);
        }
        EACH(n, STREAMS) {
            LINE_ENTRY(matrix, columns, i, n) /= sum;
        }
    }
}

/* With HC_EPS: computes K and the factors of the last iteration, and stores the factors of all iterations in `kept`
 * if `keeps`. */
INLINED void sinkhorn_shifted(float logits[STREAMS][STREAMS], float k[STREAMS][STREAMS], float rows[STREAMS],
                              float columns[STREAMS], bool keeps, MAP_SPACE struct scaling *kept) {
    CLEAR(float, rows, STREAMS);
    lines_softmax(logits, rows, true, k);
    EACH(i, STREAMS) {
        EACH(j, STREAMS) {
            k[i][j] += HC_EPS;
        }
        rows[i] = columns[i] = 1.0f;
    }
    for (int iteration = 0; iteration < SINKHORN_ITERATIONS; iteration++) {
        if (iteration > 0) {
            factors_next(k, rows, true, columns);
        }
        factors_next(k, columns, false, rows);
        scaling_keep(keeps, kept, iteration, rows, columns);
    }
}

/* Computes K and the last iteration's factors for this token's logits, or, if it returns false, potentials, and
 * stores the factors or potentials of all iterations in `kept` if `keeps`. */
INLINED bool sinkhorn(float logits[STREAMS][STREAMS], float k[STREAMS][STREAMS], float rows[STREAMS],
                      float columns[STREAMS], bool keeps, MAP_SPACE struct scaling *kept) {
    if (SHIFTED) {
        sinkhorn_shifted(logits, k, rows, columns, keeps, kept);
        return true;
    }
    exponentials(logits, k);
    const bool factors = sinkhorn_iterate(true, k, rows, columns, keeps, kept);
    if (!factors) {
        sinkhorn_iterate(false, logits, rows, columns, keeps, kept);
    }
    return factors;
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float logits[STREAMS][STREAMS], k[STREAMS][STREAMS], rows[STREAMS], columns[STREAMS];
    sigmoid_gates_forward(theta, z, h);
    mhc_logits(theta, z, logits);
    const bool factors = sinkhorn(logits, k, rows, columns, false, 0);
    if (!factors) {
        lines_softmax(logits, columns, false, logits);
    }
    EACH_ENTRY(i, j, STREAMS) {
        h[RES_AT(i, j)] = factors ? k[i][j] * rows[i] * columns[j] : logits[i][j];
    }
}

/* Through y = L - logsumexp(L) along every column (or row): d_L = d_y - exp(y) sum(d_y). */
INLINED void lines_backward(float matrix[STREAMS][STREAMS], bool columns, float d[STREAMS][STREAMS]) {
    EACH(i, STREAMS) {
        float sum = 0.0f;
        EACH(n, STREAMS) {
            sum += LINE_ENTRY(d, columns, i, n);
        }
        EACH(n, STREAMS) {
            LINE_ENTRY(d, columns, i, n) -= LINE_ENTRY(matrix, columns, i, n) * sum;
        }
    }
}

/* Rows of the last matrix sum to 1 less HC_EPS / (their sum before + HC_EPS), and gradients that are equal along a
 * row count by that. The quotient of a row's factors is 1 / (its sum before + HC_EPS). */
INLINED void equal_rows_backward(__global const float *d_h, __global const float *h,
                                 MAP_SPACE const struct scaling *s, float d[STREAMS][STREAMS]) {
    EACH_ENTRY(i, j, STREAMS) {
        const float before = SINKHORN_ITERATIONS > 1 ? s->rows[SINKHORN_ITERATIONS - 2][i] : 1.0f;
        const float share = HC_EPS * s->rows[SINKHORN_ITERATIONS - 1][i] / before;
        d[i][j] += d_h[RES_AT(i, 0)] * h[RES_AT(i, j)] * share;
    }
}

/* Through the first half-step with HC_EPS: K = P + HC_EPS, P = softmax of each column of L. */
INLINED void shifted_softmax_backward(float k[STREAMS][STREAMS], float d[STREAMS][STREAMS]) {
    EACH(j, STREAMS) {
        float sum = 0.0f;
        EACH(i, STREAMS) {
            d[i][j] *= (k[i][j] - HC_EPS) / k[i][j];
            sum += d[i][j];
        }
        EACH(i, STREAMS) {
            d[i][j] -= (k[i][j] - HC_EPS) * sum;
        }
    }
}

/* From the last half-step to the first, or with HC_EPS to the second. Each, also one with HC_EPS, is y = x / t(x)
 * with t the sum of a line + HC_EPS or a constant, and d is of logarithms: d_log x = d_log y - y sum(d_log y). */
INLINED void sinkhorn_backward(float logits[STREAMS][STREAMS], float k[STREAMS][STREAMS],
                               MAP_SPACE const struct scaling *s, bool factors, __global const float *d_h,
                               __global const float *h, float d[STREAMS][STREAMS]) {
    float matrix[STREAMS][STREAMS];
    for (int step = 2 * SINKHORN_ITERATIONS - 1; step >= (SHIFTED ? 1 : 0); step--) {
        const int iteration = step / 2, rows_at = (step + 1) / 2 - 1; /* rows of this iteration or the last one */
        float rows[STREAMS], columns[STREAMS];
        EACH(i, STREAMS) {
            rows[i] = rows_at >= 0 ? s->rows[rows_at][i] : factors ? 1.0f : 0.0f; /* as it was before the first */
            columns[i] = s->columns[iteration][i];
        }
        if (factors) {
            EACH_ENTRY(i, j, STREAMS) {
                matrix[i][j] = k[i][j] * rows[i] * columns[j];
            }
        } else if (step % 2) {
            lines_softmax(logits, columns, false, matrix);
        } else {
            lines_softmax(logits, rows, true, matrix);
        }
        if (step % 2) {
            lines_backward(matrix, false, d);
        } else {
            lines_backward(matrix, true, d);
        }
        if (SHIFTED && step == 2 * SINKHORN_ITERATIONS - 1) {
            equal_rows_backward(d_h, h, s, d);
        }
    }
    if (SHIFTED) {
        shifted_softmax_backward(k, d);
    }
}

INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta,
                         MAP_SPACE float *work) {
    float logits[STREAMS][STREAMS], k[STREAMS][STREAMS], rows[STREAMS], columns[STREAMS];
    float d[STREAMS][STREAMS], d_alpha = 0.0f;
    MAP_SPACE struct scaling *s = (MAP_SPACE struct scaling *)work;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    mhc_logits(theta, z, logits);
    const bool factors = sinkhorn(logits, k, rows, columns, true, s);
    EACH_ENTRY(i, j, STREAMS) {
        d[i][j] = (d_h[RES_AT(i, j)] - d_h[RES_AT(i, 0)]) * h[RES_AT(i, j)]; /* rows sum to one, columns nearly */
    }
    sinkhorn_backward(logits, k, s, factors, d_h, h, d);
    EACH_ENTRY(i, j, STREAMS) {
        d_alpha += residual_logit_backward(theta, z, i * STREAMS + j, d[i][j], d_z, d_theta);
    }
    d_theta[P_alpha_res] += d_alpha;
}
