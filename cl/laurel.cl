/* LAuReL: x' = a o + b (x + m), m = (x w_down) w_up, (a, b) = 2 softmax(b_mix), for the branch's output o; without
 * WEIGHTS a = b = 1, without LAUREL_RANK there is no m. low = x w_down [N, LAUREL_RANK] is a GEMM's. Backward, with
 * d of x',
 *
 *   d_o = a d     d_m = b d     d_a = <d, o>     d_b = <d, x + m>     d_b_mix = (+, -) a b / 2 (d_a - d_b)
 *
 * where sums are over all tokens; GEMMs take d_m on to low, w_up and w_down, and add to d_x, which begins as d_m.
 *
 * Build constants: CHANNELS (C), WEIGHTS, LAUREL_RANK.
 */
#include "group.cl"

/* a and b */
INLINED float2 weights_of(__global const float *mix) {
    if (!WEIGHTS) {
        return (float2)(1.0f, 1.0f);
    }
    const float a = 2.0f / (1.0f + exp(mix[1] - mix[0])), b = 2.0f / (1.0f + exp(mix[0] - mix[1]));
    return (float2)(a, b);
}

/* x + m of a token at channels c .. */
INLINED vec_t sum_at(__global const act_t *x, __global const act_t *low, __global const act_t *up, int c) {
    vec_t sum = ACT_LOAD(x + c);
    for (int k = 0; k < LAUREL_RANK; k++) {
        sum += ACT_LOAD_SCALAR(low + k) * ACT_LOAD(up + (size_t)k * CHANNELS + c);
    }
    return sum;
}

/* One work-item a number of low, for as few tokens as a GEMM is slow with; w_down [C, LAUREL_RANK]. */
__kernel void laurel_low(__global const act_t *x, __global const act_t *weights, ulong down_at, ulong count,
                         __global act_t *low) {
    const size_t i = get_global_id(0), token = i / max(LAUREL_RANK, 1), k = i % max(LAUREL_RANK, 1);
    if (i < count) {
        float sum = 0.0f;
        for (int c = 0; c < CHANNELS; c++) {
            sum += ACT_LOAD_SCALAR(x + token * CHANNELS + c) *
                   ACT_LOAD_SCALAR(weights + down_at + (size_t)c * LAUREL_RANK + k);
        }
        ACT_STORE_SCALAR(sum, low + i);
    }
}

/* One work-group a token: x, o [N, C], low -> x', which may be x, and its squares [N]. */
ROW_KERNEL void laurel_forward(__global const act_t *x, __global const act_t *low, __global const act_t *weights,
                               ulong up_at, __global const float *parameters, ulong mix_at,
                               __global const act_t *output, __global act_t *mixed, __global float *squares) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0), at = token * CHANNELS;
    const float2 ab = weights_of(parameters + mix_at);
    vec_t square = (vec_t)(0.0f);
    UNUSED_POINTERS(low, weights, parameters);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t sum =
            ab.x * ACT_LOAD(output + at + c) + ab.y * sum_at(x + at, low + token * LAUREL_RANK, weights + up_at, c);
        ACT_STORE(sum, mixed + at + c);
        square += ACT_ROUND(sum) * ACT_ROUND(sum);
    }
    const float total = GROUP_SUM(VEC_SUM(square), scratch);
    if (LANE == 0) {
        squares[token] = total;
    }
}

/* One work-group a chunk of tokens: d_streams [N, C], d in, d_m out; d_output [N, C]; partial sums [chunks, 2] of
 * the gradient of b_mix. */
ROW_KERNEL void laurel_backward(__global const act_t *x, __global const act_t *low, __global const act_t *weights,
                                ulong up_at, __global const float *parameters, ulong mix_at,
                                __global const act_t *output, ulong tokens, __global act_t *d_streams,
                                __global act_t *d_output, __global float *partials) {
    GROUP_SCRATCH(scratch);
    const float2 ab = weights_of(parameters + mix_at);
    vec_t difference = (vec_t)(0.0f); /* d_a - d_b */
    UNUSED_POINTERS(low, weights, parameters);
    UNUSED_POINTER(x);
    UNUSED_POINTER(output);
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        const size_t at = token * CHANNELS;
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d = ACT_LOAD(d_streams + at + c);
            if (WEIGHTS) {
                difference +=
                    d * (ACT_LOAD(output + at + c) - sum_at(x + at, low + token * LAUREL_RANK, weights + up_at, c));
            }
            ACT_STORE(ab.x * d, d_output + at + c);
            ACT_STORE(ab.y * d, d_streams + at + c);
        }
    }
    const float sum = 0.5f * ab.x * ab.y * GROUP_SUM(VEC_SUM(difference), scratch);
    if (LANE == 0) {
        partials[2 * get_group_id(0)] = sum;
        partials[2 * get_group_id(0) + 1] = -sum;
    }
}
