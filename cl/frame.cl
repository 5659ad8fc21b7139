/* The fused frame: hyper-connections without their branches, in one kernel a sublayer forward and one backward.
 *   frame_between   the depth mix of a sublayer, and projections, map and width mix of the next
 *   frame_enter     the same for the first sublayer, which has no depth mix before it
 *   frame_backward  the backward pass of a sublayer, except frame_output_gradient and a GEMM of d_z
 *
 * They compute what stream_mix.cl, projections.cl and hc_map.cl do, on devices where many lanes share a row: each
 * stream is read and written once each way. frame_rows in src/operations/policy.c decides, and is_fused in
 * src/model/frame_mixed.c leaves generation out. Elsewhere (on CPUs, whose caches hold the streams from one kernel
 * to the next, and in models that are too large) the separate kernels run, or mix_between.cl.
 *
 * A work-group has GROUP_ROWS tokens, LANES work-items each. `packed` [PROJECTIONS, LENGTH], the projections, is
 * more than the registers or the local memory of a group can hold, so its rows come to all tokens of the group at
 * the same time: the barriers between blocks of columns keep them together, and what one token loads the others
 * find in the cache.
 *
 * With READ_DELAY the width mix takes the pre of the sublayer before (`read`), which is known before its own map
 * is.
 *
 * Where the tokens end within a group, the last one is repeated by rows that write nothing.
 */
#include "hc_token.cl"

#define FUSED
#include "mix_math.cl"

#define COLUMN_BLOCK  4
#define MOST_SUMS     (H_ROW > COLUMN_BLOCK + STREAMS ? H_ROW : COLUMN_BLOCK + STREAMS)
#define PARTIAL_ROW   ((2 * CHANNELS + THETA + 15) / 16 * 16) /* of partial sums; in whole vectors */
#define Z_COLUMNS     (RMS_GROUPS * PROJECTIONS)
#define ROW_SCRATCH   (H_ROW + RMS_GROUPS + (ACT ? Z_COLUMNS : 0))
#define GROUP_STREAMS (STREAMS / RMS_GROUPS) /* in a normalised row */

/* Walks a work-item's vectors of a token one by one, without unrolling: all loads at once would not fit into
 * registers. Of arrays by slot the vector under way is at [0]; `slots_turn` at the end of each round brings the
 * next one there, and after the last round all are where they were. c may lie behind the row in that one: test
 * IN_ROW(c). */
#define LANE_ROUNDS(c) UNROLL(1) for (int c = LANE * VEC; c < SLOTS(CHANNELS) * LANES * VEC; c += LANES * VEC)
#define IN_ROW(c)      (CHANNELS % (LANES * VEC) == 0 || (c) < CHANNELS)

INLINED void slots_turn(vec_t values[SLOTS(CHANNELS)]) {
    const vec_t first = values[0];
    UNROLL_LANES(SLOTS(CHANNELS)) for (int slot = 1; slot < SLOTS(CHANNELS); slot++) {
        values[slot - 1] = values[slot];
    }
    values[SLOTS(CHANNELS) - 1] = first;
}

/* What is the same for all of a token's work-items. */
#define FRAME_TOKEN(first, tokens)                                                                                 \
    const size_t wanted = (first) + ROW;                                                                           \
    const bool real = wanted < (tokens);                                                                           \
    const size_t token = real ? wanted : (tokens) - 1

/* z [Z_COLUMNS] = the streams in registers times packed^T, raw. */
INLINED void project(vec_t y[STREAM_SLOTS], __global const act_t *packed, bool real, __global float *z,
                     __local float *scratch) {
    UNROLL_LANES(RMS_GROUPS) for (int group = 0; group < RMS_GROUPS; group++) {
        UNROLL(1) for (int column = 0; column < PROJECTIONS; column += COLUMN_BLOCK) {
            float sums[COLUMN_BLOCK];
            UNROLL_LANES(COLUMN_BLOCK) for (int b = 0; b < COLUMN_BLOCK; b++) {
                __global const act_t *factors = packed + (size_t)min(column + b, PROJECTIONS - 1) * LENGTH;
                vec_t sum = (vec_t)(0.0f);
                UNROLL_LANES(GROUP_STREAMS) for (int s = 0; s < GROUP_STREAMS; s++) {
                    LANE_STEPS(slot, c, CHANNELS) {
                        sum += y[AT(group * GROUP_STREAMS + s, slot)] * ACT_LOAD(factors + s * CHANNELS + c);
                    }
                }
                sums[b] = VEC_SUM(sum);
            }
            GROUP_SUMS(sums, COLUMN_BLOCK, scratch);
            for (int b = LANE; b < COLUMN_BLOCK && column + b < PROJECTIONS && real; b += LANES) {
                z[group * PROJECTIONS + column + b] = GROUP_TOTAL(sums, scratch, b);
            }
        }
    }
}

/* normed [C] = LN(sum_s read_s y_s), statistics [2] */
INLINED void mix_and_norm(vec_t y[STREAM_SLOTS], __global const float *read, __global const float *gain,
                          __global const float *bias, bool real, __global act_t *normed, __global float *statistics,
                          __local float *scratch) {
    vec_t u[SLOTS(CHANNELS)], sum = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        u[slot] = read[0] * y[AT(0, slot)];
        UNROLL_LANES(STREAMS) for (int s = 1; s < STREAMS; s++) {
            u[slot] += read[s] * y[AT(s, slot)];
        }
        sum += u[slot];
    }
    const float2 row = norm_center(u, sum, scratch);
    if (real) {
        norm_store(u, row, gain, bias, normed, statistics);
    }
}

/* From a token's streams, in registers, to its branch's input: projections, map, width mix. */
INLINED void enter(vec_t y[STREAM_SLOTS], __global const float *read_all, size_t token, bool real,
                   __global const act_t *packed, __global const float *theta, __global const float *gain,
                   __global const float *bias, __global float *squares, __global float *z_all,
                   __global float *h_all, __global act_t *normed, __global float *statistics,
                   __local float *scratch) {
    __global const float *read = read_all + token * H_ROW;
    __global float *z = z_all + token * Z_COLUMNS;
    normed += token * CHANNELS;
    statistics += 2 * token;
    if (READ_DELAY) {
        mix_and_norm(y, read, gain, bias, real, normed, statistics, scratch);
    }
    project(y, packed, real, z, scratch);
    GROUP_BARRIER(); /* z and squares are there */
    if (LANE == 0 && real) {
        map_token_forward(theta, squares + token * STREAMS, z, h_all + token * H_ROW);
    }
    if (!READ_DELAY) {
        GROUP_BARRIER();
        mix_and_norm(y, read, gain, bias, real, normed, statistics, scratch);
    }
}

/* What `enter` reads with: the h of the sublayer before, or its own. */
#define READ_OF(before, own) (READ_DELAY ? (before) : (own))

/* streams [N, S, C], squares [N, S] -> z [N, Z_COLUMNS] normalised, h [N, H_ROW], normed [N, C], statistics [N,
 * 2]. read [N, H_ROW], with READ_DELAY only. */
ROW_KERNEL void frame_enter(__global const act_t *x_all, __global float *squares, __global const float *read,
                            ulong tokens, __global const act_t *packed, ulong packed_at,
                            __global const float *parameters, ulong theta_at, ulong gain_at, ulong bias_at,
                            __global float *z, __global float *h, __global act_t *normed,
                            __global float *statistics) {
    GROUP_SUMS_SCRATCH(scratch, MOST_SUMS);
    FRAME_TOKEN(get_group_id(0) * GROUP_ROWS, tokens);
    vec_t y[STREAM_SLOTS];
    UNROLL_LANES(STREAMS) for (int s = 0; s < STREAMS; s++) {
        LANE_STEPS(slot, c, CHANNELS) {
            y[AT(s, slot)] = ACT_LOAD(x_all + token * ROW_LENGTH + s * CHANNELS + c);
        }
    }
    UNUSED_POINTERS(read, squares, packed);
    UNUSED_POINTER(z);
    enter(y, READ_OF(read, h), token, real, packed + packed_at, parameters + theta_at, parameters + gain_at,
          parameters + bias_at, squares, z, h, normed, statistics, scratch);
}

/* Between two branches: streams x, h and output of the one -> mixed, the streams of the next one, and what
 * frame_enter computes from them. All is the next sublayer's, except x_all, h_before and output. */
ROW_KERNEL void frame_between(__global const act_t *x_all, __global const float *h_before,
                              __global const act_t *output, ulong tokens, __global act_t *mixed,
                              __global float *squares, __global const act_t *packed, ulong packed_at,
                              __global const float *parameters, ulong theta_at, ulong gain_at, ulong bias_at,
                              __global float *z, __global float *h_after, __global act_t *normed,
                              __global float *statistics) {
    GROUP_SUMS_SCRATCH(scratch, MOST_SUMS);
    FRAME_TOKEN(get_group_id(0) * GROUP_ROWS, tokens);
    __global const float *h = h_before + token * H_ROW;
    __global const act_t *x = x_all + token * ROW_LENGTH;
    __global act_t *stored = mixed + token * ROW_LENGTH;
    UNUSED_POINTER(packed);
    UNUSED_POINTER(z);
    vec_t y[STREAM_SLOTS];
    products_t sums[STREAMS];
    CLEAR(products_t, sums, STREAMS);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
        vec_t in[STREAMS];
        streams_load(x, c, in);
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const vec_t out = depth_mix(i, o, in, h);
            y[AT(i, slot)] = ACT_ROUND(out);
            if (real) {
                ACT_STORE(out, stored + i * CHANNELS + c);
            }
            sums[i] += PRODUCTS(y[AT(i, slot)] * y[AT(i, slot)]);
        }
    }
    GROUP_SUMS(sums, STREAMS, scratch);
    if (real) {
        GROUP_STORE_TOTALS(squares + token * STREAMS, sums, STREAMS, scratch);
    }
    enter(y, READ_OF(h_before, h_after), token, real, packed + packed_at, parameters + theta_at,
          parameters + gain_at, parameters + bias_at, squares, z, h_after, normed, statistics, scratch);
}

/* d_output [N, C] = sum_i post_i d_x'_i of the last sublayer; for each other frame_backward of the next one
 * computes it. */
ROW_KERNEL void frame_output_gradient(__global const float *h_all, __global const act_t *d_mixed, ulong tokens,
                                      __global act_t *d_output) {
    FRAME_TOKEN(get_group_id(0) * GROUP_ROWS, tokens);
    __global const float *h = h_all + token * H_ROW;
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t sum = (vec_t)(0.0f);
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            sum += POST(i) * ACT_LOAD(d_mixed + token * ROW_LENGTH + i * CHANNELS + c);
        }
        if (real) {
            ACT_STORE(sum, d_output + token * CHANNELS + c);
        }
    }
}

/* d_h [H_ROW]: <d_u, x_s> | <d_x'_i, o> | <d_x'_i, x_j>. With READ_DELAY the first of them are the gradient of
 * another h: they take the place of d_read [S], which is that of this one. */
INLINED void mix_gradients(__global const act_t *x, __global const act_t *d, vec_t d_u[SLOTS(CHANNELS)],
                           __global const act_t *output, bool real, __global float *d_h, __global float *d_read,
                           __local float *scratch) {
    products_t sums[H_ROW];
    CLEAR(products_t, sums, H_ROW);
    LANE_ROUNDS(c) {
        if (IN_ROW(c)) {
            const vec_t o = ACT_LOAD(output + c);
            vec_t in[STREAMS];
            streams_load(x, c, in);
            UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
                sums[i] += PRODUCTS(d_u[0] * in[i]);
                add_h_gradients(i, ACT_LOAD(d + i * CHANNELS + c), o, in, sums + STREAMS);
            }
        }
        slots_turn(d_u);
    }
    GROUP_SUMS(sums, H_ROW, scratch);
    for (int k = LANE; k < H_ROW && real; k += LANES) {
        const float total = GROUP_TOTAL(sums, scratch, k);
        if (READ_DELAY && k < STREAMS) {
            d_h[k] = d_read[k];
            d_read[k] = total;
        } else {
            d_h[k] = total;
        }
    }
}

/* d_x = d_z packed: what comes back through `project`. */
INLINED void project_back(__global const float *d_z, __global const act_t *packed, vec_t d_x[STREAM_SLOTS]) {
    CLEAR(vec_t, d_x, STREAM_SLOTS);
    UNROLL(1) for (int column = 0; column < PROJECTIONS; column++) {
        if (column % COLUMN_BLOCK == 0) {
            GROUP_BARRIER(); /* together, see the top */
        }
        UNROLL_LANES(STREAMS) for (int j = 0; j < STREAMS; j++) {
            const float factor = d_z[j / GROUP_STREAMS * PROJECTIONS + column];
            LANE_STEPS(slot, c, CHANNELS) {
                d_x[AT(j, slot)] +=
                    factor * ACT_LOAD(packed + (size_t)column * LENGTH + j % GROUP_STREAMS * CHANNELS + c);
            }
        }
    }
}

/* d [S, C] in place, the gradient of the mixed streams -> that of the streams: d_x_j + read_j d_u + rms_scale_g(j)
 * x_j + sum_i res_ij d_i (in another order CDNA needs more than 256 registers), and d_output [C] of the sublayer
 * before, whose h is h_before. */
INLINED void frame_streams_backward(__global const act_t *x, __global act_t *d, vec_t d_u[SLOTS(CHANNELS)],
                                    vec_t d_x[STREAM_SLOTS], __global const float *read, __global const float *h,
                                    __global const float *rms_scale, __global const float *h_before,
                                    __global act_t *d_output) {
    LANE_ROUNDS(c) {
        if (IN_ROW(c)) {
            vec_t d_in[STREAMS], sum = (vec_t)(0.0f);
            streams_load(d, c, d_in);
            UNROLL_LANES(STREAMS) for (int j = 0; j < STREAMS; j++) {
                const vec_t start = d_x[AT(j, 0)] + read[j] * d_u[0] +
                                    rms_scale[j / GROUP_STREAMS] * ACT_LOAD(x + j * CHANNELS + c);
                const vec_t out = depth_mix_back(j, start, d_in, h);
                ACT_STORE(out, d + j * CHANNELS + c);
                sum += h_before[STREAMS + j] * out;
            }
            ACT_STORE(sum, d_output + c);
        }
        slots_turn(d_u);
        UNROLL_LANES(STREAMS) for (int j = 0; j < STREAMS; j++) {
            slots_turn(d_x + AT(j, 0));
        }
    }
}

/* Adds the rows' sums of the group, one row after the other, to partial [2 C | THETA]. */
INLINED void store_gradients(vec_t d_gain[SLOTS(CHANNELS)], vec_t d_bias[SLOTS(CHANNELS)],
                             __global const float *rows, __global float *partial) {
    for (int row = 0; row < GROUP_ROWS; row++) {
        if (ROW == row) {
            LANE_STEPS(slot, c, CHANNELS) {
                VEC_STORE(row ? VEC_LOAD(partial + c) + d_gain[slot] : d_gain[slot], partial + c);
                if (BIAS) {
                    VEC_STORE(row ? VEC_LOAD(partial + CHANNELS + c) + d_bias[slot] : d_bias[slot],
                              partial + CHANNELS + c);
                }
            }
        }
        GROUP_BARRIER(); /* the first: theta's rows are complete, too */
    }
    for (int k = get_local_id(0); k < THETA; k += LANES * GROUP_ROWS) {
        float sum = rows[k];
        for (int row = 1; row < GROUP_ROWS; row++) {
            sum += rows[row * THETA + k];
        }
        partial[2 * CHANNELS + k] = sum;
    }
}

/* The backward pass of frame_enter and of the depth mix behind the branch, in place: d_mixed -> d_streams
 * [N, S, C], and d_branch [N, C], the gradient of normed, -> that of the output of the sublayer before, whose h is
 * h_before. d_read [N, H_ROW], of which the first S of a row count, with READ_DELAY only: the gradient of pre ->
 * that of h_before's. d_z [N, Z_COLUMNS] of the raw projections is for the GEMM that makes their gradient.
 *
 * One work-group a chunk of tokens. partials: [groups, PARTIAL_ROW], sums of the gradients of gain and bias [2 C],
 * and of theta; and behind them of each group [GROUP_ROWS, THETA], sums of each row, and [GROUP_ROWS, ROW_SCRATCH],
 * d_h, rms_scale and, in 16 bits, d_z in float of its token. */
ROW_KERNEL void frame_backward(__global const act_t *x_all, __global const float *h_all,
                               __global const act_t *output, __global const float *squares,
                               __global const float *z_all, __global const float *statistics, ulong tokens,
                               __global const act_t *packed, ulong packed_at, __global const float *parameters,
                               ulong theta_at, ulong gain_at, __global act_t *d_z_all, __global act_t *d_streams,
                               __global const float *h_before, __global act_t *d_branch, __global float *d_read,
                               __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, MOST_SUMS);
    const size_t groups = get_num_groups(0), rounds = (tokens + GROUP_ROWS - 1) / GROUP_ROWS;
    const size_t tokens_per_group = (rounds + groups - 1) / groups * GROUP_ROWS;
    const size_t first = get_group_id(0) * tokens_per_group;
    const size_t last = min((ulong)(first + tokens_per_group), tokens);
    __global float *group_rows =
        partials + groups * PARTIAL_ROW + get_group_id(0) * (GROUP_ROWS * (THETA + ROW_SCRATCH));
    __global float *d_theta = group_rows + ROW * THETA;
    __global float *d_h = group_rows + GROUP_ROWS * THETA + ROW * ROW_SCRATCH, *rms_scale = d_h + H_ROW;
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)];
    UNUSED_POINTERS(d_read, squares, z_all);
    UNUSED_POINTER(packed);
    UNUSED_POINTER(d_z_all);
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    CLEAR(vec_t, d_bias, SLOTS(CHANNELS));
    for (int k = LANE; k < THETA; k += LANES) {
        d_theta[k] = 0.0f;
    }
    for (size_t next = first; next < last; next += GROUP_ROWS) {
        FRAME_TOKEN(next, last);
        __global const float *h = h_all + token * H_ROW;
        __global float *d_z = ACT ? rms_scale + RMS_GROUPS : (__global float *)d_z_all + token * Z_COLUMNS;
        __global const act_t *x = x_all + token * ROW_LENGTH;
        __global act_t *d = d_streams + token * ROW_LENGTH;
        __global const float *read = READ_OF(h_before, h_all) + token * H_ROW;
        const float2 row = (float2)(statistics[2 * token], statistics[2 * token + 1]);
        vec_t d_u[SLOTS(CHANNELS)], d_x[STREAM_SLOTS], normal[SLOTS(CHANNELS)];
        products_t sums[2];
        CLEAR(products_t, sums, 2);
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d_y = real ? ACT_LOAD(d_branch + token * CHANNELS + c) : (vec_t)(0.0f);
            norm_backward(slot, width_mix(x, read, c), row, d_y, VEC_LOAD(parameters + gain_at + c), normal, d_u,
                          sums, d_gain, d_bias);
        }
        const float2 means = norm_backward_means(sums, scratch);
        LANE_STEPS(slot, c, CHANNELS) {
            d_u[slot] = norm_gradient(row.y, d_u[slot], normal[slot], means);
        }
        mix_gradients(x, d, d_u, output + token * CHANNELS, real, d_h, d_read + token * H_ROW, scratch);
        /* d_h and d_theta's zeros are there, scratch is free */
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        if (LANE == 0 && real) {
            WORK_DECLARE(scratch); /* which has no sums in it at the time */
            map_token_backward(parameters + theta_at, squares + token * STREAMS, z_all + token * Z_COLUMNS, h, d_h,
                               d_z, rms_scale, d_theta WORK_ARGUMENT);
        }
        GROUP_BARRIER();
        if (ACT) {
            for (int k = LANE; k < Z_COLUMNS && real; k += LANES) {
                ACT_STORE_SCALAR(d_z[k], d_z_all + token * Z_COLUMNS + k);
            }
        }
        project_back(d_z, packed + packed_at, d_x);
        if (real) {
            frame_streams_backward(x, d, d_u, d_x, read, h, rms_scale, h_before + token * H_ROW,
                                   d_branch + token * CHANNELS);
        }
    }
    store_gradients(d_gain, d_bias, group_rows, partials + get_group_id(0) * PARTIAL_ROW);
}
