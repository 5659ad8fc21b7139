/* The top of the model: final layer norm with the streams reduced.
 *
 *   norm_sum   y = sum_s LN(x_s)           sum_norm   y = LN(sum_s x_s)
 *
 * Build constants: STREAMS (S), CHANNELS (C), NORM_SUM (1 or 0), BIAS.
 */
#include "norm.cl"

#define NORMS  (NORM_SUM ? STREAMS : 1) /* rows normalised per token */
#define SUMMED (NORM_SUM ? 1 : STREAMS) /* streams summed into each */

static inline vec_t norm_input(__global const act_t *x, int norm, int c) {
    vec_t u = ACT_LOAD(x + norm * CHANNELS + c);
    for (int s = 1; s < SUMMED; s++) {
        u += ACT_LOAD(x + (norm + s) * CHANNELS + c);
    }
    return u;
}

/* One work-group a token. streams [N, S, C] -> output [N, C], statistics [N, NORMS, 2] (mean, 1/deviation). */
ROW_KERNEL void final_norm_forward(__global const act_t *streams, __global const float *parameters, ulong gain_at,
                                   ulong bias_at, __global act_t *output, __global float *statistics) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0);
    __global const act_t *x = streams + token * ROW_LENGTH;
    vec_t sum_normal[SLOTS(CHANNELS)];
    CLEAR(vec_t, sum_normal, SLOTS(CHANNELS));
    for (int norm = 0; norm < NORMS; norm++) {
        vec_t u[SLOTS(CHANNELS)];
        vec_t sum = (vec_t)(0.0f);
        LANE_STEPS(slot, c, CHANNELS) {
            u[slot] = norm_input(x, norm, c);
            sum += u[slot];
        }
        const float2 row = norm_center(u, sum, scratch);
        UNROLL_LANES(SLOTS(CHANNELS)) for (int slot = 0; slot < SLOTS(CHANNELS); slot++) {
            sum_normal[slot] += u[slot] * row.y;
        }
        if (LANE == 0) {
            statistics[(token * NORMS + norm) * 2] = row.x;
            statistics[(token * NORMS + norm) * 2 + 1] = row.y;
        }
    }
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t y = sum_normal[slot] * VEC_LOAD(parameters + gain_at + c);
        if (BIAS) {
            y += (float)NORMS * VEC_LOAD(parameters + bias_at + c);
        }
        ACT_STORE(y, output + token * CHANNELS + c);
    }
}

/* One work-group a chunk of tokens.
 * d_output [N, C] -> d_streams [N, S, C], partial sums [chunks, 2 C] of the gradients of gain and bias. */
ROW_KERNEL void final_norm_backward(__global const act_t *streams, __global const float *parameters, ulong gain_at,
                                    __global const float *statistics, __global const act_t *d_output, ulong tokens,
                                    __global act_t *d_streams, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, 2);
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)], normal[SLOTS(CHANNELS)], d_normal[SLOTS(CHANNELS)];
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    CLEAR(vec_t, d_bias, SLOTS(CHANNELS));
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        for (int norm = 0; norm < NORMS; norm++) {
            const size_t at = (token * NORMS + norm) * 2;
            const float2 row = (float2)(statistics[at], statistics[at + 1]);
            products_t sums[2];
            CLEAR(products_t, sums, 2);
            LANE_STEPS(slot, c, CHANNELS) {
                norm_backward(slot, norm_input(streams + token * ROW_LENGTH, norm, c), row,
                              ACT_LOAD(d_output + token * CHANNELS + c), VEC_LOAD(parameters + gain_at + c), normal,
                              d_normal, sums, d_gain, d_bias);
            }
            const float2 means = norm_backward_means(sums, scratch);
            LANE_STEPS(slot, c, CHANNELS) {
                const vec_t d = norm_gradient(row.y, d_normal[slot], normal[slot], means);
                for (int s = 0; s < SUMMED; s++) {
                    ACT_STORE(d, d_streams + token * ROW_LENGTH + (norm + s) * CHANNELS + c);
                }
            }
        }
    }
    norm_store_partial(d_gain, d_bias, partials + get_group_id(0) * (2 * CHANNELS));
}
