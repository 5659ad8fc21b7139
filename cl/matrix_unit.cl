/* Matrix units: D = A B + C on small matrices that the lanes of a warp (wave, sub-group) hold together, A and B in 16 bits,
 * C and D in float. One interface to what devices have, for matrix products and attention.
 *
 * Constants given at build time:
 *   UNIT       1 NVIDIA (mma.sync of PTX, sm_80 and later), 2 AMD WMMA (gfx11), 6 the same of gfx12, 3 AMD MFMA (gfx90a, gfx94x,
 *              gfx950), 7 the same of gfx908, 4 Intel (cl_intel_subgroup_matrix_multiply_accumulate), 5 an emulation for tests
 *              that runs anywhere. The host knows which: compilers do not always define the macros that name their target.
 *   UNIT_FP16  elements of A and B are 0: bf16, 1: fp16; either way kernels see bits in a ushort
 *   UNIT_WARP  with UNIT 4: the size of sub-groups, 16 or 8
 *
 * What a kernel sees:
 *   UNIT_WARP            lanes that work together. Work-groups are one-dimensional and consist of whole warps.
 *   UNIT_M, _N, _K       A [UNIT_M, UNIT_K], B [UNIT_K, UNIT_N], C [UNIT_M, UNIT_N]
 *   UNIT_KERNEL(warps)   goes before `void`: a kernel with work-groups of so many warps
 *   UNIT_BEGIN(unit, warps)      at the start of such a kernel: declares `unit`, who a work-item is
 *   unit_a, unit_b, unit_c       a lane's share; that of C are the floats c.v[0 .. UNIT_ELEMENTS - 1],
 *   unit_row, unit_column        which lie there in C; with UNIT_PAIRS 2 i and 2 i + 1 side by side in a row
 *   unit_load_a, unit_load_b     from a tile in local memory (below), either as it lies or transposed
 *   unit_multiply                C += A B
 *   UNIT_ASYNC           1 where unit_copy is worth its while: copies of 16 bytes from global to local memory that go on
 *                        while the kernel computes; unit_copy_commit closes a group of them, UNIT_COPY_WAIT(n) waits until
 *                        at most n groups are under way (then a barrier, for those of other work-items)
 *   UNIT_WARP_FENCE()    what lanes of a warp wrote to local memory before it the others read after it. May be a barrier.
 *
 * Comes after element.cl. All lanes of a warp must come to the functions together; under the emulation all work-items of the group, since it
 * exchanges through barriers.
 *
 * A tile is a matrix of 16-bit elements in local memory with rows of `width` elements, a power of two from 16 up. Its
 * chunks of 8 elements (16 bytes) are permuted within each row, so that 8 lanes that read one chunk each from 8 rows below
 * each other hit all banks; tile_at says where an element is, and a chunk stays whole. Tiles are aligned to 16 bytes.
 */
#define CHUNK 8 /* elements of 16 bits that are copied at once */

INLINED uint tile_at(uint width, uint row, uint column) {
    const uint chunks = width / CHUNK, together = chunks < 8 ? 8 / chunks : 1;
    const uint turn = row / together & (min(chunks, 8u) - 1);
    return row * width + ((column / CHUNK ^ turn) * CHUNK | column % CHUNK);
}

struct unit {
    uint lane;             /* in the warp */
    uint warp;             /* in the work-group */
    __local uint *scratch; /* of the emulation, the warp's own */
};

/* For kernels that make operands themselves. */
INLINED ushort unit_round(float x) {
#if UNIT_FP16
    ushort bits;
    vstore_half_rte(x, 0, (half *)&bits);
    return bits;
#else
    return element_round_bf16(x);
#endif
}

/* ---- before loops over fragments, which must live in registers; the emulation has to compile fast */
#if UNIT == 5
#define UNIT_UNROLL _Pragma("nounroll")
#else
#define UNIT_UNROLL _Pragma("unroll")
#endif
#define UNIT_ROLLED _Pragma("unroll 1") /* before others that would make code too long */

#if UNIT == 1 || UNIT == 5
/* ==== NVIDIA: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". B and C are two fragments side by side,
 * so that ldmatrix.x4 fills either operand. */
#undef UNIT_WARP
#define UNIT_WARP     32
#define UNIT_M        16
#define UNIT_N        16
#define UNIT_K        16
#define UNIT_ELEMENTS 8
#define UNIT_PAIRS    1
#define UNIT_ASYNC    1

typedef uint4 unit_a;
typedef uint4 unit_b; /* x, y: columns 0 to 7; z, w: columns 8 to 15 */
typedef struct {
    float v[UNIT_ELEMENTS]; /* 0 to 3: columns 0 to 7; 4 to 7: columns 8 to 15 */
} unit_c;

INLINED uint unit_row(struct unit unit, uint i) {
    return unit.lane / 4 + (i & 2) * 4;
}

INLINED uint unit_column(struct unit unit, uint i) {
    return unit.lane % 4 * 2 + (i & 1) + (i & 4) * 2;
}

#define UNIT_KERNEL(warps) __kernel __attribute__((reqd_work_group_size((warps) * UNIT_WARP, 1, 1)))

#if UNIT == 1
#define UNIT_BEGIN(unit, warps)                                                                                    \
    const struct unit unit = {get_local_id(0) % UNIT_WARP, get_local_id(0) / UNIT_WARP, 0}

#define UNIT_SHARED(pointer) ((uint)(size_t)(pointer))

/* Four 8 x 8 matrices; lane l gives where row l % 8 of matrix l / 8 is. */
INLINED uint4 ptx_load(struct unit unit, __local const ushort *row) {
    uint r0, r1, r2, r3;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                     : "r"(UNIT_SHARED(row))
                     : "memory");
    return (uint4)(r0, r1, r2, r3);
}

/* The same, each of the four transposed. */
INLINED uint4 ptx_load_transposed(struct unit unit, __local const ushort *row) {
    uint r0, r1, r2, r3;
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)
                     : "r"(UNIT_SHARED(row))
                     : "memory");
    return (uint4)(r0, r1, r2, r3);
}

#if UNIT_FP16
#define PTX_TYPE "f16"
#else
#define PTX_TYPE "bf16"
#endif

/* C [16, 8] += A [16, 16] B [16, 8] */
INLINED void ptx_multiply(struct unit unit, float *c, uint4 a, uint2 b) {
    float d0, d1, d2, d3;
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE ".f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                       "f"(c[3]));
    c[0] = d0, c[1] = d1, c[2] = d2, c[3] = d3;
}

/* 16 bytes, of which the first `bytes` come from `from` and the others are zero. Both are aligned to 16 bytes. */
INLINED void unit_copy(__local ushort *to, __global const ushort *from, uint bytes) {
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(UNIT_SHARED(to)), "l"(from), "r"(bytes)
                     : "memory");
}

INLINED void unit_copy_commit(void) {
    __asm__ volatile("cp.async.commit_group;" ::: "memory");
}

#define UNIT_WARP_FENCE() __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory")

#define UNIT_COPY_WAIT_(groups) __asm__ volatile("cp.async.wait_group " #groups ";" ::: "memory")
#define UNIT_COPY_WAIT(groups)  UNIT_COPY_WAIT_(groups)

#else
/* ==== The emulation does what the PTX ISA says these instructions do, from the tables there; what stands above and below
 * about who holds what is therefore tested by it. */
#define UNIT_SCRATCH 256 /* words of a warp */
#define UNIT_BEGIN(unit, warps)                                                                                    \
    __local uint unit##_scratch[(warps) * UNIT_SCRATCH] __attribute__((aligned(16)));                              \
    const struct unit unit = {get_local_id(0) % UNIT_WARP, get_local_id(0) / UNIT_WARP,                            \
                              unit##_scratch + get_local_id(0) / UNIT_WARP * UNIT_SCRATCH}

/* ldmatrix .x4: the rows' addresses come from the lanes; a lane gets two neighbours of row lane / 4 of each matrix, beginning
 * at lane % 4 * 2. With .trans rows and columns change places. */
INLINED uint4 ptx_load_rows(struct unit unit, __local const ushort *row, bool transposed) {
    uint words[4];
    __local const ushort *__local *rows = (__local const ushort *__local *)unit.scratch;
    rows[unit.lane] = row;
    barrier(CLK_LOCAL_MEM_FENCE);
    UNIT_UNROLL
    for (uint matrix = 0; matrix < 4; matrix++) {
        const uint major = unit.lane / 4, minor = unit.lane % 4 * 2;
        __local const ushort *__local *at = rows + matrix * 8;
        const uint low = transposed ? at[minor][major] : at[major][minor];
        const uint high = transposed ? at[minor + 1][major] : at[major][minor + 1];
        words[matrix] = high << 16 | low;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return (uint4)(words[0], words[1], words[2], words[3]);
}

INLINED uint4 ptx_load(struct unit unit, __local const ushort *row) {
    return ptx_load_rows(unit, row, false);
}

INLINED uint4 ptx_load_transposed(struct unit unit, __local const ushort *row) {
    return ptx_load_rows(unit, row, true);
}

INLINED float emulated_value(__local const ushort *elements, uint at) {
#if UNIT_FP16
    return vload_half(at, (__local const half *)elements);
#else
    return as_float((uint)elements[at] << 16);
#endif
}

/* mma.m16n8k16: element i of a lane lies in
 *   A: row group (+ 8 unless i < 2 or 4 <= i < 6), column 2 member + i % 2 (+ 8 from i = 4 on)
 *   B: row 2 member + i % 2 (+ 8 from i = 2 on), column group
 *   C: row group (+ 8 from i = 2 on), column 2 member + i % 2
 * with group = lane / 4 and member = lane % 4. */
INLINED void ptx_multiply(struct unit unit, float *c, uint4 a, uint2 b) {
    __local ushort *whole_a = (__local ushort *)unit.scratch, *whole_b = whole_a + 16 * 16;
    const uint group = unit.lane / 4, member = unit.lane % 4;
    const uint words_a[4] = {a.x, a.y, a.z, a.w}, words_b[2] = {b.x, b.y};
    UNIT_UNROLL
    for (uint i = 0; i < 8; i++) {
        const uint row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const uint column = member * 2 + i % 2 + (i < 4 ? 0 : 8);
        whole_a[row * 16 + column] = (ushort)(words_a[i / 2] >> i % 2 * 16);
    }
    UNIT_UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint row = member * 2 + i % 2 + (i < 2 ? 0 : 8);
        whole_b[row * 8 + group] = (ushort)(words_b[i / 2] >> i % 2 * 16);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    UNIT_UNROLL
    for (uint i = 0; i < 4; i++) {
        const uint row = i < 2 ? group : group + 8, column = member * 2 + i % 2;
        float sum = c[i];
        UNIT_UNROLL
        for (uint k = 0; k < 16; k++)
            sum = mad(emulated_value(whole_a, row * 16 + k), emulated_value(whole_b, k * 8 + column), sum);
        c[i] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

INLINED void unit_copy(__local ushort *to, __global const ushort *from, uint bytes) {
    UNIT_UNROLL
    for (uint i = 0; i < CHUNK; i++)
        to[i] = i * sizeof(ushort) < bytes ? from[i] : 0;
}

INLINED void unit_copy_commit(void) {
}

#define UNIT_COPY_WAIT(groups)

#endif /* the emulation */

/* Where the row is whose address this lane gives, in a fragment at (row, column) of the tile: the second of its four 8 x 8
 * matrices lies below the first one (DOWN), or beside it (ACROSS). */
#define UNIT_DOWN(width, row, column) tile_at(width, (row) + unit.lane % 16, (column) + unit.lane / 16 * 8)
#define UNIT_ACROSS(width, row, column)                                                                            \
    tile_at(width, (row) + unit.lane / 16 * 8 + unit.lane % 8, (column) + unit.lane / 8 % 2 * 8)

/* The A whose element (i, p) is element (row + i, column + p) of the tile. */
INLINED unit_a unit_load_a(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    return ptx_load(unit, tile + UNIT_DOWN(width, row, column));
}

/* Element (i, p) of A is element (row + p, column + i) of the tile. */
INLINED unit_a unit_load_a_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    return ptx_load_transposed(unit, tile + UNIT_ACROSS(width, row, column));
}

/* Element (p, j) of B is element (row + p, column + j) of the tile. */
INLINED unit_b unit_load_b(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    return ptx_load_transposed(unit, tile + UNIT_DOWN(width, row, column));
}

/* Element (p, j) of B is element (row + j, column + p) of the tile. */
INLINED unit_b unit_load_b_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    return ptx_load(unit, tile + UNIT_ACROSS(width, row, column));
}

INLINED void unit_multiply(struct unit unit, unit_c *c, unit_a a, unit_b b) {
    ptx_multiply(unit, c->v, a, b.lo);
    ptx_multiply(unit, c->v + 4, a, b.hi);
}

/* ==== the other vendors' */
#elif UNIT == 2 || UNIT == 3 || UNIT == 6 || UNIT == 7
/* AMD: RDNA 3 and 4 ISA, "WMMA"; CDNA ISA, "MFMA". Lane l holds UNIT_SHARE neighbours along k of row l % 16 of A and of column
 * l % 16 of B. Which ones does not matter as long as it is the same for both, since the sum over k has no order. */
#undef UNIT_WARP
#define UNIT_M     16
#define UNIT_N     16
#define UNIT_K     16
#define UNIT_PAIRS 0
#define UNIT_ASYNC 0
#if UNIT_FP16
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#endif

#if UNIT == 3 || UNIT == 7
#define UNIT_WARP     64
#define UNIT_ELEMENTS 4
#define UNIT_SHARE    4
#define UNIT_BITS     ushort4
#define UNIT_ROW(i)   (unit.lane / 16 * 4 + (i))
#define UNIT_FIRST    (unit.lane / 16 * 4)
#if UNIT_FP16
typedef half4 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0)
#define UNIT_OPERAND(x)        as_half4(x)
#elif UNIT == 3
typedef short4 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0)
#define UNIT_OPERAND(x)        as_short4(x)
#else /* two steps of 8 along k */
typedef short4 unit_operand;
#define UNIT_HALF(a, b, c)     __builtin_amdgcn_mfma_f32_16x16x8bf16(a, b, c, 0, 0, 0)
#define UNIT_MULTIPLY(a, b, c) UNIT_HALF((a).hi, (b).hi, UNIT_HALF((a).lo, (b).lo, c))
#define UNIT_OPERAND(x)        as_short4(x)
#endif
typedef float4 unit_floats;
#elif UNIT == 6
#define UNIT_WARP     32
#define UNIT_ELEMENTS 8
#define UNIT_SHARE    8
#define UNIT_BITS     ushort8
#define UNIT_ROW(i)   (unit.lane / 16 * 8 + (i))
#define UNIT_FIRST    (unit.lane / 16 * 8)
#if UNIT_FP16
typedef half8 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c)
#define UNIT_OPERAND(x)        as_half8(x)
#else
typedef short8 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c)
#define UNIT_OPERAND(x)        as_short8(x)
#endif
typedef float8 unit_floats;
#else
#define UNIT_WARP     32
#define UNIT_ELEMENTS 8
#define UNIT_SHARE    16 /* both halves of the wave hold the same */
#define UNIT_BITS     ushort16
#define UNIT_ROW(i)   ((i) * 2 + unit.lane / 16)
#define UNIT_FIRST    0
#if UNIT_FP16
typedef half16 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c)
#define UNIT_OPERAND(x)        as_half16(x)
#else
typedef short16 unit_operand;
#define UNIT_MULTIPLY(a, b, c) __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c)
#define UNIT_OPERAND(x)        as_short16(x)
#endif
typedef float8 unit_floats;
#endif

#define UNIT_AMD 1

typedef UNIT_BITS unit_a;
typedef UNIT_BITS unit_b;
typedef struct {
    unit_floats v;
} unit_c;

#define UNIT_KERNEL(warps) __kernel __attribute__((reqd_work_group_size((warps) * UNIT_WARP, 1, 1)))
#define UNIT_BEGIN(unit, warps)                                                                                    \
    const struct unit unit = {get_local_id(0) % UNIT_WARP, get_local_id(0) / UNIT_WARP, 0}

INLINED uint unit_row(struct unit unit, uint i) {
    return UNIT_ROW(i);
}

INLINED uint unit_column(struct unit unit, uint i) {
    return unit.lane % 16;
}

/* UNIT_SHARE neighbours of one row of the tile. */
INLINED UNIT_BITS unit_load_along(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
#if UNIT_SHARE == 16
    const ushort8 low = *(__local const ushort8 *)(tile + tile_at(width, row, column));
    const ushort8 high = *(__local const ushort8 *)(tile + tile_at(width, row, column + CHUNK));
    return (ushort16)(low, high);
#else
    return *(__local const UNIT_BITS *)(tile + tile_at(width, row, column + UNIT_FIRST));
#endif
}

/* UNIT_SHARE elements of one column of the tile. */
INLINED UNIT_BITS unit_load_down(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    UNIT_BITS bits;
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_SHARE; i++)
        bits[i] = tile[tile_at(width, row + UNIT_FIRST + i, column)];
    return bits;
}

INLINED unit_a unit_load_a(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    return unit_load_along(unit, tile, width, row + unit.lane % 16, column);
}

INLINED unit_a unit_load_a_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    return unit_load_down(unit, tile, width, row, column + unit.lane % 16);
}

INLINED unit_b unit_load_b(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    return unit_load_a_transposed(unit, tile, width, row, column);
}

INLINED unit_b unit_load_b_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    return unit_load_a(unit, tile, width, row, column);
}

INLINED void unit_multiply(struct unit unit, unit_c *c, unit_a a, unit_b b) {
    c->v = UNIT_MULTIPLY(UNIT_OPERAND(a), UNIT_OPERAND(b), c->v);
}

#elif UNIT == 4
/* Intel: cl_intel_subgroup_matrix_multiply_accumulate. A lane holds column `lane` of B and of C, and of each row of A the
 * UNIT_K / UNIT_WARP elements from lane * UNIT_K / UNIT_WARP on. */
#define UNIT_M        8
#define UNIT_N        UNIT_WARP
#define UNIT_K        16
#define UNIT_ELEMENTS 8
#define UNIT_PAIRS    0
#define UNIT_ASYNC    0

#if UNIT_WARP == 16
typedef short8 unit_a;
#else
typedef int8 unit_a;
#endif
typedef int8 unit_b;
typedef struct {
    float8 v;
} unit_c;

#define UNIT_KERNEL(warps)                                                                                         \
    __kernel __attribute__((intel_reqd_sub_group_size(UNIT_WARP)))                                                 \
    __attribute__((reqd_work_group_size((warps) * UNIT_WARP, 1, 1)))
#define UNIT_BEGIN(unit, warps)                                                                                    \
    const struct unit unit = {get_local_id(0) % UNIT_WARP, get_local_id(0) / UNIT_WARP, 0}

INLINED uint unit_row(struct unit unit, uint i) {
    return i;
}

INLINED uint unit_column(struct unit unit, uint i) {
    return unit.lane;
}

/* Two elements in one int, the first one below. */
INLINED int unit_pair(ushort low, ushort high) {
    return (int)((uint)high << 16 | low);
}

INLINED unit_a unit_load_a(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    unit_a a;
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_M; i++) {
#if UNIT_WARP == 16
        a[i] = (short)tile[tile_at(width, row + i, column + unit.lane)];
#else
        a[i] = *(__local const int *)(tile + tile_at(width, row + i, column + unit.lane * 2));
#endif
    }
    return a;
}

INLINED unit_a unit_load_a_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    unit_a a;
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_M; i++) {
#if UNIT_WARP == 16
        a[i] = (short)tile[tile_at(width, row + unit.lane, column + i)];
#else
        a[i] = unit_pair(tile[tile_at(width, row + unit.lane * 2, column + i)],
                         tile[tile_at(width, row + unit.lane * 2 + 1, column + i)]);
#endif
    }
    return a;
}

INLINED unit_b unit_load_b(struct unit unit, __local const ushort *tile, uint width, uint row, uint column) {
    unit_b b;
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_K / 2; i++)
        b[i] = unit_pair(tile[tile_at(width, row + i * 2, column + unit.lane)],
                         tile[tile_at(width, row + i * 2 + 1, column + unit.lane)]);
    return b;
}

INLINED unit_b unit_load_b_transposed(struct unit unit, __local const ushort *tile, uint width, uint row,
                                      uint column) {
    unit_b b;
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_K / 2; i++)
        b[i] = *(__local const int *)(tile + tile_at(width, row + unit.lane, column + i * 2));
    return b;
}

INLINED void unit_multiply(struct unit unit, unit_c *c, unit_a a, unit_b b) {
#if UNIT_FP16
    c->v = intel_sub_group_f16_f16_matrix_mad_k16(a, b, c->v);
#else
    c->v = intel_sub_group_bf16_bf16_matrix_mad_k16(a, b, c->v);
#endif
}

#else
#error "UNIT is a number from 1 to 7"
#endif

INLINED void unit_clear(unit_c *c) {
    UNIT_UNROLL
    for (uint i = 0; i < UNIT_ELEMENTS; i++)
        c->v[i] = 0.0f;
}

#ifdef UNIT_AMD
/* A wave's accesses to local memory happen in order; the compiler has to know. */
#define UNIT_WARP_FENCE()                                                                                          \
    do {                                                                                                           \
        __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");                                                     \
        __builtin_amdgcn_wave_barrier();                                                                           \
    } while (0)
#elif UNIT != 1
#define UNIT_WARP_FENCE() barrier(CLK_LOCAL_MEM_FENCE)
#endif

#if !UNIT_ASYNC
INLINED void unit_copy(__local ushort *to, __global const ushort *from, uint bytes) {
    if (bytes == CHUNK * sizeof(ushort)) {
        *(__local uint4 *)to = *(__global const uint4 *)from;
        return;
    }
    UNIT_UNROLL
    for (uint i = 0; i < CHUNK; i++)
        to[i] = i * sizeof(ushort) < bytes ? from[i] : 0;
}
INLINED void unit_copy_commit(void) {
}
#define UNIT_COPY_WAIT(groups)
#endif
