/* The depth mix behind one branch and the width mix before the next in one kernel, where the pre of the second is
 * known before its streams are. mix_math.cl has the formulas. The streams are read once and written once. It runs
 * in the frame `early` (read_delay, the variant wide) where frame.cl does not: early_leave in
 * src/model/frame_mixed.c.
 */
#include "mix_math.cl"

/* One work-group a token: depth_mix_forward, and width_mix_forward of the next sublayer with the pre of
 * read [N, H_ROW]. x [N, S, C], h, output o [N, C] -> mixed X' [N, S, C], squares q [N, S], normed [N, C],
 * statistics [N, 2]. */
ROW_KERNEL void mix_between(__global const act_t *x_all, __global const float *h_all, __global const act_t *output,
                            __global const float *read_all, __global const float *parameters, ulong gain_at,
                            ulong bias_at, __global act_t *mixed, __global float *squares, __global act_t *normed,
                            __global float *statistics) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0);
    __global const act_t *x = x_all + token * ROW_LENGTH;
    __global const float *read = read_all + token * H_ROW;
    H_OF_TOKEN(h, h_all + token * H_ROW);
    __global act_t *y = mixed + token * ROW_LENGTH;
    vec_t u[SLOTS(CHANNELS)], u_sum = (vec_t)(0.0f);
    products_t sums[STREAMS];
    CLEAR(products_t, sums, STREAMS);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
        vec_t in[STREAMS];
        streams_load(x, c, in);
        u[slot] = (vec_t)(0.0f);
        UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
            ACT_STORE(depth_mix(i, o, in, h), y + i * CHANNELS + c);
            const vec_t stored = ACT_LOAD(y + i * CHANNELS + c);
            sums[i] += PRODUCTS(stored * stored);
            u[slot] += read[i] * stored;
        }
        u_sum += u[slot];
    }
    LANE_SUMS_STORE(PRODUCTS_SUM, squares + token * STREAMS, sums, STREAMS, scratch);
    const float2 row = norm_center(u, u_sum, scratch);
    norm_store(u, row, parameters + gain_at, parameters + bias_at, normed + token * CHANNELS,
               statistics + 2 * token);
}
