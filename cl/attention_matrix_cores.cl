/* Causal attention on matrix cores, after FlashAttention-2 (Dao 2023). attention.cl explains what it computes,
 * its names and its dropout. qkv, y and their gradients are 16-bit elements, and sums of their products are float.
 * P and dS are rounded to 16 bits where they are factors. lse and delta are float.
 *
 *   forward           a group has ROWS queries; over blocks of KEYS keys: S = Q K^T, P = exp(S - highest), Y += P V
 *   backward_queries  a group has ROWS queries; over blocks of BLOCK keys: S = Q K^T, dP = dY V^T, dQ += dS K
 *   backward_keys     a group has ROWS keys; over its query heads and their blocks of BLOCK queries:
 *                     S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q
 *
 * A warp has FRAGMENT_M of the rows, and all that it adds up, in registers. A group reads its own rows, the
 * stationary ones, once; those that it goes over are streamed in tiles, one ahead. All groups do the same work on
 * every run and nothing is shared among them, so results are the same to the bit.
 *
 * Rows past the end of the sequence read as zeros with lse = delta = 0, hence give nothing to anybody; keys past it
 * are masked because no query comes after them.
 *
 * Constants given at build time, besides those of matrix_cores.cl:
 *   HEAD_SIZE  a multiple of 16
 *   C_TO_A_LOCAL  0: a lane's share of A is its share of C; 1: C passes through local memory (all but NVIDIA's)
 *   WARPS      of a work-group
 *   KEYS       a multiple of FRAGMENT_K
 *   BLOCK      a multiple of STRIP; 4 BLOCK >= WARPS FRAGMENT_M and 2 KEYS >= WARPS FRAGMENT_M
 *   STRIP      rows of a block whose scores a warp has at a time, a multiple of FRAGMENT_K
 *   KEEP       1: the stationary rows are kept in registers, 0: in local memory
 */
#include "attention.cl"
#include "matrix_cores.cl"
#include "matrix_cores_*.cl"

#define ITEMS  (WARPS * WARP_SIZE)
#define ROWS   (WARPS * FRAGMENT_M)
#define DEPTH  (HEAD_SIZE / FRAGMENT_K) /* fragments of a row that is multiplied */
#define ACROSS (HEAD_SIZE / FRAGMENT_N) /* fragments of a row that is added up */

#define SCORE_EXPONENT (LOG2E * SCORE_SCALE) /* what scores are multiplied with to be exponents of two */

/* ---- rows of C, and C as the A of a next GEMM */
#ifndef IN_ORDER
#define IN_ORDER()
#define FORGET(item)
#endif

/* The maximum, or the sum in a fixed order, of what the lanes of a row of C have; every one of them gets it. */
#define FRAGMENT_ROW(name, COMBINE)                                                                                \
    INLINED float name(struct work_item item, float x) {                                                           \
        x = COMBINE(x, EXCHANGE(item, x, 1));                                                                      \
        x = COMBINE(x, EXCHANGE(item, x, 2));                                                                      \
        if (ROW_LANES >= 8)                                                                                        \
            x = COMBINE(x, EXCHANGE(item, x, 4));                                                                  \
        if (ROW_LANES >= 16)                                                                                       \
            x = COMBINE(x, EXCHANGE(item, x, 8));                                                                  \
        return x;                                                                                                  \
    }
#define SUM_OF(a, b) ((a) + (b))
FRAGMENT_ROW(fragment_row_max, fmax)
FRAGMENT_ROW(fragment_row_sum, SUM_OF)

/* C [FRAGMENT_M, FRAGMENT_K], which is FRAGMENT_K / FRAGMENT_N fragments side by side, rounded to an A. Where
 * that does not happen in registers a warp has C_TO_A_SIZE elements of local memory for it. (PoCL 6 fails on local
 * arrays that nothing uses.) */
#define C_TO_A_SIZE (FRAGMENT_M * FRAGMENT_K)
#if C_TO_A_LOCAL
#define C_TO_A_DECLARE(name) __local ushort name[WARPS * C_TO_A_SIZE] __attribute__((aligned(16)))
#else
#define C_TO_A_DECLARE(name) __local ushort *const name = 0
#endif

INLINED fragment_a c_to_a(struct work_item item, const fragment_c *c, __local ushort *tiles) {
#if C_TO_A_LOCAL
    __local ushort *tile = tiles + item.warp * C_TO_A_SIZE;
    EACH_ELEMENT(n, FRAGMENT_K / FRAGMENT_N, i)
        tile[tile_at(FRAGMENT_K, fragment_row(item, i), n * FRAGMENT_N + fragment_column(item, i))] =
            operand_round(c[n].v[i]);
    WARP_FENCE();
    const fragment_a a = fragment_load_a(item, tile, FRAGMENT_K, 0, 0);
    WARP_FENCE();
    return a;
#else
    return c_to_a_direct(c);
#endif
}

/* ---- tiles: rows of a head. Panels of a power of two of columns, one after the other, are what tile_at can
 * permute. */
#define PANEL_16 (HEAD_SIZE % 32 ? 16 : 32)
#define PANEL    (HEAD_SIZE % 64 ? PANEL_16 : 64)

/* Starts to copy the rows first .. first + rows - 1 to a tile; there are `end` of them, the others are zero. */
INLINED void tile_copy(__local ushort *tile, uint rows, __global const ushort *from, uint stride, uint first,
                       uint end) {
    const uint chunks = rows * HEAD_SIZE / CHUNK;
    COPY_UNROLL
    for (uint i = 0; i < (chunks - 1) / ITEMS + 1; i++) {
        const uint chunk = i * ITEMS + get_local_id(0);
        if (chunks % ITEMS && chunk >= chunks)
            break;
        const uint panel = chunk / (rows * PANEL / CHUNK), row = chunk / (PANEL / CHUNK) % rows;
        const uint column = chunk % (PANEL / CHUNK) * CHUNK;
        const bool there = first + row < end;
        copy_chunk(tile + panel * rows * PANEL + tile_at(PANEL, row, column),
                   from + (there ? first + row : 0) * stride + panel * PANEL + column,
                   there ? CHUNK * sizeof(ushort) : 0);
    }
}

/* A fragment from (row, column) on of a tile of so many `rows`. */
#define TILE_FRAGMENT(load, item, tile, rows, row, column)                                                         \
    load(item, (tile) + (column) / PANEL * (rows) * PANEL, PANEL, row, (column) % PANEL)

/* ---- the stationary rows: FRAGMENT_M of a warp, as A */
#if KEEP
#define OWN_DECLARE(name, count) __local ushort *const name[count] = {0}
typedef struct {
    fragment_a fragments[DEPTH];
} stationary_t;
#else
#define OWN_DECLARE(name, count) __local ushort name[count][ROWS * HEAD_SIZE] __attribute__((aligned(16)))
typedef struct {
    __local const ushort *tile;
} stationary_t;
#endif

/* Through `streamed`, which is free before and after, or into `own`, where they remain. */
INLINED stationary_t stationary_load(struct work_item item, __global const ushort *from, uint stride, uint first,
                                     uint end, __local ushort *streamed, __local ushort *own) {
    stationary_t stationary;
#if KEEP
    tile_copy(streamed, ROWS, from, stride, first, end);
    copy_commit();
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(d, DEPTH)
        stationary.fragments[d] =
            TILE_FRAGMENT(fragment_load_a, item, streamed, ROWS, item.warp * FRAGMENT_M, d * FRAGMENT_K);
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    tile_copy(own, ROWS, from, stride, first, end);
    stationary.tile = own;
#endif
    return stationary;
}

INLINED fragment_a stationary_fragment(struct work_item item, const stationary_t *stationary, uint d) {
#if KEEP
    return stationary->fragments[d];
#else
    return TILE_FRAGMENT(fragment_load_a, item, stationary->tile, ROWS, item.warp * FRAGMENT_M, d * FRAGMENT_K);
#endif
}

/* ---- GEMMs */

/* c [FRAGMENT_M, columns] = the warp's rows times the rows from `row` on of a tile of so many `rows`, transposed */
INLINED void rows_multiply(struct work_item item, const stationary_t *stationary, __local const ushort *tile,
                           uint rows, uint row, uint columns, fragment_c *c) {
    FORGET(item);
    EACH(d, DEPTH) {
        const fragment_a a = stationary_fragment(item, stationary, d);
        IN_ORDER();
        EACH(n, columns / FRAGMENT_N) {
            if (d == 0)
                FRAGMENTS_CLEAR(&c[n], 1);
            fragment_multiply(item, &c[n], a,
                              TILE_FRAGMENT(fragment_load_b_transposed, item, tile, rows, row + n * FRAGMENT_N,
                                            d * FRAGMENT_K));
        }
    }
}

/* sum [FRAGMENT_M, HEAD_SIZE] += factors [FRAGMENT_M, FRAGMENT_K] times FRAGMENT_K rows of a tile */
INLINED void rows_add(struct work_item item, const fragment_c *factors, __local ushort *c_to_a_tiles,
                      __local const ushort *tile, uint rows, uint row, fragment_c *sum) {
    const fragment_a a = c_to_a(item, factors, c_to_a_tiles);
    FORGET(item);
    EACH(j, ACROSS) {
        fragment_multiply(item, &sum[j], a, TILE_FRAGMENT(fragment_load_b, item, tile, rows, row, j * FRAGMENT_N));
        IN_ORDER();
    }
}

/* The warp's rows of sum, times factor, rounded, to rows of a [.., stride] matrix, of which there are `end`. */
INLINED void rows_store(struct work_item item, const fragment_c *sum, float factor, uint first, uint end,
                        __global ushort *to, uint stride) {
    EACH_BY(i, FRAGMENT_ELEMENTS, FRAGMENT_PAIRS + 1) {
        const uint row = first + item.warp * FRAGMENT_M + fragment_row(item, i);
        if (row >= end)
            continue;
        __global ushort *at = to + row * stride + fragment_column(item, i);
        EACH(j, ACROSS) {
            if (FRAGMENT_PAIRS)
                *(__global uint *)(at + j * FRAGMENT_N) =
                    operand_round_pair(factor * sum[j].v[i], factor * sum[j].v[i + FRAGMENT_PAIRS]);
            else
                at[j * FRAGMENT_N] = operand_round(factor * sum[j].v[i]);
        }
    }
}

/* ---- dropout: whether elements are kept, as bits in local memory, since four of them come from one call of
 * philox, and rarely lie in one lane */
#define KEPT_QUADS(keys) ((keys) / 4 + 1) /* of a row whose first element need not begin one */

/* For queries from `query` on and keys from `key` on. */
INLINED void kept_fill(__local uchar *kept, struct dropout dropout, uint queries, uint query, uint keys, uint key) {
    const uint quads = KEPT_QUADS(keys);
    for (uint i = get_local_id(0); i < queries * quads; i += ITEMS) {
        const ulong row = dropout.first_row + query + i / quads;
        const uint4 words =
            philox((uint4)((dropout.element + key) / 4 + i % quads, 0, (uint)row, (uint)(row >> 32)),
                   philox_key(dropout.key));
        const uint4 bits = (uint4)(1, 2, 4, 8);
        const uint4 set = select((uint4)(0), bits, convert_float4(words >> 8) * 0x1p-24f >= dropout.rate);
        kept[i] = (uchar)(set.x | set.y | set.z | set.w);
    }
}

/* Factor of a query and a key, both counted in what kept_fill was called for. */
INLINED float kept_factor(__local const uchar *kept, struct dropout dropout, uint keys, uint key, uint query_at,
                          uint key_at) {
    const uint element = (dropout.element + key) % 4 + key_at;
    return kept[query_at * KEPT_QUADS(keys) + element / 4] >> element % 4 & 1 ? 1.0f / (1.0f - dropout.rate) : 0.0f;
}

/* ---- which head, and which of its blocks of ROWS; the longest come first */
struct place {
    struct head head;
    uint first; /* row of the block */
};

INLINED struct place place_of(bool queries, uint sequence, float rate, ulong dropout_key, ulong first_row) {
    const uint blocks = (sequence - 1) / ROWS + 1, block = get_group_id(0) % blocks;
    struct place place;
    head_find(get_group_id(0) / blocks * (queries ? 1 : KV_GROUP), sequence, rate, dropout_key, first_row,
              &place.head);
    place.first = (queries ? blocks - 1 - block : block) * ROWS;
    return place;
}

/* ---- the mask, only where it cuts: scores of keys after a query become -infinity. A fragment's first key is
 * `ahead` of its first query; with `keys_down` rows are keys and columns queries, else the other way round. */
INLINED void fragment_mask(struct work_item item, bool keys_down, int ahead, fragment_c *s) {
    if (ahead + (int)(keys_down ? FRAGMENT_M : FRAGMENT_N) <= 1)
        return;
    EACH(i, FRAGMENT_ELEMENTS) {
        const int row = fragment_row(item, i), column = fragment_column(item, i);
        s->v[i] = ahead + (keys_down ? row - column : column - row) > 0 ? -INFINITY : s->v[i];
    }
}

/* ---- forward */

/* What a lane knows of its rows. */
struct softmax {
    float highest[LANE_ROWS];
    float sum[LANE_ROWS]; /* of the lane's own elements */
};

/* p = exp(s - highest) in place; the sum so far shrinks to the new highest, and so does y. */
INLINED void softmax_add(struct work_item item, struct softmax *softmax, fragment_c *s, fragment_c *y) {
    float highest[LANE_ROWS], rescale[LANE_ROWS];
    EACH(r, LANE_ROWS)
        highest[r] = softmax->highest[r];
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i) {
        s[n].v[i] *= SCORE_EXPONENT;
        highest[LANE_ROW_OF(i)] = fmax(highest[LANE_ROW_OF(i)], s[n].v[i]);
    }
    EACH(r, LANE_ROWS) {
        highest[r] = fragment_row_max(item, highest[r]);
        rescale[r] = power_of_two(softmax->highest[r] - highest[r]);
        softmax->highest[r] = highest[r];
        softmax->sum[r] *= rescale[r];
    }
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i) {
        s[n].v[i] = power_of_two(s[n].v[i] - highest[LANE_ROW_OF(i)]);
        softmax->sum[LANE_ROW_OF(i)] += s[n].v[i];
    }
    EACH_ELEMENT(j, ACROSS, i)
        y[j].v[i] *= rescale[LANE_ROW_OF(i)];
}

INLINED void softmax_drop(struct work_item item, __local const uchar *kept, struct dropout dropout, uint key,
                          fragment_c *p) {
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i)
        p[n].v[i] *= kept_factor(kept, dropout, KEYS, key, item.warp * FRAGMENT_M + fragment_row(item, i),
                                 n * FRAGMENT_N + fragment_column(item, i));
}

/* sum / its total, and lse, of the warp's rows */
INLINED void softmax_finish(struct work_item item, struct softmax *softmax, struct place place, uint sequence,
                            fragment_c *sum, __global float *lse) {
    float factors[LANE_ROWS];
    EACH(r, LANE_ROWS) {
        const uint query = place.first + item.warp * FRAGMENT_M + fragment_row(item, LANE_IN_ROW(r));
        const float total = fragment_row_sum(item, softmax->sum[r]);
        factors[r] = 1.0f / total;
        if (query < sequence && item.lane % ROW_LANES == 0)
            lse[place.head.rows + query] = (softmax->highest[r] + log2(total)) * LN2;
    }
    EACH_ELEMENT(j, ACROSS, i)
        sum[j].v[i] *= factors[LANE_ROW_OF(i)];
}

/* What a group does. In local memory are a tile of K, one of V, the stationary rows unless they are in registers,
 * what c_to_a needs, and which elements dropout keeps. `drops` is known to the compiler. */
INLINED void forward(struct work_item item, bool drops, struct place place, uint sequence, __local ushort *key_tile,
                     __local ushort *value_tile, __local ushort *own, __local ushort *c_to_a_tiles,
                     __local uchar *kept, __global const ushort *qkv, __global ushort *y, __global float *lse) {
    const uint end = min(place.first + ROWS, sequence); /* of the keys */
    __global const ushort *keys = qkv + place.head.keys, *values = keys + KV_ROW;
    const stationary_t query =
        stationary_load(item, qkv + place.head.qkv, QKV_ROW, place.first, sequence, key_tile, own);
    fragment_c sum[ACROSS], p[KEYS / FRAGMENT_N];
    struct softmax softmax;
    EACH(r, LANE_ROWS) {
        softmax.highest[r] = -INFINITY;
        softmax.sum[r] = 0.0f;
    }
    FRAGMENTS_CLEAR(sum, ACROSS);
    tile_copy(key_tile, KEYS, keys, QKV_ROW, 0, sequence);
    copy_commit();
    for (uint start = 0; start < end; start += KEYS) {
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* K is there, and nobody reads the V before */
        tile_copy(value_tile, KEYS, values, QKV_ROW, start, sequence);
        copy_commit();
        if (drops)
            kept_fill(kept, place.head.dropout, ROWS, place.first, KEYS, start);
        rows_multiply(item, &query, key_tile, KEYS, 0, KEYS, p);
        EACH(n, KEYS / FRAGMENT_N)
            fragment_mask(item, false, (int)(start + n * FRAGMENT_N) - (int)(place.first + item.warp * FRAGMENT_M),
                          &p[n]);
        softmax_add(item, &softmax, p, sum);
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* V and what is kept are there, and nobody reads this K */
        if (start + KEYS < end)
            tile_copy(key_tile, KEYS, keys, QKV_ROW, start + KEYS, sequence);
        copy_commit();
        if (drops)
            softmax_drop(item, kept, place.head.dropout, start, p);
        EACH_BY(k, KEYS, FRAGMENT_K)
            rows_add(item, p + k / FRAGMENT_N, c_to_a_tiles, value_tile, KEYS, k, sum);
    }
    softmax_finish(item, &softmax, place, sequence, sum, lse);
    rows_store(item, sum, 1.0f, place.first, sequence, y + place.head.y, Y_ROW);
}

/* qkv [B, T, (H + 2 K) D] -> y [B, T, H, D], lse [B, H, T]. Groups: B H ceil(T / ROWS). Without dropout this is a
 * kernel of its own, since the registers that dropout takes would cost it a third of its groups. */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_forward(__global const ushort *qkv, uint sequence, __global ushort *y,
                                    __global float *lse) {
    __local ushort tiles[2][KEYS * HEAD_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 1);
    C_TO_A_DECLARE(c_to_a_tiles);
    MATRIX_BEGIN(item, WARPS);
    const struct place place = place_of(true, sequence, 0.0f, 0, 0);
    forward(item, false, place, sequence, tiles[0], tiles[1], own[0], c_to_a_tiles, 0, qkv, y, lse);
}

MATRIX_KERNEL(WARPS)
void attention_matrix_cores_forward_dropout(__global const ushort *qkv, uint sequence, float dropout_rate,
                                            ulong dropout_key, ulong first_row, __global ushort *y,
                                            __global float *lse) {
    __local ushort tiles[2][KEYS * HEAD_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 1);
    C_TO_A_DECLARE(c_to_a_tiles);
    __local uchar kept[ROWS * KEPT_QUADS(KEYS)];
    MATRIX_BEGIN(item, WARPS);
    const struct place place = place_of(true, sequence, dropout_rate, dropout_key, first_row);
    forward(item, true, place, sequence, tiles[0], tiles[1], own[0], c_to_a_tiles, kept, qkv, y, lse);
}

/* ---- backward */

/* The streamed rows: of K and V, or of Q and dY, in blocks, of which two are in local memory, one of them on its
 * way. */
struct streamed {
    __global const ushort *first, *second;
    uint second_stride;    /* of the first: QKV_ROW */
    __local ushort *tiles; /* [2 stages][2][BLOCK, HEAD_SIZE] */
};

#define STREAMED_SIZE (2 * 2 * BLOCK * HEAD_SIZE)

INLINED __local ushort *streamed_tile(struct streamed streamed, uint stage, uint which) {
    return streamed.tiles + (stage * 2 + which) * BLOCK * HEAD_SIZE;
}

INLINED void streamed_copy(struct streamed streamed, uint stage, uint row, uint end) {
    tile_copy(streamed_tile(streamed, stage, 0), BLOCK, streamed.first, QKV_ROW, row, end);
    tile_copy(streamed_tile(streamed, stage, 1), BLOCK, streamed.second, streamed.second_stride, row, end);
    copy_commit();
}

/* lse or delta of rows, times factor, zero past the end. */
INLINED void values_copy(__local float *to, uint rows, __global const float *from, uint first, uint end,
                         float factor) {
    for (uint row = get_local_id(0); row < rows; row += ITEMS)
        to[row] = first + row < end ? factor * from[first + row] : 0.0f;
}

/* A warp's scores: FRAGMENT_M rows by STRIP columns. With `keys_down` rows are keys and columns queries, else the
 * other way round. */
struct scores {
    bool keys_down;
    uint query, key;                  /* where the group's block begins */
    uint column;                      /* where the scores begin, in the block */
    __local const float *lse, *delta; /* of the queries of the block; lse times LOG2E */
    __local const uchar *kept;        /* of the block */
};

/* In place: s becomes p with dropout, d_p becomes ds. */
INLINED void scores_backward(struct work_item item, struct scores at, struct dropout dropout, fragment_c *s,
                             fragment_c *d_p) {
    const uint top = item.warp * FRAGMENT_M;
    const int ahead = (int)(at.key - at.query) + (int)(at.keys_down ? top - at.column : at.column - top);
    const bool apart = HEAD_SIZE <= 64 ? true : !at.keys_down; /* wider keys leave no register for a branch */
    EACH(n, STRIP / FRAGMENT_N) {
        if (apart)
            fragment_mask(item, at.keys_down, ahead + (at.keys_down ? -1 : 1) * (int)(n * FRAGMENT_N), &s[n]);
        EACH(i, FRAGMENT_ELEMENTS) {
            const uint row = top + fragment_row(item, i),
                       column = at.column + n * FRAGMENT_N + fragment_column(item, i);
            const uint query = at.keys_down ? column : row, key = at.keys_down ? row : column;
            const float power = power_of_two(SCORE_EXPONENT * s[n].v[i] - at.lse[query]);
            const float p = !apart && at.key + key > at.query + query ? 0.0f : power;
            const float factor =
                dropout.rate > 0.0f ? kept_factor(at.kept, dropout, at.keys_down ? ROWS : BLOCK, at.key, query, key)
                                    : 1.0f;
            s[n].v[i] = factor * p;
            d_p[n].v[i] = p * (factor * d_p[n].v[i] - at.delta[query]);
        }
    }
}

/* delta = <y, dy> of the group's rows, each by neighbours in the group, to local and global memory. */
#define DELTA_SHARING (ITEMS / ROWS)
INLINED void delta_rows(__global const ushort *y, __global const ushort *d_y, uint first, uint end,
                        __local float *parts, __local float *delta, __global float *delta_all) {
    const uint row = first + get_local_id(0) / DELTA_SHARING;
    float sum = 0.0f;
    for (uint d = get_local_id(0) % DELTA_SHARING * CHUNK; d < HEAD_SIZE && row < end; d += DELTA_SHARING * CHUNK) {
        const ushort8 a = vload8(0, y + row * Y_ROW + d), b = vload8(0, d_y + row * Y_ROW + d);
        sum += operand_value(a.s0) * operand_value(b.s0) + operand_value(a.s1) * operand_value(b.s1) +
               operand_value(a.s2) * operand_value(b.s2) + operand_value(a.s3) * operand_value(b.s3) +
               operand_value(a.s4) * operand_value(b.s4) + operand_value(a.s5) * operand_value(b.s5) +
               operand_value(a.s6) * operand_value(b.s6) + operand_value(a.s7) * operand_value(b.s7);
    }
    parts[get_local_id(0)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_id(0); i < ROWS; i += ITEMS) {
        float total = 0.0f;
        for (uint part = 0; part < DELTA_SHARING; part++)
            total += parts[i * DELTA_SHARING + part];
        delta[i] = total;
        if (first + i < end)
            delta_all[first + i] = total;
    }
}

/* dq into d_qkv [B, T, (H + 2 K) D], and delta [B, H, T] for attention_matrix_cores_backward_keys. Groups as
 * forward. */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_backward_queries(__global const ushort *qkv, __global const ushort *y,
                                             __global const ushort *d_y, __global const float *lse_all,
                                             uint sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                             __global ushort *d_qkv, __global float *delta_all) {
    __local ushort tiles[STREAMED_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 2);
    C_TO_A_DECLARE(c_to_a_tiles);
    __local float lse[ROWS], delta[ROWS], parts[ITEMS];
    __local uchar kept[2][ROWS * KEPT_QUADS(BLOCK)];
    MATRIX_BEGIN(item, WARPS);
    const struct place place = place_of(true, sequence, dropout_rate, dropout_key, first_row);
    __global const ushort *keys = qkv + place.head.keys;
    const struct streamed streamed = {keys, keys + KV_ROW, QKV_ROW, tiles};
    const uint first = place.first, end = min(first + ROWS, sequence); /* of the keys */
    const stationary_t query = stationary_load(item, qkv + place.head.qkv, QKV_ROW, first, sequence, tiles, own[0]);
    const stationary_t d_out = stationary_load(item, d_y + place.head.y, Y_ROW, first, sequence, tiles, own[1]);
    streamed_copy(streamed, 0, 0, sequence);
    if (dropout_rate > 0.0f)
        kept_fill(kept[0], place.head.dropout, ROWS, first, BLOCK, 0);
    values_copy(lse, ROWS, lse_all + place.head.rows, first, sequence, LOG2E);
    delta_rows(y + place.head.y, d_y + place.head.y, first, sequence, parts, delta, delta_all + place.head.rows);
    fragment_c sum[ACROSS], s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    FRAGMENTS_CLEAR(sum, ACROSS);
    for (uint start = 0, stage = 0; start < end; start += BLOCK, stage ^= 1) {
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
        if (start + BLOCK < end) {
            streamed_copy(streamed, stage ^ 1, start + BLOCK, sequence);
            if (dropout_rate > 0.0f)
                kept_fill(kept[stage ^ 1], place.head.dropout, ROWS, first, BLOCK, start + BLOCK);
        }
        for (uint strip = 0; strip < BLOCK; strip += STRIP) {
            const struct scores at = {false, first, start, strip, lse, delta, kept[stage]};
            rows_multiply(item, &query, streamed_tile(streamed, stage, 0), BLOCK, strip, STRIP, s);
            rows_multiply(item, &d_out, streamed_tile(streamed, stage, 1), BLOCK, strip, STRIP, d_p);
            scores_backward(item, at, place.head.dropout, s, d_p);
            EACH_BY(k, STRIP, FRAGMENT_K)
                rows_add(item, d_p + k / FRAGMENT_N, c_to_a_tiles, streamed_tile(streamed, stage, 0), BLOCK,
                         strip + k, sum);
        }
    }
    rows_store(item, sum, SCORE_SCALE, first, sequence, d_qkv + place.head.qkv, QKV_ROW);
}

/* What goes with a streamed block of queries. */
struct streamed_values {
    __global const float *lse_from, *delta_from;
    __local float *lse, *delta; /* [2 stages][BLOCK] */
    __local uchar *kept;        /* [2 stages][BLOCK, KEPT_QUADS(ROWS)] */
};

INLINED void queries_copy(struct streamed streamed, struct streamed_values values, struct dropout dropout,
                          uint stage, uint query, uint key, uint sequence) {
    streamed_copy(streamed, stage, query, sequence);
    values_copy(values.lse + stage * BLOCK, BLOCK, values.lse_from, query, sequence, LOG2E);
    values_copy(values.delta + stage * BLOCK, BLOCK, values.delta_from, query, sequence, 1.0f);
    if (dropout.rate > 0.0f)
        kept_fill(values.kept + stage * BLOCK * KEPT_QUADS(ROWS), dropout, BLOCK, query, ROWS, key);
}

/* dk and dv into d_qkv [B, T, (H + 2 K) D]. Groups: B K ceil(T / ROWS). */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_backward_keys(__global const ushort *qkv, __global const ushort *d_y,
                                          __global const float *lse_all, __global const float *delta_all,
                                          uint sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                          __global ushort *d_qkv) {
    __local ushort tiles[STREAMED_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 2);
    C_TO_A_DECLARE(c_to_a_tiles);
    __local float lse[2][BLOCK], delta[2][BLOCK];
    __local uchar kept[2][BLOCK * KEPT_QUADS(ROWS)];
    MATRIX_BEGIN(item, WARPS);
    struct place place = place_of(false, sequence, dropout_rate, dropout_key, first_row);
    __global const ushort *keys = qkv + place.head.keys;
    const uint first = place.first;
    const stationary_t key = stationary_load(item, keys, QKV_ROW, first, sequence, tiles, own[0]);
    const stationary_t value = stationary_load(item, keys + KV_ROW, QKV_ROW, first, sequence, tiles, own[1]);
    fragment_c d_key[ACROSS], d_value[ACROSS], s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    FRAGMENTS_CLEAR(d_key, ACROSS);
    FRAGMENTS_CLEAR(d_value, ACROSS);
    for (uint member = 0; member < KV_GROUP; member++, head_next(sequence, &place.head)) {
        const struct streamed streamed = {qkv + place.head.qkv, d_y + place.head.y, Y_ROW, tiles};
        const struct streamed_values values = {lse_all + place.head.rows, delta_all + place.head.rows, lse[0],
                                               delta[0], kept[0]};
        if (member > 0)
            barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads blocks of the query head before */
        queries_copy(streamed, values, place.head.dropout, 0, first, first, sequence);
        for (uint start = first, stage = 0; start < sequence; start += BLOCK, stage ^= 1) {
            COPY_WAIT(0);
            barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
            if (start + BLOCK < sequence)
                queries_copy(streamed, values, place.head.dropout, stage ^ 1, start + BLOCK, first, sequence);
            for (uint strip = 0; strip < BLOCK; strip += STRIP) {
                const struct scores at = {true, start, first, strip, lse[stage], delta[stage], kept[stage]};
                rows_multiply(item, &key, streamed_tile(streamed, stage, 0), BLOCK, strip, STRIP, s);
                rows_multiply(item, &value, streamed_tile(streamed, stage, 1), BLOCK, strip, STRIP, d_p);
                scores_backward(item, at, place.head.dropout, s, d_p);
                EACH_BY(q, STRIP, FRAGMENT_K) {
                    rows_add(item, s + q / FRAGMENT_N, c_to_a_tiles, streamed_tile(streamed, stage, 1), BLOCK,
                             strip + q, d_value);
                    rows_add(item, d_p + q / FRAGMENT_N, c_to_a_tiles, streamed_tile(streamed, stage, 0), BLOCK,
                             strip + q, d_key);
                }
            }
        }
    }
    __global ushort *d_keys = d_qkv + place.head.keys;
    rows_store(item, d_key, SCORE_SCALE, first, sequence, d_keys, QKV_ROW);
    rows_store(item, d_value, 1.0f, first, sequence, d_keys + KV_ROW, QKV_ROW);
}
