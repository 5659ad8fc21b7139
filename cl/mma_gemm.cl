/* GEMM on matrix cores: sums op(A) op(B), of which mma_finish.cl makes C. op(A) is [m, k], op(B) [k, n], C [m, n];
 * A and B are in the 16-bit type of the matrix cores, sums are in float.
 *
 * A work-group makes a block of C, BLOCK_M x BLOCK_N, in steps of BLOCK_K along k: tiles of A and B go into local
 * memory, each warp multiplies WARP_M x WARP_N of them. There are STAGES tiles of each: with two, the next tile
 * waits in registers while the present one is multiplied; from three on it is on its way by asynchronous copies,
 * STAGES - 1 steps ahead. At the end the sums pass through the same local memory, so that each work-item gets
 * neighbours of a row, however the cores' fragments lie.
 *
 * Blocks from number `whole` on are made by `parts` groups each, which take `depth` of k each (a multiple of
 * BLOCK_K); what they make are blocks in `partial`, [blocks - whole, parts, BLOCK_M, BLOCK_N], and mma_parts.cl
 * adds those.
 *
 * Constants given at build time, besides those:
 *   TRANSPOSE_A, _B  whether op is the transpose of how the matrix lies in memory
 *   LOAD        0: elements one by one, for rows that do not start at 16 bytes; 1: chunks of 8, elements only at
 *               the matrices' edges; 2: chunks, and there are no edges: m, n and k are multiples of the blocks'
 *   PARTS       whether there are blocks that several groups make
 *   TRANSPOSED_LOAD  whether tiles whose rows lie across k are transposed on their way into local memory, for
 *               matrix cores that read fragments fast along k only; there are two stages then
 *   BEHIND      STAGES - 2
 */
#include "mma_finish.cl"

#define WARPS_ACROSS (BLOCK_N / WARP_N)
#define WARPS        (BLOCK_M / WARP_M * WARPS_ACROSS)
#define ITEMS        (WARPS * WARP_SIZE)
#define DOWN         (WARP_M / FRAGMENT_M) /* fragments of a warp */
#define ACROSS       (WARP_N / FRAGMENT_N)

#define TRANSPOSE_TILE_A (TRANSPOSED_LOAD && TRANSPOSE_A)
#define TRANSPOSE_TILE_B (TRANSPOSED_LOAD && !TRANSPOSE_B)

/* Tiles lie as the operands in memory, unless they are transposed as they are loaded. */
#define A_ALONG    (!TRANSPOSE_A || TRANSPOSED_LOAD) /* rows of tiles run along k */
#define B_ALONG    (TRANSPOSE_B || TRANSPOSED_LOAD)
#define A_WIDTH    (A_ALONG ? BLOCK_K : BLOCK_M)
#define B_WIDTH    (B_ALONG ? BLOCK_K : BLOCK_N)
#define A_SIZE     (BLOCK_M * BLOCK_K)
#define B_SIZE     (BLOCK_N * BLOCK_K)
#define STAGE_SIZE (A_SIZE + B_SIZE)        /* the tiles of a step: A's, and behind it B's */
#define A_CHUNKS   (A_SIZE / CHUNK / ITEMS) /* of a work-item */
#define B_CHUNKS   (B_SIZE / CHUNK / ITEMS)

/* What there is of an operand from the corner of the next tile on: rows x columns. Inside of a tile 32 bits count
 * bytes. */
struct source {
    __global const ushort *elements;
    uint stride;
    uint rows, columns;
};

/* How many of 8 elements of a row from `column` on there are. */
INLINED uint chunk_extent(struct source source, uint row, uint column) {
    if (LOAD == 2)
        return CHUNK;
    return row < source.rows && column < source.columns ? min(source.columns - column, (uint)CHUNK) : 0;
}

/* 8 elements of a row, zeros beyond the edge. */
INLINED uint4 chunk_fetch(struct source source, uint row, uint column) {
    const uint extent = chunk_extent(source, row, column);
    __global const ushort *from = element_at(source.elements, row * source.stride + column);
    if (LOAD > 0 && extent == CHUNK)
        return *(__global const uint4 *)from;
    uint words[CHUNK / 2];
    EACH(i, CHUNK / 2) {
        const uint low = i * 2 < extent ? from[i * 2] : 0, high = i * 2 + 1 < extent ? from[i * 2 + 1] : 0;
        words[i] = high << 16 | low;
    }
    return (uint4)(words[0], words[1], words[2], words[3]);
}

/* Row and column in its tile of a work-item's chunk number i of `chunks`. Of a tile that is transposed on its way a
 * work-item has chunks from two rows below each other where it has an even number, which are neighbours then;
 * work-items that are neighbours have the next rows, so that they write to different banks. */
#define TOGETHER(chunks) ((chunks) % 2 == 0 ? 2 : 1)

INLINED uint2 chunk_place(uint i, uint width, uint chunks, bool transpose) {
    if (!transpose) {
        const uint chunk = get_local_id(0) + i * ITEMS;
        return (uint2)(chunk / (width / CHUNK), chunk % (width / CHUNK) * CHUNK);
    }
    const uint rows = BLOCK_K / TOGETHER(chunks), place = get_local_id(0) + i / TOGETHER(chunks) * ITEMS;
    return (uint2)(place % rows * TOGETHER(chunks) + i % TOGETHER(chunks), place / rows * CHUNK);
}

/* Starts the copy of a work-item's chunks of a tile. */
INLINED void tile_stream(__local ushort *tile, struct source source, uint width, uint chunks) {
    EACH(i, chunks) {
        const uint2 place = chunk_place(i, width, chunks, false), first = chunk_place(0, width, chunks, false);
        /* rows that are 8 apart are permuted alike */
        const bool alike = ITEMS * CHUNK / width % 8 == 0;
        __local ushort *to = tile + (alike ? tile_at(width, first.x, first.y) + i * ITEMS * CHUNK
                                           : tile_at(width, place.x, place.y));
        if (LOAD == 0) {
            *(__local uint4 *)to = chunk_fetch(source, place.x, place.y);
        } else {
            const uint extent = chunk_extent(source, place.x, place.y);
            /* nothing is read where there is nothing, but the address has to be one */
            copy_chunk(to,
                       extent ? element_at(source.elements, place.x * source.stride + place.y) : source.elements,
                       extent * sizeof(ushort));
        }
    }
}

/* The same in two steps: into registers, and from there into the tile. */
INLINED void tile_fetch(uint4 *registers, struct source source, uint width, uint chunks, bool transpose) {
    EACH(i, chunks) {
        const uint2 place = chunk_place(i, width, chunks, transpose);
        registers[i] = chunk_fetch(source, place.x, place.y);
    }
}

INLINED uint chunk_word(uint4 chunk, uint i) {
    const uint words[CHUNK / 2] = {chunk.x, chunk.y, chunk.z, chunk.w};
    return words[i];
}

INLINED void tile_put(__local ushort *tile, const uint4 *registers, uint width, uint chunks, bool transpose) {
    EACH_BY(i, chunks, transpose ? TOGETHER(chunks) : 1) {
        const uint2 place = chunk_place(i, width, chunks, transpose);
        if (!transpose) {
            *(__local uint4 *)(tile + tile_at(width, place.x, place.y)) = registers[i];
            continue;
        }
        EACH(e, CHUNK) {
            __local ushort *to = tile + tile_at(width, place.y + e, place.x);
            const uint upper = chunk_word(registers[i], e / 2),
                       lower = chunk_word(registers[i + TOGETHER(chunks) - 1], e / 2);
            if (TOGETHER(chunks) == 2)
                *(__local uint *)to = e % 2 ? pair_of_highs(upper, lower) : pair_of_lows(upper, lower);
            else
                *to = (ushort)(e % 2 ? upper >> 16 : upper);
        }
    }
}

/* The next tile along k, which lies below or beside this one. */
INLINED void source_advance(struct source *source, bool below) {
    if (below) {
        source->elements += (ulong)BLOCK_K * source->stride;
        source->rows -= BLOCK_K;
    } else {
        source->elements += BLOCK_K;
        source->columns -= BLOCK_K;
    }
}

/* Fragment number i of a warp's rows, which begin at `row` in the tile, or number j of its columns. Rows of a tile
 * that are 8 apart are permuted alike, so fragments below each other lie at constant distances. */
INLINED fragment_a tile_fragment_a(struct work_item item, __local const ushort *tile, uint row, uint i, uint k) {
    return A_ALONG ? fragment_load_a(item, tile + i * FRAGMENT_M * A_WIDTH, A_WIDTH, row, k)
                   : fragment_load_a_transposed(item, tile + k * A_WIDTH, A_WIDTH, 0, row + i * FRAGMENT_M);
}

INLINED fragment_b tile_fragment_b(struct work_item item, __local const ushort *tile, uint k, uint column, uint j) {
    return B_ALONG ? fragment_load_b_transposed(item, tile + j * FRAGMENT_N * B_WIDTH, B_WIDTH, column, k)
                   : fragment_load_b(item, tile + k * B_WIDTH, B_WIDTH, 0, column + j * FRAGMENT_N);
}

/* sum += the warp's share of the matrix product of two tiles */
INLINED void tiles_multiply(struct work_item item, __local const ushort *stage, fragment_c sum[DOWN][ACROSS]) {
    __local const ushort *tile_a = stage, *tile_b = stage + A_SIZE;
    const uint row = item.warp / WARPS_ACROSS * WARP_M, column = item.warp % WARPS_ACROSS * WARP_N;
    EACH_BY(k, BLOCK_K, FRAGMENT_K) {
        fragment_a a[DOWN];
        fragment_b b[ACROSS];
        EACH(i, DOWN)
            a[i] = tile_fragment_a(item, tile_a, row, i, k);
        EACH(j, ACROSS)
            b[j] = tile_fragment_b(item, tile_b, k, column, j);
        EACH(i, DOWN) {
            EACH(j, ACROSS)
                fragment_multiply(item, &sum[i][j], a[i], b[j]);
        }
    }
}

/* The two sources of the present tiles, and the next ones. */
struct sources {
    struct source a, b;
};

INLINED void sources_advance(struct sources *sources) {
    source_advance(&sources->a, TRANSPOSE_A);
    source_advance(&sources->b, !TRANSPOSE_B);
}

#if STAGES > 2
INLINED void stage_stream(__local ushort *stage, struct sources *sources) {
    tile_stream(stage, sources->a, A_WIDTH, A_CHUNKS);
    tile_stream(stage + A_SIZE, sources->b, B_WIDTH, B_CHUNKS);
    sources_advance(sources);
}

/* sum += the warp's part of the group's block */
INLINED void block_multiply(struct work_item item, __local ushort (*stages)[STAGE_SIZE], struct sources sources,
                            uint steps, fragment_c sum[DOWN][ACROSS]) {
    for (uint stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps)
            stage_stream(stages[stage], &sources);
        copy_commit(); /* an empty group, too: they are counted */
    }
    __local ushort *present = stages[0], *next = stages[STAGES - 1];
    for (uint ahead = STAGES - 1; ahead < steps + STAGES - 1; ahead++) { /* the step to copy */
        COPY_WAIT(BEHIND);                                               /* BEHIND is STAGES - 2 */
        barrier(CLK_LOCAL_MEM_FENCE); /* all of the present tile is there, and nobody reads the one before */
        if (ahead < steps)
            stage_stream(next, &sources);
        copy_commit();
        tiles_multiply(item, present, sum);
        next = present;
        present = present == stages[STAGES - 1] ? stages[0] : present + STAGE_SIZE;
    }
}

#else

/* What is on its way, in registers. */
struct on_the_way {
    struct sources sources;
    uint4 a[A_CHUNKS], b[B_CHUNKS];
};

INLINED void step_fetch(struct on_the_way *next) {
    tile_fetch(next->a, next->sources.a, A_WIDTH, A_CHUNKS, TRANSPOSE_TILE_A);
    tile_fetch(next->b, next->sources.b, B_WIDTH, B_CHUNKS, TRANSPOSE_TILE_B);
    sources_advance(&next->sources);
}

INLINED void step_put(const struct on_the_way *next, __local ushort *stage) {
    tile_put(stage, next->a, A_WIDTH, A_CHUNKS, TRANSPOSE_TILE_A);
    tile_put(stage + A_SIZE, next->b, B_WIDTH, B_CHUNKS, TRANSPOSE_TILE_B);
}

/* Multiplies the tiles of stage `present`, and fills the other stage if there is a next step. */
INLINED void step_multiply(struct work_item item, __local ushort (*stages)[STAGE_SIZE], uint present, bool has_next,
                           struct on_the_way *next, fragment_c sum[DOWN][ACROSS]) {
    barrier(CLK_LOCAL_MEM_FENCE); /* the present tile is there, and nobody reads the one before */
    if (has_next)
        step_fetch(next);
    tiles_multiply(item, stages[present], sum);
    if (has_next)
        step_put(next, stages[1 - present]);
}

INLINED void block_multiply(struct work_item item, __local ushort (*stages)[STAGE_SIZE], struct sources sources,
                            uint steps, fragment_c sum[DOWN][ACROSS]) {
    struct on_the_way next = {.sources = sources};
    uint step = 0;
    step_fetch(&next);
    step_put(&next, stages[0]);
#ifdef EMULATION_SCRATCH /* has to compile fast */
    for (; step < steps; step++)
        step_multiply(item, stages, step & 1, step + 1 < steps, &next, sum);
#else
    for (; step + 2 < steps; step += 2) {
        step_multiply(item, stages, 0, true, &next, sum);
        step_multiply(item, stages, 1, true, &next, sum);
    }
    step_multiply(item, stages, 0, step + 1 < steps, &next, sum);
    if (step + 1 < steps)
        step_multiply(item, stages, 1, false, &next, sum);
#endif
}

#endif

/* ---- sums to C: as many rows of the warp's part at a time as there is local memory for all warps, as floats.
 * Fours of them are permuted within each row, so that rows below each other lie in different banks, in twos, so
 * that a run stays whole. */
#define TILES_BYTES        (STAGES * (A_SIZE + B_SIZE) * 2)
#define STRIPS_BYTES(down) (WARPS * FRAGMENT_M * (down) * WARP_N * 4)
#define STRIP_FITS(down)   (DOWN % (down) == 0 && STRIPS_BYTES(down) <= TILES_BYTES)
#define STRIP_DOWN         (STRIP_FITS(4) ? 4 : STRIP_FITS(2) ? 2 : 1) /* fragments */
#define STRIP_SIZE         (STRIP_DOWN * FRAGMENT_M * WARP_N)          /* floats */
#define MEMORY_BYTES       (STRIPS_BYTES(STRIP_DOWN) > TILES_BYTES ? STRIPS_BYTES(STRIP_DOWN) : TILES_BYTES)

INLINED uint strip_at(uint row, uint column) {
    const uint quads = WARP_N / 4, together = quads < 8 ? 8 / quads : 1;
    const uint turn = row / together * 2 & (min(quads, 8u) - 1);
    return row * WARP_N + ((column / 4 ^ turn) * 4 | column % 4);
}

INLINED void strip_put(struct work_item item, __local float *strip, uint row, const fragment_c *sum) {
    EACH(j, ACROSS) {
        EACH_BY(e, FRAGMENT_ELEMENTS, FRAGMENT_PAIRS + 1) {
            __local float *to =
                strip + strip_at(row + fragment_row(item, e), j * FRAGMENT_N + fragment_column(item, e));
            if (FRAGMENT_PAIRS)
                *(__local float2 *)to = (float2)(sum[j].v[e], sum[j].v[e + FRAGMENT_PAIRS]);
            else
                *to = sum[j].v[e];
        }
    }
}

/* What a group makes of its block. */
struct task {
    uint row, column;        /* where the block begins in C */
    uint first, terms;       /* of k */
    __global float *partial; /* where the block goes instead of C; only with PARTS, and NULL for C */
};

INLINED struct task task_of(uint m, uint n, uint k, uint whole, uint parts, uint depth, __global float *partial) {
    const uint group = get_group_id(0);
    if (PARTS && group >= whole) {
        const uint divided = group - whole, part = divided % parts;
        const uint2 corner = block_corner(whole + divided / parts, m, n);
        const uint first = part * depth;
        return (struct task){corner.x, corner.y, first, min(k - first, depth),
                             partial + (ulong)divided * (BLOCK_M * BLOCK_N)};
    }
    const uint2 corner = block_corner(group, m, n);
    return (struct task){corner.x, corner.y, 0, k, 0};
}

/* What a group reads of an operand from its row or column `line` of `lines` on; `across`: k runs down in memory. */
INLINED struct source source_of(__global const ushort *matrix, uint stride, bool across, uint line, uint lines,
                                struct task task) {
    if (across)
        return (struct source){matrix + (ulong)task.first * stride + line, stride, task.terms, lines - line};
    return (struct source){matrix + (ulong)line * stride + task.first, stride, lines - line, task.terms};
}

/* Rows of the block from (row, column) on. */
INLINED void strip_finish(struct work_item item, __local const float *strip, struct target target, struct task task,
                          uint row, uint column) {
    const uint across = WARP_N / RUN;
    NOT_UNROLLED
    for (uint run = item.lane; run < STRIP_SIZE / RUN; run += WARP_SIZE) {
        const uint below = run / across, beside = run % across * RUN;
        float y[RUN];
        run_from_local(y, strip + strip_at(below, beside));
        if (PARTS && task.partial) {
            run_store(y, task.partial, (row + below) * BLOCK_N + column + beside, TYPE_FP32);
            continue;
        }
        const uint at_row = task.row + row + below, at_column = task.column + column + beside;
        if (LOAD == 2 || (at_row < target.rows && at_column < target.columns))
            run_finish(y, target, at_row, at_column);
    }
}

/* `memory` may still be read as tiles. */
INLINED void block_finish(struct work_item item, __local uint4 *memory, fragment_c sum[DOWN][ACROSS],
                          struct target target, struct task task) {
    __local float *strip = (__local float *)memory + item.warp * STRIP_SIZE;
    const uint row = item.warp / WARPS_ACROSS * WARP_M, column = item.warp % WARPS_ACROSS * WARP_N;
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_BY(first, DOWN, STRIP_DOWN) {
        if (first > 0)
            WARP_FENCE();
        EACH(i, DOWN) {
            if (i / STRIP_DOWN == first / STRIP_DOWN) /* Intel's compiler does not unroll the outer loop */
                strip_put(item, strip, i % STRIP_DOWN * FRAGMENT_M, sum[i]);
        }
        WARP_FENCE();
        strip_finish(item, strip, target, task, row + first * FRAGMENT_M, column);
    }
}

/* Groups: the blocks of C, as many for each as have a part of it. */
MATRIX_KERNEL(WARPS)
void mma_gemm(uint m, uint n, uint k, uint whole, uint parts, uint depth, __global float *partial,
              __global const ushort *a, ulong a_at, uint a_stride, __global const ushort *b, ulong b_at,
              uint b_stride, TARGET_PARAMETERS) {
    __local uint4 memory[(MEMORY_BYTES) / 16] __attribute__((aligned(32)));
    __local ushort(*stages)[STAGE_SIZE] = (__local ushort(*)[STAGE_SIZE])memory;
    MATRIX_BEGIN(item, WARPS);
    const struct target target = TARGET(m, n);
    const struct task task = task_of(m, n, k, whole, parts, depth, partial);
    const struct sources sources = {source_of(a + a_at, a_stride, TRANSPOSE_A, task.row, m, task),
                                    source_of(b + b_at, b_stride, !TRANSPOSE_B, task.column, n, task)};
    fragment_c sum[DOWN][ACROSS];
    EACH(i, DOWN)
        FRAGMENTS_CLEAR(sum[i], ACROSS);
    block_multiply(item, stages, sources, (task.terms - 1) / BLOCK_K + 1, sum);
    block_finish(item, memory, sum, target, task);
}
