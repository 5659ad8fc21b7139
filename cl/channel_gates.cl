/* The residual connection `gated`: a gate for each stream and channel of a token reads the streams x [S, C], and
 * each stream takes the branch's output o with a weight (shapes of one token, L = S C).
 *
 *   v_i = x_i / sqrt(mean of x_i^2 + NORM_EPSILON)         y = (v (1 + gain)) [w_down, w_post] / S
 *   hidden = silu(y_down) [RANK]                            s = 2 sigmoid(y_post) [S]
 *   gate = sigmoid(hidden w_up) [S, C]                      u = (1 / S) sum_i gate_i v_i (1 + gain_i)
 *   x'_i = x_i + s_i o
 *
 * Streams are stored normalised, as v, beside the sums of squares of the x_i, from which x follows. So the next
 * norm needs no pass of its own, and GEMMs read v as it is: `packed` has 1 + gain and 1 / S folded into w_down and
 * w_post. The sums before the gate's sigmoid are `logits` [L].
 *
 * The matrices of a sublayer are packed one after the other: [Y_ROW, L], rows of w_down's columns, from RANK_ROW on
 * w_post's; then w_up's columns [L, RANK_ROW]. RANK_ROW is RANK in whole vectors, Y_ROW is RANK_ROW and a vector
 * more; what lies between is zero.
 *
 * Build constants: STREAMS (S), CHANNELS (C), RANK, RANK_ROW, Y_ROW, GAINED (there is a gain), NORM_EPSILON.
 */
#include "group.cl"

/* A row of the table, see struct gate_leaves of the host. The top has no w_post: NO_LEAF. */
struct leaves {
    ulong gain, down, up, post, packed;
};
#define NO_LEAF     (~(ulong)0)
#define PACK_GROUP  64
#define LEAF_GROUPS ((ROW_LENGTH + PACK_GROUP - 1) / PACK_GROUP)

#define INVERSE(squares) rsqrt((squares) / CHANNELS + NORM_EPSILON)
#define SIGMOID(x)       (1.0f / (1.0f + exp(-(x))))

/* Of channels i .. of a row of all streams. */
static inline vec_t gain_at(__global const float *gain, int i) {
    return GAINED ? 1.0f + VEC_LOAD(gain + i) : (vec_t)(1.0f);
}

/* ---- the matrices: one work-item a row i of L of a sublayer, LEAF_GROUPS groups a sublayer */

__kernel void gates_pack(__global const float *parameters, __global const struct leaves *table,
                         __global act_t *packed) {
    __global const struct leaves *leaf = table + get_group_id(0) / LEAF_GROUPS;
    const size_t i = get_group_id(0) % LEAF_GROUPS * PACK_GROUP + get_local_id(0);
    if (i >= ROW_LENGTH) {
        return;
    }
    const float factor = (GAINED ? 1.0f + parameters[leaf->gain + i] : 1.0f) / STREAMS;
    __global act_t *rows = packed + leaf->packed + i, *up = packed + leaf->packed + Y_ROW * ROW_LENGTH;
    for (int k = 0; k < RANK_ROW; k++) {
        const float down = k < RANK ? factor * parameters[leaf->down + i * RANK + k] : 0.0f;
        ACT_STORE_SCALAR(down, rows + (size_t)k * ROW_LENGTH);
    }
    for (int k = 0; k < Y_ROW - RANK_ROW; k++) {
        const bool real = k < STREAMS && leaf->post != NO_LEAF;
        const float post = real ? factor * parameters[leaf->post + i * STREAMS + k] : 0.0f;
        ACT_STORE_SCALAR(post, rows + (size_t)(RANK_ROW + k) * ROW_LENGTH);
    }
    for (int k = 0; k < RANK_ROW; k++) {
        const float from = k < RANK ? parameters[leaf->up + (size_t)k * ROW_LENGTH + i] : 0.0f;
        ACT_STORE_SCALAR(from, up + i * RANK_ROW + k);
    }
}

/* d_w [L, width] += factor d_packed^T, or with keep == 0 = that. Returns the gradient of `factor`. */
static inline float unpack_row(__global const float *w, __global const float *d_packed, int width, float factor,
                               int keep, __global float *d_w) {
    float d_factor = 0.0f;
    for (int k = 0; k < width; k++) {
        const float d = d_packed[(size_t)k * ROW_LENGTH];
        d_factor += d * w[k];
        d_w[k] = (keep ? d_w[k] : 0.0f) + factor * d;
    }
    return d_factor;
}

/* From d_packed [Y_ROW, L] of the sublayers from `first` of the table on, at multiples of Y_ROW L: the gradients of
 * w_down, w_post, and of the gain, which is added to that part of it which gates_backward has written. */
__kernel void gates_unpack(__global const float *parameters, __global const struct leaves *table, int first,
                           __global const float *d_packed, int keep, __global float *gradients) {
    const size_t sublayer = first + get_group_id(0) / LEAF_GROUPS;
    __global const struct leaves *leaf = table + sublayer;
    const size_t i = get_group_id(0) % LEAF_GROUPS * PACK_GROUP + get_local_id(0);
    if (i >= ROW_LENGTH) {
        return;
    }
    __global const float *d = d_packed + sublayer * (Y_ROW * ROW_LENGTH) + i;
    const float factor = (GAINED ? 1.0f + parameters[leaf->gain + i] : 1.0f) / STREAMS;
    const size_t down = leaf->down + i * RANK;
    float d_factor = unpack_row(parameters + down, d, RANK, factor, keep, gradients + down);
    if (leaf->post != NO_LEAF) {
        const size_t post = leaf->post + i * STREAMS;
        d_factor += unpack_row(parameters + post, d + (size_t)RANK_ROW * ROW_LENGTH, STREAMS, factor, keep,
                               gradients + post);
    }
    if (GAINED) {
        gradients[leaf->gain + i] += d_factor / STREAMS;
    }
}

/* ---- streams */

/* One work-group a token, in place: x [N, S, C], squares [N, S] -> v. Before the first sublayer. */
ROW_KERNEL void gates_begin(__global const float *squares, __global act_t *streams) {
    const size_t token = get_group_id(0);
    for (int i = 0; i < STREAMS; i++) {
        __global act_t *x = streams + token * ROW_LENGTH + i * CHANNELS;
        const float scale = INVERSE(squares[token * STREAMS + i]);
        for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC) {
            ACT_STORE(scale * ACT_LOAD(x + c), x + c);
        }
    }
}

/* One work-group a token: v and squares, post s [N, S], output o [N, C] -> those of x', or without `normalises` x'
 * and its squares. */
ROW_KERNEL void gates_leave(__global const act_t *v_all, __global const float *squares, __global const float *post,
                            __global const act_t *output, int normalises, __global act_t *next,
                            __global float *next_squares) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0);
    __global const act_t *v = v_all + token * ROW_LENGTH;
    vec_t x[STREAM_SLOTS], sum[STREAMS];
    float root[STREAMS], weight[STREAMS];
    UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
        sum[i] = (vec_t)(0.0f);
        root[i] = 1.0f / INVERSE(squares[token * STREAMS + i]);
        weight[i] = post[token * STREAMS + i];
    }
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            x[AT(i, slot)] = root[i] * ACT_LOAD(v + i * CHANNELS + c) + weight[i] * o;
            sum[i] += x[AT(i, slot)] * x[AT(i, slot)];
        }
    }
    LANE_TOTALS(VEC_SUM, totals, sum, STREAMS);
    GROUP_SUMS(totals, STREAMS, scratch);
    GROUP_STORE_TOTALS(next_squares + token * STREAMS, totals, STREAMS, scratch);
    UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
        root[i] = normalises ? INVERSE(GROUP_TOTAL(totals, scratch, i)) : 1.0f;
    }
    LANE_STEPS(slot, c, CHANNELS) {
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            ACT_STORE(root[i] * x[AT(i, slot)], next + token * ROW_LENGTH + i * CHANNELS + c);
        }
    }
}

/* One work-group a token: the gradient of x' [N, S, C] -> d_output [N, C] and d_post [N, S]. */
ROW_KERNEL void gates_leave_backward(__global const act_t *d_next, __global const float *post,
                                     __global const act_t *output, __global act_t *d_output,
                                     __global float *d_post) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0);
    __global const act_t *d = d_next + token * ROW_LENGTH;
    vec_t product[STREAMS];
    CLEAR(vec_t, product, STREAMS);
    for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC) {
        const vec_t o = ACT_LOAD(output + token * CHANNELS + c);
        vec_t d_o = (vec_t)(0.0f);
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const vec_t d_x = ACT_LOAD(d + i * CHANNELS + c);
            d_o += post[token * STREAMS + i] * d_x;
            product[i] += d_x * o;
        }
        ACT_STORE(d_o, d_output + token * CHANNELS + c);
    }
    LANE_SUMS_STORE(VEC_SUM, d_post + token * STREAMS, product, STREAMS, scratch);
}

/* ---- from y to hidden and s. A work-item has one vector of y [N, Y_ROW]; items past the end return. */

__kernel void gates_hidden_forward(__global const float *y, ulong count, __global act_t *hidden,
                                   __global float *post) {
    const size_t at = get_global_id(0) * VEC, token = at / Y_ROW;
    const int column = at % Y_ROW;
    if (at < count && column < RANK_ROW) {
        const vec_t v = VEC_LOAD(y + at);
        ACT_STORE(v * SIGMOID(v), hidden + token * RANK_ROW + column);
    }
    if (at < count && column == RANK_ROW) {
        for (int i = 0; i < STREAMS; i++) {
            post[token * STREAMS + i] = 2.0f * SIGMOID(y[at + i]);
        }
    }
}

/* d_hidden [N, RANK_ROW], float, and where has_post d_post [N, S] -> d_y [N, Y_ROW]. */
__kernel void gates_hidden_backward(__global const float *y, __global const float *post,
                                    __global const float *d_hidden, __global const float *d_post, int has_post,
                                    ulong count, __global act_t *d_y) {
    const size_t at = get_global_id(0) * VEC, token = at / Y_ROW;
    const int column = at % Y_ROW;
    if (at < count && column < RANK_ROW) {
        const vec_t v = VEC_LOAD(y + at), factor = SIGMOID(v);
        ACT_STORE(VEC_LOAD(d_hidden + token * RANK_ROW + column) * factor * (1.0f + v * (1.0f - factor)), d_y + at);
    }
    if (at < count && column >= RANK_ROW) {
        for (int k = 0; k < VEC; k++) {
            const int i = column - RANK_ROW + k;
            float d = 0.0f;
            if (has_post && i < STREAMS) {
                const float s = post[token * STREAMS + i];
                d = d_post[token * STREAMS + i] * s * (1.0f - 0.5f * s);
            }
            ACT_STORE_SCALAR(d, d_y + at + k);
        }
    }
}

/* ---- gates */

/* gates = sigmoid(logits), of `count` elements, one vector a work-item. */
__kernel void gates_open(__global const act_t *logits, ulong count, __global act_t *gates) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        ACT_STORE(SIGMOID(ACT_LOAD(logits + i)), gates + i);
    }
}

/* One work-group a token: v, logits [N, S, C] -> u [N, C]. */
ROW_KERNEL void gates_forward(__global const act_t *v_all, __global const act_t *logits,
                              __global const float *parameters, ulong gain_from, __global act_t *u) {
    const size_t token = get_group_id(0), row = token * ROW_LENGTH;
    __global const float *gain = parameters + gain_from;
    UNUSED_POINTER(gain);
    for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t sum = (vec_t)(0.0f);
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const int k = i * CHANNELS + c;
            sum += SIGMOID(ACT_LOAD(logits + row + k)) * ACT_LOAD(v_all + row + k) * gain_at(gain, k);
        }
        ACT_STORE(sum / STREAMS, u + token * CHANNELS + c);
    }
}

/* One work-group a chunk of tokens: d_u [N, C] -> d_logits [N, S, C], and partial sums [chunks, S C] of that part
 * of the gain's gradient which comes through u. */
ROW_KERNEL void gates_backward(__global const act_t *v_all, __global const act_t *logits,
                               __global const float *parameters, ulong gain_from, __global const act_t *d_u,
                               ulong tokens, __global act_t *d_logits, __global float *partials) {
    const size_t first = chunk_begin(tokens, 0), last = chunk_begin(tokens, 1);
    __global const float *gain = parameters + gain_from;
    vec_t d_gain[STREAM_SLOTS];
    CLEAR(vec_t, d_gain, STREAM_SLOTS);
    UNUSED_POINTER(gain);
    UNUSED_POINTER(partials);
    for (size_t token = first; token < last; token++) {
        const size_t row = token * ROW_LENGTH;
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t d = ACT_LOAD(d_u + token * CHANNELS + c) / STREAMS;
            UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
                const int k = i * CHANNELS + c;
                const vec_t gate = SIGMOID(ACT_LOAD(logits + row + k)), read = d * gate * ACT_LOAD(v_all + row + k);
                ACT_STORE(read * (1.0f - gate) * gain_at(gain, k), d_logits + row + k);
                d_gain[AT(i, slot)] += read;
            }
        }
    }
    if (GAINED) {
        LANE_STEPS(slot, c, CHANNELS) {
            UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
                VEC_STORE(d_gain[AT(i, slot)], partials + get_group_id(0) * ROW_LENGTH + i * CHANNELS + c);
            }
        }
    }
}

/* One work-group a token, in place: the gradient of x' becomes that of x,
 *
 *   d_x_i = d_x'_i + (d_v_i - v_i mean of d_v_i v_i) / sqrt(mean of x_i^2 + NORM_EPSILON)
 *   d_v_i = gate_i (1 + gain_i) d_u / S + d_packed_v_i
 *
 * where d_packed_v [N, S, C] comes through y. Without `adds` (at the top) there is no d_x'. */
ROW_KERNEL void gates_streams_backward(__global const act_t *v_all, __global const float *squares,
                                       __global const act_t *logits, __global const act_t *d_packed_v,
                                       __global const act_t *d_u, __global const float *parameters, ulong gain_from,
                                       int adds, __global act_t *d_streams) {
    GROUP_SUMS_SCRATCH(scratch, STREAMS);
    const size_t token = get_group_id(0), row = token * ROW_LENGTH;
    __global const float *gain = parameters + gain_from;
    vec_t d_v[STREAM_SLOTS], product[STREAMS];
    float mean[STREAMS], scale[STREAMS];
    CLEAR(vec_t, product, STREAMS);
    UNUSED_POINTER(gain);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t d = ACT_LOAD(d_u + token * CHANNELS + c) / STREAMS;
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const int k = i * CHANNELS + c;
            const vec_t gate = SIGMOID(ACT_LOAD(logits + row + k));
            d_v[AT(i, slot)] = gate * gain_at(gain, k) * d + ACT_LOAD(d_packed_v + row + k);
            product[i] += d_v[AT(i, slot)] * ACT_LOAD(v_all + row + k);
        }
    }
    LANE_TOTALS(VEC_SUM, totals, product, STREAMS);
    GROUP_SUMS(totals, STREAMS, scratch);
    UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
        mean[i] = GROUP_TOTAL(totals, scratch, i) / CHANNELS;
        scale[i] = INVERSE(squares[token * STREAMS + i]);
    }
    LANE_STEPS(slot, c, CHANNELS) {
        UNROLL_LANES(STREAMS) for (int i = 0; i < STREAMS; i++) {
            const int k = i * CHANNELS + c;
            vec_t d_x = scale[i] * (d_v[AT(i, slot)] - mean[i] * ACT_LOAD(v_all + row + k));
            if (adds) {
                d_x += ACT_LOAD(d_streams + row + k);
            }
            ACT_STORE(d_x, d_streams + row + k);
        }
    }
}
