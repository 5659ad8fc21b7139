/* Attention forward and backward (attention.cl has the formulas) where a work-item has a core's caches to itself:
 * it takes QUERIES queries of a head and goes over tiles of KEYS keys (and the other way round for dk, dv): a tile
 * of scores is QUERIES x KEYS. Vectors are along keys, so k and v are copied to transposed tiles first: k_t and v_t
 * [B, K, padded / KEYS, D / KEY_ELEMENTS, KEYS, KEY_ELEMENTS], padded = T rounded up to KEYS, the padding zero.
 *
 * attention_cpu_fp32.cl, and attention_cpu_bf16.cl for CPUs that multiply pairs of bf16, multiply tiles; they
 * include this file. A row that is multiplied has ROW_ITEMS elements of row_t; sums are floats.
 *
 * Build constants, besides those of attention.cl: QUERIES, KEYS, KEYS_BACKWARD (tile width of dk, dv; divides KEYS;
 * both are multiples of QUERIES and of KEY_VEC), VEC (divides HEAD_SIZE).
 */
#if KEYS % KEYS_BACKWARD || KEYS_BACKWARD % QUERIES
#error blocks of queries lie across those of keys
#endif

/* k_t or v_t from qkv; part 1 is k, 2 is v. A work-item copies one word (KEY_ELEMENTS channels) of each of KEY_VEC
 * neighbouring keys of one (batch, key head). */
__kernel void attention_transpose(__global const act_t *qkv, int part, int batch, int sequence, int padded,
                                  __global act_t *transposed) {
    const int words = HEAD_SIZE / KEY_ELEMENTS, word = get_global_id(0) % words;
    const int block = get_global_id(0) / words % (padded / KEY_VEC), in_tile = block * KEY_VEC % KEYS;
    const size_t head = get_global_id(0) / words / (padded / KEY_VEC);
    if (head >= (size_t)batch * KV_HEADS) {
        return;
    }
    __global const act_t *from =
        qkv + (head / KV_HEADS) * sequence * QKV_ROW + Y_ROW + (part - 1) * KV_ROW + head % KV_HEADS * HEAD_SIZE;
    __global act_t *tile = transposed + head * HEAD_SIZE * padded + (block * KEY_VEC - in_tile) * HEAD_SIZE;
    for (int k = 0; k < KEY_VEC; k++) {
        const int key = block * KEY_VEC + k, to = word * KEYS + in_tile + k;
        WORD_STORE(key < sequence ? WORD_LOAD(from + (size_t)key * QKV_ROW, word) : 0, tile, to);
    }
}

/* Loops over rows of HEAD_SIZE, in vectors. */
#define EACH_ROW_VECTOR(row, rows, d)                                                                              \
    for (int row = 0; row < (rows); row++)                                                                         \
        for (int d = 0; d < HEAD_SIZE; d += VEC)

static inline void sums_zero(float *sums, int rows) {
    EACH_ROW_VECTOR(q, rows, d) {
        VEC_STORE((vec_t)(0.0f), sums + q * HEAD_SIZE + d);
    }
}

/* One work-item: QUERIES queries of one (batch, head). */
__kernel void attention_forward(__global const act_t *qkv, __global const act_t *k_t, int batch, int sequence,
                                int padded, float dropout_rate, ulong dropout_key, ulong first_row,
                                __global act_t *y, __global float *lse) {
    const int blocks = (sequence + QUERIES - 1) / QUERIES;
    const size_t number = get_global_id(0) / blocks;
    const int first = get_global_id(0) % blocks * QUERIES;
    if (number >= (size_t)batch * HEADS) {
        return;
    }
    struct head head;
    head_find(number, sequence, dropout_rate, dropout_key, first_row, &head);
    __global const act_t *q_rows = qkv + head.qkv, *values = qkv + head.keys + KV_ROW;
    __global const act_t *columns = k_t + number / KV_GROUP * HEAD_SIZE * padded;
    row_t query[QUERIES * ROW_ITEMS] ALIGNED;
    float out[QUERIES * HEAD_SIZE] ALIGNED, tile[QUERIES * KEYS] ALIGNED;
    float highest[QUERIES], sum[QUERIES];
    rows_load(q_rows, QKV_ROW, first, sequence, QUERY_FACTOR, query);
    for (int q = 0; q < QUERIES; q++) {
        highest[q] = -INFINITY;
        sum[q] = 0.0f;
    }
    sums_zero(out, QUERIES);
    for (int start = 0; start < first + QUERIES && start < sequence; start += KEYS) {
        tile_products(query, columns + start * HEAD_SIZE, KEYS, SCORE_FACTOR, tile);
        for (int q = 0; q < QUERIES; q++) {
            float *scores = tile + q * KEYS;
            for (int k = max(first + q + 1 - start, 0); k < KEYS; k++) {
                scores[k] = -INFINITY;
            }
            keys_t high = KEYS_LOAD(scores);
            for (int k = KEY_VEC; k < KEYS; k += KEY_VEC) {
                high = fmax(high, KEYS_LOAD(scores + k));
            }
            const float highest_now = fmax(highest[q], KEYS_HIGHEST(high));
            const float shrink = exp(highest[q] - highest_now);
            keys_t total = (keys_t)(0.0f);
            for (int k = 0; k < KEYS; k += KEY_VEC) {
                const keys_t p = exp(KEYS_LOAD(scores + k) - highest_now);
                total += p;
                STORE_PRIVATE(keys_t, p, scores + k);
            }
            sum[q] = sum[q] * shrink + KEYS_SUM(total);
            highest[q] = highest_now;
            for (int d = 0; d < HEAD_SIZE; d += VEC) {
                VEC_STORE(shrink * VEC_LOAD(out + q * HEAD_SIZE + d), out + q * HEAD_SIZE + d);
            }
            if (dropout_rate > 0.0f) {
                for (int k = 0; k < KEYS; k++) {
                    scores[k] *= attention_factor(&head.dropout, first + q, start + k);
                }
            }
        }
        tile_accumulate(tile, KEYS, min(KEYS, min(sequence, first + QUERIES) - start),
                        values + (size_t)start * QKV_ROW, QKV_ROW, out);
    }
    for (int q = 0; q < QUERIES && first + q < sequence; q++) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            ACT_STORE(VEC_LOAD(out + q * HEAD_SIZE + d) / sum[q], y + head.y + (size_t)(first + q) * Y_ROW + d);
        }
        lse[head.rows + first + q] = highest[q] + log(sum[q]);
    }
}

/* For a tile: p (with dropout's factor) and ds from scores and dp, in place. */
static inline void tile_backward(float *scores, float *d_p, int keys, int first, int start, const float *lse,
                                 const float *delta, const struct dropout *dropout) {
    for (int q = 0; q < QUERIES; q++) {
        for (int k = 0; k < keys; k += KEY_VEC) {
            const keys_t p = exp(KEYS_LOAD(scores + q * keys + k) - lse[q]);
            STORE_PRIVATE(keys_t, p, scores + q * keys + k);
        }
        for (int k = max(first + q + 1 - start, 0); k < keys; k++) {
            scores[q * keys + k] = 0.0f;
        }
        if (dropout->rate > 0.0f) {
            for (int k = 0; k < keys; k++) {
                const float factor = attention_factor(dropout, first + q, start + k);
                d_p[q * keys + k] = scores[q * keys + k] * (factor * d_p[q * keys + k] - delta[q]);
                scores[q * keys + k] *= factor;
            }
        } else {
            for (int k = 0; k < keys; k += KEY_VEC) {
                const keys_t p = KEYS_LOAD(scores + q * keys + k);
                STORE_PRIVATE(keys_t, p * (KEYS_LOAD(d_p + q * keys + k) - delta[q]), d_p + q * keys + k);
            }
        }
    }
}

/* The first `count` rows, times factor, to a [T, stride] matrix. */
static inline void sums_store(const float *sums, int count, float factor, __global act_t *to, size_t stride) {
    EACH_ROW_VECTOR(q, count, d) {
        ACT_STORE(factor * VEC_LOAD(sums + q * HEAD_SIZE + d), to + q * stride + d);
    }
}

/* delta of QUERIES rows from y at `y_rows` [T, Y_ROW], stored for the first `count` of them. */
static inline void rows_delta(const row_t d_out[QUERIES * ROW_ITEMS], __global const act_t *y_rows, int first,
                              int sequence, int count, __global float *delta_rows, float delta[QUERIES]) {
    row_t out[QUERIES * ROW_ITEMS] ALIGNED;
    rows_load(y_rows, Y_ROW, first, sequence, 1.0f, out);
    for (int q = 0; q < QUERIES; q++) {
        vec_t sum = (vec_t)(0.0f);
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            sum += row_vec(d_out, q, d) * row_vec(out, q, d);
        }
        delta[q] = VEC_SUM(sum);
        if (q < count) {
            delta_rows[first + q] = delta[q];
        }
    }
}

/* dq, and delta for attention_backward_keys. One work-item: QUERIES queries of one (batch, head). */
__kernel void attention_backward_queries(__global const act_t *qkv, __global const act_t *k_t,
                                         __global const act_t *v_t, __global const act_t *y,
                                         __global const act_t *d_y, __global const float *lse_all, int batch,
                                         int sequence, int padded, float dropout_rate, ulong dropout_key,
                                         ulong first_row, __global act_t *d_qkv, __global float *delta_all) {
    const int blocks = (sequence + QUERIES - 1) / QUERIES;
    const size_t number = get_global_id(0) / blocks, columns_at = number / KV_GROUP * HEAD_SIZE * padded;
    const int first = get_global_id(0) % blocks * QUERIES;
    if (number >= (size_t)batch * HEADS) {
        return;
    }
    struct head head;
    head_find(number, sequence, dropout_rate, dropout_key, first_row, &head);
    __global const act_t *q_rows = qkv + head.qkv, *columns = k_t + columns_at, *v_columns = v_t + columns_at;
    row_t query[QUERIES * ROW_ITEMS] ALIGNED, d_out[QUERIES * ROW_ITEMS] ALIGNED;
    float d_query[QUERIES * HEAD_SIZE] ALIGNED;
    float scores[QUERIES * KEYS] ALIGNED, d_p[QUERIES * KEYS] ALIGNED;
    float lse[QUERIES], delta[QUERIES];
    rows_load(q_rows, QKV_ROW, first, sequence, QUERY_FACTOR, query);
    rows_load(d_y + head.y, Y_ROW, first, sequence, 1.0f, d_out);
    rows_delta(d_out, y + head.y, first, sequence, min(QUERIES, sequence - first), delta_all + head.rows, delta);
    sums_zero(d_query, QUERIES);
    for (int q = 0; q < QUERIES; q++) {
        lse[q] = lse_all[head.rows + min(first + q, sequence - 1)];
    }
    for (int start = 0; start < first + QUERIES && start < sequence; start += KEYS) {
        tile_products(query, columns + start * HEAD_SIZE, KEYS, SCORE_FACTOR, scores);
        tile_products(d_out, v_columns + start * HEAD_SIZE, KEYS, 1.0f, d_p);
        tile_backward(scores, d_p, KEYS, first, start, lse, delta, &head.dropout);
        tile_accumulate(d_p, KEYS, min(KEYS, min(sequence, first + QUERIES) - start),
                        qkv + head.keys + (size_t)start * QKV_ROW, QKV_ROW, d_query);
    }
    sums_store(d_query, min(QUERIES, sequence - first), SCALE, d_qkv + head.qkv + (size_t)first * QKV_ROW, QKV_ROW);
}

/* Where dq is added up while keys pass: in its own place where that has floats, otherwise in scratch of floats. */
#define SUMS_ROW (ACT ? Y_ROW : QKV_ROW)

/* Adds what a block of keys from `start` on gives to dq, which the first block begins and the last one scales and
 * stores. sums [T, SUMS_ROW], d_q [T, QKV_ROW]. */
static inline void queries_add(const float *d_scores, __global const act_t *k_rows, int start, int first,
                               int sequence, __global float *sums, __global act_t *d_q) {
    float d_query[QUERIES * HEAD_SIZE] ALIGNED;
    const int count = min(QUERIES, sequence - first);
    EACH_ROW_VECTOR(q, count, d) {
        const vec_t sum = start ? VEC_LOAD(sums + (size_t)(first + q) * SUMS_ROW + d) : (vec_t)(0.0f);
        VEC_STORE(sum, d_query + q * HEAD_SIZE + d);
    }
    tile_accumulate(d_scores, KEYS_BACKWARD, min(KEYS_BACKWARD, min(sequence, first + QUERIES) - start),
                    k_rows + (size_t)start * QKV_ROW, QKV_ROW, d_query);
    if (first < start + KEYS_BACKWARD) {
        sums_store(d_query, count, SCALE, d_q + (size_t)first * QKV_ROW, QKV_ROW);
        return;
    }
    EACH_ROW_VECTOR(q, count, d) {
        VEC_STORE(VEC_LOAD(d_query + q * HEAD_SIZE + d), sums + (size_t)(first + q) * SUMS_ROW + d);
    }
}

/* dk and dv. One work-item: KEYS_BACKWARD keys of one (batch, key head), over all queries at or after them; or,
 * with whole_heads, all keys of one (batch, key head), and then dq and delta, too, so that
 * attention_backward_queries need not run and no product is computed twice. */
__kernel void attention_backward_keys(__global const act_t *qkv, __global const act_t *k_t,
                                      __global const act_t *v_t, __global const act_t *y, __global const act_t *d_y,
                                      __global const float *lse_all, int batch, int sequence, int padded,
                                      float dropout_rate, ulong dropout_key, ulong first_row, int whole_heads,
                                      __global act_t *d_qkv, __global float *delta_all, __global float *d_queries) {
    const int blocks = (sequence + KEYS_BACKWARD - 1) / KEYS_BACKWARD;
    const size_t number = get_global_id(0) / (whole_heads ? 1 : blocks);
    const int from = whole_heads ? 0 : get_global_id(0) % blocks * KEYS_BACKWARD;
    const int to = whole_heads ? sequence : from + KEYS_BACKWARD;
    if (number >= (size_t)batch * KV_HEADS) {
        return;
    }
    struct head head;
    row_t query[QUERIES * ROW_ITEMS] ALIGNED, d_out[QUERIES * ROW_ITEMS] ALIGNED;
    float lse[QUERIES], delta[QUERIES];
    float scores[QUERIES * KEYS_BACKWARD] ALIGNED, d_p[QUERIES * KEYS_BACKWARD] ALIGNED;
    float d_keys[KEYS_BACKWARD * HEAD_SIZE] ALIGNED, d_values[KEYS_BACKWARD * HEAD_SIZE] ALIGNED;
    for (int start = from; start < to; start += KEYS_BACKWARD) {
        const size_t columns_at =
            number * HEAD_SIZE * padded + (size_t)(start - start % KEYS) * HEAD_SIZE + start % KEYS * KEY_ELEMENTS;
        sums_zero(d_keys, KEYS_BACKWARD);
        sums_zero(d_values, KEYS_BACKWARD);
        head_find(number * KV_GROUP, sequence, dropout_rate, dropout_key, first_row, &head);
        for (int member = 0; member < KV_GROUP; member++, head_next(sequence, &head)) {
            for (int first = start; first < sequence; first += QUERIES) {
                const int count = min(QUERIES, sequence - first);
                rows_load(qkv + head.qkv, QKV_ROW, first, sequence, QUERY_FACTOR, query);
                rows_load(d_y + head.y, Y_ROW, first, sequence, 1.0f, d_out);
                if (whole_heads && start == 0) {
                    rows_delta(d_out, y + head.y, first, sequence, count, delta_all + head.rows, delta);
                }
                for (int q = 0; q < QUERIES; q++) {
                    const size_t at = head.rows + min(first + q, sequence - 1);
                    lse[q] = lse_all[at];
                    delta[q] = delta_all[at];
                }
                tile_products(query, k_t + columns_at, KEYS_BACKWARD, SCORE_FACTOR, scores);
                tile_products(d_out, v_t + columns_at, KEYS_BACKWARD, 1.0f, d_p);
                tile_backward(scores, d_p, KEYS_BACKWARD, first, start, lse, delta, &head.dropout);
                tile_accumulate_keys(scores, count, d_out, d_values);
                tile_accumulate_keys(d_p, count, query, d_keys);
                if (whole_heads) {
                    queries_add(d_p, qkv + head.keys, start, first, sequence, d_queries + (ACT ? head.y : head.qkv),
                                d_qkv + head.qkv);
                }
            }
        }
        __global act_t *const row = d_qkv + head.keys + (size_t)start * QKV_ROW;
        sums_store(d_keys, min(KEYS_BACKWARD, sequence - start), SCORE_FACTOR, row, QKV_ROW);
        sums_store(d_values, min(KEYS_BACKWARD, sequence - start), 1.0f, row + KV_ROW, QKV_ROW);
    }
}
