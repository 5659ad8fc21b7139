/* Attention over depth: the input of a branch from earlier states S of the residual stream. For one token, with w =
 * gain * query. The channels are DEPTH_HEADS equal parts, the heads. Sums <., .> run over one head; the mean in
 * scale_s runs over all channels.
 *
 *   scale_s = 1 / sqrt(mean of S_s^2 + NORM_EPSILON)     score_s = scale_s <w, S_s>     a = softmax(score)
 *   u = sum_s a_s S_s     y = norm(v), v = u                                         S [count, C] -> y [C]
 *
 * and backward, with e_s = a_s (<d_u, S_s> - <d_u, u>), which is 0 for the only state:
 *
 *   d_S_s += a_s d_u + e_s scale_s (w - score_s scale_s / C S_s)     where e_s score_s is summed over heads
 *   d_w = sum of e_s scale_s S_s over tokens and states     d_gain += query d_w     d_query += gain d_w
 *
 * Either kernel reads a state once: forward the softmax is updated with each, and backward u, which the forward
 * pass has stored, stands for the sum over states that the softmax's gradient needs.
 *
 * With KEEPS_STREAM (dar) there is also a stream x: v = x + gate u. gate is a parameter with GATED, else 1. Then
 * d_gate = sum of <d_v, u> over tokens, d_u = gate d_v, d_x += d_v.
 *
 * States are in slots of states [slots, N, C]: number s < count in slot min(s apart, newest), so the last of them
 * in `newest`. d_states [count, N, C] has their gradients.
 *
 * Build constants: CHANNELS (C), DEPTH_HEADS, KEEPS_STREAM, GATED, BIAS (norm has one), GAINED (the gain exists:
 * [C] right before the query, behind which the gate is). VEC divides the channels of a head.
 */
#include "norm.cl"

#define SHARE         SLOTS(CHANNELS) /* vectors of a state that a work-item has */
#define HEAD_CHANNELS (CHANNELS / DEPTH_HEADS)
#define HEAD_OF(c)    ((c) / HEAD_CHANNELS)

/* Heads whose numbers a work-item keeps. On a CPU: all. On a GPU: one for each of its vectors (the last head for a
 * vector past the row). PLACE is the index of a vector's head in these arrays. */
#if LANES == 1 || DEPTH_HEADS == 1
#define KNOWN          DEPTH_HEADS
#define KNOWN_HEAD(k)  (k)
#define PLACE(slot, c) HEAD_OF(c)
#else
#define KNOWN          SHARE
#define KNOWN_HEAD(k)  HEAD_OF(min((LANE + (k) * LANES) * VEC, CHANNELS - 1))
#define PLACE(slot, c) (slot)
#endif
#define EACH_KNOWN(k, head)                                                                                        \
    UNROLL_LANES(KNOWN) for (int k = 0, head = KNOWN_HEAD(0); k < KNOWN; k++, head = KNOWN_HEAD(k))

/* Scores in state s to a [DEPTH_HEADS, others + 1]: of each head scale times its sum. PoCL 3.1 leaves out stores
 * under a condition here with 8 lanes: where a few lanes are a test on a CPU, those without a head repeat the last
 * one's. */
#define HAS_HEAD(head) (LANES < 32 || (head) < DEPTH_HEADS)
#define STORE_SCORES(s, scale, totals)                                                                             \
    for (int head = LANE; head - LANE < DEPTH_HEADS; head += LANES)                                                \
        if (HAS_HEAD(head)) {                                                                                      \
            const int own = min(head, DEPTH_HEADS - 1);                                                            \
            a[own * (others + 1) + (s)] = (scale) * GROUP_TOTAL(totals, scratch, own);                             \
        }

/* sums of the head of channel c += product */
INLINED void add_to_head(products_t sums[DEPTH_HEADS], int c, vec_t product) {
#if LANES == 1
    sums[HEAD_OF(c)] += PRODUCTS(product);
#else
    const float sum = VEC_SUM(product);
    UNROLL(DEPTH_HEADS) for (int head = 0; head < DEPTH_HEADS; head++) {
        sums[head] += head == HEAD_OF(c) ? sum : 0.0f;
    }
#endif
}

/* Declares `totals`, of which GROUP_TOTAL(totals, scratch, head) then is the sum of a head over the lanes. */
#define HEAD_TOTALS(totals, sums, scratch)                                                                         \
    LANE_TOTALS(PRODUCTS_SUM, totals, sums, DEPTH_HEADS);                                                          \
    GROUP_SUMS(totals, DEPTH_HEADS, scratch)

/* w at channels c .. c+VEC-1; leaves are the gain, if there is one, and the query */
static inline vec_t score_weight(__global const float *leaves, int c) {
    vec_t w = VEC_LOAD(leaves + c);
    if (GAINED) {
        w *= VEC_LOAD(leaves + CHANNELS + c);
    }
    return w;
}

INLINED float gate_of(__global const float *leaves) {
    return GATED ? leaves[(1 + GAINED) * CHANNELS] : 1.0f;
}

/* ---- forward */

/* Values of `before` that are no slot: the newest state is already stored, or it is the output alone. */
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

/* Scores a [count] of one head become weights. */
INLINED void softmax(__global float *a, int count) {
    float highest = a[0], total = 0.0f;
    for (int s = 1; s < count; s++) {
        highest = fmax(highest, a[s]);
    }
    for (int s = 0; s < count; s++) {
        total += exp(a[s] - highest);
    }
    for (int s = 0; s < count; s++) {
        a[s] = exp(a[s] - highest) / total;
    }
}

/* One work-group a token. states [slots, N, C], output [N, C] of the branch before -> the newest state, in its slot
 * of `written`, which is `states`, too; its scales [slots, N]; weights a [N, DEPTH_HEADS, others + 1], mixed u [N,
 * C], normed y [N, C], statistics [N, 2] of the norm. Its gain and bias, and the leaves, are in parameters. stream
 * x [N, C] is read with KEEPS_STREAM. `others` is count - 1: clspv makes of an index count - 1 an address 2^32
 * elements behind. */
ROW_KERNEL void depth_read_forward(__global const act_t *states, __global act_t *written, ulong tokens, int others,
                                   int apart, int newest, int before, __global const act_t *output,
                                   __global const act_t *stream, __global const float *parameters, ulong leaves_at,
                                   ulong gain_at, ulong bias_at, __global float *scales, __global float *weights,
                                   __global act_t *mixed, __global act_t *normed, __global float *statistics) {
    GROUP_SUMS_SCRATCH(scratch, DEPTH_HEADS);
    const size_t token = get_group_id(0), at = token * CHANNELS, slot_size = tokens * CHANNELS;
    __global const float *leaves = parameters + leaves_at;
    __global float *a = weights + token * DEPTH_HEADS * (others + 1);
    vec_t u[SHARE], x[SHARE], square = (vec_t)(0.0f);
    products_t products[DEPTH_HEADS];
    float highest[KNOWN], total[KNOWN], kept[KNOWN], share[KNOWN]; /* total: of exp(score - highest) */
    CLEAR(products_t, products, DEPTH_HEADS);
    UNUSED_POINTER(stream);
    take_newest(before, states + max(before, 0) * slot_size + at, output + at, written + newest * slot_size + at,
                u);
    LANE_STEPS(slot, c, CHANNELS) {
        square += u[slot] * u[slot];
        add_to_head(products, c, u[slot] * score_weight(leaves, c));
    }
    const float newest_scale = rsqrt(GROUP_SUM(VEC_SUM(square), scratch) / CHANNELS + NORM_EPSILON);
    HEAD_TOTALS(scores, products, scratch);
    if (LANE == 0) {
        scales[newest * tokens + token] = newest_scale;
    }
    STORE_SCORES(others, newest_scale, scores);
    EACH_KNOWN(k, known) {
        highest[k] = newest_scale * GROUP_TOTAL(scores, scratch, known);
        total[k] = 1.0f;
    }
    for (int s = 0; s < others; s++) {
        __global const act_t *state = states + s * apart * slot_size + at;
        const float scale = scales[s * apart * tokens + token];
        CLEAR(products_t, products, DEPTH_HEADS);
        LANE_STEPS(slot, c, CHANNELS) {
            x[slot] = ACT_LOAD(state + c);
            add_to_head(products, c, x[slot] * score_weight(leaves, c));
        }
        HEAD_TOTALS(sums, products, scratch);
        STORE_SCORES(s, scale, sums);
        EACH_KNOWN(k, known) {
            const float score = scale * GROUP_TOTAL(sums, scratch, known), most = fmax(highest[k], score);
            kept[k] = exp(highest[k] - most);
            share[k] = exp(score - most);
            highest[k] = most;
            total[k] = total[k] * kept[k] + share[k];
        }
        LANE_STEPS(slot, c, CHANNELS) {
            u[slot] = kept[PLACE(slot, c)] * u[slot] + share[PLACE(slot, c)] * x[slot];
        }
    }
    GROUP_BARRIER(); /* all scores are in memory */
#if DEPTH_HEADS > 1
    for (int head = LANE; head < DEPTH_HEADS; head += LANES) {
        softmax(a + head * (others + 1), others + 1);
    }
#else
    for (int s = LANE; s <= others; s += LANES) {
        a[s] = exp(a[s] - highest[0]) / total[0];
    }
#endif
    vec_t sum = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        u[slot] /= total[PLACE(slot, c)];
        ACT_STORE(u[slot], mixed + at + c);
#if KEEPS_STREAM
        u[slot] = ACT_LOAD(stream + at + c) + gate_of(leaves) * ACT_ROUND(u[slot]);
#endif
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

/* d_u of one token from d_normed, with the norm's sums. With KEEPS_STREAM x is read, and its gradient is added to
 * d_x, and that of the gate to d_gate. */
INLINED void input_gradient(__global const act_t *u, __global const act_t *x, __global const act_t *d_normed,
                            __global const float *statistics, __global const float *gain, float gate,
                            vec_t d_u[SHARE], vec_t d_gain[SHARE], vec_t d_bias[SHARE], __global act_t *d_x,
                            vec_t *d_gate, __local float *scratch) {
    const float2 row = (float2)(statistics[0], statistics[1]);
    vec_t normal[SHARE];
    products_t sums[2];
    CLEAR(products_t, sums, 2);
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t v = ACT_LOAD(u + c);
#if KEEPS_STREAM
        v = ACT_LOAD(x + c) + gate * v;
#endif
        norm_backward(slot, v, row, ACT_LOAD(d_normed + c), VEC_LOAD(gain + c), normal, d_u, sums, d_gain, d_bias);
    }
    const float2 means = norm_backward_means(sums, scratch);
    LANE_STEPS(slot, c, CHANNELS) {
        d_u[slot] = norm_gradient(row.y, d_u[slot], normal[slot], means);
#if KEEPS_STREAM
        ACT_STORE(ACT_LOAD(d_x + c) + d_u[slot], d_x + c);
        *d_gate += d_u[slot] * ACT_LOAD(u + c);
        d_u[slot] *= gate;
#endif
    }
}

/* A chunk's sums of the gradients of norm, and, from d_w, of gain (if there is one) and query; and of the gate. */
#define PARTIALS ((3 + GAINED) * CHANNELS + (GATED ? VEC : 0))
INLINED void store_partials(vec_t d_gain[SHARE], vec_t d_bias[SHARE], vec_t d_w[SHARE], vec_t d_gate,
                            __global const float *leaves, __global float *partials, __local float *scratch) {
    norm_store_partial(d_gain, d_bias, partials);
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t d_query = d_w[slot];
        if (GAINED) {
            d_query *= VEC_LOAD(leaves + c);
            VEC_STORE(d_w[slot] * VEC_LOAD(leaves + CHANNELS + c), partials + 2 * CHANNELS + c);
        }
        VEC_STORE(d_query, partials + (2 + GAINED) * CHANNELS + c);
    }
#if GATED
    const float sum = GROUP_SUM(VEC_SUM(d_gate), scratch);
    if (LANE == 0) {
        partials[(3 + GAINED) * CHANNELS] = sum;
    }
#endif
}

/* One work-group a chunk of tokens. d_normed [N, C] -> d_states [count, N, C] and d_output [N, C] as `what` says,
 * partial sums [chunks, PARTIALS] of the gradients of the norm's gain and bias, and of the leaves. With
 * KEEPS_STREAM d_output is the stream's gradient instead, which is added to. */
ROW_KERNEL void depth_read_backward(__global const act_t *states, ulong tokens, int count, int apart, int newest,
                                    int what, __global const act_t *mixed, __global const act_t *stream,
                                    __global const float *parameters, ulong leaves_at, ulong gain_at,
                                    __global const float *scales, __global const float *weights,
                                    __global const float *statistics, __global const act_t *d_normed,
                                    __global act_t *d_states, __global act_t *d_output, __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, DEPTH_HEADS > 2 ? DEPTH_HEADS : 2);
    const size_t slot_size = tokens * CHANNELS;
    __global const float *leaves = parameters + leaves_at;
    vec_t d_gain[SHARE], d_bias[SHARE], d_w[SHARE], d_u[SHARE], x[SHARE], d_gate = (vec_t)(0.0f);
    CLEAR(vec_t, d_gain, SHARE);
    CLEAR(vec_t, d_bias, SHARE);
    CLEAR(vec_t, d_w, SHARE);
    UNUSED_POINTER(stream);
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        const size_t at = token * CHANNELS;
        products_t products[DEPTH_HEADS];
        float mean[KNOWN], a[KNOWN], e[KNOWN];
        input_gradient(mixed + at, stream + at, d_normed + at, statistics + 2 * token, parameters + gain_at,
                       gate_of(leaves), d_u, d_gain, d_bias, d_output + at, &d_gate, scratch);
        CLEAR(products_t, products, DEPTH_HEADS);
        LANE_STEPS(slot, c, CHANNELS) {
            add_to_head(products, c, d_u[slot] * ACT_LOAD(mixed + at + c));
        }
        HEAD_TOTALS(means, products, scratch);
        EACH_KNOWN(k, known) {
            mean[k] = GROUP_TOTAL(means, scratch, known);
        }
        for (int s = 0; s < count; s++) {
            const size_t from = min(s * apart, newest);
            const float scale = scales[from * tokens + token];
            vec_t product = (vec_t)(0.0f);
            CLEAR(products_t, products, DEPTH_HEADS);
            LANE_STEPS(slot, c, CHANNELS) {
                x[slot] = ACT_LOAD(states + from * slot_size + at + c);
                add_to_head(products, c, x[slot] * d_u[slot]);
            }
            HEAD_TOTALS(sums, products, scratch);
            EACH_KNOWN(k, known) {
                a[k] = weights[(token * DEPTH_HEADS + known) * count + s];
                e[k] = count > 1 ? a[k] * (GROUP_TOTAL(sums, scratch, known) - mean[k]) * scale : 0.0f;
            }
            LANE_STEPS(slot, c, CHANNELS) {
                product += e[PLACE(slot, c)] * x[slot] * score_weight(leaves, c);
            }
            const float along = -scale * scale / CHANNELS * GROUP_SUM(VEC_SUM(product), scratch);
            __global act_t *d_state = d_states + s * slot_size + at;
            const bool last = s == count - 1;
            LANE_STEPS(slot, c, CHANNELS) {
                const int k = PLACE(slot, c);
                vec_t d = a[k] * d_u[slot] + e[k] * score_weight(leaves, c) + along * x[slot];
                d_w[slot] += e[k] * x[slot];
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
    store_partials(d_gain, d_bias, d_w, d_gate, leaves, partials + get_group_id(0) * PARTIALS, scratch);
}

/* ---- the stream beside the states: a work-item has one vector, and the elements of a slot begin at `at` */

/* x' = x + output, and the state in a slot of states = output, or with adds is added to. */
__kernel void depth_leave_forward(__global const act_t *x, __global const act_t *output, ulong count, ulong at,
                                  int adds, __global act_t *next, __global act_t *states) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        const vec_t o = ACT_LOAD(output + i);
        ACT_STORE(ACT_LOAD(x + i) + o, next + i);
        ACT_STORE(adds ? ACT_LOAD(states + at + i) + o : o, states + at + i);
    }
}

/* d_output = d_x + d_states in a slot */
__kernel void depth_leave_backward(__global const act_t *d_x, __global const act_t *d_states, ulong count, ulong at,
                                   __global act_t *d_output) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        ACT_STORE(ACT_LOAD(d_x + i) + ACT_LOAD(d_states + at + i), d_output + i);
    }
}
