/* What a layer begins with where x0_lambdas are: X' = lambda_resid X + lambda_x0 X_0, X_0 the model's first
 * streams; and backward
 *
 *   d_X = lambda_resid d_X'              d_X_0 += lambda_x0 d_X'
 *   d_lambda_resid = <d_X', X>           d_lambda_x0 = <d_X', X_0>
 *
 * where sums are over all tokens. In layer 0 X is X_0: then d_X_0 += (lambda_resid + lambda_x0) d_X'. `lambdas` are
 * lambda_resid and lambda_x0.
 *
 * Build constants: STREAMS (S), CHANNELS (C), FRACTIONS.
 */
#include "group.cl"

/* One work-group a token: X and X_0 [N, S, C] -> X', which may be X, and its squares [N, S]. */
ROW_KERNEL void lambdas_forward(__global const act_t *x_all, __global const act_t *first_all,
                                __global const float *parameters, ulong lambdas_at, __global act_t *mixed,
                                __global float *squares) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t row = get_group_id(0) * ROW_LENGTH;
    __global const float *lambdas = parameters + lambdas_at;
    vec_t sums[STREAMS];
    UNROLL_LANES(STREAMS) for (int s = 0; s < STREAMS; s++) {
        sums[s] = (vec_t)(0.0f);
        for (int c = LANE * VEC; c < STREAM_CHANNELS; c += LANES * VEC) {
            const size_t at = row + s * STREAM_CHANNELS + c;
            const vec_t sum = lambdas[0] * ACT_LOAD(x_all + at) + lambdas[1] * ACT_LOAD(first_all + at);
            ACT_STORE(sum, mixed + at);
            sums[s] += ACT_ROUND(sum) * ACT_ROUND(sum);
        }
    }
    LANE_SUMS_STORE(VEC_SUM, squares + get_group_id(0) * STREAMS, sums, STREAMS, scratch);
}

/* One work-group a chunk of tokens: d_streams [N, S, C] in place, d_first [N, S, C] added to; partial sums [chunks,
 * 2] of the gradient of the lambdas. */
ROW_KERNEL void lambdas_backward(__global const act_t *x_all, __global const act_t *first_all,
                                 __global const float *parameters, ulong lambdas_at, int is_first, ulong tokens,
                                 __global act_t *d_streams, __global act_t *d_first, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, 2);
    const float resid = parameters[lambdas_at], x0 = parameters[lambdas_at + 1];
    const float to_first = is_first ? resid + x0 : x0;
    vec_t sums[2] = {(vec_t)(0.0f), (vec_t)(0.0f)};
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        for (int c = LANE * VEC; c < ROW_LENGTH; c += LANES * VEC) {
            const size_t at = token * ROW_LENGTH + c;
            const vec_t d = ACT_LOAD(d_streams + at);
            sums[0] += d * ACT_LOAD(x_all + at);
            sums[1] += d * ACT_LOAD(first_all + at);
            ACT_STORE(resid * d, d_streams + at);
            ACT_STORE(ACT_LOAD(d_first + at) + to_first * d, d_first + at);
        }
    }
    LANE_SUMS_STORE(VEC_SUM, partials + get_group_id(0) * 2, sums, 2, scratch);
}
