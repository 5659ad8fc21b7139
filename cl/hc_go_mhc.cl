/* go_mhc (go-mHC, arXiv 2604.02309): entries are the mean squares of blocks of an orthogonal matrix,
 *
 *   res[i, j] = 1/B sum over block (i, j) of Q squared,   Q = (I + A)^-1 (I - A)  [S B, S B],   B = 2
 *
 * A skew-symmetric, its upper triangle by rows a = alpha_res z + b_res. Rows and columns of Q have length one, so
 * those of res sum to one. Since (I + A) + (I - A) = 2 I, Q = 2 X - I with X = (I + A)^-1.
 */
#define BLOCK    2
#define ORDER    (BLOCK * STREAMS)
#define ENTRIES  (ORDER * ORDER)
#define MAP_WORK (2 * ENTRIES) /* Q and K, backward */
#include "hc_gates.cl"

/* Local memory can be indexed, so a GPU's loops over what is there need not be unrolled; unrolled, compilers move
 * so many of its loads to the front that registers run out. */
#if LANES >= 32 && MAP_WORK <= MAP_LOCAL
#define EACH_KEPT(i, n) UNROLL(1) for (int i = 0; i < (n); i++)
#else
#define EACH_KEPT(i, n) EACH(i, n)
#endif

/* X in place, by Gauss and Jordan. No pivoting: the symmetric part of I + A is I, and stays at least I in every
 * Schur complement, so pivots are at least 1. */
INLINED void invert(float x[ORDER][ORDER]) {
    EACH(pivot, ORDER) {
        const float inverse = 1.0f / x[pivot][pivot];
        x[pivot][pivot] = 1.0f;
        EACH(j, ORDER) {
            x[pivot][j] *= inverse;
        }
        EACH(i, ORDER) {
            if (i != pivot) {
                const float factor = x[i][pivot];
                x[i][pivot] = 0.0f;
                EACH(j, ORDER) {
                    x[i][j] -= factor * x[pivot][j];
                }
            }
        }
    }
}

/* Q, of which only one copy fits a GPU's registers: what wants X takes (Q + I) / 2. */
INLINED void rotation(__global const float *theta, __global const float *z, float q[ORDER][ORDER]) {
    int next = 0;
    EACH(i, ORDER) {
        q[i][i] = 1.0f;
        EACH(j, ORDER) {
            if (j > i) {
                const float angle = residual_logit(theta, z, next++);
                q[i][j] = angle;
                q[j][i] = -angle;
            }
        }
    }
    invert(q);
    EACH_ENTRY(i, j, ORDER) {
        q[i][j] = 2.0f * q[i][j] - (i == j ? 1.0f : 0.0f);
    }
}

/* Takes out of Q what elimination has lost of it: a step of Newton's, Q + (I - Q Q^T) Q / 2, which squares the
 * distance from an orthogonal matrix. Rounding of I + A grows with the square of the angles, and over depth it adds
 * up. */
INLINED void make_orthogonal(float q[ORDER][ORDER]) {
    float lost[ORDER][ORDER];
    EACH_ENTRY(i, j, ORDER) {
        if (j >= i) {
            float sum = i == j ? 1.0f : 0.0f;
            EACH(l, ORDER) {
                sum -= q[i][l] * q[j][l];
            }
            lost[i][j] = lost[j][i] = 0.5f * sum;
        }
    }
    EACH(j, ORDER) {
        float column[ORDER];
        EACH(i, ORDER) {
            column[i] = q[i][j];
        }
        EACH_ENTRY(i, l, ORDER) {
            q[i][j] += lost[i][l] * column[l];
        }
    }
}

INLINED void hc_forward(__global const float *theta, __global const float *z, __global float *h) {
    float q[ORDER][ORDER];
    sigmoid_gates_forward(theta, z, h);
    rotation(theta, z, q);
    make_orthogonal(q);
    EACH_ENTRY(i, j, STREAMS) {
        float sum = 0.0f;
        EACH_ENTRY(row, column, BLOCK) {
            const float entry = q[BLOCK * i + row][BLOCK * j + column];
            sum += entry * entry;
        }
        h[RES_AT(i, j)] = sum / BLOCK;
    }
}

/* The gradient of A's angles is  -2 X^T K X  with  K = d_Q Q^T - Q d_Q^T,  from dX = -X dA X and X^T = Q^T X. Since
 * d_Q = 2/B d_res[block] Q, entry by entry,
 *   K_ij = 2/B sum_l (d_res[block of i, l] - d_res[block of j, l]) Q_il Q_jl. */
INLINED float turning(__global const float *d_h, MAP_SPACE const float *q, int i, int j) {
    float sum = 0.0f;
    EACH(l, ORDER) {
        const float d = res_gradient(d_h, i / BLOCK, l / BLOCK) - res_gradient(d_h, j / BLOCK, l / BLOCK);
        sum += d * q[i * ORDER + l] * q[j * ORDER + l];
    }
    return 2.0f / BLOCK * sum;
}

INLINED void rotation_keep(__global const float *theta, __global const float *z, MAP_SPACE float *kept) {
    float q[ORDER][ORDER];
    rotation(theta, z, q);
    EACH_ENTRY(i, j, ORDER) {
        kept[i * ORDER + j] = q[i][j];
    }
}

INLINED void hc_backward(__global const float *theta, __global const float *z, __global const float *h,
                         __global const float *d_h, __global float *d_z, __global float *d_theta,
                         MAP_SPACE float *work) {
    MAP_SPACE float *q = work, *k = work + ENTRIES;
    float d_alpha = 0.0f;
    sigmoid_gates_backward(theta, z, h, d_h, d_z, d_theta);
    rotation_keep(theta, z, q);
    EACH_KEPT(i, ORDER) {
        k[i * ORDER + i] = 0.0f;
        EACH_KEPT(j, ORDER) {
            if (j > i) {
                const float entry = turning(d_h, q, i, j);
                k[i * ORDER + j] = entry;
                k[j * ORDER + i] = -entry;
            }
        }
    }
    EACH_KEPT(j, ORDER) {
        float column[ORDER]; /* of K (Q + I) */
        EACH(l, ORDER) {
            column[l] = k[l * ORDER + j];
            EACH(m, ORDER) {
                column[l] += k[l * ORDER + m] * q[m * ORDER + j];
            }
        }
        EACH_KEPT(i, ORDER) {
            if (i < j) {
                float d = 0.0f;
                EACH(l, ORDER) {
                    d += (q[l * ORDER + i] + (l == i ? 1.0f : 0.0f)) * column[l];
                }
                const int angle = i * ORDER - i * (i + 1) / 2 + j - i - 1;
                d_alpha += residual_logit_backward(theta, z, angle, -0.5f * d, d_z, d_theta);
            }
        }
    }
    d_theta[P_alpha_res] += d_alpha;
}
