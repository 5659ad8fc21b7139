/* Multiway dynamic dense connections: what a layer reads from all states S of the residual stream so far, by
 * weights that depend on the newest of them. For one token, with `count` states, the newest of which is S_n, there
 * are WAYS mixtures, of queries, keys, values and of the stream itself, or one at the top:
 *
 *   scale = 1 / sqrt(mean of S_n^2 + NORM_EPSILON)     raw = S_n w_1     hidden = gelu(scale raw)
 *   a = hidden w_2 + b     y_w = sum_s a[w, s] S_s                                  S [count, C] -> y [WAYS, C]
 *
 * (of `dense` there is one mixture, and a = b), where GEMMs compute raw and hidden w_2, and backward, with u =
 * scale raw and d_u = gelu'(u) d_hidden:
 *
 *   d_a[w, s] = <d_y_w, S_s>     d_S_s += sum_w a[w, s] d_y_w
 *   d_raw = scale d_u     along = - scale^2 / C <d_u, u>     d_S_n += d_raw w_1^T + along S_n
 *
 * With PREPOST states are normed: S_n = pre n(h), n(h) = scale h, h being the layer's output. w_1 reads h instead
 * of S_n, and mixtures are added to h. The mixture of the stream, r, is the last one and has a norm before it is
 * added:
 *
 *   y_w = h + sum_s a[w, s] S_s     y_r = h + post n(m), m = sum_s a[r, s] S_s
 *
 * The gains pre and post [C] lie one after the other; the embedding has pre alone.
 *
 * Rows of raw, hidden and a are padded with zeros to a multiple of the widest vector. Each state has a slot of
 * states [slots, N, C]: number s is in slot s.
 *
 * Build constants: CHANNELS (C), WAYS (4 or 1), FIXED (a = b), PREPOST, NORM_EPSILON.
 */
#include "activation_gelu.cl"
#include "group.cl"

#define SHARE SLOTS(CHANNELS) /* vectors of a state that a work-item has */

/* ---- matrices */

/* A matrix in the table: where it is among the weights, its rows and columns, where the packed one begins, and rows
 * and columns of that. */
struct matrix {
    ulong weight_at, rows, columns, packed_at, packed_rows, packed_row;
};

#define PACK_GROUP  64 /* work-items */
#define PACK_GROUPS 32 /* of a matrix */

/* Packed matrices are the transposed ones with zeros behind their rows and columns, as GEMMs read them. */
__kernel void ways_pack(__global const act_t *weights, __global const struct matrix *table,
                        __global act_t *packed) {
    __global const struct matrix *matrix = table + get_group_id(0) / PACK_GROUPS;
    const ulong rows = matrix->rows, columns = matrix->columns, row = matrix->packed_row;
    const ulong count = row * matrix->packed_rows;
    __global const act_t *from = weights + matrix->weight_at;
    __global act_t *to = packed + matrix->packed_at;
    ulong i = get_group_id(0) % PACK_GROUPS * PACK_GROUP + get_local_id(0);
    for (; i < count; i += PACK_GROUPS * PACK_GROUP) {
        const ulong column = i / row, k = i % row;
        float number = 0.0f;
        if (column < columns && k < rows) {
            number = ACT_LOAD_SCALAR(from + k * columns + column);
        }
        ACT_STORE_SCALAR(number, to + i);
    }
}

/* ---- the newest state */

/* One work-group a token. h = x + output [N, C], or with adds 0 x; its scale [N], and the state in its slot: h, or
 * with PREPOST, where h goes to newest [N, C], pre n(h). */
ROW_KERNEL void ways_state_forward(__global const act_t *x, __global const act_t *output, int adds,
                                   __global const float *parameters, ulong pre_at, __global act_t *newest,
                                   __global act_t *states, ulong state_at, __global float *scales) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0), at = token * CHANNELS;
    __global act_t *h = PREPOST ? newest : states + state_at;
    vec_t square = (vec_t)(0.0f);
    UNUSED_POINTERS(parameters, newest, states);
    LANE_STEPS(slot, c, CHANNELS) {
        vec_t sum = ACT_LOAD(x + at + c);
        if (adds) {
            sum += ACT_LOAD(output + at + c);
        }
        const vec_t stored = ACT_ROUND(sum);
        ACT_STORE(sum, h + at + c);
        square += stored * stored;
    }
    const float scale = rsqrt(GROUP_SUM(VEC_SUM(square), scratch) / CHANNELS + NORM_EPSILON);
    if (LANE == 0) {
        scales[token] = scale;
    }
#if PREPOST
    LANE_STEPS(slot, c, CHANNELS) {
        ACT_STORE(scale * VEC_LOAD(parameters + pre_at + c) * ACT_LOAD(h + at + c), states + state_at + at + c);
    }
#endif
}

/* d [N, C] = the gradient in the state's slot + that which came through raw, d_raw w_1^T, + along S_n */
#if !PREPOST
__kernel void ways_state_backward(__global const act_t *states, __global const act_t *d_states, ulong state_at,
                                  __global const act_t *d_through, __global const float *along, ulong count,
                                  __global act_t *d) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        const vec_t state = ACT_LOAD(states + state_at + i);
        const vec_t sum = ACT_LOAD(d_states + state_at + i) + ACT_LOAD(d_through + i);
        ACT_STORE(sum + along[i / CHANNELS] * state, d + i);
    }
}
#else
/* Gradient of x of n(x), x at these channels, from that of n(x) and the row's mean of both's product. */
#define NORM_GRADIENT(d_n, x, scale, mean) ((scale) * ((d_n) - (scale) * (x) * (mean)))

/* One work-group a chunk of tokens. From d_before [N, C], what the mixtures give to the gradient of h, that of the
 * state and, with has_through, what came through raw: d [N, C], which may be d_before, or d_states in its slot;
 * partial sums [chunks, C] of the gradient of pre. */
ROW_KERNEL void ways_state_backward(__global const act_t *newest, __global const float *parameters, ulong pre_at,
                                    __global const float *scales, __global const act_t *d_states, ulong state_at,
                                    __global const act_t *d_through, __global const float *along, int has_through,
                                    ulong tokens, __global const act_t *d_before, __global act_t *d,
                                    __global float *partials) {
    GROUP_SCRATCH(scratch);
    vec_t d_pre[SHARE];
    CLEAR(vec_t, d_pre, SHARE);
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        const size_t at = token * CHANNELS;
        const float scale = scales[token], factor = has_through ? along[token] : 0.0f;
        vec_t product = (vec_t)(0.0f), d_n[SHARE];
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t n = scale * ACT_LOAD(newest + at + c), d_state = ACT_LOAD(d_states + state_at + at + c);
            d_n[slot] = d_state * VEC_LOAD(parameters + pre_at + c);
            product += d_n[slot] * n;
            d_pre[slot] += d_state * n;
        }
        const float mean = GROUP_SUM(VEC_SUM(product), scratch) / CHANNELS;
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t h = ACT_LOAD(newest + at + c);
            vec_t sum = ACT_LOAD(d_before + at + c) + NORM_GRADIENT(d_n[slot], h, scale, mean) + factor * h;
            if (has_through) {
                sum += ACT_LOAD(d_through + at + c);
            }
            ACT_STORE(sum, d + at + c);
        }
    }
    LANE_STEPS(slot, c, CHANNELS) {
        VEC_STORE(d_pre[slot], partials + get_group_id(0) * CHANNELS + c);
    }
}
#endif

/* ---- hidden channels */

/* hidden = gelu(scale raw) [N, row], count = N row */
__kernel void ways_hidden_forward(__global const act_t *raw, __global const float *scales, ulong count, int row,
                                  __global act_t *hidden) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        const vec_t u = scales[i / row] * ACT_LOAD(raw + i);
        ACT_STORE(u * activation_factor(u), hidden + i);
    }
}

/* One work-group a token. d_hidden [N, row] becomes d_raw in place; along [N]. */
ROW_KERNEL void ways_hidden_backward(__global const act_t *raw, __global const float *scales, int row,
                                     __global act_t *d_hidden, __global float *along) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0), at = token * row;
    const float scale = scales[token];
    vec_t product = (vec_t)(0.0f);
    for (int c = LANE * VEC; c < row; c += LANES * VEC) {
        const vec_t u = scale * ACT_LOAD(raw + at + c);
        const vec_t d_u = ACT_LOAD(d_hidden + at + c) * activation_derivative(u);
        product += d_u * u;
        ACT_STORE(scale * d_u, d_hidden + at + c);
    }
    const float sum = GROUP_SUM(VEC_SUM(product), scratch);
    if (LANE == 0) {
        along[token] = -scale * scale * sum / CHANNELS;
    }
}

/* ---- mixtures */

#define WEIGHTS_OF(token) (weights + weights_at + (FIXED ? 0 : (token) * row))

/* One work-group a token. weights a [N, row], or FIXED [row] -> y of queries, or the only one, of keys, of values
 * and of the stream, each [N, C]. With PREPOST from newest, h, too, and m [N, C]. */
ROW_KERNEL void ways_mix_forward(__global const act_t *states, ulong tokens, int count,
                                 __global const float *weights, ulong weights_at, int row,
                                 __global const act_t *newest, __global const float *parameters, ulong post_at,
                                 __global act_t *queries, __global act_t *keys, __global act_t *values,
                                 __global act_t *stream, __global act_t *unnormed) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0), at = token * CHANNELS, slot_size = tokens * CHANNELS;
    __global const float *a = WEIGHTS_OF(token);
    vec_t y[WAYS * SHARE];
    CLEAR(vec_t, y, WAYS * SHARE);
    UNUSED_POINTERS(newest, parameters, unnormed);
    for (int s = 0; s < count; s++) {
        __global const act_t *state = states + s * slot_size + at;
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t x = ACT_LOAD(state + c);
            UNROLL_LANES(WAYS) for (int w = 0; w < WAYS; w++) {
                y[w * SHARE + slot] += a[w * count + s] * x;
            }
        }
    }
#if PREPOST
    vec_t *m = y + (WAYS - 1) * SHARE, square = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        ACT_STORE(m[slot], unnormed + at + c);
        m[slot] = ACT_ROUND(m[slot]);
        square += m[slot] * m[slot];
    }
    const float scale = rsqrt(GROUP_SUM(VEC_SUM(square), scratch) / CHANNELS + NORM_EPSILON);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t h = ACT_LOAD(newest + at + c);
        m[slot] *= scale * VEC_LOAD(parameters + post_at + c);
        UNROLL_LANES(WAYS) for (int w = 0; w < WAYS; w++) {
            y[w * SHARE + slot] += h;
        }
    }
#endif
    LANE_STEPS(slot, c, CHANNELS) {
        ACT_STORE(y[slot], queries + at + c);
#if WAYS == 4
        ACT_STORE(y[SHARE + slot], keys + at + c);
        ACT_STORE(y[2 * SHARE + slot], values + at + c);
        ACT_STORE(y[3 * SHARE + slot], stream + at + c);
#endif
    }
    UNUSED_POINTERS(keys, values, stream);
}

#if PREPOST
/* Of a token: d_y of all ways -> their sum, the gradient of h, to d_newest [C]; that of the last becomes the
 * gradient of m, and d_post adds up. */
INLINED void post_backward(vec_t d_y[WAYS * SHARE], __global const act_t *unnormed, __global const float *post,
                           __global act_t *d_newest, vec_t d_post[SHARE], __local float *scratch) {
    vec_t *d_m = d_y + (WAYS - 1) * SHARE, square = (vec_t)(0.0f), product = (vec_t)(0.0f);
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t m = ACT_LOAD(unnormed + c);
        vec_t sum = d_y[slot];
        UNROLL_LANES(WAYS) for (int w = 1; w < WAYS; w++) {
            sum += d_y[w * SHARE + slot];
        }
        ACT_STORE(sum, d_newest + c);
        square += m * m;
        product += d_m[slot] * VEC_LOAD(post + c) * m;
    }
    const float scale = rsqrt(GROUP_SUM(VEC_SUM(square), scratch) / CHANNELS + NORM_EPSILON);
    const float mean = scale * GROUP_SUM(VEC_SUM(product), scratch) / CHANNELS;
    LANE_STEPS(slot, c, CHANNELS) {
        const vec_t m = ACT_LOAD(unnormed + c);
        d_post[slot] += d_m[slot] * scale * m;
        d_m[slot] = NORM_GRADIENT(d_m[slot] * VEC_LOAD(post + c), m, scale, mean);
    }
}
#endif

/* One work-group a token, with PREPOST a chunk of tokens. d_y: gradients of the mixtures. Writes d_a [N, row] and,
 * added with `adds`, d_S_s to d_states [count, N, C]. With PREPOST also writes the gradient of h from outside its
 * state to d_newest [N, C], which may be one of the d_y buffers, and partial sums [chunks, C] of d_post. */
ROW_KERNEL void ways_mix_backward(__global const act_t *states, ulong tokens, int count,
                                  __global const float *weights, ulong weights_at, int row,
                                  __global const act_t *d_queries, __global const act_t *d_keys,
                                  __global const act_t *d_values, __global const act_t *d_stream, int adds,
                                  __global const act_t *unnormed, __global const float *parameters, ulong post_at,
                                  __global act_t *d_states, __global act_t *d_weights, __global act_t *d_newest,
                                  __global float *partials) {
    GROUP_SUMS_SCRATCH(scratch, WAYS);
    const size_t slot_size = tokens * CHANNELS;
    UNUSED_POINTERS(d_keys, d_values, d_stream);
    UNUSED_POINTERS(unnormed, parameters, partials);
    UNUSED_POINTER(d_newest);
#if PREPOST
    vec_t d_post[SHARE];
    CLEAR(vec_t, d_post, SHARE);
#endif
    for (size_t token = chunk_begin(tokens, 0), end = chunk_begin(tokens, 1); token < end; token++) {
        const size_t at = token * CHANNELS;
        __global const float *a = WEIGHTS_OF(token);
        __global act_t *d_a = d_weights + token * row;
        vec_t d_y[WAYS * SHARE];
        LANE_STEPS(slot, c, CHANNELS) {
            d_y[slot] = ACT_LOAD(d_queries + at + c);
#if WAYS == 4
            d_y[SHARE + slot] = ACT_LOAD(d_keys + at + c);
            d_y[2 * SHARE + slot] = ACT_LOAD(d_values + at + c);
            d_y[3 * SHARE + slot] = ACT_LOAD(d_stream + at + c);
#endif
        }
#if PREPOST
        post_backward(d_y, unnormed + at, parameters + post_at, d_newest + at, d_post, scratch);
#endif
        for (int s = 0; s < count; s++) {
            __global const act_t *state = states + s * slot_size + at;
            __global act_t *d_state = d_states + s * slot_size + at;
            float factors[WAYS];
            vec_t products[WAYS];
            UNROLL_LANES(WAYS) for (int w = 0; w < WAYS; w++) {
                factors[w] = a[w * count + s];
                products[w] = (vec_t)(0.0f);
            }
            LANE_STEPS(slot, c, CHANNELS) {
                const vec_t x = ACT_LOAD(state + c);
                vec_t d = (vec_t)(0.0f);
                UNROLL_LANES(WAYS) for (int w = 0; w < WAYS; w++) {
                    products[w] += x * d_y[w * SHARE + slot];
                    d += factors[w] * d_y[w * SHARE + slot];
                }
                if (adds) {
                    d += ACT_LOAD(d_state + c);
                }
                ACT_STORE(d, d_state + c);
            }
            LANE_TOTALS(VEC_SUM, sums, products, WAYS);
            GROUP_SUMS(sums, WAYS, scratch);
            for (int w = LANE; w < WAYS; w += LANES) {
                ACT_STORE_SCALAR(GROUP_TOTAL(sums, scratch, w), d_a + w * count + s);
            }
        }
        for (int i = WAYS * count + LANE; i < row; i += LANES) {
            ACT_STORE_SCALAR(0.0f, d_a + i);
        }
    }
#if PREPOST
    LANE_STEPS(slot, c, CHANNELS) {
        VEC_STORE(d_post[slot], partials + get_group_id(0) * CHANNELS + c);
    }
#endif
}
