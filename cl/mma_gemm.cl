/* Matrix products on matrix units: C = op(A) op(B) + beta C + bias, and activated = GELU(C), where bias and activated may be
 * missing. op(A) is [m, k], op(B) [k, n], C and activated [m, n], bias [n]; A and B in the 16-bit type of the unit, the others of
 * any type, sums in float. GELU sees C before it is rounded.
 *
 * A work-group makes a block of C, BLOCK_M x BLOCK_N, in steps of BLOCK_K along k: tiles of A and B go into local memory, each
 * warp multiplies WARP_M x WARP_N of them. There are STAGES tiles of each: with two, the next tile waits in registers while
 * the present one is multiplied; from three on it is on its way by asynchronous copies, STAGES - 1 steps ahead.
 *
 * Constants given at build time, besides those:
 *   TRANSPOSE_A, _B  whether op is the transpose of how the matrix lies in memory
 *   LOAD        0: elements one by one, for rows that do not start at 16 bytes; 1: chunks of 8, elements only at the
 *               matrices' edges; 2: chunks, and there are no edges: m, n and k are multiples of the blocks'
 *   TYPE_C      of C's elements
 *   EVEN_C      elements of C may be written in pairs: its offset and stride are even
 *   EPILOGUE    whether there may be a bias and an activation
 *
 * Comes after element.cl and matrix_unit.cl, with EPILOGUE after common.cl and elementwise.cl (with VEC 1, for GELU_TANH) too.
 */
#define WARPS_ACROSS (BLOCK_N / WARP_N)
#define WARPS        (BLOCK_M / WARP_M * WARPS_ACROSS)
#define ITEMS        (WARPS * UNIT_WARP)
#define PAIRS        (EVEN_C && UNIT_PAIRS)
#define DOWN         (WARP_M / UNIT_M) /* fragments of a warp */
#define ACROSS       (WARP_N / UNIT_N)

/* Tiles as the operands lie in memory, so that loading never turns anything. */
#if TRANSPOSE_A
#define A_ROWS  BLOCK_K
#define A_WIDTH BLOCK_M
#else
#define A_ROWS  BLOCK_M
#define A_WIDTH BLOCK_K
#endif
#if TRANSPOSE_B
#define B_ROWS  BLOCK_N
#define B_WIDTH BLOCK_K
#else
#define B_ROWS  BLOCK_K
#define B_WIDTH BLOCK_N
#endif
#define A_SIZE   (A_ROWS * A_WIDTH)
#define B_SIZE   (B_ROWS * B_WIDTH)
#define A_CHUNKS (A_SIZE / CHUNK / ITEMS) /* of a work-item */
#define B_CHUNKS (B_SIZE / CHUNK / ITEMS)

/* What there is of an operand from the corner of the next tile on: rows x columns. Inside of a tile 32 bits count elements. */
struct source {
    __global const ushort *elements;
    uint stride;
    uint rows, columns;
};

/* How many of 8 elements of a row from `column` on there are. */
INLINED uint chunk_extent(struct source source, uint row, uint column) {
#if LOAD == 2
    return CHUNK;
#else
    return row < source.rows && column < source.columns ? min(source.columns - column, (uint)CHUNK) : 0;
#endif
}

/* 8 elements of a row, zeros beyond the edge. */
INLINED uint4 chunk_fetch(struct source source, uint row, uint column) {
    const uint extent = chunk_extent(source, row, column);
    __global const ushort *from = source.elements + (row * source.stride + column);
    if (LOAD > 0 && extent == CHUNK)
        return *(__global const uint4 *)from;
    uint words[CHUNK / 2];
    UNIT_UNROLL
    for (uint i = 0; i < CHUNK / 2; i++) {
        const uint low = i * 2 < extent ? from[i * 2] : 0, high = i * 2 + 1 < extent ? from[i * 2 + 1] : 0;
        words[i] = high << 16 | low;
    }
    return (uint4)(words[0], words[1], words[2], words[3]);
}

/* Starts the copy of a work-item's chunks of a tile. */
INLINED void tile_stream(__local ushort *tile, struct source source, uint width, uint chunks) {
    UNIT_UNROLL
    for (uint i = 0; i < chunks; i++) {
        const uint chunk = get_local_id(0) + i * ITEMS, row = chunk / (width / CHUNK);
        const uint column = chunk % (width / CHUNK) * CHUNK;
        __local ushort *to = tile + tile_at(width, row, column);
#if LOAD == 0
        *(__local uint4 *)to = chunk_fetch(source, row, column);
#else
        const uint extent = chunk_extent(source, row, column);
        /* nothing is read where there is nothing, but the address has to be one */
        const uint at = extent ? row * source.stride + column : 0;
        unit_copy(to, source.elements + at, extent * sizeof(ushort));
#endif
    }
}

/* The same in two steps: into registers, and from there into the tile. */
INLINED void tile_fetch(uint4 *registers, struct source source, uint width, uint chunks) {
    UNIT_UNROLL
    for (uint i = 0; i < chunks; i++) {
        const uint chunk = get_local_id(0) + i * ITEMS;
        registers[i] = chunk_fetch(source, chunk / (width / CHUNK), chunk % (width / CHUNK) * CHUNK);
    }
}

INLINED void tile_put(__local ushort *tile, const uint4 *registers, uint width, uint chunks) {
    UNIT_UNROLL
    for (uint i = 0; i < chunks; i++) {
        const uint chunk = get_local_id(0) + i * ITEMS;
        *(__local uint4 *)(tile + tile_at(width, chunk / (width / CHUNK), chunk % (width / CHUNK) * CHUNK)) =
            registers[i];
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

INLINED unit_a fragment_a(struct unit unit, __local const ushort *tile, uint row, uint k) {
#if TRANSPOSE_A
    return unit_load_a_transposed(unit, tile, A_WIDTH, k, row);
#else
    return unit_load_a(unit, tile, A_WIDTH, row, k);
#endif
}

INLINED unit_b fragment_b(struct unit unit, __local const ushort *tile, uint k, uint column) {
#if TRANSPOSE_B
    return unit_load_b_transposed(unit, tile, B_WIDTH, column, k);
#else
    return unit_load_b(unit, tile, B_WIDTH, k, column);
#endif
}

/* sum += the warp's part of the product of two tiles */
INLINED void tiles_multiply(struct unit unit, __local const ushort *tile_a, __local const ushort *tile_b,
                           unit_c sum[DOWN][ACROSS]) {
    const uint row = unit.warp / WARPS_ACROSS * WARP_M, column = unit.warp % WARPS_ACROSS * WARP_N;
    UNIT_UNROLL
    for (uint k = 0; k < BLOCK_K; k += UNIT_K) {
        unit_a a[DOWN];
        unit_b b[ACROSS];
        UNIT_UNROLL
        for (uint i = 0; i < DOWN; i++)
            a[i] = fragment_a(unit, tile_a, row + i * UNIT_M, k);
        UNIT_UNROLL
        for (uint j = 0; j < ACROSS; j++)
            b[j] = fragment_b(unit, tile_b, k, column + j * UNIT_N);
        UNIT_UNROLL
        for (uint i = 0; i < DOWN; i++) {
            UNIT_UNROLL
            for (uint j = 0; j < ACROSS; j++)
                unit_multiply(unit, &sum[i][j], a[i], b[j]);
        }
    }
}

/* Which block this group makes: eight rows of blocks are walked together, so that what neighbours in time read stays in the
 * cache. */
#define WALK 8
INLINED uint2 block_of(uint group, uint blocks_down, uint blocks_across) {
    const uint first = group / (WALK * blocks_across) * WALK, inside = group % (WALK * blocks_across);
    const uint rows = min(blocks_down - first, (uint)WALK);
    return (uint2)(first + inside % rows, inside / rows);
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
#if STAGES == 3
#define BEHIND 1
#elif STAGES == 4
#define BEHIND 2
#else
#error "STAGES is 2, 3 or 4"
#endif

INLINED void stage_stream(__local ushort (*tiles_a)[A_SIZE], __local ushort (*tiles_b)[B_SIZE], uint stage,
                         struct sources *sources) {
    tile_stream(tiles_a[stage], sources->a, A_WIDTH, A_CHUNKS);
    tile_stream(tiles_b[stage], sources->b, B_WIDTH, B_CHUNKS);
    sources_advance(sources);
}

/* sum += the warp's part of the group's block */
INLINED void block_multiply(struct unit unit, __local ushort (*tiles_a)[A_SIZE], __local ushort (*tiles_b)[B_SIZE],
                           struct sources sources, uint steps, unit_c sum[DOWN][ACROSS]) {
    for (uint stage = 0; stage < STAGES - 1; stage++) {
        if (stage < steps)
            stage_stream(tiles_a, tiles_b, stage, &sources);
        unit_copy_commit(); /* an empty group, too: they are counted */
    }
    uint present = 0, next = STAGES - 1;
    for (uint step = 0; step < steps; step++) {
        UNIT_COPY_WAIT(BEHIND);
        barrier(CLK_LOCAL_MEM_FENCE); /* all of the present tile is there, and nobody reads the one before */
        if (step + STAGES - 1 < steps)
            stage_stream(tiles_a, tiles_b, next, &sources);
        unit_copy_commit();
        tiles_multiply(unit, tiles_a[present], tiles_b[present], sum);
        present = present + 1 < STAGES ? present + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
}

#else

INLINED void block_multiply(struct unit unit, __local ushort (*tiles_a)[A_SIZE], __local ushort (*tiles_b)[B_SIZE],
                           struct sources sources, uint steps, unit_c sum[DOWN][ACROSS]) {
    uint4 chunks_a[A_CHUNKS], chunks_b[B_CHUNKS];
    tile_fetch(chunks_a, sources.a, A_WIDTH, A_CHUNKS);
    tile_fetch(chunks_b, sources.b, B_WIDTH, B_CHUNKS);
    tile_put(tiles_a[0], chunks_a, A_WIDTH, A_CHUNKS);
    tile_put(tiles_b[0], chunks_b, B_WIDTH, B_CHUNKS);
    for (uint step = 0; step < steps; step++) {
        const uint present = step & 1, next = present ^ 1;
        barrier(CLK_LOCAL_MEM_FENCE); /* the present tile is there, and nobody reads the one before */
        sources_advance(&sources);
        if (step + 1 < steps) {
            tile_fetch(chunks_a, sources.a, A_WIDTH, A_CHUNKS);
            tile_fetch(chunks_b, sources.b, B_WIDTH, B_CHUNKS);
        }
        tiles_multiply(unit, tiles_a[present], tiles_b[present], sum);
        if (step + 1 < steps) {
            tile_put(tiles_a[next], chunks_a, A_WIDTH, A_CHUNKS);
            tile_put(tiles_b[next], chunks_b, B_WIDTH, B_CHUNKS);
        }
    }
}

#endif

#if EPILOGUE
/* `parts` says what there is. */
#define PART_BIAS      1
#define PART_ACTIVATED 2
#define MORE_PARAMETERS                                                                                            \
    , uint parts, __global const void *bias, ulong bias_at, int bias_type, __global void *activated, ulong activated_at, \
        ulong activated_stride, int activated_type
#define MORE_ARGUMENTS                                                                                             \
    , parts, bias, bias_at, bias_type, activated, activated_at, activated_stride, activated_type
#else
#define MORE_PARAMETERS
#define MORE_ARGUMENTS
#endif

/* C, of which this warp has a part that begins at (row, column). */
struct target {
    __global void *elements;
    ulong at, stride;
    uint rows, columns;
    uint row, column;
    float beta;
};

/* What goes into an element of C. */
INLINED float element_finish(float sum, struct target c, uint row, uint column MORE_PARAMETERS) {
    float y = sum;
    if (c.beta != 0.0f)
        y += c.beta * element_load(c.elements, c.at + row * c.stride + column, TYPE_C);
#if EPILOGUE
    if (parts & PART_BIAS)
        y += element_load(bias, bias_at + column, bias_type);
    if (parts & PART_ACTIVATED)
        element_store(y * gelu_factor(y), activated, activated_at + row * activated_stride + column, activated_type);
#endif
    return y;
}

INLINED void fragment_store(struct unit unit, unit_c sum, struct target c, uint row, uint column MORE_PARAMETERS) {
    UNIT_UNROLL
    for (uint e = 0; e < UNIT_ELEMENTS; e += PAIRS + 1) {
        const uint at_row = row + unit_row(unit, e), at_column = column + unit_column(unit, e);
        const ulong at = c.at + at_row * c.stride + at_column;
        if (LOAD < 2 && (at_row >= c.rows || at_column >= c.columns))
            continue;
        const float first = element_finish(sum.v[e], c, at_row, at_column MORE_ARGUMENTS);
#if PAIRS
        if (LOAD == 2 || at_column + 1 < c.columns) {
            const float second = element_finish(sum.v[e + 1], c, at_row, at_column + 1 MORE_ARGUMENTS);
            element_store2((float2)(first, second), c.elements, at, TYPE_C);
            continue;
        }
#endif
        element_store(first, c.elements, at, TYPE_C);
    }
}

/* Groups: the blocks of C. */
UNIT_KERNEL(WARPS)
void mma_gemm(uint m, uint n, uint k, __global const ushort *a, ulong a_at, uint a_stride, __global const ushort *b,
              ulong b_at, uint b_stride, float beta, __global void *c, ulong c_at, ulong c_stride MORE_PARAMETERS) {
    __local ushort tiles_a[STAGES][A_SIZE] __attribute__((aligned(16)));
    __local ushort tiles_b[STAGES][B_SIZE] __attribute__((aligned(16)));
    UNIT_BEGIN(unit, WARPS);
    const uint blocks_down = (m - 1) / BLOCK_M + 1, blocks_across = (n - 1) / BLOCK_N + 1;
    const uint2 block = block_of(get_group_id(0), blocks_down, blocks_across);
    const uint row = block.x * BLOCK_M, column = block.y * BLOCK_N;
    const struct sources sources = {
#if TRANSPOSE_A
        {a + a_at + row, a_stride, k, m - row},
#else
        {a + a_at + (ulong)row * a_stride, a_stride, m - row, k},
#endif
#if TRANSPOSE_B
        {b + b_at + (ulong)column * b_stride, b_stride, n - column, k},
#else
        {b + b_at + column, b_stride, k, n - column},
#endif
    };
    unit_c sum[DOWN][ACROSS];
    UNIT_UNROLL
    for (uint i = 0; i < DOWN; i++) {
        UNIT_UNROLL
        for (uint j = 0; j < ACROSS; j++)
            unit_clear(&sum[i][j]);
    }
    block_multiply(unit, tiles_a, tiles_b, sources, (k - 1) / BLOCK_K + 1, sum);
    const struct target target = {c, c_at, c_stride, m, n, row + unit.warp / WARPS_ACROSS * WARP_M,
                                  column + unit.warp % WARPS_ACROSS * WARP_N, beta};
    UNIT_UNROLL
    for (uint i = 0; i < DOWN; i++) {
        UNIT_UNROLL
        for (uint j = 0; j < ACROSS; j++)
            fragment_store(unit, sum[i][j], target, target.row + i * UNIT_M,
                           target.column + j * UNIT_N MORE_ARGUMENTS);
    }
}
