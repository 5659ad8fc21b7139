/* The frame of a hyper-connection: streams to branch input and branch output back to streams. mix_math.cl has the
 * formulas.
 *
 * q is the sum of squares that the next sublayer's RMSNorm needs: of X' as it is stored, which is what the
 * projections read.
 */
#include "mix_math.cl"

/* One work-group a token. x [N, S, C], h [N, H_ROW] -> normed [N, C], statistics [N, 2] (mean, 1/deviation). */
ROW_KERNEL void width_mix_forward(__global const act_t *x_all, __global const float *h_all,
                                  __global const float *parameters, ulong gain_at, ulong bias_at,
                                  __global act_t *normed, __global float *statistics) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0);
    __global const act_t *x = x_all + token * ROW_LENGTH;
    H_OF_TOKEN(h, h_all + token * H_ROW);
    vec_t u[SLOTS(CHANNELS)];
    vec_t sum = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        u[slot] = width_mix(x, h, c);
        sum += u[slot];
    }
    const float2 row = norm_center(u, sum, scratch);
    norm_store(u, row, parameters + gain_at, parameters + bias_at, normed + token * CHANNELS,
               statistics + 2 * token);
}

/* One work-group a chunk of tokens.
 * d_normed [N, C] -> d_u [N, C], d_h's pre part, partial sums [chunks, 2 C] of the gradients of gain and bias. */
ROW_KERNEL void width_mix_backward(__global const act_t *x_all, __global const float *h_all,
                                   __global const float *parameters, ulong gain_at,
                                   __global const float *statistics, __global const act_t *d_normed, ulong tokens,
                                   __global act_t *d_u, __global float *d_h, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, PRE_ENTRIES > 2 ? PRE_ENTRIES : 2);
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)], normal[SLOTS(CHANNELS)], d_normal[SLOTS(CHANNELS)];
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    CLEAR(vec_t, d_bias, SLOTS(CHANNELS));
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        __global const act_t *x = x_all + token * ROW_LENGTH;
        H_OF_TOKEN(h, h_all + token * H_ROW);
        const float2 row = (float2)(statistics[2 * token], statistics[2 * token + 1]);
        products_t sums[2];
        CLEAR(products_t, sums, 2);
        LANE_STEPS(slot, c, CHANNELS) {
            norm_backward(slot, width_mix(x, h, c), row, ACT_LOAD(d_normed + token * CHANNELS + c),
                          VEC_LOAD(parameters + gain_at + c), normal, d_normal, sums, d_gain, d_bias);
        }
        const float2 means = norm_backward_means(sums, scratch);
        LANE_STEPS(slot, c, CHANNELS) {
            d_normal[slot] = norm_gradient(row.y, d_normal[slot], normal[slot], means);
            ACT_STORE(d_normal[slot], d_u + token * CHANNELS + c);
        }
#if !PLAIN
        products_t pre[PRE_ENTRIES];
        CLEAR(products_t, pre, PRE_ENTRIES);
#if FRACTIONS
        GROUP_BARRIER(); /* d_u is there */
        UNROLL_MIX(PRE_ENTRIES) for (int entry = 0; entry < PRE_ENTRIES; entry++) {
            __global const act_t *d_part = d_u + token * CHANNELS + entry / STREAMS * STREAM_CHANNELS;
            MIX_STEPS(c) {
                pre[entry] += PRODUCTS(ACT_LOAD(d_part + c) * ACT_LOAD(x + entry % STREAMS * STREAM_CHANNELS + c));
            }
        }
#else
        LANE_STEPS(slot, c, CHANNELS) {
            UNROLL_LANES(STREAMS) for (int s = 0; s < STREAMS; s++) {
                pre[s] += PRODUCTS(d_normal[slot] * ACT_LOAD(x + s * CHANNELS + c));
            }
        }
#endif
        LANE_SUMS_STORE(PRODUCTS_SUM, d_h + token * H_ROW, pre, PRE_ENTRIES, scratch);
#else
        UNUSED_POINTER(d_h);
#endif
    }
    norm_store_partial(d_gain, d_bias, partials + get_group_id(0) * (2 * CHANNELS));
}

/* One work-group a token. x [N, S, C], h, output o [N, C] -> mixed X' [N, S, C], squares q [N, S]. */
ROW_KERNEL void depth_mix_forward(__global const act_t *x_all, __global const float *h_all,
                                  __global const act_t *output, __global act_t *mixed, __global float *squares) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0);
    __global const act_t *x = x_all + token * ROW_LENGTH;
    H_OF_TOKEN(h, h_all + token * H_ROW);
    __global act_t *y = mixed + token * ROW_LENGTH;
    products_t sums[STREAMS];
    CLEAR(products_t, sums, STREAMS);
    MIX_STEPS(c) {
        vec_t in[STREAMS], o = ACT_LOAD(output + token * CHANNELS + c);
        streams_load(x, c, in);
        UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
            if (FRACTIONS && i > 0) {
                o = ACT_LOAD(output + token * CHANNELS + PART_AT(i) + c);
            }
            ACT_STORE(depth_mix(i, o, in, h), y + i * STREAM_CHANNELS + c);
            const vec_t stored = ACT_LOAD(y + i * STREAM_CHANNELS + c);
            sums[i] += PRODUCTS(stored * stored);
        }
    }
    LANE_SUMS_STORE(PRODUCTS_SUM, squares + token * STREAMS, sums, STREAMS, scratch);
}

/* One work-group a token; not for PLAIN, where d_output is d_mixed itself.
 * d_mixed [N, S, C] -> d_output [N, C]; d_h's post and res parts: <d_x'_i, o> and <d_x'_i, x_j>. */
ROW_KERNEL void depth_mix_backward(__global const act_t *x_all, __global const float *h_all,
                                   __global const act_t *output, __global const act_t *d_mixed,
                                   __global act_t *d_output, __global float *d_h_all) {
    GROUP_SUMS_SCRATCH(scratch, D_H_SUMS);
    const size_t token = get_group_id(0);
    __global const act_t *x = x_all + token * ROW_LENGTH;
    __global const act_t *d_y = d_mixed + token * ROW_LENGTH;
    H_OF_TOKEN(h, h_all + token * H_ROW);
    products_t sums[D_H_SUMS];
    CLEAR(products_t, sums, D_H_SUMS);
    MIX_STEPS(c) {
        vec_t in[STREAMS], d_o = (vec_t)(0.0f), o = ACT_LOAD(output + token * CHANNELS + c);
        streams_load(x, c, in);
        UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const vec_t d = ACT_LOAD(d_y + i * STREAM_CHANNELS + c);
            if (FRACTIONS) {
                o = ACT_LOAD(output + token * CHANNELS + PART_AT(i) + c);
                ACT_STORE(POST(i) * d, d_output + token * CHANNELS + PART_AT(i) + c);
            }
            d_o += POST(i) * d;
            add_h_gradients(i, d, o, in, sums);
        }
        if (!FRACTIONS) {
            ACT_STORE(d_o, d_output + token * CHANNELS + c);
        }
    }
    LANE_SUMS_STORE(PRODUCTS_SUM, d_h_all + token * H_ROW + PRE_ENTRIES, sums, D_H_SUMS, scratch);
}

/* One work-group a token, in place: d_x_j = sum_i res_ij d_x'_i + pre_j d_u + rms_scale_g(j) x_j. rms_scale [N,
 * RMS_GROUPS]: what the RMSNorm of the projections passes back to x; the projections' own part is added by a matrix
 * product afterwards. RMS_GROUPS is 1 (all streams together) or STREAMS. */
ROW_KERNEL void stream_backward(__global const act_t *x_all, __global const float *h_all, __global const act_t *d_u,
                                __global const float *rms_scale, __global act_t *d_streams) {
    const size_t token = get_group_id(0);
    __global const act_t *x = x_all + token * ROW_LENGTH;
    __global act_t *d_x = d_streams + token * ROW_LENGTH;
    H_OF_TOKEN(h, h_all + token * H_ROW);
    float rms[RMS_GROUPS];
    if (PLAIN) {
        UNUSED_POINTER(x);
        UNUSED_POINTER(rms_scale);
    } else {
        UNROLL_LANES(RMS_GROUPS) for (int group = 0; group < RMS_GROUPS; group++) {
            rms[group] = rms_scale[token * RMS_GROUPS + group];
        }
    }
    MIX_STEPS(c) {
        vec_t d[STREAMS], branch[PARTS];
        UNROLL_MIX(PARTS) for (int part = 0; part < PARTS; part++) {
            branch[part] = ACT_LOAD(d_u + token * CHANNELS + PART_AT(part) + c);
        }
        streams_load(d_x, c, d);
        UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
            vec_t start = PRE(0, j) * branch[0];
            UNROLL_MIX(PARTS) for (int part = 1; part < PARTS; part++) {
                start += PRE(part, j) * branch[part];
            }
            vec_t sum = depth_mix_back(j, start, d, h);
            if (!PLAIN) {
                sum += rms[j * RMS_GROUPS / STREAMS] * ACT_LOAD(x + j * STREAM_CHANNELS + c);
            }
            ACT_STORE(sum, d_x + j * STREAM_CHANNELS + c);
        }
    }
}

/* One work-group a token: gram [N, S, S] = <x_i, x_j>, from which cosines of streams and of their mixtures
 * follow. */
#define PAIRS (STREAMS * (STREAMS + 1) / 2) /* (i, j), j <= i, is pair i (i + 1) / 2 + j */
ROW_KERNEL void stream_gram(__global const act_t *x_all, __global float *gram_all) {
    GROUP_SUMS_SCRATCH(scratch, PAIRS);
    __global const act_t *x = x_all + get_group_id(0) * ROW_LENGTH;
    __global float *gram = gram_all + get_group_id(0) * (STREAMS * STREAMS);
    float sums[PAIRS];
    UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
        UNROLL_LANES(STREAMS) for (int j = 0; j <= i; j++) {
            vec_t sum = (vec_t)(0.0f);
            MIX_STEPS(c) {
                sum += ACT_LOAD(x + i * STREAM_CHANNELS + c) * ACT_LOAD(x + j * STREAM_CHANNELS + c);
            }
            sums[i * (i + 1) / 2 + j] = VEC_SUM(sum);
        }
    }
    GROUP_SUMS(sums, PAIRS, scratch);
    for (int entry = LANE; entry < STREAMS * STREAMS; entry += LANES) {
        const int i = max(entry / STREAMS, entry % STREAMS), j = min(entry / STREAMS, entry % STREAMS);
        gram[entry] = GROUP_TOTAL(sums, scratch, i * (i + 1) / 2 + j);
    }
}

/* One work-group a token: squares [N, S] of streams that no mix has written. */
ROW_KERNEL void stream_squares(__global const act_t *x_all, __global float *squares) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    vec_t sums[STREAMS];
    CLEAR(vec_t, sums, STREAMS);
    MIX_STEPS(c) {
        UNROLL_MIX(STREAMS) for (int s = 0; s < STREAMS; s++) {
            const vec_t x = ACT_LOAD(x_all + get_group_id(0) * ROW_LENGTH + s * STREAM_CHANNELS + c);
            sums[s] += x * x;
        }
    }
    LANE_SUMS_STORE(VEC_SUM, squares + get_group_id(0) * STREAMS, sums, STREAMS, scratch);
}
