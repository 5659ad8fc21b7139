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

/* From logits to K, in place. */
INLINED void exponentials(float k[STREAMS][STREAMS]) {
    float highest = -INFINITY;
    EACH_ENTRY(i, j, STREAMS) {
        highest = fmax(highest, k[i][j]);
    }
    EACH_ENTRY(i, j, STREAMS) {
        k[i][j] = exp(k[i][j] - highest);
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

/* Line i of the matrix after a half-step, of columns or rows, from logits and the potentials of the others. */
INLINED void line_softmax(float logits[STREAMS][STREAMS], const float others[STREAMS], bool columns, int i,
                          float line[STREAMS]) {
    EACH(n, STREAMS) {
        line[n] = LINE_ENTRY(logits, columns, i, n) - others[n];
    }
    softmax(line);
}

/* The whole matrix in place of the logits. */
INLINED void lines_softmax(float logits[STREAMS][STREAMS], const float others[STREAMS], bool columns) {
    EACH(i, STREAMS) {
        float line[STREAMS];
        line_softmax(logits, others, columns, i, line);
        EACH(n, STREAMS) {
            LINE_ENTRY(logits, columns, i, n) = line[n];
        }
    }
}

/* With HC_EPS: makes K of the logits k, and the factors of the last iteration, and stores the factors of all
 * iterations in `kept` if `keeps`. */
INLINED void sinkhorn_shifted(float k[STREAMS][STREAMS], float rows[STREAMS], float columns[STREAMS], bool keeps,
                              MAP_SPACE struct scaling *kept) {
    CLEAR(float, rows, STREAMS);
    lines_softmax(k, rows, true);
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

/* For a token's logits: K and the last iteration's factors, or, if it returns false, the logits and potentials.
 * Stores the factors or potentials of all iterations in `kept` if `keeps`. */
INLINED bool sinkhorn(__global const float *theta, __global const float *z, float matrix[STREAMS][STREAMS],
                      float rows[STREAMS], float columns[STREAMS], bool keeps, MAP_SPACE struct scaling *kept) {
    mhc_logits(theta, z, matrix);
    if (SHIFTED) {
        sinkhorn_shifted(matrix, rows, columns, keeps, kept);
        return true;
    }
    exponentials(matrix);
    if (sinkhorn_iterate(true, matrix, rows, columns, keeps, kept)) {
        return true;
    }
    mhc_logits(theta, z, matrix);
    sinkhorn_iterate(false, matrix, rows, columns, keeps, kept);
    return false;
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float matrix[STREAMS][STREAMS], rows[STREAMS], columns[STREAMS];
    sigmoid_gates_forward(theta, z, h);
    const bool factors = sinkhorn(theta, z, matrix, rows, columns, false, 0);
    if (!factors) {
        lines_softmax(matrix, columns, false);
    }
    EACH_ENTRY(i, j, STREAMS) {
        h[RES_AT(i, j)] = factors ? matrix[i][j] * rows[i] * columns[j] : matrix[i][j];
    }
}

/* Gradients go back from the last half-step to the first, or with HC_EPS to the second. Each, also one with HC_EPS,
 * is y = x / t(x) with t the sum of a line + HC_EPS or a constant. For gradients d of logarithms that is
 *   d_log x = d_log y - y sum(d_log y)   along every line,
 * and with y = K_ij R_i C_j and d_log = K f, so that K is multiplied by once,
 *   f_ij <- f_ij - R_i C_j s,            s = sum over the line of K f.
 */
INLINED void factors_backward(float k[STREAMS][STREAMS], bool columns, const float lines[STREAMS],
                              const float others[STREAMS], float f[STREAMS][STREAMS]) {
    EACH(i, STREAMS) {
        float sum = 0.0f;
        EACH(n, STREAMS) {
            sum += LINE_ENTRY(k, columns, i, n) * LINE_ENTRY(f, columns, i, n);
        }
        sum *= lines[i];
        EACH(n, STREAMS) {
            LINE_ENTRY(f, columns, i, n) -= others[n] * sum;
        }
    }
}

/* The same with potentials: from logits, through the softmax of every line. */
INLINED void potentials_backward(float logits[STREAMS][STREAMS], bool columns, const float others[STREAMS],
                                 float d[STREAMS][STREAMS]) {
    EACH(i, STREAMS) {
        float line[STREAMS], sum = 0.0f;
        line_softmax(logits, others, columns, i, line);
        EACH(n, STREAMS) {
            sum += LINE_ENTRY(d, columns, i, n);
        }
        EACH(n, STREAMS) {
            LINE_ENTRY(d, columns, i, n) -= line[n] * sum;
        }
    }
}

/* Rows of the last matrix sum to 1 less HC_EPS / (their sum before + HC_EPS), and gradients that are equal along a
 * row count by that. The quotient of a row's factors is 1 / (its sum before + HC_EPS). */
INLINED void equal_rows_backward(__global const float *d_h, MAP_SPACE const struct scaling *s,
                                 float f[STREAMS][STREAMS]) {
    EACH_ENTRY(i, j, STREAMS) {
        const float row = s->rows[SINKHORN_ITERATIONS - 1][i], column = s->columns[SINKHORN_ITERATIONS - 1][j];
        const float before = SINKHORN_ITERATIONS > 1 ? s->rows[SINKHORN_ITERATIONS - 2][i] : 1.0f;
        f[i][j] += d_h[RES_AT(i, 0)] * row * column * HC_EPS * row / before;
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

/* matrix: K and f, or with potentials logits and d. Where iteration 0 begins, factors are 1 and potentials 0. */
INLINED void sinkhorn_backward(float matrix[STREAMS][STREAMS], MAP_SPACE const struct scaling *s, bool factors,
                               __global const float *d_h, float d[STREAMS][STREAMS]) {
    float rows[STREAMS], columns[STREAMS];
    EACH(i, STREAMS) {
        rows[i] = s->rows[SINKHORN_ITERATIONS - 1][i];
    }
    for (int iteration = SINKHORN_ITERATIONS - 1; iteration >= 0; iteration--) {
        EACH(i, STREAMS) {
            columns[i] = s->columns[iteration][i];
        }
        if (factors) {
            factors_backward(matrix, false, rows, columns, d);
        } else {
            potentials_backward(matrix, false, columns, d);
        }
        if (SHIFTED && iteration == SINKHORN_ITERATIONS - 1) {
            equal_rows_backward(d_h, s, d);
        }
        EACH(i, STREAMS) {
            rows[i] = iteration > 0 ? s->rows[iteration - 1][i] : factors ? 1.0f : 0.0f;
        }
        if (SHIFTED && iteration == 0) {
            break;
        }
        if (factors) {
            factors_backward(matrix, true, columns, rows, d);
        } else {
            potentials_backward(matrix, true, rows, d);
        }
    }
    EACH_ENTRY(i, j, STREAMS) {
        d[i][j] *= factors ? matrix[i][j] : 1.0f;
    }
    if (SHIFTED) {
        shifted_softmax_backward(matrix, d);
    }
}

INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta,
                         MAP_SPACE float *work) {
    const float alpha = theta[P_alpha_res];
    float matrix[STREAMS][STREAMS], rows[STREAMS], columns[STREAMS], d[STREAMS][STREAMS], d_alpha = 0.0f;
    MAP_SPACE struct scaling *s = (MAP_SPACE struct scaling *)work;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    const bool factors = sinkhorn(theta, z, matrix, rows, columns, true, s);
    EACH_ENTRY(i, j, STREAMS) {
        const float d_entry = d_h[RES_AT(i, j)] - d_h[RES_AT(i, 0)]; /* rows sum to one, columns nearly */
        d[i][j] = d_entry * (factors ? rows[i] * columns[j] : h[RES_AT(i, j)]);
    }
    sinkhorn_backward(matrix, s, factors, d_h, d);
    EACH_ENTRY(i, j, STREAMS) { /* all before the first is stored */
        matrix[i][j] = d_theta[P_b_res + i * STREAMS + j] + d[i][j];
        d_alpha += d[i][j] * z[GATE_COLUMNS + i * STREAMS + j];
    }
    EACH_ENTRY(i, j, STREAMS) {
        d_theta[P_b_res + i * STREAMS + j] = matrix[i][j];
        d_z[GATE_COLUMNS + i * STREAMS + j] = alpha * d[i][j];
    }
    d_theta[P_alpha_res] += d_alpha;
}
