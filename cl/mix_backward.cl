/* The backward pass of mix_between.cl, in place of width_mix_backward, depth_mix_backward and stream_backward. It
 * does not run where the frame is fused (frame.cl). */
#include "mix_parts.cl"
#include "norm_*.cl"

/* u at channels c .. c+VEC-1 */
static inline vec_t mix_read(__global const act_t *x, __global const float *read, int c) {
    vec_t u = read[0] * ACT_LOAD(x + c);
    for (int s = 1; s < STREAMS; s++) {
        u += read[s] * ACT_LOAD(x + s * CHANNELS + c);
    }
    return u;
}

/* The backward pass of mix_between, one work-group a chunk of tokens: rows_at has the tokens, and those of a chunk.
 * y [N, S, C] are the mixed streams, and read, statistics and rms_scale [N, RMS_GROUPS] those of the sublayer that
 * reads them; x, h and output o are those of the sublayer before.
 *
 *   d_x'_i = d_streams_i + read_i d_u + rms_scale_g(i) y_i     d_read_i = <d_u, y_i>     d_u by the norm's file
 *   d_o = sum_i post_i d_x'_i     d_x_j = sum_i res_ij d_x'_i
 *   d_post_i = <d_x'_i, o>        d_res_ij = <d_x'_i, x_j>
 *
 * d_branch [N, C] has the gradient of normed, and gets d_o; d_streams [N, S, C] in place. d_read goes to the pre
 * part of d_read [N, H_ROW], the others to d_h, which may be the same buffer. partials [chunks, 2 C] as in
 * width_mix_backward. Not for PLAIN. */
ROW_KERNEL void mix_backward(__global const act_t *y_all, __global const float *read_all,
                             __global const float *parameters, ulong gain_at, __global const float *statistics,
                             __global const float *rms_scale, __global const act_t *x_all,
                             __global const float *h_all, __global const act_t *output, uint4 rows_at,
                             __global act_t *d_branch, __global act_t *d_streams, __global float *d_read_all,
                             __global float *d_h_all, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, H_ROW);
    const size_t first = get_group_id(0) * SECOND_U64(rows_at);
    const size_t last = min((ulong)(first + SECOND_U64(rows_at)), FIRST_U64(rows_at));
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)], normal[SLOTS(CHANNELS)], d_normal[SLOTS(CHANNELS)];
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    CLEAR(vec_t, d_bias, SLOTS(CHANNELS));
    for (size_t token = first; token < last; token++) {
        __global const act_t *x = x_all + token * ROW_LENGTH, *y = y_all + token * ROW_LENGTH;
        __global act_t *d_x = d_streams + token * ROW_LENGTH, *d_o = d_branch + token * CHANNELS;
        __global const float *read = read_all + token * H_ROW,
                             *h = h_all + token * H_ROW; /* no registers are left */
        const float mean = statistics[2 * token], scale = statistics[2 * token + 1];
        float rms[RMS_GROUPS];
        UNROLL_LANES(RMS_GROUPS) for (int group = 0; group < RMS_GROUPS; group++) {
            rms[group] = rms_scale[token * RMS_GROUPS + group];
        }
        vec_t sum = (vec_t)(0.0f), product = (vec_t)(0.0f);
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d_y = ACT_LOAD(d_o + c);
            normal[slot] = (mix_read(y, read, c) - mean) * scale;
            d_normal[slot] = d_y * VEC_LOAD(parameters + gain_at + c);
            sum += d_normal[slot];
            product += d_normal[slot] * normal[slot];
            d_gain[slot] += d_y * normal[slot];
            d_bias[slot] += d_y;
        }
        const float2 means = norm_means(VEC_SUM(sum), VEC_SUM(product), scratch);
        products_t sums[H_ROW]; /* in the order of h */
        CLEAR(products_t, sums, H_ROW);
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d_u = norm_gradient(scale, d_normal[slot], normal[slot], means);
            const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
            vec_t in[STREAMS], d_in[STREAMS], d_out = (vec_t)(0.0f);
            UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
                in[j] = ACT_LOAD(x + j * CHANNELS + c);
                d_in[j] = (vec_t)(0.0f);
            }
            UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
                const vec_t mixed = ACT_LOAD(y + i * CHANNELS + c);
                const vec_t d =
                    ACT_LOAD(d_x + i * CHANNELS + c) + read[i] * d_u + rms[i * RMS_GROUPS / STREAMS] * mixed;
                d_out += POST(i) * d;
                sums[i] += PRODUCTS(d_u * mixed);
                sums[STREAMS + i] += PRODUCTS(d * o);
                UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
                    sums[2 * STREAMS + i * STREAMS + j] += PRODUCTS(d * in[j]);
                    d_in[j] += RES(i, j) * d;
                }
            }
            UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
                ACT_STORE(d_in[j], d_x + j * CHANNELS + c);
            }
            ACT_STORE(d_out, d_o + c);
        }
        float totals[H_ROW];
        UNROLL_LANES(H_ROW) for (int k = 0; k < H_ROW; k++) {
            totals[k] = PRODUCTS_SUM(sums[k]);
        }
        GROUP_SUMS(totals, H_ROW, scratch);
        for (int k = LANE; k < H_ROW; k += LANES) {
            const float total = GROUP_TOTAL(totals, scratch, k);
            if (k < STREAMS) {
                d_read_all[token * H_ROW + k] = total;
            }
            if (k >= STREAMS) {
                d_h_all[token * H_ROW + k] = total;
            }
        }
    }
    norm_store_partial(d_gain, d_bias, partials + get_group_id(0) * (2 * CHANNELS));
}
