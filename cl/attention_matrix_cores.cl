/* Causal attention on matrix cores, after FlashAttention-2 (Dao 2023). attention.cl explains what it computes,
 * its names and its dropout. qkv, y and their gradients are 16-bit elements, and sums of their products are float.
 * P and dS are rounded to 16 bits where they are factors. lse and delta are float.
 *
 *   forward           a group has ROWS queries; over blocks of KEYS keys: S = Q K^T, P = exp(S - highest), Y += P V
 *   backward_queries  a group has ROWS queries; over blocks of BLOCK keys: S = Q K^T, dP = dY V^T, dQ += dS K
 *   backward_keys     a group has ROWS keys; over its query heads and their blocks of BLOCK queries:
 *                     S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q
 *
 * A warp has FRAGMENT_M of the rows, and all that it adds up, in registers. Where these are too few, SHARES
 * warps have the same rows: all compute the scores, and each adds up its part of the channels. A group reads its
 * own rows, the stationary ones, once; those that it goes over are streamed in tiles, one ahead. All groups do the
 * same work on every run and nothing is shared among them, so results are the same to the bit.
 *
 * Past the end of the sequence the last row is read again. Queries there give nothing to anybody, because lse is
 * infinite, hence p = 0; keys there are masked because no query comes after them. Only blocks that the diagonal
 * crosses are masked: loops over the others have no comparison.
 *
 * Constants given at build time, besides those of matrix_cores.cl:
 *   HEAD_SIZE  a multiple of 16
 *   DROPS      whether there may be dropout: programs without it are shorter, and have more groups at a time
 *   TRANSPOSED_LOAD  whether matrix cores read fragments fast along k only: rows that others are multiplied with
 *              across are transposed on their way into local memory, and pass through registers
 *   WARPS      of a work-group
 *   SHARES     warps that have the same rows
 *   KEYS       a multiple of FRAGMENT_K
 *   BLOCK      a multiple of STRIP; 2 BLOCK <= WARPS WARP_SIZE
 *   STRIP      rows of a block whose scores a warp has at a time, a multiple of FRAGMENT_K
 *   KEEP       1: the stationary rows are kept in registers, 0: in local memory
 */
#define PADDED_TILES
#include "attention.cl"
#include "matrix_cores.cl"
#include "matrix_cores_*.cl"

#define ITEMS  (WARPS * WARP_SIZE)
#define ROWS   (WARPS / SHARES * FRAGMENT_M)
#define DEPTH  (HEAD_SIZE / FRAGMENT_K)          /* fragments of a row that is multiplied */
#define ACROSS (HEAD_SIZE / FRAGMENT_N / SHARES) /* fragments of a row that a warp adds up */

/* The first of the warp's rows in its group, and of the channels that it adds up. */
#define WARP_ROW(item)     ((item).warp / SHARES * FRAGMENT_M)
#define WARP_CHANNEL(item) ((item).warp % SHARES * ACROSS * FRAGMENT_N)

#define SCORE_EXPONENT (LOG2E * SCALE) /* what scores are multiplied with to be exponents of two */

/* ---- rows of C */
#ifndef IN_ORDER
#define IN_ORDER(sum)
#endif
#ifndef SOFTMAX_KERNEL
#define SOFTMAX_KERNEL MATRIX_KERNEL
#endif
#ifndef DIAGONAL_APART
#define DIAGONAL_APART 1 /* blocks that are masked have a loop of their own */
#endif
#ifndef VALUE_PLACE
#define VALUE_PLACE(column) (column)
#endif

/* The maximum, or the sum in a fixed order, of what the lanes of a row of C have; every one of them gets it. */
#define FRAGMENT_ROW(name, COMBINE)                                                                                \
    INLINED float name(struct work_item item, float x) {                                                           \
        EACH_BIT(bit) {                                                                                            \
            if (ROW_LANES & bit)                                                                                   \
                x = COMBINE(x, EXCHANGE(item, x, bit));                                                            \
        }                                                                                                          \
        return x;                                                                                                  \
    }
#define EACH_BIT(bit) FRAGMENT_UNROLL for (uint bit = 1; bit < WARP_SIZE; bit *= 2)
#define SUM_OF(a, b)  ((a) + (b))
FRAGMENT_ROW(fragment_row_max, fmax)
FRAGMENT_ROW(fragment_row_sum, SUM_OF)

/* ---- tiles: rows of a head, or transposed */
#define TILE_SIZE(rows) ((rows) * (HEAD_SIZE + CHUNK))
#if TRANSPOSED_LOAD
#define ACROSS_SIZE(rows) (HEAD_SIZE * ((rows) + CHUNK)) /* of rows that across_fragment reads */
#else
#define ACROSS_SIZE(rows) TILE_SIZE(rows)
#endif

/* One or two matrices of which a group reads the same rows, of which `last` is the last one that there is. */
struct rows {
    __global const ushort *from, *second;
    uint stride, second_stride;
    uint last;
};

#if TRANSPOSED_LOAD
/* A work-item has pairs of chunks that lie below each other in two rows, in registers. Work-items that are
 * neighbours have the next rows, so that they write transposed chunks to different banks. */
#define PAIRS(rows)             ((rows) / 2 * (HEAD_SIZE / CHUNK))
#define PAIRS_OF(rows, count)   (((count) * PAIRS(rows) - 1) / ITEMS + 1)
#define ON_THE_WAY(rows, count) (2 * PAIRS_OF(rows, count))

/* Where pair number i of this work-item lies; false: it has none of this number. */
INLINED bool pair_find(struct work_item item, uint i, uint rows, uint count, uint *matrix, uint *row,
                       uint *column) {
    const uint pair = i * ITEMS + item.warp * WARP_SIZE + item.lane, in_matrix = pair % PAIRS(rows);
    *matrix = count == 1 ? 0 : pair / PAIRS(rows);
    *row = in_matrix % (rows / 2) * 2;
    *column = in_matrix / (rows / 2) * CHUNK;
    return count * PAIRS(rows) % ITEMS == 0 || pair < count * PAIRS(rows);
}

/* Starts to read the rows from `first` on of `count` matrices. */
INLINED void rows_start(struct work_item item, uint4 *on_the_way, __local ushort *tile, struct rows rows,
                        uint first, uint size, uint count) {
    uint matrix, row, column;
    EACH(i, PAIRS_OF(size, count)) {
        const bool mine = pair_find(item, i, size, count, &matrix, &row, &column);
        __global const ushort *from = matrix ? rows.second : rows.from;
        const uint stride = matrix ? rows.second_stride : rows.stride;
        EACH(low, 2) {
            if (mine)
                on_the_way[i * 2 + low] =
                    *(__global const uint4 *)element_at(from, min(first + row + low, rows.last) * stride + column);
        }
    }
}

/* Puts the rows into local memory. The first `lying` matrices go to `tile` as they lie, one tile behind the other,
 * and the first `across` ones to `transposed`, as [HEAD_SIZE, size]. */
INLINED void rows_arrive(struct work_item item, const uint4 *on_the_way, __local ushort *tile,
                         __local ushort *transposed, uint size, uint count, uint lying, uint across) {
    uint matrix, row, column;
    EACH(i, PAIRS_OF(size, count)) {
        if (!pair_find(item, i, size, count, &matrix, &row, &column))
            continue;
        if (matrix < lying) {
            EACH(low, 2)
                *(__local uint4 *)(tile + matrix * TILE_SIZE(size) + tile_at(HEAD_SIZE, row + low, column)) =
                    on_the_way[i * 2 + low];
        }
        if (matrix < across) {
            const uint upper[] = {on_the_way[i * 2].x, on_the_way[i * 2].y, on_the_way[i * 2].z,
                                  on_the_way[i * 2].w};
            const uint lower[] = {on_the_way[i * 2 + 1].x, on_the_way[i * 2 + 1].y, on_the_way[i * 2 + 1].z,
                                  on_the_way[i * 2 + 1].w};
            EACH(e, CHUNK)
                *(__local uint *)(transposed + matrix * ACROSS_SIZE(size) + tile_at(size, column + e, row)) =
                    e % 2 ? pair_of_highs(upper[e / 2], lower[e / 2]) : pair_of_lows(upper[e / 2], lower[e / 2]);
        }
    }
}
#else
#define ON_THE_WAY(rows, count) 1

INLINED void matrix_copy(__local ushort *tile, __global const ushort *from, uint stride, uint first, uint last,
                         uint size) {
    const uint chunks = size * HEAD_SIZE / CHUNK;
    COPY_UNROLL
    for (uint i = 0; i < (chunks - 1) / ITEMS + 1; i++) {
        const uint chunk = i * ITEMS + get_local_id(0);
        if (chunks % ITEMS && chunk >= chunks)
            break;
        const uint row = chunk / (HEAD_SIZE / CHUNK), column = chunk % (HEAD_SIZE / CHUNK) * CHUNK;
        copy_chunk(tile + tile_at(HEAD_SIZE, row, column), from + min(first + row, last) * stride + column,
                   CHUNK * sizeof(ushort));
    }
}

INLINED void rows_start(struct work_item item, uint4 *on_the_way, __local ushort *tile, struct rows rows,
                        uint first, uint size, uint count) {
    matrix_copy(tile, rows.from, rows.stride, first, rows.last, size);
    if (count > 1)
        matrix_copy(tile + TILE_SIZE(size), rows.second, rows.second_stride, first, rows.last, size);
    copy_commit();
}

#define rows_arrive(item, on_the_way, tile, transposed, size, count, lying, across)
#endif

/* ---- the stationary rows: FRAGMENT_M of a warp, as A */
#if KEEP
#define WITH_STATIONARY(size)    ((size) > TILE_SIZE(ROWS) ? (size) : TILE_SIZE(ROWS)) /* they pass through this */
#define OWN_DECLARE(name, count) __local ushort *const name[count] = {0}
typedef struct {
    fragment_a fragments[DEPTH];
} stationary_t;
#else
#define WITH_STATIONARY(size)    (size)
#define OWN_DECLARE(name, count) __local ushort name[count][TILE_SIZE(ROWS)] __attribute__((aligned(32)))
typedef struct {
    __local const ushort *tile;
} stationary_t;
#endif

/* Through `streamed`, which is free before and after, or into `own`, where they remain. */
INLINED stationary_t stationary_load(struct work_item item, __global const ushort *from, uint stride, uint first,
                                     uint last, __local ushort *streamed, __local ushort *own) {
    stationary_t stationary;
    const struct rows rows = {from, from, stride, stride, last};
    __local ushort *tile = KEEP ? streamed : own;
    uint4 on_the_way[ON_THE_WAY(ROWS, 1)];
    rows_start(item, on_the_way, tile, rows, first, ROWS, 1);
    rows_arrive(item, on_the_way, tile, tile, ROWS, 1, 1, 0);
#if KEEP
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(d, DEPTH)
        stationary.fragments[d] = fragment_load_a(item, streamed, HEAD_SIZE, WARP_ROW(item), d * FRAGMENT_K);
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    stationary.tile = own;
#endif
    return stationary;
}

INLINED fragment_a stationary_fragment(struct work_item item, const stationary_t *stationary, uint d) {
#if KEEP
    return stationary->fragments[d];
#else
    return fragment_load_a(item, stationary->tile, HEAD_SIZE, WARP_ROW(item), d * FRAGMENT_K);
#endif
}

/* ---- GEMMs */

/* c [FRAGMENT_M, columns] = the warp's rows times the rows from `row` on of a tile, transposed */
INLINED void rows_multiply(struct work_item item, const stationary_t *stationary, __local const ushort *tile,
                           uint row, uint columns, fragment_c *c) {
    fragment_b next = fragment_load_b_transposed(item, tile, HEAD_SIZE, row, 0);
    EACH(d, DEPTH) {
        const fragment_a a = stationary_fragment(item, stationary, d);
        EACH(n, columns / FRAGMENT_N) {
            const fragment_b b = next;
            if (d == 0)
                FRAGMENTS_CLEAR(&c[n], 1);
            const uint following = d * (columns / FRAGMENT_N) + n + 1;
            if (following < DEPTH * (columns / FRAGMENT_N))
                next = fragment_load_b_transposed(item, tile, HEAD_SIZE,
                                                  row + following % (columns / FRAGMENT_N) * FRAGMENT_N,
                                                  following / (columns / FRAGMENT_N) * FRAGMENT_K);
            fragment_multiply(item, &c[n], a, b);
            IN_ORDER(c[n].v);
        }
    }
}

/* The B that is FRAGMENT_K of `rows` rows from `row` on, and columns from `column` on, of a tile that lies as
 * rows_arrive leaves it for this. */
INLINED fragment_b across_fragment(struct work_item item, __local const ushort *tile, uint rows, uint row,
                                   uint column) {
#if TRANSPOSED_LOAD
    return fragment_load_b_transposed(item, tile, rows, column, row);
#else
    return fragment_load_b(item, tile, HEAD_SIZE, row, column);
#endif
}

/* The warp's channels of sum [FRAGMENT_M, HEAD_SIZE] += factors [FRAGMENT_M, FRAGMENT_K] times FRAGMENT_K rows of
 * such a tile */
INLINED void rows_add(struct work_item item, fragment_c *factors, __local const ushort *tile, uint rows, uint row,
                      fragment_c *sum) {
    IN_ORDER(factors->v);
    const fragment_a a = c_to_a(item, factors);
    fragment_b next = across_fragment(item, tile, rows, row, WARP_CHANNEL(item));
    EACH(j, ACROSS) {
        const fragment_b b = next;
        if (j + 1 < ACROSS)
            next = across_fragment(item, tile, rows, row, WARP_CHANNEL(item) + (j + 1) * FRAGMENT_N);
        fragment_multiply(item, &sum[j], a, b);
        IN_ORDER(sum[j].v);
    }
}

/* The warp's rows of sum, times factor, rounded, to rows of a [.., stride] matrix, of which there are `end`. */
INLINED void rows_store(struct work_item item, const fragment_c *sum, float factor, uint first, uint end,
                        __global ushort *to, uint stride) {
    EACH_BY(i, FRAGMENT_ELEMENTS, FRAGMENT_PAIRS + 1) {
        const uint row = first + WARP_ROW(item) + fragment_row(item, i);
        if (row >= end)
            continue;
        __global ushort *at = to + row * stride + WARP_CHANNEL(item) + fragment_column(item, i);
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

#if DROPS
#define KEPT_DECLARE(name, size) __local uchar name[size]
#else
#define KEPT_DECLARE(name, size) __local uchar *const name = 0
#endif

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
    head_find(get_group_id(0) / blocks * (queries ? 1 : KV_GROUP), sequence, DROPS ? rate : 0.0f, dropout_key,
              first_row, &place.head);
    place.first = (queries ? blocks - 1 - block : block) * ROWS;
    return place;
}

/* ---- the mask: scores of keys after a query become -infinity. A fragment's first key is `ahead` of its first
 * query; with `keys_down` rows are keys and columns queries, else the other way round. */
INLINED void fragment_mask(struct work_item item, bool keys_down, int ahead, fragment_c *s) {
    const int top = fragment_row(item, 0), left = fragment_column(item, 0);
    const int first = ahead + (keys_down ? top - left : left - top);
    EACH(i, FRAGMENT_ELEMENTS) {
        const int down = (int)fragment_row(item, i) - top, across = (int)fragment_column(item, i) - left;
        s->v[i] = first > (keys_down ? across - down : down - across) ? -INFINITY : s->v[i];
    }
}

/* ---- forward */

/* What a group does, and what is in local memory: a tile of K, one of V, the stationary rows unless they are in
 * registers, and which elements dropout keeps; and what a lane has: of each of its rows the
 * highest exponent of two so far and the sum of its own elements; sums of its rows of y; rows on their way. */
struct forward {
    struct place place;
    struct rows keys, values;
    uint end; /* of the keys */
    stationary_t query;
    __local ushort *key_tile, *value_tile;
    __local uchar *kept;
    float highest[LANE_ROWS], total[LANE_ROWS];
    fragment_c *sum;
    uint4 *on_the_way;
};

/* p = exp(scale s - highest) in place; the sums so far shrink to the new highest. */
INLINED void softmax_add(struct work_item item, struct forward *at, fragment_c *s) {
    float highest[LANE_ROWS], rescale[LANE_ROWS];
    EACH(r, LANE_ROWS)
        highest[r] = s[0].v[LANE_IN_ROW(r)];
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i)
        highest[LANE_ROW_OF(i)] = fmax(highest[LANE_ROW_OF(i)], s[n].v[i]);
    EACH(r, LANE_ROWS) {
        highest[r] = fmax(at->highest[r], SCORE_EXPONENT * fragment_row_max(item, highest[r]));
        rescale[r] = power_of_two(at->highest[r] - highest[r]);
        at->highest[r] = highest[r];
        at->total[r] *= rescale[r];
    }
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i) {
        s[n].v[i] = power_of_two(mad(SCORE_EXPONENT, s[n].v[i], -highest[LANE_ROW_OF(i)]));
        at->total[LANE_ROW_OF(i)] += s[n].v[i];
    }
    EACH_ELEMENT(j, ACROSS, i)
        at->sum[j].v[i] *= rescale[LANE_ROW_OF(i)];
}

INLINED void softmax_drop(struct work_item item, const struct forward *at, uint key, fragment_c *p) {
    EACH_ELEMENT(n, KEYS / FRAGMENT_N, i)
        p[n].v[i] *= kept_factor(at->kept, at->place.head.dropout, KEYS, key,
                                 WARP_ROW(item) + fragment_row(item, i), n * FRAGMENT_N + fragment_column(item, i));
}

/* sum / its total, and lse, of the warp's rows */
INLINED void softmax_finish(struct work_item item, struct forward *at, uint sequence, __global float *lse) {
    float factors[LANE_ROWS];
    EACH(r, LANE_ROWS) {
        const uint query = at->place.first + WARP_ROW(item) + fragment_row(item, LANE_IN_ROW(r));
        const float total = fragment_row_sum(item, at->total[r]);
        factors[r] = 1.0f / total;
        if (query < sequence && (item.lane & ROW_LANES) == 0 && item.warp % SHARES == 0)
            lse[at->place.head.rows + query] = (at->highest[r] + log2(total)) * LN2;
    }
    EACH_ELEMENT(j, ACROSS, i)
        at->sum[j].v[i] *= factors[LANE_ROW_OF(i)];
}

/* The block of keys from `key` on. */
INLINED void forward_block(struct work_item item, bool masked, uint key, struct forward *at) {
    fragment_c p[KEYS / FRAGMENT_N];
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* K is there, and nobody reads the V before */
    rows_start(item, at->on_the_way, at->value_tile, at->values, key, KEYS, 1);
    if (DROPS)
        kept_fill(at->kept, at->place.head.dropout, ROWS, at->place.first, KEYS, key);
    rows_multiply(item, &at->query, at->key_tile, 0, KEYS, p);
    if (masked) {
        EACH(n, KEYS / FRAGMENT_N)
            fragment_mask(item, false, (int)(key + n * FRAGMENT_N) - (int)(at->place.first + WARP_ROW(item)),
                          &p[n]);
    }
    rows_arrive(item, at->on_the_way, at->value_tile, at->value_tile, KEYS, 1, 0, 1);
    softmax_add(item, at, p);
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* V and what is kept are there, and nobody reads this K */
    if (key + KEYS < at->end)
        rows_start(item, at->on_the_way, at->key_tile, at->keys, key + KEYS, KEYS, 1);
    if (DROPS)
        softmax_drop(item, at, key, p);
    EACH_BY(k, KEYS, FRAGMENT_K)
        rows_add(item, p + k / FRAGMENT_N, at->value_tile, KEYS, k, at->sum);
    if (key + KEYS < at->end)
        rows_arrive(item, at->on_the_way, at->key_tile, at->key_tile, KEYS, 1, 1, 0);
}

/* qkv [B, T, (H + 2 K) D] -> y [B, T, H, D], lse [B, H, T]. Groups: B H ceil(T / ROWS). */
SOFTMAX_KERNEL(WARPS)
void attention_matrix_cores_forward(__global const ushort *qkv, uint sequence, float dropout_rate,
                                    ulong dropout_key, ulong first_row, __global ushort *y, __global float *lse) {
    __local ushort tiles[WITH_STATIONARY(TILE_SIZE(KEYS) + ACROSS_SIZE(KEYS))] __attribute__((aligned(32)));
    OWN_DECLARE(own, 1);
    KEPT_DECLARE(kept, ROWS * KEPT_QUADS(KEYS));
    MATRIX_BEGIN(item, WARPS);
    struct forward at = {.place = place_of(true, sequence, dropout_rate, dropout_key, first_row)};
    fragment_c sum[ACROSS];
    uint4 on_the_way[ON_THE_WAY(KEYS, 1)];
    const uint first = at.place.first, last = sequence - 1;
    at.keys = (struct rows){qkv + at.place.head.keys, 0, QKV_ROW, 0, last};
    at.values = (struct rows){at.keys.from + KV_ROW, 0, QKV_ROW, 0, last};
    at.end = min(first + ROWS, sequence);
    at.key_tile = tiles, at.value_tile = tiles + TILE_SIZE(KEYS), at.kept = kept;
    at.sum = sum, at.on_the_way = on_the_way;
    at.query = stationary_load(item, qkv + at.place.head.qkv, QKV_ROW, first, last, tiles, own[0]);
    EACH(r, LANE_ROWS) {
        at.highest[r] = -INFINITY;
        at.total[r] = 0.0f;
    }
    FRAGMENTS_CLEAR(at.sum, ACROSS);
    rows_start(item, at.on_the_way, at.key_tile, at.keys, 0, KEYS, 1);
    rows_arrive(item, at.on_the_way, at.key_tile, at.key_tile, KEYS, 1, 1, 0);
    uint key = 0;
    for (; DIAGONAL_APART && key + KEYS <= first; key += KEYS)
        forward_block(item, false, key, &at);
    for (; key < at.end; key += KEYS)
        forward_block(item, DIAGONAL_APART || key + KEYS > first, key, &at);
    softmax_finish(item, &at, sequence, lse);
    rows_store(item, at.sum, 1.0f, first, sequence, y + at.place.head.y, Y_ROW);
}

/* ---- backward */

/* The streamed rows, of K and V or of Q and dY, come in blocks. Local memory has the rows of a block, and a
 * transposed copy of the first `across` matrices. The next block is on its way, to registers or to a second
 * stage. */
#if TRANSPOSED_LOAD
#define STAGES             1
#define ACROSS_FIRST       (2 * TILE_SIZE(BLOCK))
#define STAGE_SIZE(across) (ACROSS_FIRST + (across) * ACROSS_SIZE(BLOCK))
#else
#define STAGES             2
#define ACROSS_FIRST       0
#define STAGE_SIZE(across) (2 * TILE_SIZE(BLOCK))
#endif
#define STREAMED_DECLARE(name, across)                                                                             \
    __local ushort name[WITH_STATIONARY(STAGES * STAGE_SIZE(across))] __attribute__((aligned(32)))
#define NEXT_STAGE(stage) (STAGES - 1 - (stage))

/* What a warp needs to know of its scores, FRAGMENT_M rows by STRIP columns. With `keys_down` rows are keys and
 * columns queries, else the other way round. Queries have lse (times LOG2E) and delta: where rows are queries, in
 * row_lse and row_delta of the lane, else in local memory, of the block's columns. */
struct scores {
    bool keys_down, masked;
    uint query, key; /* where the group's block begins */
    uint column;     /* where the scores begin, in the block */
    float row_lse[LANE_ROWS], row_delta[LANE_ROWS];
    __local const float *lse, *delta;
    __local const uchar *kept; /* of the block */
};

/* In place: s becomes p with dropout, d_p becomes ds. */
INLINED void scores_backward(struct work_item item, const struct scores *at, struct dropout dropout, fragment_c *s,
                             fragment_c *d_p) {
    const uint top = WARP_ROW(item);
    const int ahead = (int)(at->key - at->query) + (int)(at->keys_down ? top - at->column : at->column - top);
    EACH(n, STRIP / FRAGMENT_N) {
        if (at->masked)
            fragment_mask(item, at->keys_down, ahead + (at->keys_down ? -1 : 1) * (int)(n * FRAGMENT_N), &s[n]);
        EACH(i, FRAGMENT_ELEMENTS) {
            const uint row = top + fragment_row(item, i),
                       column = at->column + n * FRAGMENT_N + fragment_column(item, i);
            const float lse = at->keys_down ? at->lse[VALUE_PLACE(column)] : at->row_lse[LANE_ROW_OF(i)];
            const float delta = at->keys_down ? at->delta[VALUE_PLACE(column)] : at->row_delta[LANE_ROW_OF(i)];
            const float p = power_of_two(mad(SCORE_EXPONENT, s[n].v[i], -lse));
            const float factor = DROPS ? kept_factor(at->kept, dropout, at->keys_down ? ROWS : BLOCK, at->key,
                                                     at->keys_down ? column : row, at->keys_down ? row : column)
                                       : 1.0f;
            s[n].v[i] = factor * p;
            d_p[n].v[i] = p * (factor * d_p[n].v[i] - delta);
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

/* What a group does with its queries, and what a lane has of them. */
struct backward_queries {
    struct place place;
    struct rows rows; /* of K and V */
    uint end;         /* of the keys */
    stationary_t query, d_out;
    __local ushort *tiles;
    __local uchar *kept; /* [STAGES][KEPT_SIZE] */
    struct scores scores;
    fragment_c *sum;
    uint4 *on_the_way;
};

#define KEPT_SIZE (ROWS * KEPT_QUADS(BLOCK) + BLOCK * KEPT_QUADS(ROWS)) /* enough for either way round */

/* The end of what rows_start began: the block of keys from `key` on is put to `stage`. */
INLINED void keys_arrive(struct work_item item, const struct backward_queries *at, uint key, uint stage) {
    __local ushort *tiles = at->tiles + stage * STAGE_SIZE(1);
    if (STAGES == 1)
        barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads the block before */
    rows_arrive(item, at->on_the_way, tiles, tiles + ACROSS_FIRST, BLOCK, 2, 2, 1);
    if (DROPS)
        kept_fill(at->kept + stage * KEPT_SIZE, at->place.head.dropout, ROWS, at->place.first, BLOCK, key);
}

/* The block of keys from `key` on, which is in local memory, or on its way there, at `stage`. */
INLINED void backward_queries_block(struct work_item item, bool masked, uint key, uint stage,
                                    struct backward_queries *at) {
    __local ushort *tiles = at->tiles + stage * STAGE_SIZE(1),
                   *next = at->tiles + NEXT_STAGE(stage) * STAGE_SIZE(1);
    fragment_c s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
    if (key + BLOCK < at->end)
        rows_start(item, at->on_the_way, next, at->rows, key + BLOCK, BLOCK, 2);
    struct scores scores = at->scores;
    scores.masked = masked;
    scores.key = key;
    scores.kept = at->kept + stage * KEPT_SIZE;
    for (scores.column = 0; scores.column < BLOCK; scores.column += STRIP) {
        rows_multiply(item, &at->query, tiles, scores.column, STRIP, s);
        rows_multiply(item, &at->d_out, tiles + TILE_SIZE(BLOCK), scores.column, STRIP, d_p);
        scores_backward(item, &scores, at->place.head.dropout, s, d_p);
        EACH_BY(k, STRIP, FRAGMENT_K)
            rows_add(item, d_p + k / FRAGMENT_N, tiles + ACROSS_FIRST, BLOCK, scores.column + k, at->sum);
    }
    if (key + BLOCK < at->end)
        keys_arrive(item, at, key + BLOCK, NEXT_STAGE(stage));
}

/* dq into d_qkv [B, T, (H + 2 K) D], and delta [B, H, T] for attention_matrix_cores_backward_keys. Groups as
 * forward. */
SOFTMAX_KERNEL(WARPS)
void attention_matrix_cores_backward_queries(__global const ushort *qkv, __global const ushort *y,
                                             __global const ushort *d_y, __global const float *lse_all,
                                             uint sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                             __global ushort *d_qkv, __global float *delta_all) {
    STREAMED_DECLARE(tiles, 1);
    OWN_DECLARE(own, 2);
    __local float lse[ROWS], delta[ROWS], parts[ITEMS];
    KEPT_DECLARE(kept, STAGES * KEPT_SIZE);
    MATRIX_BEGIN(item, WARPS);
    struct backward_queries at = {.place = place_of(true, sequence, dropout_rate, dropout_key, first_row)};
    fragment_c sum[ACROSS];
    uint4 on_the_way[ON_THE_WAY(BLOCK, 2)];
    const uint first = at.place.first, last = sequence - 1;
    __global const ushort *keys = qkv + at.place.head.keys;
    at.rows = (struct rows){keys, keys + KV_ROW, QKV_ROW, QKV_ROW, last};
    at.end = min(first + ROWS, sequence);
    at.tiles = tiles, at.kept = kept, at.sum = sum, at.on_the_way = on_the_way;
    at.query = stationary_load(item, qkv + at.place.head.qkv, QKV_ROW, first, last, tiles, own[0]);
    at.d_out = stationary_load(item, d_y + at.place.head.y, Y_ROW, first, last, tiles, own[1]);
    rows_start(item, at.on_the_way, tiles, at.rows, 0, BLOCK, 2);
    for (uint row = get_local_id(0); row < ROWS; row += ITEMS)
        lse[row] = LOG2E * lse_all[at.place.head.rows + min(first + row, last)];
    delta_rows(y + at.place.head.y, d_y + at.place.head.y, first, sequence, parts, delta,
               delta_all + at.place.head.rows);
    barrier(CLK_LOCAL_MEM_FENCE);
    at.scores.keys_down = false;
    at.scores.query = first;
    EACH(r, LANE_ROWS) {
        const uint row = WARP_ROW(item) + fragment_row(item, LANE_IN_ROW(r));
        at.scores.row_lse[r] = lse[row];
        at.scores.row_delta[r] = delta[row];
    }
    FRAGMENTS_CLEAR(at.sum, ACROSS);
    keys_arrive(item, &at, 0, 0);
    uint key = 0, stage = 0;
    for (; DIAGONAL_APART && key + BLOCK <= first; key += BLOCK, stage = NEXT_STAGE(stage))
        backward_queries_block(item, false, key, stage, &at);
    for (; key < at.end; key += BLOCK, stage = NEXT_STAGE(stage))
        backward_queries_block(item, DIAGONAL_APART || key + BLOCK > first, key, stage, &at);
    rows_store(item, at.sum, SCALE, first, sequence, d_qkv + at.place.head.qkv, QKV_ROW);
}

/* What a group does with its keys, and what a lane has of them. */
struct backward_keys {
    struct place place;
    struct rows rows; /* of Q and dY */
    uint sequence;
    stationary_t key, value;
    __local ushort *tiles;
    __local float *values;            /* [STAGES][2][BLOCK] lse times LOG2E, delta */
    __local uchar *kept;              /* [STAGES][KEPT_SIZE] */
    __global const float *value_from; /* lse or delta, of which a work-item copies a number */
    float value_on_the_way;
    fragment_c *d_key, *d_value;
    uint4 *on_the_way;
};

/* Starts to copy the block of queries from `query` on to `stage`. A work-item has one number at most; lse of
 * queries past the end is infinite. */
INLINED void queries_start(struct work_item item, struct backward_keys *at, uint query, uint stage) {
    const uint place = get_local_id(0), row = query + place % BLOCK;
    rows_start(item, at->on_the_way, at->tiles + stage * STAGE_SIZE(2), at->rows, query, BLOCK, 2);
    if (place < 2 * BLOCK) {
        const float value = at->value_from[min(row, at->sequence - 1)];
        at->value_on_the_way = place >= BLOCK ? value : row < at->sequence ? LOG2E * value : INFINITY;
    }
}

INLINED void queries_arrive(struct work_item item, const struct backward_keys *at, uint query, uint stage) {
    const uint place = get_local_id(0);
    __local ushort *tiles = at->tiles + stage * STAGE_SIZE(2);
    if (STAGES == 1)
        barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads the block before */
    rows_arrive(item, at->on_the_way, tiles, tiles + ACROSS_FIRST, BLOCK, 2, 2, 2);
    if (place < 2 * BLOCK)
        at->values[stage * 2 * BLOCK + place / BLOCK * BLOCK + VALUE_PLACE(place % BLOCK)] = at->value_on_the_way;
    if (DROPS)
        kept_fill(at->kept + stage * KEPT_SIZE, at->place.head.dropout, BLOCK, query, ROWS, at->place.first);
}

/* The block of queries from `query` on, which is in local memory, or on its way there, at `stage`. */
INLINED void backward_keys_block(struct work_item item, bool masked, uint query, uint stage,
                                 struct backward_keys *at) {
    __local const ushort *tiles = at->tiles + stage * STAGE_SIZE(2), *across = tiles + ACROSS_FIRST;
    fragment_c s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
    if (query + BLOCK < at->sequence)
        queries_start(item, at, query + BLOCK, NEXT_STAGE(stage));
    struct scores scores = {.keys_down = true, .masked = masked, .query = query, .key = at->place.first};
    scores.lse = at->values + stage * 2 * BLOCK;
    scores.delta = scores.lse + BLOCK;
    scores.kept = at->kept + stage * KEPT_SIZE;
    for (scores.column = 0; scores.column < BLOCK; scores.column += STRIP) {
        rows_multiply(item, &at->key, tiles, scores.column, STRIP, s);
        rows_multiply(item, &at->value, tiles + TILE_SIZE(BLOCK), scores.column, STRIP, d_p);
        scores_backward(item, &scores, at->place.head.dropout, s, d_p);
        EACH_BY(q, STRIP, FRAGMENT_K) {
            rows_add(item, s + q / FRAGMENT_N, across + ACROSS_SIZE(BLOCK), BLOCK, scores.column + q, at->d_value);
            rows_add(item, d_p + q / FRAGMENT_N, across, BLOCK, scores.column + q, at->d_key);
        }
    }
    if (query + BLOCK < at->sequence)
        queries_arrive(item, at, query + BLOCK, NEXT_STAGE(stage));
}

/* dk and dv into d_qkv [B, T, (H + 2 K) D]. Groups: B K ceil(T / ROWS). */
SOFTMAX_KERNEL(WARPS)
void attention_matrix_cores_backward_keys(__global const ushort *qkv, __global const ushort *d_y,
                                          __global const float *lse_all, __global const float *delta_all,
                                          uint sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                          __global ushort *d_qkv) {
    STREAMED_DECLARE(tiles, 2);
    OWN_DECLARE(own, 2);
    __local float values[STAGES][2 * BLOCK];
    KEPT_DECLARE(kept, STAGES * KEPT_SIZE);
    MATRIX_BEGIN(item, WARPS);
    struct backward_keys at = {.place = place_of(false, sequence, dropout_rate, dropout_key, first_row)};
    fragment_c d_key[ACROSS], d_value[ACROSS];
    uint4 on_the_way[ON_THE_WAY(BLOCK, 2)];
    const uint first = at.place.first, last = sequence - 1;
    __global const ushort *keys = qkv + at.place.head.keys;
    at.sequence = sequence;
    at.tiles = tiles, at.values = values[0], at.kept = kept;
    at.d_key = d_key, at.d_value = d_value, at.on_the_way = on_the_way;
    at.key = stationary_load(item, keys, QKV_ROW, first, last, tiles, own[0]);
    at.value = stationary_load(item, keys + KV_ROW, QKV_ROW, first, last, tiles, own[1]);
    FRAGMENTS_CLEAR(at.d_key, ACROSS);
    FRAGMENTS_CLEAR(at.d_value, ACROSS);
    for (uint member = 0; member < KV_GROUP; member++, head_next(sequence, &at.place.head)) {
        at.rows = (struct rows){qkv + at.place.head.qkv, d_y + at.place.head.y, QKV_ROW, Y_ROW, last};
        at.value_from = (get_local_id(0) < BLOCK ? lse_all : delta_all) + at.place.head.rows;
        if (STAGES > 1 && member > 0)
            barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads blocks of the query head before */
        queries_start(item, &at, first, 0);
        queries_arrive(item, &at, first, 0);
        uint query = first, stage = 0;
        for (; DIAGONAL_APART && query < min(first + ROWS, sequence); query += BLOCK, stage = NEXT_STAGE(stage))
            backward_keys_block(item, true, query, stage, &at);
        for (; query < sequence; query += BLOCK, stage = NEXT_STAGE(stage))
            backward_keys_block(item, !DIAGONAL_APART && query < first + ROWS, query, stage, &at);
    }
    __global ushort *d_keys = d_qkv + at.place.head.keys;
    rows_store(item, at.d_key, SCALE, first, sequence, d_keys, QKV_ROW);
    rows_store(item, at.d_value, 1.0f, first, sequence, d_keys + KV_ROW, QKV_ROW);
}
