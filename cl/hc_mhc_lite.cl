/* mhc_lite (Yang et al. 2026): res = sum_r a_r P_r, a = softmax(alpha_res z + b_res) over all S! permutations.
 *
 * P_r[i, perm_r(i)] = 1 for the r-th permutation in lexicographic order. Up to 40320 coefficients (S = 8): they
 * stay in global memory, and the permutations are generated as the loop goes.
 */
#include "hc_gates.cl"

#define PERMUTATIONS (PROJECTIONS - GATE_COLUMNS)

/* A permutation is eight numbers of four bits: an array would have to be memory, where it is indexed. */
#define FIRST_PERMUTATION 0x76543210u

INLINED int image(uint permutation, int i) {
    return permutation >> (4 * i) & 15u;
}

INLINED uint swapped(uint permutation, int i, int j) {
    const uint difference = image(permutation, i) ^ image(permutation, j);
    return permutation ^ difference << (4 * i) ^ difference << (4 * j);
}

/* The next one in lexicographic order; the last one stays. */
INLINED uint permutation_next(uint p) {
    int i = STREAMS - 2;
    while (i >= 0 && image(p, i) > image(p, i + 1)) {
        i--;
    }
    if (i < 0) {
        return p;
    }
    int j = STREAMS - 1;
    while (image(p, j) < image(p, i)) {
        j--;
    }
    p = swapped(p, i, j);
    for (int low = i + 1, high = STREAMS - 1; low < high; low++, high--) {
        p = swapped(p, low, high);
    }
    return p;
}

/* What follows is done for the column j of row i of a permutation matrix. On a GPU j is looked for, so that
 * matrices stay in registers, which cannot be indexed. */
#if LANES < 32 || STREAMS > 4
#define AT_IMAGE(j, permutation, i) for (int j = image(permutation, i), j_once = 1; j_once; j_once = 0)
#else
#define AT_IMAGE(j, permutation, i)                                                                                \
    EACH(j, STREAMS)                                                                                               \
        if (j == image(permutation, i))
#endif

INLINED float permutation_highest(__global const float *theta, __global const float *z) {
    float highest = -INFINITY;
    for (int r = 0; r < PERMUTATIONS; r++) {
        highest = fmax(highest, residual_logit(theta, z, r));
    }
    return highest;
}

/* Compensated addition (Kahan): of up to 40320 terms, so that rows and columns sum to one as exactly as floats
 * allow. */
INLINED void add_compensated(float term, float *sum, float *lost) {
    const float corrected = term - *lost;
    const float total = *sum + corrected;
    *lost = (total - *sum) - corrected;
    *sum = total;
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float res[STREAMS][STREAMS], lost[STREAMS][STREAMS], sum = 0.0f, sum_lost = 0.0f;
    sigmoid_gates_forward(theta, z, h);
    EACH_ENTRY(i, j, STREAMS) {
        res[i][j] = lost[i][j] = 0.0f;
    }
    const float highest = permutation_highest(theta, z);
    uint p = FIRST_PERMUTATION;
    for (int r = 0; r < PERMUTATIONS; r++) {
        const float weight = exp(residual_logit(theta, z, r) - highest);
        add_compensated(weight, &sum, &sum_lost);
        EACH(i, STREAMS) {
            AT_IMAGE(j, p, i) {
                add_compensated(weight, &res[i][j], &lost[i][j]);
            }
        }
        p = permutation_next(p);
    }
    EACH_ENTRY(i, j, STREAMS) {
        h[RES_AT(i, j)] = res[i][j] / sum;
    }
}

/* d a_r = sum_i d_res[i, perm_r(i)];  through the softmax  d logit_r = a_r (d a_r - sum_q a_q d a_q),  and that
 * last sum is the product of res and d_res. */
INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta) {
    float d_res[STREAMS][STREAMS], product = 0.0f, sum = 0.0f, sum_lost = 0.0f, d_alpha = 0.0f, d_alpha_lost = 0.0f;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    EACH_ENTRY(i, j, STREAMS) {
        d_res[i][j] = res_gradient(d_h, i, j);
        product += d_res[i][j] * h[RES_AT(i, j)];
    }
    const float highest = permutation_highest(theta, z);
    for (int r = 0; r < PERMUTATIONS; r++) {
        add_compensated(exp(residual_logit(theta, z, r) - highest), &sum, &sum_lost);
    }
    uint p = FIRST_PERMUTATION;
    for (int r = 0; r < PERMUTATIONS; r++) {
        float d = -product;
        EACH(i, STREAMS) {
            AT_IMAGE(j, p, i) {
                d += d_res[i][j];
            }
        }
        d *= exp(residual_logit(theta, z, r) - highest) / sum;
        add_compensated(residual_logit_backward(theta, z, r, d, d_z, d_theta), &d_alpha, &d_alpha_lost);
        p = permutation_next(p);
    }
    d_theta[P_alpha_res] += d_alpha;
}
