/* Attention forward and backward (attention.cl has the formulas) on GPUs: a work-group has one tile of scores at a
 * time in its registers, and the matrices that it multiplies pass through local memory.
 *
 *   attention_forward           a group has rows of queries; over blocks of keys:
 *                               S = Q K^T, P = exp(S - highest), Y += P V
 *   attention_backward_queries  a group has rows of queries; over blocks of keys:
 *                               S = Q K^T, dP = dY V^T, dQ += dS K
 *   attention_backward_keys     a group has rows of keys; over its query heads and their blocks of queries:
 *                               S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q
 *
 * A work-group is a grid of ACROSS x DOWN work-items; (x, y) is a work-item's place in it. A tile of scores has
 * TILE_ROWS = 4 DOWN rows and TILE_COLUMNS = 4 ACROSS columns. Work-item (x, y) has 4 x 4 of them in registers:
 * rows y, y + DOWN, y + 2 DOWN, y + 3 DOWN and columns 4 x .. 4 x + 3. Of the same rows of the output (Y, dQ, or
 * dK and dV) it has the quads x, x + ACROSS, ... A quad is four neighbouring columns or channels, the unit of
 * memory accesses.
 *
 * A block has two phases. (1) Scores: local memory, `stage`, holds one slice at a time: SLICE_QUADS quads of every
 * row and every column. (2) Sums: `tile`, also local memory, holds the scores, and `stage` one chunk at a time:
 * CHUNK_ROWS rows of CHUNK_QUADS quads. The next slice or chunk is loaded into registers meanwhile. Quads are
 * permuted (XOR) in both, so that reads hit all banks without padding. Blocks entirely above the diagonal are
 * skipped, and the mask is applied only in blocks that the diagonal crosses. Groups share nothing and do the same
 * work on every run: results are the same to the bit.
 *
 * Loads past the end of the sequence read its last row instead. The results are masked if they are columns of the
 * tile, and not stored if they are rows.
 *
 * Registers limit the speed. So each address is (number of the work-item) + (loop counter) + constants, and values
 * that are uniform in a group stay in expressions that compilers recognise as uniform.
 *
 * Build constants, besides those of attention.cl: ACROSS and DOWN, powers of two from 8 on; SCALE, the scale of
 * scores; KEYS_STAY: 1 if a group has a block of keys and goes over queries (attention_backward_keys), 0
 * if it has a block of queries and goes over keys (the other two); the file is built once for each. */
#include "attention.cl"

#define ITEMS        (ACROSS * DOWN)
#define ITEM_ROWS    4 /* rows of the tile that a work-item has */
#define TILE_ROWS    (DOWN * ITEM_ROWS)
#define TILE_COLUMNS (ACROSS * 4)
#define HEAD_QUADS   ((HEAD_SIZE + 3) / 4)
#define SLICE_QUADS  4
#define SLICES       ((HEAD_QUADS + SLICE_QUADS - 1) / SLICE_QUADS)
#define SLICE_SLOTS  (TILE_ROWS + TILE_COLUMNS)
#define SHARE_SLOTS  (ITEMS / SLICE_QUADS) /* slots that all work-items together load in one step */
#define SLICE_SHARE  ((SLICE_SLOTS + SHARE_SLOTS - 1) / SHARE_SLOTS)
#define SUM_QUADS    ((HEAD_QUADS + ACROSS - 1) / ACROSS) /* quads of an output row that a work-item has */
/* clspv mixes up the indices of arrays of arrays of one element, unless UNROLL_LANES unrolls. */
#define SUM_ARRAY   (SUM_QUADS > 1 || LANES >= 32 ? SUM_QUADS : 2)
#define CHUNK_WIDTH (SUM_QUADS > 1 ? 2 : 1) /* quads of a work-item in a chunk */
#define CHUNKS      ((SUM_QUADS + CHUNK_WIDTH - 1) / CHUNK_WIDTH)
#define CHUNK_QUADS (CHUNK_WIDTH * ACROSS)
#define CHUNK_ROWS  (512 / CHUNK_QUADS < TILE_COLUMNS ? 512 / CHUNK_QUADS : TILE_COLUMNS)
#define CHUNK_SHARE (CHUNK_ROWS * CHUNK_QUADS / ITEMS)
#define STAGE_SIZE  (SLICE_SLOTS * SLICE_QUADS > 512 ? SLICE_SLOTS * SLICE_QUADS : 512)
#define TILE_SIZE   (TILE_ROWS * TILE_COLUMNS / 4)

/* Keeps the compiler from unrolling a loop; unrolled it needs more registers. */
#define ROLLED      UNROLL(1)
#define TILE_KERNEL __kernel SUB_GROUP_SIZE __attribute__((reqd_work_group_size(ITEMS, 1, 1)))

/* ---- quads of a head's rows as they are in memory, where they are aligned if heads are whole quads */
#if HEAD_SIZE % 4 == 0 && ACT == 1
typedef ushort4 quad_t;
#define QUAD_VALUE(v) as_float4(convert_uint4(v) << 16)
#else
typedef float4 quad_t;
#define QUAD_VALUE(v) (v)
#endif

INLINED quad_t quad_load(__global const act_t *from, int quad) {
#if HEAD_SIZE % 4 != 0
    const int left = HEAD_SIZE - 4 * quad;
    return (float4)(ACT_LOAD_SCALAR(from), left > 1 ? ACT_LOAD_SCALAR(from + 1) : 0.0f,
                    left > 2 ? ACT_LOAD_SCALAR(from + 2) : 0.0f, left > 3 ? ACT_LOAD_SCALAR(from + 3) : 0.0f);
#elif ACT == 2 && !defined(FP16_IN_PRIVATE)
    return vloada_half4(0, from);
#elif ACT == 2
    const ushort4 stored = *(__global const ushort4 *)from;
    return vload_half4(0, (const half *)&stored);
#else
    return *(__global const quad_t *)from;
#endif
}

INLINED void quad_store(float4 value, __global act_t *to, int quad) {
#if HEAD_SIZE % 4 != 0
    const int left = HEAD_SIZE - 4 * quad;
    const float values[4] = {value.x, value.y, value.z, value.w};
    UNROLL(4) for (int i = 0; i < 4; i++) {
        if (i == 0 || i < left) {
            ACT_STORE_SCALAR(values[i], to + i);
        }
    }
#else
    ACT_STORE_N(4, value, to);
#endif
}

/* Some rows of a head, the last of which stands for all after it. */
struct rows {
    __global const act_t *at;
    int stride, last;
};

/* Initialises rows from `first` on of a head's matrix [T, stride]. */
#define ROWS_OF(matrix, stride, first, sequence)                                                                   \
    {(matrix) + (size_t)(first) * (stride), (stride), (sequence) - 1 - (first)}

/* Loads a quad of row `row` + `more`, or of the last row if there is no such row. `more` must be the same for all
 * work-items. For a quad past the row's end the result is arbitrary. */
INLINED quad_t rows_quad(const struct rows *rows, int row, int more, int quad) {
    const int in_row = min(quad, HEAD_QUADS - 1);
    __global const char *from = (__global const char *)(rows->at + (size_t)min(more, rows->last) * rows->stride);
    const int element = min(row, max(rows->last - more, 0)) * rows->stride + 4 * in_row;
    return quad_load((__global const act_t *)(from + (uint)element * (uint)sizeof(act_t)), in_row);
}

/* ---- a work-item's number, and its place (x, y) */
struct item {
    int number, x, y;
};

/* Initialises that of the work-item that runs this. */
#define THIS_ITEM {get_local_id(0), get_local_id(0) % ACROSS, get_local_id(0) / ACROSS}

/* Index in the tile of a quad of the work-item's row number i; its own scores are quad x. */
INLINED int tile_at(const struct item *item, int i, int quad) {
    return ((item->y * ACROSS + item->y % 8) ^ quad) + i * ITEMS;
}

/* ---- scores
 *
 * Slots 0 .. TILE_ROWS - 1 of a slice are rows. The TILE_COLUMNS slots behind them are columns in another order:
 * column 4 x + n is in slot TILE_ROWS + n ACROSS + x, so that neighbouring work-items read neighbouring slots. */

/* Index in the stage of a quad of slot `slot` + `more`; `more` is a multiple of eight. */
INLINED int slice_at(int slot, int more, int quad) {
    return ((slot * SLICE_QUADS + slot / 2 % 4) ^ quad) + more * SLICE_QUADS;
}

/* Loads the quad of slot `slot` + `more` from memory. */
INLINED quad_t slot_quad(const struct rows *rows, const struct rows *columns, int slot, int more, int quad) {
    const int column = slot % ACROSS * 4 + slot / ACROSS;
    if (more + SHARE_SLOTS <= TILE_ROWS) {
        return rows_quad(rows, slot, more, quad);
    }
    if (more >= TILE_ROWS) {
        return rows_quad(columns, column, (more - TILE_ROWS) / ACROSS, quad);
    }
    return slot + more < TILE_ROWS
               ? rows_quad(rows, slot, more, quad)
               : rows_quad(columns, (slot + more - TILE_ROWS) % ACROSS * 4 + (slot + more - TILE_ROWS) / ACROSS, 0,
                           quad);
}

/* Loads a work-item's share of slice number `slice` into registers. */
INLINED void slice_fetch(const struct item *item, const struct rows *rows, const struct rows *columns, int slice,
                         quad_t *quads) {
    UNROLL_LANES(SLICE_SHARE) for (int n = 0; n < SLICE_SHARE; n++) {
        quads[n] = slot_quad(rows, columns, item->number / SLICE_QUADS, n * SHARE_SLOTS,
                             slice * SLICE_QUADS + item->number % SLICE_QUADS);
    }
}

INLINED void slice_put(const struct item *item, int slice, const quad_t *quads, __local float4 *stage) {
    const int quad = item->number % SLICE_QUADS, slot = item->number / SLICE_QUADS;
    const bool there = HEAD_QUADS % SLICE_QUADS == 0 || slice * SLICE_QUADS + quad < HEAD_QUADS;
    UNROLL_LANES(SLICE_SHARE) for (int n = 0; n < SLICE_SHARE; n++) {
        if ((n + 1) * SHARE_SLOTS <= SLICE_SLOTS || slot + n * SHARE_SLOTS < SLICE_SLOTS) {
            stage[slice_at(slot, n * SHARE_SLOTS, quad)] = there ? QUAD_VALUE(quads[n]) : (float4)(0.0f);
        }
    }
}

INLINED void slice_multiply(const struct item *item, __local const float4 *stage, float (*scores)[4]) {
    ROLLED for (int quad = 0; quad < SLICE_QUADS; quad++) {
        float4 rows[ITEM_ROWS];
        UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
            rows[i] = stage[slice_at(item->y, i * DOWN, quad)];
        }
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const float4 column = stage[slice_at(item->x, TILE_ROWS + n * ACROSS, quad)];
            UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
                scores[i][n] += rows[i].x * column.x;
                scores[i][n] += rows[i].y * column.y;
                scores[i][n] += rows[i].z * column.z;
                scores[i][n] += rows[i].w * column.w;
            }
        }
    }
}

/* scores [TILE_ROWS, TILE_COLUMNS] = rows [TILE_ROWS, D] times columns^T [D, TILE_COLUMNS]. Callers need no
 * barrier before it. It ends without one: code that writes `stage` next must begin with a barrier. */
INLINED void scores_multiply(const struct item *item, const struct rows *rows, const struct rows *columns,
                             __local float4 *stage, float (*scores)[4]) {
    quad_t quads[SLICE_SHARE];
    slice_fetch(item, rows, columns, 0, quads);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        CLEAR(float, scores[i], 4);
    }
    ROLLED for (int slice = 0; slice < SLICES; slice++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        slice_put(item, slice, quads, stage);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (slice + 1 < SLICES) {
            slice_fetch(item, rows, columns, slice + 1, quads);
        }
        slice_multiply(item, stage, scores);
    }
}

/* Stores the work-item's scores in the tile. */
INLINED void tile_put(const struct item *item, float (*scores)[4], __local float4 *tile) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        tile[tile_at(item, i, item->x)] = (float4)(scores[i][0], scores[i][1], scores[i][2], scores[i][3]);
    }
}

/* ---- sums */

/* Loads a work-item's share of a chunk of the rows from `first` on into registers. */
INLINED void chunk_fetch(const struct item *item, const struct rows *rows, int chunk, int first, quad_t *quads) {
    UNROLL_LANES(CHUNK_SHARE) for (int n = 0; n < CHUNK_SHARE; n++) {
        quads[n] = rows_quad(rows, item->number / CHUNK_QUADS, first + n * (ITEMS / CHUNK_QUADS),
                             chunk * CHUNK_QUADS + item->number % CHUNK_QUADS);
    }
}

/* sums of one chunk += the tile's columns from quad `first` on, times the rows in the stage. */
INLINED void chunk_add(const struct item *item, __local const float4 *tile, int first, int chunk,
                       __local const float4 *stage, float4 (*sums)[SUM_ARRAY]) {
    ROLLED for (int pair = 0; pair < CHUNK_ROWS / 2; pair++) {
        __local const float4 *from = stage + pair * 2 * CHUNK_QUADS + item->x;
        float factors[ITEM_ROWS][2];
        UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
            __local const float *two =
                (__local const float *)(tile + tile_at(item, i, first + pair / 2)) + 2 * (pair % 2);
            factors[i][0] = two[0];
            factors[i][1] = two[1];
        }
        UNROLL_LANES(2) for (int n = 0; n < CHUNK_WIDTH; n++) {
            const int at = chunk * CHUNK_WIDTH + n;
            if (at < SUM_QUADS) {
                UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
                    sums[i][at] += factors[i][0] * from[n * ACROSS];
                    sums[i][at] += factors[i][1] * from[n * ACROSS + CHUNK_QUADS];
                }
            }
        }
    }
}

/* sums [TILE_ROWS, D] += tile [TILE_ROWS, TILE_COLUMNS] times `rows` [TILE_COLUMNS, D]. Callers need no barrier
 * before it. It ends without one: code that writes the tile or `stage` next must begin with a barrier. */
INLINED void sums_add(const struct item *item, __local const float4 *tile, const struct rows *rows,
                      __local float4 *stage, float4 (*sums)[SUM_ARRAY]) {
    quad_t quads[CHUNK_SHARE];
    chunk_fetch(item, rows, 0, 0, quads);
    UNROLL_LANES(CHUNKS) for (int chunk = 0; chunk < CHUNKS; chunk++) {
        ROLLED for (int first = 0; first < TILE_COLUMNS; first += CHUNK_ROWS) {
            const bool ends = first + CHUNK_ROWS == TILE_COLUMNS;
            barrier(CLK_LOCAL_MEM_FENCE);
            UNROLL_LANES(CHUNK_SHARE) for (int n = 0; n < CHUNK_SHARE; n++) {
                stage[item->number + n * ITEMS] = QUAD_VALUE(quads[n]);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (!ends || chunk + 1 < CHUNKS) {
                chunk_fetch(item, rows, ends ? chunk + 1 : chunk, ends ? 0 : first + CHUNK_ROWS, quads);
            }
            chunk_add(item, tile, first / 4, chunk, stage, sums);
        }
    }
}

INLINED void sums_clear(float4 (*sums)[SUM_ARRAY]) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        CLEAR(float4, sums[i], SUM_QUADS);
    }
}

/* Stores factor times sums [TILE_ROWS, D] in rows 0 .. count - 1 of `to`. */
INLINED void sums_store(const struct item *item, float4 (*sums)[SUM_ARRAY], float factor, __global act_t *to,
                        int stride, int count) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            const int quad = n * ACROSS + item->x;
            if (item->y + i * DOWN < count && quad < HEAD_QUADS) {
                quad_store(factor * sums[i][n], to + (item->y + i * DOWN) * stride + 4 * quad, quad);
            }
        }
    }
}

/* ---- a group's head and its block of rows in it; the blocks with most work come first */

/* Finds the group's head, and its block there, whose first row it returns. */
INLINED int block_find(int sequence, float rate, ulong dropout_key, ulong first_row, struct head *head) {
    const uint blocks = (sequence - 1) / TILE_ROWS + 1;
    const uint number = get_group_id(0) / blocks, in_head = get_group_id(0) % blocks;
    head_find(KEYS_STAY ? number * KV_GROUP : number, sequence, rate, dropout_key, first_row, head);
    return (KEYS_STAY ? in_head : blocks - 1 - in_head) * TILE_ROWS;
}

/* Applies dropout to the work-item's own elements of the tile: multiplies them by 0 or 1 / (1 - rate). With `mark`
 * it only negates the dropped ones, since tile_backward needs their values. Philox is too long to be unrolled. */
INLINED void tile_drop(const struct item *item, const struct dropout *dropout, int first, int start, bool mark,
                       __local float4 *tile) {
    ROLLED for (int i = 0; i < 4 * ITEM_ROWS; i++) {
        const int row = first + item->y + i / 4 * DOWN, column = start + 4 * item->x + i % 4;
        const float factor = attention_factor(dropout, KEYS_STAY ? column : row, KEYS_STAY ? row : column);
        __local float *element = (__local float *)(tile + tile_at(item, i / 4, item->x)) + i % 4;
        *element *= !mark ? factor : factor == 0.0f ? -1.0f : 1.0f;
    }
}

/* Scores become `value` for keys after a query, and, if KEYS_STAY, for queries past the end. */
INLINED void scores_mask(const struct item *item, int first, int start, int sequence, float value,
                         float (*scores)[4]) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const int ahead = 4 * item->x - item->y, row_ahead = first - start + i * DOWN - n;
            const bool masked =
                KEYS_STAY ? ahead < row_ahead || 4 * item->x >= sequence - start - n : ahead > row_ahead;
            scores[i][n] = masked ? value : scores[i][n];
        }
    }
}

#if !KEYS_STAY
/* Replaces values[i] by the maximum (`highest`) or the sum over all ACROSS work-items of row i. It begins with a
 * barrier; whoever writes `stage` next must begin with one, too. */
INLINED void rows_combine(const struct item *item, bool highest, __local float4 *stage, float *values) {
    __local float *own = (__local float *)stage + item->number;
    __local const float4 *row = stage + item->y * (ACROSS / 4);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        own[i * ITEMS] = values[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 all[ITEM_ROWS];
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        all[i] = row[i * (ITEMS / 4)];
    }
    ROLLED for (int n = 1; n < ACROSS / 4; n++) {
        UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
            const float4 more = row[i * (ITEMS / 4) + n];
            all[i] = highest ? fmax(all[i], more) : all[i] + more;
        }
    }
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        values[i] = highest ? highest4(all[i]) : sum4(all[i]);
    }
}

/* ---- forward */

/* The online softmax of a work-item's rows. */
struct softmax {
    float highest[ITEM_ROWS]; /* maximum of the row's scores so far, times LOG2E */
    float sum[ITEM_ROWS];     /* of exp(s - highest), over the work-item's own columns */
};

/* One step of the online softmax: takes the new block's maximum into `highest`, multiplies the running sum and the
 * accumulated output y by exp(old highest - new highest), and replaces scores by exp(s - highest). All exponents
 * are powers of 2: scores are multiplied by LOG2E first. */
INLINED void softmax_add(const struct item *item, struct softmax *softmax, __local float4 *stage,
                         float (*scores)[4], float4 (*y)[SUM_ARRAY]) {
    float highest[ITEM_ROWS];
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        highest[i] = softmax->highest[i];
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] *= LOG2E * SCALE;
            highest[i] = fmax(highest[i], scores[i][n]);
        }
    }
    rows_combine(item, true, stage, highest);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        const float rescale = power_of_two(softmax->highest[i] - highest[i]);
        softmax->highest[i] = highest[i];
        softmax->sum[i] *= rescale;
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = power_of_two(scores[i][n] - highest[i]);
            softmax->sum[i] += scores[i][n];
        }
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            y[i][n] *= rescale;
        }
    }
}

/* Writes y = sums / (the softmax's sum) and lse = log sum exp(s) of the block's rows. */
INLINED void softmax_finish(const struct item *item, const struct softmax *softmax, int count,
                            __local float4 *stage, float4 (*sums)[SUM_ARRAY], __global act_t *y,
                            __global float *lse) {
    float factors[ITEM_ROWS];
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        factors[i] = softmax->sum[i];
    }
    rows_combine(item, false, stage, factors);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        if (item->y + i * DOWN < count && item->x == 0) {
            lse[item->y + i * DOWN] = (softmax->highest[i] + log2(factors[i])) * LN2;
        }
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            sums[i][n] *= 1.0f / factors[i];
        }
    }
    sums_store(item, sums, 1.0f, y, Y_ROW, count);
}

/* qkv [B, T, (H + 2 K) D] -> y [B, T, H, D], lse [B, H, T]. Groups: B H ceil(T / TILE_ROWS). */
TILE_KERNEL void attention_forward(__global const act_t *qkv, int sequence, float dropout_rate, ulong dropout_key,
                                   ulong first_row, __global act_t *y, __global float *lse) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct item here = THIS_ITEM, *item = &here;
    struct head head;
    const int first = block_find(sequence, dropout_rate, dropout_key, first_row, &head);
    const int count = sequence - first; /* rows from there on; those from TILE_ROWS on are other groups' */
    const struct rows queries = ROWS_OF(qkv + head.qkv, QKV_ROW, first, sequence);
    const int end = min(first + TILE_ROWS, sequence); /* of the keys */
    float scores[ITEM_ROWS][4];
    float4 sums[ITEM_ROWS][SUM_ARRAY];
    struct softmax softmax;
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        softmax.highest[i] = -INFINITY;
        softmax.sum[i] = 0.0f;
    }
    sums_clear(sums);
    for (int start = 0; start < end; start += TILE_COLUMNS) {
        const struct rows keys = ROWS_OF(qkv + head.keys, QKV_ROW, start, sequence);
        const struct rows values = ROWS_OF(qkv + head.keys + KV_ROW, QKV_ROW, start, sequence);
        scores_multiply(item, &queries, &keys, stage, scores);
        if (start + TILE_COLUMNS > first) {
            scores_mask(item, first, start, sequence, -INFINITY, scores);
        }
        softmax_add(item, &softmax, stage, scores, sums);
        tile_put(item, scores, tile);
        if (dropout_rate > 0.0f) {
            tile_drop(item, &head.dropout, first, start, false, tile);
        }
        sums_add(item, tile, &values, stage, sums);
    }
    softmax_finish(item, &softmax, count, stage, sums, y + head.y + (size_t)first * Y_ROW, lse + head.rows + first);
}
#endif

/* ---- backward */

/* p = exp(SCALE s - lse) in place. `lse` has been multiplied by LOG2E; it has one number for each row of the
 * work-item, or, if KEYS_STAY, where queries are columns, for each of its columns. */
INLINED void scores_powers(float (*scores)[4], const float *lse) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = power_of_two(LOG2E * SCALE * scores[i][n] - lse[KEYS_STAY ? n : i]);
        }
    }
}

/* In place: d_p becomes ds = p (f dp - delta), and the tile's p becomes f p, the factor of dy in dV. f is dropout's
 * factor: 0 where tile_drop has made p negative, else `kept` = 1 / (1 - rate). */
INLINED void tile_backward(const struct item *item, float kept, const float *delta, float (*d_p)[4],
                           __local float4 *tile) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        __local float *own = (__local float *)(tile + tile_at(item, i, item->x));
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const float factor = own[n] < 0.0f ? 0.0f : kept;
            d_p[i][n] = fabs(own[n]) * (factor * d_p[i][n] - delta[KEYS_STAY ? n : i]);
            own[n] *= factor;
        }
    }
}

#if !KEYS_STAY
/* delta = <y, dy> of the work-item's rows, which are also stored in delta_rows. */
INLINED void rows_delta(const struct item *item, const struct rows *y, const struct rows *d_y,
                        __local float4 *stage, __global float *delta_rows, float *delta) {
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        delta[i] = 0.0f;
        ROLLED for (int quad = item->x; quad < HEAD_QUADS; quad += ACROSS) {
            const quad_t a = rows_quad(y, item->y, i * DOWN, quad), b = rows_quad(d_y, item->y, i * DOWN, quad);
            delta[i] += sum4(QUAD_VALUE(a) * QUAD_VALUE(b));
        }
    }
    rows_combine(item, false, stage, delta);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        if (item->y + i * DOWN <= y->last && item->x == 0) {
            delta_rows[item->y + i * DOWN] = delta[i];
        }
    }
}

/* Writes dq into d_qkv [B, T, (H + 2 K) D], and delta [B, H, T] for attention_backward_keys. Groups as forward. */
TILE_KERNEL void attention_backward_queries(__global const act_t *qkv, __global const act_t *y,
                                            __global const act_t *d_y, __global const float *lse_all, int sequence,
                                            float dropout_rate, ulong dropout_key, ulong first_row,
                                            __global act_t *d_qkv, __global float *delta_all) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct item here = THIS_ITEM, *item = &here;
    struct head head;
    const int first = block_find(sequence, dropout_rate, dropout_key, first_row, &head);
    const int count = sequence - first; /* rows from there on; those from TILE_ROWS on are other groups' */
    const size_t rows_at = head.rows + first;
    const struct rows queries = ROWS_OF(qkv + head.qkv, QKV_ROW, first, sequence);
    const struct rows out = ROWS_OF(y + head.y, Y_ROW, first, sequence);
    const struct rows d_out = ROWS_OF(d_y + head.y, Y_ROW, first, sequence);
    const int end = min(first + TILE_ROWS, sequence); /* of the keys */
    float lse[ITEM_ROWS], delta[ITEM_ROWS], scores[ITEM_ROWS][4];
    float4 sums[ITEM_ROWS][SUM_ARRAY];
    rows_delta(item, &out, &d_out, stage, delta_all + rows_at, delta);
    UNROLL_LANES(ITEM_ROWS) for (int i = 0; i < ITEM_ROWS; i++) {
        lse[i] = LOG2E * lse_all[rows_at + min(item->y + i * DOWN, count - 1)];
    }
    sums_clear(sums);
    for (int start = 0; start < end; start += TILE_COLUMNS) {
        const struct rows keys = ROWS_OF(qkv + head.keys, QKV_ROW, start, sequence);
        const struct rows values = ROWS_OF(qkv + head.keys + KV_ROW, QKV_ROW, start, sequence);
        scores_multiply(item, &queries, &keys, stage, scores);
        scores_powers(scores, lse);
        if (start + TILE_COLUMNS > first) {
            scores_mask(item, first, start, sequence, 0.0f, scores);
        }
        tile_put(item, scores, tile);
        if (dropout_rate > 0.0f) {
            tile_drop(item, &head.dropout, first, start, true, tile);
        }
        scores_multiply(item, &d_out, &values, stage, scores);
        tile_backward(item, 1.0f / (1.0f - dropout_rate), delta, scores, tile);
        tile_put(item, scores, tile);
        sums_add(item, tile, &keys, stage, sums);
    }
    sums_store(item, sums, SCALE, d_qkv + head.qkv + (size_t)first * QKV_ROW, QKV_ROW, count);
}
#else
/* values[n] = factor from[column n of the work-item], or from[last] past the last column. */
INLINED void columns_load(const struct item *item, __global const float *from, int last, float factor,
                          float *values) {
    UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
        values[n] = factor * from[min(4 * item->x + n, last)];
    }
}

/* Writes dk and dv into d_qkv [B, T, (H + 2 K) D]. Groups: B K ceil(T / TILE_ROWS). */
TILE_KERNEL void attention_backward_keys(__global const act_t *qkv, __global const act_t *d_y,
                                         __global const float *lse_all, __global const float *delta_all,
                                         int sequence, float dropout_rate, ulong dropout_key, ulong first_row,
                                         __global act_t *d_qkv) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct item here = THIS_ITEM, *item = &here;
    struct head head;
    const int first = block_find(sequence, dropout_rate, dropout_key, first_row, &head);
    const int count = sequence - first; /* rows from there on; those from TILE_ROWS on are other groups' */
    const struct rows keys = ROWS_OF(qkv + head.keys, QKV_ROW, first, sequence);
    const struct rows values = ROWS_OF(qkv + head.keys + KV_ROW, QKV_ROW, first, sequence);
    float of_columns[4], scores[ITEM_ROWS][4];
    float4 d_keys[ITEM_ROWS][SUM_ARRAY], d_values[ITEM_ROWS][SUM_ARRAY];
    sums_clear(d_keys);
    sums_clear(d_values);
    for (int member = 0; member < KV_GROUP; member++, head_next(sequence, &head)) {
        for (int start = first; start < sequence; start += TILE_COLUMNS) {
            const struct rows queries = ROWS_OF(qkv + head.qkv, QKV_ROW, start, sequence);
            const struct rows d_out = ROWS_OF(d_y + head.y, Y_ROW, start, sequence);
            scores_multiply(item, &keys, &queries, stage, scores);
            columns_load(item, lse_all + head.rows + start, queries.last, LOG2E, of_columns);
            scores_powers(scores, of_columns);
            if (first + TILE_ROWS > start || start + TILE_COLUMNS > sequence) {
                scores_mask(item, first, start, sequence, 0.0f, scores);
            }
            tile_put(item, scores, tile);
            if (dropout_rate > 0.0f) {
                tile_drop(item, &head.dropout, first, start, true, tile);
            }
            scores_multiply(item, &values, &d_out, stage, scores);
            columns_load(item, delta_all + head.rows + start, queries.last, 1.0f, of_columns);
            tile_backward(item, 1.0f / (1.0f - dropout_rate), of_columns, scores, tile);
            sums_add(item, tile, &d_out, stage, d_values);
            barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads P any more */
            tile_put(item, scores, tile);
            sums_add(item, tile, &queries, stage, d_keys);
        }
    }
    __global act_t *d_rows = d_qkv + head.keys + (size_t)first * QKV_ROW;
    sums_store(item, d_keys, SCALE, d_rows, QKV_ROW, count);
    sums_store(item, d_values, 1.0f, d_rows + KV_ROW, QKV_ROW, count);
}
#endif
