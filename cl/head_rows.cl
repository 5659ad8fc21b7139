/* Queries and keys before attention reads them: with NORMED an RMSNorm over each head of q and k, with
 * HEAD_GAINS times gains that all heads of a layer share; then what the kind of positions does, position_turn of
 * position_<name>.cl.
 *
 *   n = x / sqrt(mean over D of x^2 + NORM_EPSILON)      q = turn(t, q_gain n), and k likewise     t: the position
 *   g = turn back(d_q)    d_gain = sum over tokens and heads of g n
 *   d_x = (gain g - n mean over D of (gain g n)) / sqrt(...)
 *
 * A token has a row of qkv [N, (H + 2 K) D], see attention.cl. A work-item handles components d and d + HALF of a
 * head together.
 *
 * Build constants: HEADS (H), KV_HEADS (K), HEAD_SIZE (D), NORMED, HEAD_GAINS, NORM_EPSILON, VEC (divides
 * D/2; 1 if D is odd).
 */
#include "position_*.cl"

#define TURNED_HEADS (HEADS + KV_HEADS) /* of q and k in a row */
#define QKV_ROW      ((HEADS + 2 * KV_HEADS) * HEAD_SIZE)
#define HALF         ((HEAD_SIZE + 1) / 2)
#define ROW_HEADS    (NORMED ? HEADS + 2 * KV_HEADS : TURNED_HEADS) /* work-items of a row; heads of v are copied */

/* The second half of an odd head is one shorter. */
#define HAS_SECOND(d)           (HEAD_SIZE % 2 == 0 || (d) + HALF < HEAD_SIZE)
#define LOAD_SECOND(row, d)     (HAS_SECOND(d) ? ACT_LOAD((row) + HALF + (d)) : (vec_t)(0.0f))
#define GAIN_FIRST(gain, d)     (HEAD_GAINS ? VEC_LOAD((gain) + (d)) : (vec_t)(1.0f))
#define GAIN_OF_SECOND(gain, d) (HEAD_GAINS ? VEC_LOAD((gain) + HALF + (d)) : (vec_t)(1.0f))
#define GAIN_SECOND(gain, d)    (HAS_SECOND(d) ? GAIN_OF_SECOND(gain, d) : (vec_t)(0.0f))
#define STORE_SECOND(v, to, d)                                                                                     \
    if (HAS_SECOND(d))                                                                                             \
    ACT_STORE(v, (to) + HALF + (d))

/* A position's row of the table. */
#define TABLE_ROW(table, token, sequence, position)                                                                \
    ((table) + ((position) + (token) % (sequence)) * (size_t)HEAD_SIZE)

/* One work-item: one head of a token. from -> to, which without NORMED may be one. A sequence's first token is at
 * `position`. With NORMED scales [N, H + K] becomes 1 / sqrt(...) of each head of q and k. */
__kernel void head_rows_forward(__global const act_t *from, __global const float *table,
                                __global const float *gains, ulong q_gain_at, ulong k_gain_at, ulong tokens,
                                int sequence, int position, __global act_t *to, __global float *scales) {
    UNUSED_POINTER(gains);
    UNUSED_POINTER(scales);
    const size_t token = get_global_id(0) / ROW_HEADS;
    const int head = get_global_id(0) % ROW_HEADS;
    if (token >= tokens) {
        return;
    }
    __global const act_t *row = from + token * QKV_ROW + head * HEAD_SIZE;
    __global act_t *to_row = to + token * QKV_ROW + head * HEAD_SIZE;
    __global const float *gain = gains + (head < HEADS ? q_gain_at : k_gain_at);
    const bool is_value = head >= TURNED_HEADS;
    float scale = 1.0f;
    if (NORMED && !is_value) {
        vec_t squares = (vec_t)(0.0f);
        for (int d = 0; d < HALF; d += VEC) {
            const vec_t u = ACT_LOAD(row + d), w = LOAD_SECOND(row, d);
            squares += u * u + w * w;
        }
        scale = rsqrt(VEC_SUM(squares) / HEAD_SIZE + NORM_EPSILON);
        scales[token * TURNED_HEADS + head] = scale;
    }
    for (int d = 0; d < HALF; d += VEC) {
        vec_t u = ACT_LOAD(row + d), w = LOAD_SECOND(row, d);
        if (!is_value) {
            if (NORMED) {
                u *= scale * GAIN_FIRST(gain, d);
                w *= scale * GAIN_SECOND(gain, d);
            }
            position_turn(TABLE_ROW(table, token, sequence, position), d, false, &u, &w);
        }
        ACT_STORE(u, to_row + d);
        STORE_SECOND(w, to_row, d);
    }
}

/* One work-item: one head of q or k of a token, whose gradient in `d` [N, (H + 2 K) D] becomes that of its row of
 * `from`, which is read with NORMED only, as scales are. Sequences begin at position 0. */
__kernel void head_rows_backward(__global const act_t *from, __global const float *table,
                                 __global const float *gains, ulong q_gain_at, ulong k_gain_at,
                                 __global const float *scales, ulong tokens, int sequence, __global act_t *d_all) {
    UNUSED_POINTERS(gains, from, scales);
    const size_t token = get_global_id(0) / TURNED_HEADS;
    const int head = get_global_id(0) % TURNED_HEADS;
    if (token >= tokens) {
        return;
    }
    __global const act_t *row = from + token * QKV_ROW + head * HEAD_SIZE;
    __global act_t *d_row = d_all + token * QKV_ROW + head * HEAD_SIZE;
    __global const float *gain = gains + (head < HEADS ? q_gain_at : k_gain_at);
    __global const float *turns = TABLE_ROW(table, token, sequence, 0);
    float scale = 1.0f, mean = 0.0f;
    if (NORMED) {
        vec_t sum = (vec_t)(0.0f);
        scale = scales[token * TURNED_HEADS + head];
        for (int d = 0; d < HALF; d += VEC) {
            vec_t u = ACT_LOAD(d_row + d), w = LOAD_SECOND(d_row, d);
            position_turn(turns, d, true, &u, &w);
            sum += u * GAIN_FIRST(gain, d) * ACT_LOAD(row + d) + w * GAIN_SECOND(gain, d) * LOAD_SECOND(row, d);
        }
        mean = scale * VEC_SUM(sum) / HEAD_SIZE;
    }
    for (int d = 0; d < HALF; d += VEC) {
        vec_t u = ACT_LOAD(d_row + d), w = LOAD_SECOND(d_row, d);
        position_turn(turns, d, true, &u, &w);
        if (NORMED) {
            u = scale * (u * GAIN_FIRST(gain, d) - scale * mean * ACT_LOAD(row + d));
            w = scale * (w * GAIN_SECOND(gain, d) - scale * mean * LOAD_SECOND(row, d));
        }
        ACT_STORE(u, d_row + d);
        STORE_SECOND(w, d_row, d);
    }
}

/* Partial sums of the gradients of the gains, from gradients that head_rows_backward has not changed yet: partials
 * [chunks, 2 D], of q_gain and then of k_gain. One work-item: 2 VEC components of a chunk of tokens. */
__kernel void head_gains_backward(__global const act_t *from, __global const float *table,
                                  __global const float *scales, __global const act_t *d_all, ulong tokens,
                                  ulong per_chunk, int sequence, __global float *partials) {
    const int steps = HALF / VEC, d = get_global_id(0) % steps * VEC;
    const size_t chunk = get_global_id(0) / steps, first = chunk * per_chunk;
    const size_t last = min((ulong)(first + per_chunk), tokens);
    if (first >= tokens) {
        return;
    }
    for (int begin = 0; begin < TURNED_HEADS; begin += HEADS) {
        const int end = begin ? TURNED_HEADS : HEADS;
        vec_t of_first = (vec_t)(0.0f), of_second = (vec_t)(0.0f);
        for (size_t token = first; token < last; token++) {
            for (int head = begin; head < end; head++) {
                const size_t at = token * QKV_ROW + head * HEAD_SIZE;
                const float scale = scales[token * TURNED_HEADS + head];
                vec_t u = ACT_LOAD(d_all + at + d), w = LOAD_SECOND(d_all + at, d);
                position_turn(TABLE_ROW(table, token, sequence, 0), d, true, &u, &w);
                of_first += u * scale * ACT_LOAD(from + at + d);
                of_second += w * scale * LOAD_SECOND(from + at, d);
            }
        }
        __global float *sums = partials + (2 * chunk + (begin > 0)) * HEAD_SIZE;
        VEC_STORE(of_first, sums + d);
        if (HAS_SECOND(d)) {
            VEC_STORE(of_second, sums + HALF + d);
        }
    }
}
