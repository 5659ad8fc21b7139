/* Attention over depth: the input of a branch from earlier states S of the residual stream. For one token, with w =
 * gain * query of the sublayer:
 *
 *   scale_s = 1 / sqrt(mean of S_s^2 + NORM_EPSILON)     score_s = scale_s <w, S_s>     a = softmax(score)
 *   u = sum_s a_s S_s     y = norm(u)                                                S [count, C] -> y [C]
 *
 * and backward, with e_s = a_s (<d_u, S_s> - <d_u, u>), which is 0 for the only state:
 *
 *   d_S_s += a_s d_u + e_s scale_s (w - score_s scale_s / C S_s)
 *   d_w = sum of e_s scale_s S_s over tokens and states     d_gain += query d_w     d_query += gain d_w
 *
 * Either kernel reads a state once: forward the softmax is updated with each, and backward u, which the forward
 * pass has stored, stands for the sum over states that the softmax's gradient needs.
 *
 * States are in slots of states [slots, N, C]: number s < count in slot min(s apart, newest), so the last of them
 * in `newest`. d_states [count, N, C] has their gradients.
 *
 * Build constants: CHANNELS (C), BIAS (norm has one), GAINED (the gain exists: [C] right before the query).
 */
#include "norm.cl"

#define SHARE SLOTS(CHANNELS) /* vectors of a state that a work-item has */

/* w at channels c .. c+VEC-1; leaves are the gain, if there is one, and the query */
static inline vec_t score_weight(__global const float *leaves, int c) {
    vec_t w = VEC_LOAD(leaves + c);
    if (GAINED) {
        w *= VEC_LOAD(leaves + CHANNELS + c);
    }
    return w;
}

/* ---- forward */

/* What `before` is where it is no slot: the newest state is in its slot; or it is the output alone. */
#define NOTHING_ADDED -2
#define OUTPUT_ALONE  -1

/* The newest state, which is the output of the branch before, added to `run` if there is such a slot. */
INLINED void take_newest(int before, __global const act_t *run, __global const act_t *output,
                         __global act_t *newest, vec_t x[SHARE]) {
    LANE_STEPS(slot, c, CHANNELS) {
        if (before == NOTHING_ADDED) {
            x[slot] = ACT_LOAD(newest + c);
        } else {
            vec_t sum = ACT_LOAD(output + c);
            if (before != OUTPUT_ALONE) {
                sum += ACT_LOAD(run + c);
            }
            ACT_STORE(sum, newest + c);
            x[slot] = ACT_ROUND(sum);
        }
    }
}

/* scale and score of a state */
INLINED float2 score_state(const vec_t x[SHARE], __global const float *leaves, __local float *scratch) {
    vec_t square = (vec_t)(0.0f), product = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        square += x[slot] * x[slot];
        product += x[slot] * score_weight(leaves, c);
    }
    const float sums[2] = {VEC_SUM(square), VEC_SUM(product)};
    GROUP_SUMS(sums, 2, scratch);
    const float scale = rsqrt(GROUP_TOTAL(sums, scratch, 0) / CHANNELS + NORM_EPSILON);
    return (float2)(scale, scale * GROUP_TOTAL(sums, scratch, 1));
}

/* One work-group a token. states [slots, N, C], output [N, C] of the branch before -> the newest state, in its
 * slot of `written`, which is `states`, too; its scales [slots, N]; weights a [N, others + 1], mixed u [N, C],
 * normed y [N, C], statistics [N, 2] of the norm. Its gain and bias, and the leaves, are in parameters. `others`
 * is count - 1: clspv makes of an index count - 1 an address 2^32 elements behind. */
ROW_KERNEL void depth_read_forward(__global const act_t *states, __global act_t *written, ulong tokens, int others,
                                   int apart, int newest, int before, __global const act_t *output,
                                   __global const float *parameters, ulong leaves_at, ulong gain_at, ulong bias_at,
                                   __global float *scales, __global float *weights, __global act_t *mixed,
                                   __global act_t *normed, __global float *statistics) {
    GROUP_SUMS_SCRATCH(scratch, 2);
    const size_t token = get_group_id(0), at = token * CHANNELS, slot_size = tokens * CHANNELS;
    __global const float *leaves = parameters + leaves_at;
    __global float *a = weights + token * (others + 1);
    vec_t u[SHARE], x[SHARE];
    take_newest(before, states + max(before, 0) * slot_size + at, output + at, written + newest * slot_size + at,
                u);
    const float2 own = score_state(u, leaves, scratch);
    if (LANE == 0) {
        scales[newest * tokens + token] = own.x;
        a[others] = own.y;
    }
    float highest = own.y, total = 1.0f; /* of exp(score - highest) */
    for (int s = 0; s < others; s++) {
        __global const act_t *state = states + s * apart * slot_size + at;
        vec_t product = (vec_t)(0.0f);
        LANE_STEPS(slot, c, CHANNELS) {
            x[slot] = ACT_LOAD(state + c);
            product += x[slot] * score_weight(leaves, c);
        }
        const float score = scales[s * apart * tokens + token] * GROUP_SUM(VEC_SUM(product), scratch);
        if (LANE == 0) {
            a[s] = score;
        }
        const float most = fmax(highest, score), kept = exp(highest - most), share = exp(score - most);
        highest = most;
        total *= kept;
        total += share;
        LANE_STEPS(slot, c, CHANNELS) {
            vec_t sum = kept * u[slot];
            sum += share * x[slot];
            u[slot] = sum;
        }
    }
    GROUP_BARRIER(); /* all scores are in memory */
    for (int s = LANE; s <= others; s += LANES) {
        a[s] = exp(a[s] - highest) / total;
    }
    vec_t sum = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        u[slot] /= total;
        ACT_STORE(u[slot], mixed + at + c);
        sum += u[slot];
    }
    const float2 moments = norm_center(u, sum, scratch);
    norm_store(u, moments, parameters + gain_at, parameters + bias_at, normed + at, statistics + 2 * token);
}

/* ---- backward */

/* Bits of `what` happens to the gradients of states. */
#define ADDS         1 /* they are added to those in d_states; else written there */
#define KEEPS_NEWEST 2 /* that of the newest state is stored to d_states, too */
#define HAS_OUTPUT   4 /* it is stored to d_output, of the branch before */

/* d_u of one token from d_normed, with the norm's sums; returns <d_u, u>. */
INLINED float input_gradient(__global const act_t *u, __global const act_t *d_normed,
                             __global const float *statistics, __global const float *gain, vec_t d_u[SHARE],
                             vec_t d_gain[SHARE], vec_t d_bias[SHARE], __local float *scratch) {
    const float2 row = (float2)(statistics[0], statistics[1]);
    vec_t normal[SHARE], along = (vec_t)(0.0f);
    products_t sums[2];
    CLEAR(products_t, sums, 2);
    LANE_STEPS(slot, c, CHANNELS) {
        norm_backward(slot, ACT_LOAD(u + c), row, ACT_LOAD(d_normed + c), VEC_LOAD(gain + c), normal, d_u, sums,
                      d_gain, d_bias);
    }
    const float2 means = norm_backward_means(sums, scratch);
    LANE_STEPS(slot, c, CHANNELS) {
        d_u[slot] = norm_gradient(row.y, d_u[slot], normal[slot], means);
        along += d_u[slot] * ACT_LOAD(u + c);
    }
    return GROUP_SUM(VEC_SUM(along), scratch);
}

/* A chunk's sums of the gradients of norm, and, from d_w, of gain (if there is one) and query. */
#define PARTIALS ((3 + GAINED) * CHANNELS)
INLINED void store_partials(vec_t d_gain[SHARE], vec_t d_bias[SHARE], vec_t d_w[SHARE],
                            __global const float *leaves, __global float *partials) {
    norm_store_partial(d_gain, d_bias, partials);
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t d_query = d_w[slot];
        if (GAINED) {
            d_query *= VEC_LOAD(leaves + c);
            VEC_STORE(d_w[slot] * VEC_LOAD(leaves + CHANNELS + c), partials + 2 * CHANNELS + c);
        }
        VEC_STORE(d_query, partials + (2 + GAINED) * CHANNELS + c);
    }
}

/* One work-group a chunk of tokens. d_normed [N, C] -> d_states [count, N, C] and d_output [N, C] as `what` says,
 * partial sums [chunks, PARTIALS] of the gradients of the norm's gain and bias, and of gain and query. */
ROW_KERNEL void depth_read_backward(__global const act_t *states, ulong tokens, int count, int apart, int newest,
                                    int what, __global const act_t *mixed, __global const float *parameters,
                                    ulong leaves_at, ulong gain_at, __global const float *scales,
                                    __global const float *weights, __global const float *statistics,
                                    __global const act_t *d_normed, __global act_t *d_states,
                                    __global act_t *d_output, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, 2);
    const size_t slot_size = tokens * CHANNELS;
    __global const float *leaves = parameters + leaves_at;
    vec_t d_gain[SHARE], d_bias[SHARE], d_w[SHARE], d_u[SHARE], x[SHARE];
    CLEAR(vec_t, d_gain, SHARE);
    CLEAR(vec_t, d_bias, SHARE);
    CLEAR(vec_t, d_w, SHARE);
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        const size_t at = token * CHANNELS;
        const float mean_product = input_gradient(mixed + at, d_normed + at, statistics + 2 * token,
                                                  parameters + gain_at, d_u, d_gain, d_bias, scratch);
        for (int s = 0; s < count; s++) {
            const size_t from = min(s * apart, newest);
            vec_t products[2] = {(vec_t)(0.0f), (vec_t)(0.0f)};
            LANE_STEPS(slot, c, CHANNELS) {
                x[slot] = ACT_LOAD(states + from * slot_size + at + c);
                products[0] += x[slot] * d_u[slot];
                products[1] += x[slot] * score_weight(leaves, c);
            }
            LANE_TOTALS(VEC_SUM, sums, products, 2);
            GROUP_SUMS(sums, 2, scratch);
            const float a = weights[token * count + s], scale = scales[from * tokens + token];
            const float e = count > 1 ? a * (GROUP_TOTAL(sums, scratch, 0) - mean_product) * scale : 0.0f;
            const float along = -e * scale * scale / CHANNELS * GROUP_TOTAL(sums, scratch, 1);
            __global act_t *d_state = d_states + s * slot_size + at;
            const bool last = s == count - 1;
            LANE_STEPS(slot, c, CHANNELS) {
                vec_t d = a * d_u[slot] + e * score_weight(leaves, c) + along * x[slot];
                d_w[slot] += e * x[slot];
                if (what & ADDS) {
                    d += ACT_LOAD(d_state + c);
                }
                if (!last || (what & KEEPS_NEWEST)) {
                    ACT_STORE(d, d_state + c);
                }
                if (last && (what & HAS_OUTPUT)) {
                    ACT_STORE(d, d_output + at + c);
                }
            }
        }
    }
    store_partials(d_gain, d_bias, d_w, leaves, partials + get_group_id(0) * PARTIALS);
}
