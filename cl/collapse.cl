/* The collapse of the streams at the top with stream_reduce = head: weights p of a token's streams x [S, C], with
 * which the width mix of stream_mix.cl then sums and normalises them.
 *
 *   r = 1 / sqrt(mean of all x^2 + 1e-6)     z = r x w     p = sigmoid(alpha z + b) + HC_EPS,   w [S C, S]
 *   d_x = p_s d_u + r d_z w^T - r^2 / (S C) <z, d_z> x,   d_z = alpha d_p sigmoid'
 *
 * Without PROJECTED (stream_reduce = read) there is no w, p = sigmoid(b) + HC_EPS and d_x = p_s d_u.
 *
 * `small` is b [S] and then, if PROJECTED, alpha. The weights are in the first S numbers of a row of h [N, H_ROW].
 *
 * Build constants: STREAMS (S), CHANNELS (C), PROJECTED, HC_EPS; VEC is 1.
 */
#include "group.cl"

#define SMALL       (PROJECTED ? STREAMS + 1 : STREAMS)
#define RMS_EPSILON 1e-6f

static inline float inverse_of(__global const float *squares) {
    float sum = 0.0f;
    for (int s = 0; s < STREAMS; s++) {
        sum += squares[s];
    }
    return rsqrt(sum / ROW_LENGTH + RMS_EPSILON);
}

/* One work-group a token. streams [N, S, C], squares [N, S] -> z [N, S], h [N, H_ROW]. */
ROW_KERNEL void collapse_forward(__global const act_t *streams, __global const float *parameters, ulong w_at,
                                 ulong small_at, __global const float *squares, __global float *z,
                                 __global float *h) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0);
    __global const float *small = parameters + small_at;
    float sums[STREAMS];
    CLEAR(float, sums, STREAMS);
    UNUSED_POINTERS(streams, squares, z);
#if PROJECTED
    for (int k = LANE; k < ROW_LENGTH; k += LANES) {
        const float x = ACT_LOAD(streams + token * ROW_LENGTH + k);
        for (int s = 0; s < STREAMS; s++) {
            sums[s] += x * parameters[w_at + k * STREAMS + s];
        }
    }
    GROUP_SUMS(sums, STREAMS, scratch);
#endif
    for (int s = LANE; s < STREAMS; s += LANES) {
        float logit = small[s];
#if PROJECTED
        const float normal = inverse_of(squares + token * STREAMS) * GROUP_TOTAL(sums, scratch, s);
        z[token * STREAMS + s] = normal;
        logit = small[STREAMS] * normal + small[s];
#endif
        h[token * H_ROW + s] = 1.0f / (1.0f + exp(-logit)) + HC_EPS;
    }
}

/* One work-group a chunk of tokens. d_u [N, C], d_h [N, H_ROW] -> d_streams [N, S, C], r d_z [N, S] for the GEMM
 * that makes the gradient of w, partials [chunks, S + 1 or S] of the gradient of `small`. */
ROW_KERNEL void collapse_backward(__global const act_t *streams, __global const float *parameters, ulong w_at,
                                  ulong small_at, __global const float *squares, __global const float *z,
                                  __global const float *h, __global const float *d_h, __global const act_t *d_u,
                                  ulong tokens, __global act_t *d_z, __global act_t *d_streams,
                                  __global float *partials) {
    const size_t first = chunk_begin(tokens, 0), last = chunk_begin(tokens, 1);
    float d_small[SMALL];
    CLEAR(float, d_small, SMALL);
#if !PROJECTED
    UNUSED_POINTERS(streams, parameters, squares);
    UNUSED_POINTER(z);
    UNUSED_POINTER(d_z);
    for (size_t token = first; token < last; token++) {
        for (int s = 0; s < STREAMS; s++) {
            const float p = h[token * H_ROW + s] - HC_EPS;
            d_small[s] += d_h[token * H_ROW + s] * p * (1.0f - p);
        }
        for (int k = LANE; k < ROW_LENGTH; k += LANES) {
            ACT_STORE(h[token * H_ROW + k / CHANNELS] * ACT_LOAD(d_u + token * CHANNELS + k % CHANNELS),
                      d_streams + token * ROW_LENGTH + k);
        }
    }
#else
    __global const float *w = parameters + w_at;
    const float alpha = parameters[small_at + STREAMS];
    for (size_t token = first; token < last; token++) {
        const float inverse = inverse_of(squares + token * STREAMS);
        float d_raw[STREAMS], product = 0.0f;
        for (int s = 0; s < STREAMS; s++) {
            const float p = h[token * H_ROW + s] - HC_EPS, normal = z[token * STREAMS + s];
            const float d = d_h[token * H_ROW + s] * p * (1.0f - p);
            d_small[s] += d;
            d_small[STREAMS] += d * normal;
            product += alpha * d * normal;
            d_raw[s] = inverse * alpha * d;
        }
        const float scale = -product * inverse * inverse / ROW_LENGTH;
        for (int k = LANE; k < ROW_LENGTH; k += LANES) {
            float d = h[token * H_ROW + k / CHANNELS] * ACT_LOAD(d_u + token * CHANNELS + k % CHANNELS) +
                      scale * ACT_LOAD(streams + token * ROW_LENGTH + k);
            for (int s = 0; s < STREAMS; s++) {
                d += d_raw[s] * w[k * STREAMS + s];
            }
            ACT_STORE(d, d_streams + token * ROW_LENGTH + k);
        }
        if (LANE == 0) {
            for (int s = 0; s < STREAMS; s++) {
                ACT_STORE(d_raw[s], d_z + token * STREAMS + s);
            }
        }
    }
#endif
    if (LANE == 0) {
        for (int s = 0; s < SMALL; s++) {
            partials[get_group_id(0) * SMALL + s] = d_small[s];
        }
    }
}
