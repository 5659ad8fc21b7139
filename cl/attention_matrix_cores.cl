/* Causal attention on matrix cores, after FlashAttention-2 (Dao 2023). What it computes, its names and its dropout
 * are those of attention.cl; qkv, y and their gradients are 16-bit elements, sums of their products are float,
 * and P and dS are rounded to 16 bits where they are factors. lse and delta are float.
 *
 *   forward           a group has ROWS queries; over blocks of KEYS keys: S = Q K^T, P = exp(S - highest), Y += P V
 *   backward_queries  a group has ROWS queries; over blocks of BLOCK keys: S = Q K^T, dP = dY V^T, dQ += dS K
 *   backward_keys     a group has ROWS keys; over blocks of BLOCK queries: S^T = K Q^T, dP^T = V dY^T,
 *                                                                          dV += P^T dY, dK += dS^T Q
 *
 * A warp has FRAGMENT_M of the rows, and all that it adds up, in registers. The rows that stay are read once; those
 * that pass come in tiles, one ahead. All groups do the same work on every run and nothing is shared among them, so
 * results are the same to the bit.
 *
 * Rows past the end of the sequence read as zeros with lse = delta = 0, hence give nothing to anybody; keys past it
 * are masked because no query comes after them.
 *
 * Constants given at build time, besides those of matrix_cores.cl:
 *   HEAD_SIZE  a multiple of 16
 *   WARPS      of a work-group
 *   KEYS       a multiple of FRAGMENT_K
 *   BLOCK      a multiple of STRIP; 4 BLOCK >= WARPS FRAGMENT_M and 2 KEYS >= WARPS FRAGMENT_M
 *   STRIP      rows of a block whose scores a warp has at a time, a multiple of FRAGMENT_K
 *   KEEP       1: the rows that stay are kept in registers, 0: in local memory
 *
 * Comes after common.cl (philox), element.cl, matrix_cores.cl and the files that it lists, matrix_cores_rows.cl.
 */
#define ITEMS  (WARPS * WARP_SIZE)
#define ROWS   (WARPS * FRAGMENT_M)
#define DEPTH  (HEAD_SIZE / FRAGMENT_K) /* fragments of a row that is multiplied */
#define ACROSS (HEAD_SIZE / FRAGMENT_N) /* fragments of a row that is added up */

/* Local memory for what is turned, where that does not happen in registers. (PoCL 6 fails on local arrays that
 * nothing uses.) */
#if C_TO_A_LOCAL
#define TURN_DECLARE(name) __local ushort name[WARPS * C_TO_A_SIZE] __attribute__((aligned(16)))
#else
#define TURN_DECLARE(name) __local ushort *const name = 0
#endif
#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* What scores are multiplied with to be exponents of two. */
#define SCORE_SCALE (LOG2E * rsqrt((float)HEAD_SIZE))

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

#define TILE_COLUMN(tile, rows, column) (tile) + (column) / PANEL *(rows) * PANEL, PANEL
#define IN_PANEL(column)                ((column) % PANEL)

/* ---- the rows that stay: FRAGMENT_M of a warp, as A */
#if KEEP
#define OWN_DECLARE(name, count) __local ushort *const name[count] = {0}
typedef struct {
    fragment_a fragments[DEPTH];
} stay_t;
#else
#define OWN_DECLARE(name, count) __local ushort name[count][ROWS * HEAD_SIZE] __attribute__((aligned(16)))
typedef struct {
    __local const ushort *tile;
} stay_t;
#endif

/* Through `passing`, which is free before and after, or into `own`, where they remain. */
INLINED stay_t stay_load(struct work_item me, __global const ushort *from, uint stride, uint first, uint end,
                         __local ushort *passing, __local ushort *own) {
    stay_t stay;
#if KEEP
    tile_copy(passing, ROWS, from, stride, first, end);
    copy_commit();
    COPY_WAIT(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    FRAGMENT_UNROLL
    for (uint d = 0; d < DEPTH; d++)
        stay.fragments[d] = fragment_load_a(me, TILE_COLUMN(passing, ROWS, d * FRAGMENT_K), me.warp * FRAGMENT_M,
                                            IN_PANEL(d * FRAGMENT_K));
    barrier(CLK_LOCAL_MEM_FENCE);
#else
    tile_copy(own, ROWS, from, stride, first, end);
    stay.tile = own;
#endif
    return stay;
}

INLINED fragment_a stay_fragment(struct work_item me, const stay_t *stay, uint d) {
#if KEEP
    return stay->fragments[d];
#else
    return fragment_load_a(me, TILE_COLUMN(stay->tile, ROWS, d * FRAGMENT_K), me.warp * FRAGMENT_M,
                           IN_PANEL(d * FRAGMENT_K));
#endif
}

/* ---- GEMMs */

/* A loop of memset in a function is not unrolled by clang 15, and the fragments stay in memory. */
#define FRAGMENTS_CLEAR(c, count)                                                                                  \
    do {                                                                                                           \
        FRAGMENT_UNROLL                                                                                            \
        for (uint n = 0; n < (count); n++)                                                                         \
            FRAGMENT_CLEAR(&(c)[n]);                                                                               \
    } while (0)

/* c [FRAGMENT_M, columns] = the warp's rows times the rows from `row` on of a tile of so many `rows`, transposed */
INLINED void rows_multiply(struct work_item me, const stay_t *stay, __local const ushort *tile, uint rows, uint row,
                           uint columns, fragment_c *c) {
    FORGET(me);
    FRAGMENT_UNROLL
    for (uint d = 0; d < DEPTH; d++) {
        const fragment_a a = stay_fragment(me, stay, d);
        IN_ORDER();
        FRAGMENT_UNROLL
        for (uint n = 0; n < columns / FRAGMENT_N; n++) {
            if (d == 0)
                FRAGMENT_CLEAR(&c[n]);
            fragment_multiply(me, &c[n], a,
                              fragment_load_b_transposed(me, TILE_COLUMN(tile, rows, d * FRAGMENT_K),
                                                         row + n * FRAGMENT_N, IN_PANEL(d * FRAGMENT_K)));
        }
    }
}

/* sum [FRAGMENT_M, HEAD_SIZE] += factors [FRAGMENT_M, FRAGMENT_K] times FRAGMENT_K rows of a tile */
INLINED void rows_add(struct work_item me, const fragment_c *factors, __local ushort *turn,
                      __local const ushort *tile, uint rows, uint row, fragment_c *sum) {
    const fragment_a a = c_to_a(me, factors, turn);
    FORGET(me);
    FRAGMENT_UNROLL
    for (uint j = 0; j < ACROSS; j++) {
        fragment_multiply(me, &sum[j], a,
                          fragment_load_b(me, TILE_COLUMN(tile, rows, j * FRAGMENT_N), row,
                                          IN_PANEL(j * FRAGMENT_N)));
        IN_ORDER();
    }
}

/* The warp's rows of sum, times factor, rounded, to rows of a [.., stride] matrix, of which there are `end`. */
INLINED void rows_store(struct work_item me, const fragment_c *sum, float factor, uint first, uint end,
                        __global ushort *to, uint stride) {
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENT_ELEMENTS; i += FRAGMENT_PAIRS + 1) {
        const uint row = first + me.warp * FRAGMENT_M + fragment_row(me, i);
        if (row >= end)
            continue;
        __global ushort *at = to + row * stride + fragment_column(me, i);
        FRAGMENT_UNROLL
        for (uint j = 0; j < ACROSS; j++) {
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
struct dropout {
    float rate, factor; /* of what is kept */
    uint2 key;
    ulong first_row; /* of token 0 of this sequence in the global batch */
    uint element;    /* of key 0 */
};

#define KEPT_QUADS(keys) ((keys) / 4 + 1) /* of a row whose first element need not begin one */

/* For queries from `query` on and keys from `key` on. */
INLINED void kept_fill(__local uchar *kept, struct dropout dropout, uint queries, uint query, uint keys, uint key) {
    const uint quads = KEPT_QUADS(keys);
    for (uint i = get_local_id(0); i < queries * quads; i += ITEMS) {
        const ulong row = dropout.first_row + query + i / quads;
        const uint4 words =
            philox((uint4)((dropout.element + key) / 4 + i % quads, 0, (uint)row, (uint)(row >> 32)), dropout.key);
        const uint4 bits = (uint4)(1, 2, 4, 8);
        const uint4 set = select((uint4)(0), bits, convert_float4(words >> 8) * 0x1p-24f >= dropout.rate);
        kept[i] = (uchar)(set.x | set.y | set.z | set.w);
    }
}

/* Factor of a query and a key, both counted in what kept_fill was called for. */
INLINED float kept_factor(__local const uchar *kept, struct dropout dropout, uint keys, uint key, uint query_at,
                          uint key_at) {
    const uint element = (dropout.element + key) % 4 + key_at;
    return kept[query_at * KEPT_QUADS(keys) + element / 4] >> element % 4 & 1 ? dropout.factor : 0.0f;
}

/* ---- which head, and which of its blocks of ROWS; the longest come first */
struct place {
    size_t head;   /* of the batch */
    size_t token;  /* the head's first one */
    uint first;    /* row of the block */
    uint width;    /* C */
    size_t column; /* of the head, in C */
    size_t qkv;    /* where its rows begin in qkv */
    struct dropout dropout;
};

INLINED struct place place_of(bool queries, uint heads, uint sequence, float rate, ulong dropout_key,
                              ulong first_row) {
    const uint blocks = (sequence - 1) / ROWS + 1, block = get_group_id(0) % blocks;
    struct place place;
    place.head = get_group_id(0) / blocks;
    place.token = place.head / heads * sequence;
    place.first = (queries ? blocks - 1 - block : block) * ROWS;
    place.width = heads * HEAD_SIZE;
    place.column = place.head % heads * HEAD_SIZE;
    place.qkv = place.token * 3 * place.width + place.column;
    place.dropout.rate = rate;
    place.dropout.factor = 1.0f / (1.0f - rate);
    place.dropout.key = philox_key(dropout_key);
    place.dropout.first_row = first_row + place.token;
    place.dropout.element = place.head % heads * sequence;
    return place;
}

/* ---- the mask, only where it cuts: scores of keys after a query become -infinity. A fragment's first key is
 * `ahead` of its first query; with `keys_down` rows are keys and columns queries, else the other way round. */
INLINED void fragment_mask(struct work_item me, bool keys_down, int ahead, fragment_c *s) {
    if (ahead + (int)(keys_down ? FRAGMENT_M : FRAGMENT_N) <= 1)
        return;
    FRAGMENT_UNROLL
    for (uint i = 0; i < FRAGMENT_ELEMENTS; i++) {
        const int row = fragment_row(me, i), column = fragment_column(me, i);
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
INLINED void softmax_add(struct work_item me, struct softmax *softmax, fragment_c *s, fragment_c *y) {
    float highest[LANE_ROWS], shrink[LANE_ROWS];
    FRAGMENT_UNROLL
    for (uint r = 0; r < LANE_ROWS; r++)
        highest[r] = softmax->highest[r];
    FRAGMENT_UNROLL
    for (uint n = 0; n < KEYS / FRAGMENT_N; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++) {
            s[n].v[i] *= SCORE_SCALE;
            highest[LANE_ROW_OF(i)] = fmax(highest[LANE_ROW_OF(i)], s[n].v[i]);
        }
    }
    FRAGMENT_UNROLL
    for (uint r = 0; r < LANE_ROWS; r++) {
        highest[r] = fragment_row_max(me, highest[r]);
        shrink[r] = power_of_two(softmax->highest[r] - highest[r]);
        softmax->highest[r] = highest[r];
        softmax->sum[r] *= shrink[r];
    }
    FRAGMENT_UNROLL
    for (uint n = 0; n < KEYS / FRAGMENT_N; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++) {
            s[n].v[i] = power_of_two(s[n].v[i] - highest[LANE_ROW_OF(i)]);
            softmax->sum[LANE_ROW_OF(i)] += s[n].v[i];
        }
    }
    FRAGMENT_UNROLL
    for (uint j = 0; j < ACROSS; j++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++)
            y[j].v[i] *= shrink[LANE_ROW_OF(i)];
    }
}

INLINED void softmax_drop(struct work_item me, __local const uchar *kept, struct dropout dropout, uint key,
                          fragment_c *p) {
    FRAGMENT_UNROLL
    for (uint n = 0; n < KEYS / FRAGMENT_N; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++)
            p[n].v[i] *= kept_factor(kept, dropout, KEYS, key, me.warp * FRAGMENT_M + fragment_row(me, i),
                                     n * FRAGMENT_N + fragment_column(me, i));
    }
}

/* sum / its total, and lse, of the warp's rows */
INLINED void softmax_finish(struct work_item me, struct softmax *softmax, struct place place, uint sequence,
                            fragment_c *sum, __global float *lse) {
    float factors[LANE_ROWS];
    FRAGMENT_UNROLL
    for (uint r = 0; r < LANE_ROWS; r++) {
        const uint query = place.first + me.warp * FRAGMENT_M + fragment_row(me, LANE_IN_ROW(r));
        const float total = fragment_row_sum(me, softmax->sum[r]);
        factors[r] = 1.0f / total;
        if (query < sequence && me.lane % ROW_LANES == 0)
            lse[place.head * sequence + query] = (softmax->highest[r] + log2(total)) * LN2;
    }
    FRAGMENT_UNROLL
    for (uint j = 0; j < ACROSS; j++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++)
            sum[j].v[i] *= factors[LANE_ROW_OF(i)];
    }
}

/* What a group has in local memory forward: K and V, the rows that stay unless they are in registers, what is
 * turned, what is kept. */
struct forward_memory {
    __local ushort *keys, *values, *own, *turn;
    __local uchar *kept;
};

/* What a group does. `drops` is known to the compiler. */
INLINED void forward(struct work_item me, bool drops, struct place place, uint sequence,
                     struct forward_memory memory, __global const ushort *rows, __global ushort *y,
                     __global float *lse) {
    const uint stride = 3 * place.width;
    const uint end = min(place.first + ROWS, sequence); /* of the keys */
    const stay_t query = stay_load(me, rows, stride, place.first, sequence, memory.keys, memory.own);
    fragment_c sum[ACROSS], p[KEYS / FRAGMENT_N];
    struct softmax softmax;
    FRAGMENT_UNROLL
    for (uint r = 0; r < LANE_ROWS; r++) {
        softmax.highest[r] = -INFINITY;
        softmax.sum[r] = 0.0f;
    }
    FRAGMENTS_CLEAR(sum, ACROSS);
    tile_copy(memory.keys, KEYS, rows + place.width, stride, 0, sequence);
    copy_commit();
    for (uint start = 0; start < end; start += KEYS) {
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* K is there, and nobody reads the V before */
        tile_copy(memory.values, KEYS, rows + 2 * place.width, stride, start, sequence);
        copy_commit();
        if (drops)
            kept_fill(memory.kept, place.dropout, ROWS, place.first, KEYS, start);
        rows_multiply(me, &query, memory.keys, KEYS, 0, KEYS, p);
        FRAGMENT_UNROLL
        for (uint n = 0; n < KEYS / FRAGMENT_N; n++)
            fragment_mask(me, false, (int)(start + n * FRAGMENT_N) - (int)(place.first + me.warp * FRAGMENT_M),
                          &p[n]);
        softmax_add(me, &softmax, p, sum);
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* V and what is kept are there, and nobody reads this K */
        if (start + KEYS < end)
            tile_copy(memory.keys, KEYS, rows + place.width, stride, start + KEYS, sequence);
        copy_commit();
        if (drops)
            softmax_drop(me, memory.kept, place.dropout, start, p);
        FRAGMENT_UNROLL
        for (uint k = 0; k < KEYS; k += FRAGMENT_K)
            rows_add(me, p + k / FRAGMENT_N, memory.turn, memory.values, KEYS, k, sum);
    }
    softmax_finish(me, &softmax, place, sequence, sum, lse);
    rows_store(me, sum, 1.0f, place.first, sequence, y + place.token * place.width + place.column, place.width);
}

/* qkv [B, T, 3, H, D] -> y [B, T, H, D], lse [B, H, T]. Groups: B H ceil(T / ROWS). Without dropout this is a
 * kernel of its own, since the registers that dropout takes would cost it a third of its groups. */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_forward(__global const ushort *qkv, uint heads, uint sequence, __global ushort *y,
                                    __global float *lse) {
    __local ushort tiles[2][KEYS * HEAD_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 1);
    TURN_DECLARE(turn);
    MATRIX_BEGIN(me, WARPS);
    const struct place place = place_of(true, heads, sequence, 0.0f, 0, 0);
    const struct forward_memory memory = {tiles[0], tiles[1], own[0], turn, 0};
    forward(me, false, place, sequence, memory, qkv + place.qkv, y, lse);
}

MATRIX_KERNEL(WARPS)
void attention_matrix_cores_forward_dropout(__global const ushort *qkv, uint heads, uint sequence,
                                            float dropout_rate, ulong dropout_key, ulong first_row,
                                            __global ushort *y, __global float *lse) {
    __local ushort tiles[2][KEYS * HEAD_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 1);
    TURN_DECLARE(turn);
    __local uchar kept[ROWS * KEPT_QUADS(KEYS)];
    MATRIX_BEGIN(me, WARPS);
    const struct place place = place_of(true, heads, sequence, dropout_rate, dropout_key, first_row);
    const struct forward_memory memory = {tiles[0], tiles[1], own[0], turn, kept};
    forward(me, true, place, sequence, memory, qkv + place.qkv, y, lse);
}

/* ---- backward */

/* The rows that pass: of K and V, or of Q and dY, in blocks, of which two are in local memory, one of them on its
 * way. */
struct passing {
    __global const ushort *first, *second;
    uint first_stride, second_stride;
    __local ushort *tiles; /* [2 stages][2][BLOCK, HEAD_SIZE] */
};

#define PASSING_SIZE (2 * 2 * BLOCK * HEAD_SIZE)

INLINED __local ushort *passing_tile(struct passing passing, uint stage, uint which) {
    return passing.tiles + (stage * 2 + which) * BLOCK * HEAD_SIZE;
}

INLINED void passing_copy(struct passing passing, uint stage, uint row, uint end) {
    tile_copy(passing_tile(passing, stage, 0), BLOCK, passing.first, passing.first_stride, row, end);
    tile_copy(passing_tile(passing, stage, 1), BLOCK, passing.second, passing.second_stride, row, end);
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
    uint row, column;                 /* where the scores begin, in the block */
    __local const float *lse, *delta; /* of the queries of the block; lse times LOG2E */
    __local const uchar *kept;        /* of the block */
};

/* In place: s becomes p with dropout, d_p becomes ds. */
INLINED void scores_backward(struct work_item me, struct scores at, struct dropout dropout, fragment_c *s,
                             fragment_c *d_p) {
    const int ahead = (int)(at.key - at.query) + (int)(at.keys_down ? at.row - at.column : at.column - at.row);
    const bool apart =
        !at.keys_down || HEAD_SIZE <= 64; /* wider heads leave the last kernel no register for a branch */
    FRAGMENT_UNROLL
    for (uint n = 0; n < STRIP / FRAGMENT_N; n++) {
        if (apart)
            fragment_mask(me, at.keys_down,
                          at.keys_down ? ahead - (int)(n * FRAGMENT_N) : ahead + (int)(n * FRAGMENT_N), &s[n]);
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++) {
            const uint row = at.row + fragment_row(me, i),
                       column = at.column + n * FRAGMENT_N + fragment_column(me, i);
            const uint query = at.keys_down ? column : row, key = at.keys_down ? row : column;
            const float power = power_of_two(SCORE_SCALE * s[n].v[i] - at.lse[query]);
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
INLINED void delta_rows(__global const ushort *y, __global const ushort *d_y, uint stride, uint first, uint end,
                        __local float *parts, __local float *delta, __global float *delta_all) {
    const uint row = first + get_local_id(0) / DELTA_SHARING;
    float sum = 0.0f;
    for (uint d = get_local_id(0) % DELTA_SHARING * CHUNK; d < HEAD_SIZE && row < end; d += DELTA_SHARING * CHUNK) {
        const ushort8 a = vload8(0, y + row * stride + d), b = vload8(0, d_y + row * stride + d);
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

/* dq into d_qkv [B, T, 3, H, D], and delta [B, H, T] for attention_matrix_cores_backward_keys. Groups as
 * forward. */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_backward_queries(__global const ushort *qkv, __global const ushort *y,
                                             __global const ushort *d_y, __global const float *lse_all, uint heads,
                                             uint sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                             __global ushort *d_qkv, __global float *delta_all) {
    __local ushort tiles[PASSING_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 2);
    TURN_DECLARE(turn);
    __local float lse[ROWS], delta[ROWS], parts[ITEMS];
    __local uchar kept[2][ROWS * KEPT_QUADS(BLOCK)];
    MATRIX_BEGIN(me, WARPS);
    const struct place place = place_of(true, heads, sequence, dropout_rate, dropout_key, first_row);
    const uint stride = 3 * place.width, narrow = place.token * place.width + place.column;
    __global const ushort *rows = qkv + place.qkv;
    const struct passing passing = {rows + place.width, rows + 2 * place.width, stride, stride, tiles};
    const uint first = place.first, end = min(first + ROWS, sequence); /* of the keys */
    const stay_t query = stay_load(me, rows, stride, first, sequence, tiles, own[0]);
    const stay_t d_out = stay_load(me, d_y + narrow, place.width, first, sequence, tiles, own[1]);
    passing_copy(passing, 0, 0, sequence);
    if (dropout_rate > 0.0f)
        kept_fill(kept[0], place.dropout, ROWS, first, BLOCK, 0);
    values_copy(lse, ROWS, lse_all + place.head * sequence, first, sequence, LOG2E);
    delta_rows(y + narrow, d_y + narrow, place.width, first, sequence, parts, delta,
               delta_all + place.head * sequence);
    fragment_c sum[ACROSS], s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    FRAGMENTS_CLEAR(sum, ACROSS);
    for (uint start = 0, stage = 0; start < end; start += BLOCK, stage ^= 1) {
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
        if (start + BLOCK < end) {
            passing_copy(passing, stage ^ 1, start + BLOCK, sequence);
            if (dropout_rate > 0.0f)
                kept_fill(kept[stage ^ 1], place.dropout, ROWS, first, BLOCK, start + BLOCK);
        }
        for (uint strip = 0; strip < BLOCK; strip += STRIP) {
            const struct scores at = {false, first, start, me.warp * FRAGMENT_M, strip, lse, delta, kept[stage]};
            rows_multiply(me, &query, passing_tile(passing, stage, 0), BLOCK, strip, STRIP, s);
            rows_multiply(me, &d_out, passing_tile(passing, stage, 1), BLOCK, strip, STRIP, d_p);
            scores_backward(me, at, place.dropout, s, d_p);
            FRAGMENT_UNROLL
            for (uint k = 0; k < STRIP; k += FRAGMENT_K)
                rows_add(me, d_p + k / FRAGMENT_N, turn, passing_tile(passing, stage, 0), BLOCK, strip + k, sum);
        }
    }
    rows_store(me, sum, rsqrt((float)HEAD_SIZE), first, sequence, d_qkv + place.qkv, stride);
}

/* What goes with a block of queries that passes. */
struct passing_values {
    __global const float *lse_from, *delta_from;
    __local float *lse, *delta; /* [2 stages][BLOCK] */
    __local uchar *kept;        /* [2 stages][BLOCK, KEPT_QUADS(ROWS)] */
};

INLINED void queries_copy(struct passing passing, struct passing_values values, struct dropout dropout, uint stage,
                          uint query, uint key, uint sequence) {
    passing_copy(passing, stage, query, sequence);
    values_copy(values.lse + stage * BLOCK, BLOCK, values.lse_from, query, sequence, LOG2E);
    values_copy(values.delta + stage * BLOCK, BLOCK, values.delta_from, query, sequence, 1.0f);
    if (dropout.rate > 0.0f)
        kept_fill(values.kept + stage * BLOCK * KEPT_QUADS(ROWS), dropout, BLOCK, query, ROWS, key);
}

/* dk and dv into d_qkv [B, T, 3, H, D]. Groups as forward. */
MATRIX_KERNEL(WARPS)
void attention_matrix_cores_backward_keys(__global const ushort *qkv, __global const ushort *d_y,
                                          __global const float *lse_all, __global const float *delta_all,
                                          uint heads, uint sequence, float dropout_rate, ulong dropout_key,
                                          ulong first_row, __global ushort *d_qkv) {
    __local ushort tiles[PASSING_SIZE] __attribute__((aligned(16)));
    OWN_DECLARE(own, 2);
    TURN_DECLARE(turn);
    __local float lse[2 * BLOCK], delta[2 * BLOCK];
    __local uchar kept[2 * BLOCK * KEPT_QUADS(ROWS)];
    MATRIX_BEGIN(me, WARPS);
    const struct place place = place_of(false, heads, sequence, dropout_rate, dropout_key, first_row);
    const uint stride = 3 * place.width;
    __global const ushort *rows = qkv + place.qkv;
    const struct passing passing = {rows, d_y + place.token * place.width + place.column, stride, place.width,
                                    tiles};
    const struct passing_values values = {lse_all + place.head * sequence, delta_all + place.head * sequence, lse,
                                          delta, kept};
    const uint first = place.first;
    const stay_t key = stay_load(me, rows + place.width, stride, first, sequence, tiles, own[0]);
    const stay_t value = stay_load(me, rows + 2 * place.width, stride, first, sequence, tiles, own[1]);
    fragment_c d_key[ACROSS], d_value[ACROSS], s[STRIP / FRAGMENT_N], d_p[STRIP / FRAGMENT_N];
    FRAGMENTS_CLEAR(d_key, ACROSS);
    FRAGMENTS_CLEAR(d_value, ACROSS);
    queries_copy(passing, values, place.dropout, 0, first, first, sequence);
    for (uint start = first, stage = 0; start < sequence; start += BLOCK, stage ^= 1) {
        COPY_WAIT(0);
        barrier(CLK_LOCAL_MEM_FENCE); /* this block is there, and nobody reads the one before */
        if (start + BLOCK < sequence)
            queries_copy(passing, values, place.dropout, stage ^ 1, start + BLOCK, first, sequence);
        for (uint strip = 0; strip < BLOCK; strip += STRIP) {
            const struct scores at = {true,
                                      start,
                                      first,
                                      me.warp * FRAGMENT_M,
                                      strip,
                                      lse + stage * BLOCK,
                                      delta + stage * BLOCK,
                                      kept + stage * BLOCK * KEPT_QUADS(ROWS)};
            rows_multiply(me, &key, passing_tile(passing, stage, 0), BLOCK, strip, STRIP, s);
            rows_multiply(me, &value, passing_tile(passing, stage, 1), BLOCK, strip, STRIP, d_p);
            scores_backward(me, at, place.dropout, s, d_p);
            FRAGMENT_UNROLL
            for (uint q = 0; q < STRIP; q += FRAGMENT_K) {
                rows_add(me, s + q / FRAGMENT_N, turn, passing_tile(passing, stage, 1), BLOCK, strip + q, d_value);
                rows_add(me, d_p + q / FRAGMENT_N, turn, passing_tile(passing, stage, 0), BLOCK, strip + q, d_key);
            }
        }
    }
    __global ushort *d_rows = d_qkv + place.qkv;
    rows_store(me, d_key, rsqrt((float)HEAD_SIZE), first, sequence, d_rows + place.width, stride);
    rows_store(me, d_value, 1.0f, first, sequence, d_rows + 2 * place.width, stride);
}
