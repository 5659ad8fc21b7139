/* The backward pass of mix_between.cl, in place of width_mix_backward, depth_mix_backward and stream_backward. It
 * does not run where the frame is fused (frame.cl). */
#include "mix_math.cl"

/* The backward pass of mix_between, one work-group a chunk of tokens.
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
                             __global const float *h_all, __global const act_t *output, ulong tokens,
                             __global act_t *d_branch, __global act_t *d_streams, __global float *d_read_all,
                             __global float *d_h_all, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, H_ROW);
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)], normal[SLOTS(CHANNELS)], d_normal[SLOTS(CHANNELS)];
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    CLEAR(vec_t, d_bias, SLOTS(CHANNELS));
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        __global const act_t *x = x_all + token * ROW_LENGTH, *y = y_all + token * ROW_LENGTH;
        __global act_t *d_x = d_streams + token * ROW_LENGTH, *d_o = d_branch + token * CHANNELS;
        __global const float *read = read_all + token * H_ROW;
        H_OF_TOKEN(h, h_all + token * H_ROW);
        const float2 row = (float2)(statistics[2 * token], statistics[2 * token + 1]);
        float rms[RMS_GROUPS];
        UNROLL_LANES(RMS_GROUPS) for (int group = 0; group < RMS_GROUPS; group++) {
            rms[group] = rms_scale[token * RMS_GROUPS + group];
        }
        products_t norm_sums[2];
        CLEAR(products_t, norm_sums, 2);
        LANE_STEPS(slot, c, CHANNELS) {
            norm_backward(slot, width_mix(y, read, c), row, ACT_LOAD(d_o + c), VEC_LOAD(parameters + gain_at + c),
                          normal, d_normal, norm_sums, d_gain, d_bias);
        }
        const float2 means = norm_backward_means(norm_sums, scratch);
        products_t sums[H_ROW]; /* in the order of h */
        CLEAR(products_t, sums, H_ROW);
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d_u = norm_gradient(row.y, d_normal[slot], normal[slot], means);
            const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
            vec_t in[STREAMS], d_in[STREAMS], d_out = (vec_t)(0.0f);
            streams_load(x, c, in);
            CLEAR(vec_t, d_in, STREAMS);
            UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
                const vec_t mixed = ACT_LOAD(y + i * CHANNELS + c);
                const vec_t d =
                    ACT_LOAD(d_x + i * CHANNELS + c) + read[i] * d_u + rms[i * RMS_GROUPS / STREAMS] * mixed;
                d_out += POST(i) * d;
                sums[i] += PRODUCTS(d_u * mixed);
                add_h_gradients(i, d, o, in, sums + STREAMS);
                UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
                    d_in[j] += RES(i, j) * d;
                }
            }
            UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
                ACT_STORE(d_in[j], d_x + j * CHANNELS + c);
            }
            ACT_STORE(d_out, d_o + c);
        }
        LANE_TOTALS(PRODUCTS_SUM, totals, sums, H_ROW);
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
