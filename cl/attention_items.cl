/* Attention forward and backward (attention.cl has the formulas) where a work-item has a core's caches to itself: it takes QUERIES
 * queries of a head and runs over tiles of KEYS keys (and the other way round for dk, dv): a tile of scores is QUERIES x KEYS,
 * vector lanes are keys. So that keys lie side by side there are transposed copies k_t, v_t [B, H, D, padded], padded = T
 * rounded up to KEYS, the padding zero.
 *
 * Build constants, besides those of attention.cl: QUERIES, KEYS, KEYS_BACKWARD (tile width of dk, dv; divides KEYS; both are
 * multiples of QUERIES and of KEY_VEC), VEC (divides HEAD_SIZE).
 */

/* k_t or v_t from qkv; part 1 is k, 2 is v. One work-item: KEY_VEC keys of one (batch, head, d). */
__kernel void attention_transpose(__global const act_t *qkv, int part, int batch, int sequence, int padded,
                                  __global act_t *transposed) {
    const size_t item = get_global_id(0);
    const int d = item % HEAD_SIZE;
    const int block = item / HEAD_SIZE % (padded / KEY_VEC);
    const size_t head = item / HEAD_SIZE / (padded / KEY_VEC);
    if (head >= (size_t)batch * HEADS) {
        return;
    }
    __global const act_t *from =
        qkv + (head / HEADS) * sequence * QKV_ROW + part * MODEL_WIDTH + head % HEADS * HEAD_SIZE + d;
    const int in_tile = block * KEY_VEC % KEYS;
    __global act_t *to =
        transposed + head * HEAD_SIZE * padded + (block * KEY_VEC - in_tile) * HEAD_SIZE + d * KEYS + in_tile;
    for (int k = 0; k < KEY_VEC; k++) {
        const int key = block * KEY_VEC + k;
        ACT_STORE_SCALAR(key < sequence ? ACT_LOAD_SCALAR(from + (size_t)key * QKV_ROW) : 0.0f, to + k);
    }
}

/* Rows first .. first + QUERIES - 1 of a [T, stride] matrix, times factor; rows past the end repeat the last one. */
static inline void rows_load(__global const act_t *from, size_t stride, int first, int sequence, float factor,
                             float rows[QUERIES * HEAD_SIZE]) {
    for (int q = 0; q < QUERIES; q++) {
        __global const act_t *row = from + (size_t)min(first + q, sequence - 1) * stride;
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            VEC_STORE(factor * ACT_LOAD(row + d), rows + q * HEAD_SIZE + d);
        }
    }
}

static inline void rows_zero(float rows[QUERIES * HEAD_SIZE]) {
    for (int q = 0; q < QUERIES; q++) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            VEC_STORE((vec_t)(0.0f), rows + q * HEAD_SIZE + d);
        }
    }
}

/* out[q][k] = <rows[q], column k> for `keys` columns of columns [D, stride]. */
static inline void tile_products(const float rows[QUERIES * HEAD_SIZE], __global const act_t *columns, int keys,
                                 float *out) {
    for (int k = 0; k < keys; k += KEY_VEC) {
        keys_t sum[QUERIES];
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            sum[q] = (keys_t)(0.0f);
        }
        for (int d = 0; d < HEAD_SIZE; d++) {
            const keys_t column = ACT_LOAD_KEYS(columns + d * KEYS + k);
            UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
                sum[q] += rows[q * HEAD_SIZE + d] * column;
            }
        }
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            KEYS_STORE(sum[q], out + q * keys + k);
        }
    }
}

/* rows[q] += sum over k < count of tile[q][k] * matrix row k. matrix [.., stride] in natural layout. */
static inline void tile_accumulate(const float *tile, int keys, int count, __global const act_t *matrix,
                                   size_t stride, float rows[QUERIES * HEAD_SIZE]) {
    for (int d = 0; d < HEAD_SIZE; d += VEC) {
        vec_t sum[QUERIES];
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            sum[q] = VEC_LOAD(rows + q * HEAD_SIZE + d);
        }
        for (int k = 0; k < count; k++) {
            const vec_t row = ACT_LOAD(matrix + k * stride + d);
            UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
                sum[q] += tile[q * keys + k] * row;
            }
        }
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            VEC_STORE(sum[q], rows + q * HEAD_SIZE + d);
        }
    }
}

/* One work-item: QUERIES queries of one (batch, head). */
__kernel void attention_forward(__global const act_t *qkv, __global const act_t *k_t, int batch, int sequence,
                                int padded, float dropout_rate, uint key0, uint key1, ulong first_row,
                                __global act_t *y, __global float *lse) {
    const int blocks = (sequence + QUERIES - 1) / QUERIES;
    const size_t head = get_global_id(0) / blocks;
    const int first = get_global_id(0) % blocks * QUERIES;
    if (head >= (size_t)batch * HEADS) {
        return;
    }
    const size_t token = head / HEADS * sequence;
    __global const act_t *q_rows = qkv + token * QKV_ROW + head % HEADS * HEAD_SIZE;
    __global const act_t *columns = k_t + head * HEAD_SIZE * padded;
    const struct dropout dropout = {dropout_rate, key0, key1, first_row + token, sequence};
    float query[QUERIES * HEAD_SIZE], out[QUERIES * HEAD_SIZE], tile[QUERIES * KEYS];
    float highest[QUERIES], sum[QUERIES];
    rows_load(q_rows, QKV_ROW, first, sequence, SCORE_SCALE, query);
    for (int q = 0; q < QUERIES; q++) {
        highest[q] = -INFINITY;
        sum[q] = 0.0f;
    }
    rows_zero(out);
    for (int start = 0; start < first + QUERIES && start < sequence; start += KEYS) {
        tile_products(query, columns + start * HEAD_SIZE, KEYS, tile);
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
                KEYS_STORE(p, scores + k);
            }
            sum[q] = sum[q] * shrink + KEYS_SUM(total);
            highest[q] = highest_now;
            for (int d = 0; d < HEAD_SIZE; d += VEC) {
                VEC_STORE(shrink * VEC_LOAD(out + q * HEAD_SIZE + d), out + q * HEAD_SIZE + d);
            }
            if (dropout_rate > 0.0f) {
                for (int k = 0; k < KEYS; k++) {
                    scores[k] *= attention_factor(&dropout, head % HEADS, first + q, start + k);
                }
            }
        }
        tile_accumulate(tile, KEYS, min(KEYS, min(sequence, first + QUERIES) - start),
                        q_rows + 2 * MODEL_WIDTH + (size_t)start * QKV_ROW, QKV_ROW, out);
    }
    for (int q = 0; q < QUERIES && first + q < sequence; q++) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            ACT_STORE(VEC_LOAD(out + q * HEAD_SIZE + d) / sum[q],
                      y + (token + first + q) * MODEL_WIDTH + head % HEADS * HEAD_SIZE + d);
        }
        lse[head * sequence + first + q] = highest[q] + log(sum[q]);
    }
}

/* For a tile: p (with dropout's factor) and ds from scores and dp, in place. */
static inline void tile_backward(float *scores, float *d_p, int keys, int first, int start, const float *lse,
                                 const float *delta, const struct dropout *dropout, int head) {
    for (int q = 0; q < QUERIES; q++) {
        for (int k = 0; k < keys; k += KEY_VEC) {
            const keys_t p = exp(KEYS_LOAD(scores + q * keys + k) - lse[q]);
            KEYS_STORE(p, scores + q * keys + k);
        }
        for (int k = max(first + q + 1 - start, 0); k < keys; k++) {
            scores[q * keys + k] = 0.0f;
        }
        if (dropout->rate > 0.0f) {
            for (int k = 0; k < keys; k++) {
                const float factor = attention_factor(dropout, head, first + q, start + k);
                d_p[q * keys + k] = scores[q * keys + k] * (factor * d_p[q * keys + k] - delta[q]);
                scores[q * keys + k] *= factor;
            }
        } else {
            for (int k = 0; k < keys; k += KEY_VEC) {
                const keys_t p = KEYS_LOAD(scores + q * keys + k);
                KEYS_STORE(p * (KEYS_LOAD(d_p + q * keys + k) - delta[q]), d_p + q * keys + k);
            }
        }
    }
}

/* The first `count` rows, times factor, to a [T, stride] matrix. */
static inline void rows_store(const float rows[QUERIES * HEAD_SIZE], int count, float factor, __global act_t *to,
                              size_t stride) {
    for (int q = 0; q < count; q++) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            ACT_STORE(factor * VEC_LOAD(rows + q * HEAD_SIZE + d), to + q * stride + d);
        }
    }
}

/* delta of QUERIES rows from y at `y_rows` [T, MODEL_WIDTH], stored for the first `count` of them. */
static inline void rows_delta(const float d_out[QUERIES * HEAD_SIZE], __global const act_t *y_rows, int first,
                              int sequence, int count, __global float *delta_rows, float delta[QUERIES]) {
    float out[QUERIES * HEAD_SIZE];
    rows_load(y_rows, MODEL_WIDTH, first, sequence, 1.0f, out);
    for (int q = 0; q < QUERIES; q++) {
        vec_t sum = (vec_t)(0.0f);
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            sum += VEC_LOAD(d_out + q * HEAD_SIZE + d) * VEC_LOAD(out + q * HEAD_SIZE + d);
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
                                         int sequence, int padded, float dropout_rate, uint key0, uint key1,
                                         ulong first_row, __global act_t *d_qkv, __global float *delta_all) {
    const int blocks = (sequence + QUERIES - 1) / QUERIES;
    const size_t head = get_global_id(0) / blocks;
    const int first = get_global_id(0) % blocks * QUERIES;
    if (head >= (size_t)batch * HEADS) {
        return;
    }
    const size_t token = head / HEADS * sequence;
    const size_t column = head % HEADS * HEAD_SIZE;
    const struct dropout dropout = {dropout_rate, key0, key1, first_row + token, sequence};
    __global const act_t *q_rows = qkv + token * QKV_ROW + column;
    float query[QUERIES * HEAD_SIZE], d_out[QUERIES * HEAD_SIZE], d_query[QUERIES * HEAD_SIZE];
    __global const act_t *columns = k_t + head * HEAD_SIZE * padded, *v_columns = v_t + head * HEAD_SIZE * padded;
    float scores[QUERIES * KEYS], d_p[QUERIES * KEYS], lse[QUERIES], delta[QUERIES];
    rows_load(q_rows, QKV_ROW, first, sequence, SCORE_SCALE, query);
    rows_load(d_y + token * MODEL_WIDTH + column, MODEL_WIDTH, first, sequence, 1.0f, d_out);
    rows_delta(d_out, y + token * MODEL_WIDTH + column, first, sequence, min(QUERIES, sequence - first),
               delta_all + head * sequence, delta);
    rows_zero(d_query);
    for (int q = 0; q < QUERIES; q++) {
        lse[q] = lse_all[head * sequence + min(first + q, sequence - 1)];
    }
    for (int start = 0; start < first + QUERIES && start < sequence; start += KEYS) {
        tile_products(query, columns + start * HEAD_SIZE, KEYS, scores);
        tile_products(d_out, v_columns + start * HEAD_SIZE, KEYS, d_p);
        tile_backward(scores, d_p, KEYS, first, start, lse, delta, &dropout, head % HEADS);
        tile_accumulate(d_p, KEYS, min(KEYS, min(sequence, first + QUERIES) - start),
                        q_rows + MODEL_WIDTH + (size_t)start * QKV_ROW, QKV_ROW, d_query);
    }
    rows_store(d_query, min(QUERIES, sequence - first), SCORE_SCALE, d_qkv + (token + first) * QKV_ROW + column,
               QKV_ROW);
}

/* sums[k] += sum over q < count of tile[q][k] * rows[q], for all keys of a tile of width KEYS_BACKWARD. */
static inline void tile_accumulate_keys(const float *tile, int count, const float rows[QUERIES * HEAD_SIZE],
                                        float sums[KEYS_BACKWARD * HEAD_SIZE]) {
    for (int k = 0; k < KEYS_BACKWARD; k += QUERIES) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            vec_t sum[QUERIES];
            UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                sum[i] = VEC_LOAD(sums + (k + i) * HEAD_SIZE + d);
            }
            for (int q = 0; q < count; q++) {
                const vec_t row = VEC_LOAD(rows + q * HEAD_SIZE + d);
                UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                    sum[i] += tile[q * KEYS_BACKWARD + k + i] * row;
                }
            }
            UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                VEC_STORE(sum[i], sums + (k + i) * HEAD_SIZE + d);
            }
        }
    }
}

/* Adds what a block of keys from `start` on gives to dq, which the first block begins and the last one scales. */
static inline void queries_add(const float *d_scores, __global const act_t *k_rows, int start, int first,
                               int sequence, __global act_t *d_q) {
    float d_query[QUERIES * HEAD_SIZE];
    if (start == 0) {
        rows_zero(d_query);
    } else {
        rows_load(d_q, QKV_ROW, first, sequence, 1.0f, d_query);
    }
    tile_accumulate(d_scores, KEYS_BACKWARD, min(KEYS_BACKWARD, min(sequence, first + QUERIES) - start),
                    k_rows + (size_t)start * QKV_ROW, QKV_ROW, d_query);
    rows_store(d_query, min(QUERIES, sequence - first), first < start + KEYS_BACKWARD ? SCORE_SCALE : 1.0f,
               d_q + (size_t)first * QKV_ROW, QKV_ROW);
}

/* dk and dv. One work-item: KEYS_BACKWARD keys of one (batch, head), over all queries at or after them; or, with
 * whole_heads, all keys of one (batch, head), and then dq and delta, too, so that attention_backward_queries need not
 * run and no product is computed twice. */
__kernel void attention_backward_keys(__global const act_t *qkv, __global const act_t *k_t,
                                      __global const act_t *v_t, __global const act_t *y, __global const act_t *d_y,
                                      __global const float *lse_all, int batch, int sequence, int padded,
                                      float dropout_rate, uint key0, uint key1, ulong first_row, int whole_heads,
                                      __global act_t *d_qkv, __global float *delta_all) {
    const int blocks = (sequence + KEYS_BACKWARD - 1) / KEYS_BACKWARD;
    const size_t head = get_global_id(0) / (whole_heads ? 1 : blocks);
    const int from = whole_heads ? 0 : get_global_id(0) % blocks * KEYS_BACKWARD;
    const int to = whole_heads ? sequence : from + KEYS_BACKWARD;
    if (head >= (size_t)batch * HEADS) {
        return;
    }
    const size_t token = head / HEADS * sequence;
    const size_t column = head % HEADS * HEAD_SIZE;
    const struct dropout dropout = {dropout_rate, key0, key1, first_row + token, sequence};
    __global const act_t *q_rows = qkv + token * QKV_ROW + column;
    float query[QUERIES * HEAD_SIZE], d_out[QUERIES * HEAD_SIZE], lse[QUERIES], delta[QUERIES];
    float scores[QUERIES * KEYS_BACKWARD], d_p[QUERIES * KEYS_BACKWARD];
    float d_keys[KEYS_BACKWARD * HEAD_SIZE], d_values[KEYS_BACKWARD * HEAD_SIZE];
    for (int start = from; start < to; start += KEYS_BACKWARD) {
        const size_t columns_at =
            head * HEAD_SIZE * padded + (size_t)(start - start % KEYS) * HEAD_SIZE + start % KEYS;
        for (int k = 0; k < KEYS_BACKWARD; k++) {
            for (int d = 0; d < HEAD_SIZE; d += VEC) {
                VEC_STORE((vec_t)(0.0f), d_keys + k * HEAD_SIZE + d);
                VEC_STORE((vec_t)(0.0f), d_values + k * HEAD_SIZE + d);
            }
        }
        for (int first = start; first < sequence; first += QUERIES) {
            const int count = min(QUERIES, sequence - first);
            rows_load(q_rows, QKV_ROW, first, sequence, SCORE_SCALE, query);
            rows_load(d_y + token * MODEL_WIDTH + column, MODEL_WIDTH, first, sequence, 1.0f, d_out);
            if (whole_heads && start == 0) {
                rows_delta(d_out, y + token * MODEL_WIDTH + column, first, sequence, count,
                           delta_all + head * sequence, delta);
            }
            for (int q = 0; q < QUERIES; q++) {
                const size_t at = head * sequence + min(first + q, sequence - 1);
                lse[q] = lse_all[at];
                delta[q] = delta_all[at];
            }
            tile_products(query, k_t + columns_at, KEYS_BACKWARD, scores);
            tile_products(d_out, v_t + columns_at, KEYS_BACKWARD, d_p);
            tile_backward(scores, d_p, KEYS_BACKWARD, first, start, lse, delta, &dropout, head % HEADS);
            tile_accumulate_keys(scores, count, d_out, d_values);
            tile_accumulate_keys(d_p, count, query, d_keys);
            if (whole_heads) {
                queries_add(d_p, q_rows + MODEL_WIDTH, start, first, sequence, d_qkv + token * QKV_ROW + column);
            }
        }
        for (int k = 0; k < KEYS_BACKWARD && start + k < sequence; k++) {
            __global act_t *row = d_qkv + (token + start + k) * QKV_ROW + column;
            for (int d = 0; d < HEAD_SIZE; d += VEC) {
                ACT_STORE(VEC_LOAD(d_keys + k * HEAD_SIZE + d), row + MODEL_WIDTH + d);
                ACT_STORE(VEC_LOAD(d_values + k * HEAD_SIZE + d), row + 2 * MODEL_WIDTH + d);
            }
        }
    }
}
