/* Attention forward and backward (attention.cl has the formulas) on GPUs: a work-group has a tile of scores at a
 * time in its registers, and what is multiplied passes through local memory.
 *
 *   attention_forward           a group has rows of queries; over blocks of keys:
 *                               S = Q K^T, P = exp(S - highest), Y += P V
 *   attention_backward_queries  a group has rows of queries; over blocks of keys:
 *                               S = Q K^T, dP = dY V^T, dQ += dS K
 *   attention_backward_keys     a group has rows of keys; over blocks of queries:
 *                               S^T = K Q^T, dP^T = V dY^T, dV += P^T dY, dK += dS^T Q
 *
 * The work-items of a group stand ACROSS side by side and DOWN above each other, at x and y. Of a tile of ROWS by
 * COLUMNS scores each has those in the rows y, y + DOWN, ... and in the columns 4 x .. 4 x + 3; of the rows that
 * are added up it has the quads x, x + ACROSS, ... A quad is four columns or channels side by side, in which memory
 * is read and written.
 *
 * To make scores, the stage gets a slice of SLICE_QUADS quads of all rows and columns after the other. To add up,
 * the tile gets the scores, and the stage CHUNK_ROWS rows of CHUNK_QUADS quads after the other. What comes next is
 * on its way in registers. Quads change places within the rows of both, so that reads hit all banks without
 * padding. Blocks that the mask leaves nothing of are skipped, and it is looked at only where it cuts. All groups
 * do the same work on every run and nothing is shared among them: results are the same to the bit.
 *
 * Past the end of the sequence its last row is read again. What comes of it is masked where it is a column, and not
 * stored where it is a row.
 *
 * Registers decide how fast this is. Hence addresses are one number of the work-item and one of the loop, with
 * constants added, and what all of a group have in common is left to be seen as such.
 *
 * Build constants, besides those of attention.cl: ACROSS and DOWN, powers of two from 8 on; SCALE =
 * 1/sqrt(HEAD_SIZE); KEYS_STAY: 1 for the last of the kernels, 0 for the others.
 */
#define INLINED static inline __attribute__((always_inline))

#define ITEMS       (ACROSS * DOWN)
#define LANE_ROWS   4 /* of the tile, of a work-item */
#define ROWS        (DOWN * LANE_ROWS)
#define COLUMNS     (ACROSS * 4)
#define HEAD_QUADS  ((HEAD_SIZE + 3) / 4)
#define SLICE_QUADS 4
#define SLICES      ((HEAD_QUADS + SLICE_QUADS - 1) / SLICE_QUADS)
#define SLICE_SLOTS (ROWS + COLUMNS)
#define SHARE_SLOTS (ITEMS / SLICE_QUADS) /* that the work-items together move at a time */
#define SLICE_SHARE ((SLICE_SLOTS + SHARE_SLOTS - 1) / SHARE_SLOTS)
#define SUM_QUADS   ((HEAD_QUADS + ACROSS - 1) / ACROSS) /* of a row that is added up, of a work-item */
/* clspv mixes up the indices of arrays of arrays of one element, unless UNROLL_LANES unrolls. */
#define SUM_ROOM    (SUM_QUADS > 1 || LANES >= 32 ? SUM_QUADS : 2)
#define CHUNK_WIDTH (SUM_QUADS > 1 ? 2 : 1) /* as many of them are in a chunk */
#define CHUNKS      ((SUM_QUADS + CHUNK_WIDTH - 1) / CHUNK_WIDTH)
#define CHUNK_QUADS (CHUNK_WIDTH * ACROSS)
#define CHUNK_ROWS  (512 / CHUNK_QUADS < COLUMNS ? 512 / CHUNK_QUADS : COLUMNS)
#define CHUNK_SHARE (CHUNK_ROWS * CHUNK_QUADS / ITEMS)
#define STAGE_SIZE  (SLICE_SLOTS * SLICE_QUADS > 512 ? SLICE_SLOTS * SLICE_QUADS : 512)
#define TILE_SIZE   (ROWS * COLUMNS / 4)

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* Before loops that are long enough as they are: several turns at a time take more registers. */
#define ROLLED UNROLL(1)

#define TILE_KERNEL __kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))

/* What native_exp2 is on NVIDIA; clang, which compiles for its devices where they are not, lacks that. */
INLINED float power_of_two(float x) {
#if defined(__NVPTX__) || defined(__NV_CL_C_VERSION)
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return native_exp2(x);
#endif
}

/* ---- quads of a head's rows as they come from memory, where they are aligned if heads are whole quads */
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
    ACT_STORE_SCALAR(value.x, to);
    if (left > 1) {
        ACT_STORE_SCALAR(value.y, to + 1);
    }
    if (left > 2) {
        ACT_STORE_SCALAR(value.z, to + 2);
    }
    if (left > 3) {
        ACT_STORE_SCALAR(value.w, to + 3);
    }
#else
    act_store4(value, to);
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

/* Of the row `row` + `more`, of which `more` is the same for all work-items. A quad past the row's end may be
 * any. */
INLINED quad_t rows_quad(const struct rows *rows, int row, int more, int quad) {
    const int in_row = min(quad, HEAD_QUADS - 1);
    __global const char *from = (__global const char *)(rows->at + (size_t)min(more, rows->last) * rows->stride);
    const int element = min(row, max(rows->last - more, 0)) * rows->stride + 4 * in_row;
    return quad_load((__global const act_t *)(from + (uint)element * (uint)sizeof(act_t)), in_row);
}

/* ---- a work-item. Structures are handed over by pointers, also by functions that fill them: Mesa's compiler keeps
 * copies of them in memory. */
struct lane {
    int item, x, y;
};

/* Initialises the one that runs this. */
#define THIS_LANE {get_local_id(0), get_local_id(0) % ACROSS, get_local_id(0) / ACROSS}

/* Where a quad of the lane's row number i lies in the tile; its own is quad x. */
INLINED int tile_at(const struct lane *lane, int i, int quad) {
    return ((lane->y * ACROSS + lane->y % 8) ^ quad) + i * ITEMS;
}

/* ---- scores
 *
 * A slice has a slot for each row, and then for each column: the columns of a work-item lie ACROSS slots apart, so
 * that neighbours read neighbouring slots.
 */

/* Where a quad of the slot `slot` + `more` lies; `more` is a multiple of eight. */
INLINED int slice_at(int slot, int more, int quad) {
    return ((slot * SLICE_QUADS + slot / 2 % 4) ^ quad) + more * SLICE_QUADS;
}

/* Of the slot `slot` + `more`. */
INLINED quad_t slot_quad(const struct rows *rows, const struct rows *columns, int slot, int more, int quad) {
    const int column = slot % ACROSS * 4 + slot / ACROSS;
    if (more + SHARE_SLOTS <= ROWS) {
        return rows_quad(rows, slot, more, quad);
    }
    if (more >= ROWS) {
        return rows_quad(columns, column, (more - ROWS) / ACROSS, quad);
    }
    return slot + more < ROWS
               ? rows_quad(rows, slot, more, quad)
               : rows_quad(columns, (slot + more - ROWS) % ACROSS * 4 + (slot + more - ROWS) / ACROSS, 0, quad);
}

/* A work-item's share of slice number `slice`. */
INLINED void slice_fetch(const struct lane *lane, const struct rows *rows, const struct rows *columns, int slice,
                         quad_t *quads) {
    UNROLL_LANES(SLICE_SHARE) for (int n = 0; n < SLICE_SHARE; n++) {
        quads[n] = slot_quad(rows, columns, lane->item / SLICE_QUADS, n * SHARE_SLOTS,
                             slice * SLICE_QUADS + lane->item % SLICE_QUADS);
    }
}

INLINED void slice_put(const struct lane *lane, int slice, const quad_t *quads, __local float4 *stage) {
    const int quad = lane->item % SLICE_QUADS, slot = lane->item / SLICE_QUADS;
    const bool there = HEAD_QUADS % SLICE_QUADS == 0 || slice * SLICE_QUADS + quad < HEAD_QUADS;
    UNROLL_LANES(SLICE_SHARE) for (int n = 0; n < SLICE_SHARE; n++) {
        if ((n + 1) * SHARE_SLOTS <= SLICE_SLOTS || slot + n * SHARE_SLOTS < SLICE_SLOTS) {
            stage[slice_at(slot, n * SHARE_SLOTS, quad)] = there ? QUAD_VALUE(quads[n]) : (float4)(0.0f);
        }
    }
}

INLINED void slice_multiply(const struct lane *lane, __local const float4 *stage, float (*scores)[4]) {
    ROLLED for (int quad = 0; quad < SLICE_QUADS; quad++) {
        float4 rows[LANE_ROWS];
        UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
            rows[i] = stage[slice_at(lane->y, i * DOWN, quad)];
        }
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const float4 column = stage[slice_at(lane->x, ROWS + n * ACROSS, quad)];
            UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
                scores[i][n] += rows[i].x * column.x;
                scores[i][n] += rows[i].y * column.y;
                scores[i][n] += rows[i].z * column.z;
                scores[i][n] += rows[i].w * column.w;
            }
        }
    }
}

/* scores = the rows times the columns. Others may still be reading the stage before, and after. */
INLINED void scores_multiply(const struct lane *lane, const struct rows *rows, const struct rows *columns,
                             __local float4 *stage, float (*scores)[4]) {
    quad_t quads[SLICE_SHARE];
    slice_fetch(lane, rows, columns, 0, quads);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = 0.0f;
        }
    }
    ROLLED for (int slice = 0; slice < SLICES; slice++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        slice_put(lane, slice, quads, stage);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (slice + 1 < SLICES) {
            slice_fetch(lane, rows, columns, slice + 1, quads);
        }
        slice_multiply(lane, stage, scores);
    }
}

/* The lane's own scores, to the tile. */
INLINED void tile_put(const struct lane *lane, float (*scores)[4], __local float4 *tile) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        tile[tile_at(lane, i, lane->x)] = (float4)(scores[i][0], scores[i][1], scores[i][2], scores[i][3]);
    }
}

/* ---- sums */

/* A work-item's share of a chunk of the rows from `first` on. */
INLINED void chunk_fetch(const struct lane *lane, const struct rows *rows, int chunk, int first, quad_t *quads) {
    UNROLL_LANES(CHUNK_SHARE) for (int n = 0; n < CHUNK_SHARE; n++) {
        quads[n] = rows_quad(rows, lane->item / CHUNK_QUADS, first + n * (ITEMS / CHUNK_QUADS),
                             chunk * CHUNK_QUADS + lane->item % CHUNK_QUADS);
    }
}

/* The sums of one chunk += the tile's columns from quad `first` on times the rows in the stage. */
INLINED void chunk_add(const struct lane *lane, __local const float4 *tile, int first, int chunk,
                       __local const float4 *stage, float4 (*sums)[SUM_ROOM]) {
    ROLLED for (int pair = 0; pair < CHUNK_ROWS / 2; pair++) {
        __local const float4 *from = stage + pair * 2 * CHUNK_QUADS + lane->x;
        float factors[LANE_ROWS][2];
        UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
            __local const float *two =
                (__local const float *)(tile + tile_at(lane, i, first + pair / 2)) + 2 * (pair % 2);
            factors[i][0] = two[0];
            factors[i][1] = two[1];
        }
        UNROLL_LANES(2) for (int n = 0; n < CHUNK_WIDTH; n++) {
            const int at = chunk * CHUNK_WIDTH + n;
            if (at < SUM_QUADS) {
                UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
                    sums[i][at] += factors[i][0] * from[n * ACROSS];
                    sums[i][at] += factors[i][1] * from[n * ACROSS + CHUNK_QUADS];
                }
            }
        }
    }
}

/* sums += the tile times COLUMNS rows. The tile may just have been written; others may still be reading the stage
 * before, and both after. */
INLINED void sums_add(const struct lane *lane, __local const float4 *tile, const struct rows *rows,
                      __local float4 *stage, float4 (*sums)[SUM_ROOM]) {
    quad_t quads[CHUNK_SHARE];
    chunk_fetch(lane, rows, 0, 0, quads);
    UNROLL_LANES(CHUNKS) for (int chunk = 0; chunk < CHUNKS; chunk++) {
        ROLLED for (int first = 0; first < COLUMNS; first += CHUNK_ROWS) {
            const bool ends = first + CHUNK_ROWS == COLUMNS;
            barrier(CLK_LOCAL_MEM_FENCE);
            UNROLL_LANES(CHUNK_SHARE) for (int n = 0; n < CHUNK_SHARE; n++) {
                stage[lane->item + n * ITEMS] = QUAD_VALUE(quads[n]);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            if (!ends || chunk + 1 < CHUNKS) {
                chunk_fetch(lane, rows, ends ? chunk + 1 : chunk, ends ? 0 : first + CHUNK_ROWS, quads);
            }
            chunk_add(lane, tile, first / 4, chunk, stage, sums);
        }
    }
}

INLINED void sums_clear(float4 (*sums)[SUM_ROOM]) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            sums[i][n] = (float4)(0.0f);
        }
    }
}

/* The sums of each row, times its factor, to the first `count` rows of a head. */
INLINED void sums_store(const struct lane *lane, float4 (*sums)[SUM_ROOM], const float *factors, __global act_t *to,
                        int stride, int count) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            const int quad = n * ACROSS + lane->x;
            if (lane->y + i * DOWN < count && quad < HEAD_QUADS) {
                quad_store(factors[i] * sums[i][n], to + (lane->y + i * DOWN) * stride + 4 * quad, quad);
            }
        }
    }
}

/* ---- where a group works: which head, and which of its blocks of rows; those with most to do come first */
struct place {
    size_t head;  /* of the batch */
    size_t token; /* the head's first one */
    int column;   /* of the head, in C */
    int first;    /* row of the block */
    int count;    /* rows from there to the end of the sequence, some of which may be others' */
    struct dropout dropout;
};

/* There are `blocks` blocks a head, and inverse = UINT_MAX / blocks, with which AMD's compiler keeps a division in
 * scalar registers. */
INLINED void place_find(int sequence, uint blocks, uint inverse, float rate, ulong key, ulong first_row,
                        struct place *place) {
    const uint group = get_group_id(0), least = mul_hi(group, inverse);
    const uint head = group - least * blocks < blocks ? least : least + 1, block = group - head * blocks;
    place->head = head;
    place->token = (size_t)(head / HEADS) * sequence;
    place->column = head % HEADS * HEAD_SIZE;
    place->first = (KEYS_STAY ? block : blocks - 1 - block) * ROWS;
    place->count = sequence - place->first;
    place->dropout.rate = rate;
    place->dropout.key = key;
    place->dropout.first_row = first_row + place->token;
    place->dropout.sequence = sequence;
}

/* Dropout in the tile, whose elements each work-item treats its own of: what is dropped becomes zero and the rest
 * grows; or, to `mark` it only, negative. Philox is too long to be written out for each element. */
INLINED void tile_drop(const struct lane *lane, const struct place *place, int start, bool mark,
                       __local float4 *tile) {
    ROLLED for (int i = 0; i < 4 * LANE_ROWS; i++) {
        const int row = place->first + lane->y + i / 4 * DOWN, column = start + 4 * lane->x + i % 4;
        const float factor = attention_factor(&place->dropout, place->column / HEAD_SIZE, KEYS_STAY ? column : row,
                                              KEYS_STAY ? row : column);
        __local float *element = (__local float *)(tile + tile_at(lane, i / 4, lane->x)) + i % 4;
        *element *= !mark ? factor : factor == 0.0f ? -1.0f : 1.0f;
    }
}

#if !KEYS_STAY
/* What the work-items of a row have, put together; all get it. Others may still be reading `stage` before, and
 * after. */
INLINED void rows_combine(const struct lane *lane, bool highest, __local float4 *stage, float *values) {
    __local float *own = (__local float *)stage + lane->item;
    __local const float4 *row = stage + lane->y * (ACROSS / 4);
    barrier(CLK_LOCAL_MEM_FENCE);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        own[i * ITEMS] = values[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float4 all[LANE_ROWS];
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        all[i] = row[i * (ITEMS / 4)];
    }
    ROLLED for (int n = 1; n < ACROSS / 4; n++) {
        UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
            const float4 more = row[i * (ITEMS / 4) + n];
            all[i] = highest ? fmax(all[i], more) : all[i] + more;
        }
    }
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        values[i] = highest ? highest4(all[i]) : sum4(all[i]);
    }
}

/* ---- forward */

/* What a work-item knows of its rows. */
struct softmax {
    float highest[LANE_ROWS];
    float sum[LANE_ROWS]; /* of its own elements */
};

/* Keys after a query do not count. */
INLINED void scores_mask(const struct lane *lane, int first, int start, float (*scores)[4]) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = 4 * lane->x - lane->y > first - start + i * DOWN - n ? -INFINITY : scores[i][n];
        }
    }
}

/* p = exp(s - highest) in place; the sum so far shrinks to the new highest, and so does y. */
INLINED void softmax_add(const struct lane *lane, struct softmax *softmax, __local float4 *stage,
                         float (*scores)[4], float4 (*y)[SUM_ROOM]) {
    float highest[LANE_ROWS];
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        highest[i] = softmax->highest[i];
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] *= LOG2E * SCALE;
            highest[i] = fmax(highest[i], scores[i][n]);
        }
    }
    rows_combine(lane, true, stage, highest);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        const float shrink = power_of_two(softmax->highest[i] - highest[i]);
        softmax->highest[i] = highest[i];
        softmax->sum[i] *= shrink;
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = power_of_two(scores[i][n] - highest[i]);
            softmax->sum[i] += scores[i][n];
        }
        UNROLL_LANES(SUM_QUADS) for (int n = 0; n < SUM_QUADS; n++) {
            y[i][n] *= shrink;
        }
    }
}

/* y = its sum / the softmax's, and lse. */
INLINED void softmax_finish(const struct lane *lane, const struct softmax *softmax, const struct place *place,
                            int sequence, __local float4 *stage, float4 (*sums)[SUM_ROOM], __global act_t *y,
                            __global float *lse) {
    float factors[LANE_ROWS];
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        factors[i] = softmax->sum[i];
    }
    rows_combine(lane, false, stage, factors);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        if (lane->y + i * DOWN < place->count && lane->x == 0) {
            lse[place->head * sequence + place->first + lane->y + i * DOWN] =
                (softmax->highest[i] + log2(factors[i])) * LN2;
        }
        factors[i] = 1.0f / factors[i];
    }
    sums_store(lane, sums, factors, y + (place->token + place->first) * MODEL_WIDTH + place->column, MODEL_WIDTH,
               place->count);
}

/* qkv [B, T, 3, H, D] -> y [B, T, H, D], lse [B, H, T]. Groups: B H ceil(T / ROWS). */
TILE_KERNEL void attention_forward(__global const act_t *qkv, int sequence, uint blocks, uint inverse,
                                   float dropout_rate, ulong key, ulong first_row, __global act_t *y,
                                   __global float *lse) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct lane here = THIS_LANE, *lane = &here;
    struct place place;
    place_find(sequence, blocks, inverse, dropout_rate, key, first_row, &place);
    __global const act_t *head = qkv + place.token * QKV_ROW + place.column;
    const struct rows queries = ROWS_OF(head, QKV_ROW, place.first, sequence);
    const int end = min(place.first + ROWS, sequence); /* of the keys */
    float scores[LANE_ROWS][4];
    float4 sums[LANE_ROWS][SUM_ROOM];
    struct softmax softmax;
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        softmax.highest[i] = -INFINITY;
        softmax.sum[i] = 0.0f;
    }
    sums_clear(sums);
    for (int start = 0; start < end; start += COLUMNS) {
        const struct rows keys = ROWS_OF(head + MODEL_WIDTH, QKV_ROW, start, sequence);
        const struct rows values = ROWS_OF(head + 2 * MODEL_WIDTH, QKV_ROW, start, sequence);
        scores_multiply(lane, &queries, &keys, stage, scores);
        if (start + COLUMNS > place.first) {
            scores_mask(lane, place.first, start, scores);
        }
        softmax_add(lane, &softmax, stage, scores, sums);
        tile_put(lane, scores, tile);
        if (dropout_rate > 0.0f) {
            tile_drop(lane, &place, start, false, tile);
        }
        sums_add(lane, tile, &values, stage, sums);
    }
    softmax_finish(lane, &softmax, &place, sequence, stage, sums, y, lse);
}
#endif

/* ---- backward */

/* p from s in place. lse, times LOG2E, is that of the lane's queries, which are rows or columns. */
INLINED void scores_powers(float (*scores)[4], const float *lse) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            scores[i][n] = power_of_two(LOG2E * SCALE * scores[i][n] - lse[KEYS_STAY ? n : i]);
        }
    }
}

/* p = 0 for keys after a query, and for queries past the end. */
INLINED void powers_mask(const struct lane *lane, int first, int start, int sequence, float (*scores)[4]) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const int ahead = 4 * lane->x - lane->y, row_ahead = first - start + i * DOWN - n;
            const bool masked =
                KEYS_STAY ? ahead < row_ahead || 4 * lane->x >= sequence - start - n : ahead > row_ahead;
            scores[i][n] = masked ? 0.0f : scores[i][n];
        }
    }
}

/* ds from dp, and what is multiplied with dy from the tile's p, which is negative where it was dropped; both in
 * place. `grown` is what the others are multiplied with. */
INLINED void tile_backward(const struct lane *lane, float grown, const float *delta, float (*d_p)[4],
                           __local float4 *tile) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        __local float *own = (__local float *)(tile + tile_at(lane, i, lane->x));
        UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
            const float factor = own[n] < 0.0f ? 0.0f : grown;
            d_p[i][n] = fabs(own[n]) * (factor * d_p[i][n] - delta[KEYS_STAY ? n : i]);
            own[n] *= factor;
        }
    }
}

#if !KEYS_STAY
/* delta = <y, dy> of the lane's rows, also to memory. */
INLINED void rows_delta(const struct lane *lane, const struct rows *y, const struct rows *d_y,
                        __local float4 *stage, __global float *delta_rows, float *delta) {
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        delta[i] = 0.0f;
        ROLLED for (int quad = lane->x; quad < HEAD_QUADS; quad += ACROSS) {
            const quad_t a = rows_quad(y, lane->y, i * DOWN, quad), b = rows_quad(d_y, lane->y, i * DOWN, quad);
            delta[i] += sum4(QUAD_VALUE(a) * QUAD_VALUE(b));
        }
    }
    rows_combine(lane, false, stage, delta);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        if (lane->y + i * DOWN <= y->last && lane->x == 0) {
            delta_rows[lane->y + i * DOWN] = delta[i];
        }
    }
}

/* dq into d_qkv [B, T, 3, H, D], and delta [B, H, T] for attention_backward_keys. Groups as forward. */
TILE_KERNEL void attention_backward_queries(__global const act_t *qkv, __global const act_t *y,
                                            __global const act_t *d_y, __global const float *lse_all, int sequence,
                                            uint blocks, uint inverse, float dropout_rate, ulong key,
                                            ulong first_row, __global act_t *d_qkv, __global float *delta_all) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct lane here = THIS_LANE, *lane = &here;
    struct place place;
    place_find(sequence, blocks, inverse, dropout_rate, key, first_row, &place);
    const size_t rows_at = place.head * sequence + place.first, narrow = place.token * MODEL_WIDTH + place.column;
    __global const act_t *head = qkv + place.token * QKV_ROW + place.column;
    const struct rows queries = ROWS_OF(head, QKV_ROW, place.first, sequence);
    const struct rows out = ROWS_OF(y + narrow, MODEL_WIDTH, place.first, sequence);
    const struct rows d_out = ROWS_OF(d_y + narrow, MODEL_WIDTH, place.first, sequence);
    const int end = min(place.first + ROWS, sequence); /* of the keys */
    float lse[LANE_ROWS], delta[LANE_ROWS], factors[LANE_ROWS], scores[LANE_ROWS][4];
    float4 sums[LANE_ROWS][SUM_ROOM];
    rows_delta(lane, &out, &d_out, stage, delta_all + rows_at, delta);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        lse[i] = LOG2E * lse_all[rows_at + min(lane->y + i * DOWN, place.count - 1)];
        factors[i] = SCALE;
    }
    sums_clear(sums);
    for (int start = 0; start < end; start += COLUMNS) {
        const struct rows keys = ROWS_OF(head + MODEL_WIDTH, QKV_ROW, start, sequence);
        const struct rows values = ROWS_OF(head + 2 * MODEL_WIDTH, QKV_ROW, start, sequence);
        scores_multiply(lane, &queries, &keys, stage, scores);
        scores_powers(scores, lse);
        if (start + COLUMNS > place.first) {
            powers_mask(lane, place.first, start, sequence, scores);
        }
        tile_put(lane, scores, tile);
        if (dropout_rate > 0.0f) {
            tile_drop(lane, &place, start, true, tile);
        }
        scores_multiply(lane, &d_out, &values, stage, scores);
        tile_backward(lane, 1.0f / (1.0f - dropout_rate), delta, scores, tile);
        tile_put(lane, scores, tile);
        sums_add(lane, tile, &keys, stage, sums);
    }
    sums_store(lane, sums, factors, d_qkv + (place.token + place.first) * QKV_ROW + place.column, QKV_ROW,
               place.count);
}
#else
/* A number of each of the lane's columns, times factor; past the last one any. */
INLINED void columns_load(const struct lane *lane, __global const float *from, int last, float factor,
                          float *values) {
    UNROLL_LANES(4) for (int n = 0; n < 4; n++) {
        values[n] = factor * from[min(4 * lane->x + n, last)];
    }
}

/* dk and dv into d_qkv [B, T, 3, H, D]. Groups: B H ceil(T / ROWS). */
TILE_KERNEL void attention_backward_keys(__global const act_t *qkv, __global const act_t *d_y,
                                         __global const float *lse_all, __global const float *delta_all,
                                         int sequence, uint blocks, uint inverse, float dropout_rate, ulong key,
                                         ulong first_row, __global act_t *d_qkv) {
    __local float4 stage[STAGE_SIZE], tile[TILE_SIZE];
    const struct lane here = THIS_LANE, *lane = &here;
    struct place place;
    place_find(sequence, blocks, inverse, dropout_rate, key, first_row, &place);
    const size_t head_at = place.head * sequence, narrow = place.token * MODEL_WIDTH + place.column;
    __global const act_t *head = qkv + place.token * QKV_ROW + place.column;
    const struct rows keys = ROWS_OF(head + MODEL_WIDTH, QKV_ROW, place.first, sequence);
    const struct rows values = ROWS_OF(head + 2 * MODEL_WIDTH, QKV_ROW, place.first, sequence);
    float of_columns[4], scores[LANE_ROWS][4], factors[LANE_ROWS];
    float4 d_keys[LANE_ROWS][SUM_ROOM], d_values[LANE_ROWS][SUM_ROOM];
    sums_clear(d_keys);
    sums_clear(d_values);
    for (int start = place.first; start < sequence; start += COLUMNS) {
        const struct rows queries = ROWS_OF(head, QKV_ROW, start, sequence);
        const struct rows d_out = ROWS_OF(d_y + narrow, MODEL_WIDTH, start, sequence);
        scores_multiply(lane, &keys, &queries, stage, scores);
        columns_load(lane, lse_all + head_at + start, queries.last, LOG2E, of_columns);
        scores_powers(scores, of_columns);
        if (place.first + ROWS > start || start + COLUMNS > sequence) {
            powers_mask(lane, place.first, start, sequence, scores);
        }
        tile_put(lane, scores, tile);
        if (dropout_rate > 0.0f) {
            tile_drop(lane, &place, start, true, tile);
        }
        scores_multiply(lane, &values, &d_out, stage, scores);
        columns_load(lane, delta_all + head_at + start, queries.last, 1.0f, of_columns);
        tile_backward(lane, 1.0f / (1.0f - dropout_rate), of_columns, scores, tile);
        sums_add(lane, tile, &d_out, stage, d_values);
        barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads P any more */
        tile_put(lane, scores, tile);
        sums_add(lane, tile, &queries, stage, d_keys);
    }
    __global act_t *d_rows = d_qkv + (place.token + place.first) * QKV_ROW + place.column;
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        factors[i] = SCALE;
    }
    sums_store(lane, d_keys, factors, d_rows + MODEL_WIDTH, QKV_ROW, place.count);
    UNROLL_LANES(LANE_ROWS) for (int i = 0; i < LANE_ROWS; i++) {
        factors[i] = 1.0f;
    }
    sums_store(lane, d_values, factors, d_rows + 2 * MODEL_WIDTH, QKV_ROW, place.count);
}
#endif
