/* Matrix cores: D = A B + C on small matrices that the lanes of a warp (wave, sub-group) hold together as
 * fragments; A and B have 16 bits, C and D are float. GEMM and attention use the same functions on all devices; a
 * file for each kind of matrix cores defines them (the table of runtime/gemm/matrix_cores.c):
 *
 *   NVIDIA sm_80 and later   matrix_cores_nvidia.cl (PTX)
 *   AMD                      matrix_cores_amd_wmma.cl (gfx11), _wmma_gfx12.cl, _mfma_8.cl (gfx908) or _mfma_16.cl
 *                            (gfx90a, gfx94x, gfx950)
 *   Intel                    matrix_cores_intel.cl (cl_intel_subgroup_matrix_multiply_accumulate)
 *   any device, for tests    matrix_cores_emulated.cl (NVIDIA's instructions in OpenCL C)
 *
 * Constants given at build time:
 *   WARP_SIZE  lanes that work together
 *   FP16       elements of A and B are 0: bf16, 1: fp16; either way kernels see bits in a ushort
 *
 * What the files define for kernels, whose work-groups are one-dimensional and consist of whole warps; a file whose
 * device needs another MATRIX_KERNEL, MATRIX_BEGIN or FRAGMENT_UNROLL than this one defines it again:
 *   FRAGMENT_M, _N, _K           A [FRAGMENT_M, FRAGMENT_K], B [FRAGMENT_K, FRAGMENT_N], C [FRAGMENT_M, FRAGMENT_N]
 *   MATRIX_KERNEL(warps)         goes before `void`: a kernel with work-groups of so many warps
 *   MATRIX_BEGIN(item, warps)      at the start of such a kernel: declares `item`, who a work-item is
 *   EACH(i, n), EACH_BY(i, n, step), EACH_ELEMENT(n, fragments, i)   loops over fragments and their elements
 *   fragment_a, _b, _c           a lane's share; that of C are the floats c.v[0 .. FRAGMENT_ELEMENTS - 1],
 *   fragment_row, _column        which lie there in C; with FRAGMENT_PAIRS 2 i and 2 i + 1 side by side in a row
 *   fragment_load_a, _b          from a tile in local memory (below), either as it lies or transposed
 *   fragment_multiply            C += A B
 *   copy_chunk                   copies 16 bytes from global to local memory, on NVIDIA while the kernel computes;
 *                                copy_commit closes a group of copies, COPY_WAIT(n) waits until at most n groups
 *                                are under way (then a barrier, for those of other work-items)
 *   WARP_FENCE()                 lanes of a warp read after it what others wrote to local memory before it;
 *                                may be a barrier
 *   pair_round_bf16, _fp16       two rounded elements, the first one in the lower half
 * and for attention:
 *   LANE_ROWS                    rows of C that a lane has elements of; element i lies in number LANE_ROW_OF(i) of
 *                                them, and LANE_IN_ROW(r) is an element of number r
 *   ROW_LANES                    bits in which the numbers of the lanes that hold a row of C differ
 *   EXCHANGE(item, x, bit)         x of the lane whose number differs in this bit
 *   c_to_a                       C [FRAGMENT_M, FRAGMENT_K], FRAGMENT_K / FRAGMENT_N fragments, rounded to an A
 *   IN_ORDER, SOFTMAX_KERNEL, VALUE_PLACE, COPY_UNROLL   see matrix_cores_amd.cl, _amd_mfma_16.cl, _amd_wmma.cl,
 *                                and matrix_copy of attention_matrix_cores.cl
 *
 * All lanes of a warp must come to the functions together; under the emulation all work-items of the group, since
 * it exchanges through barriers.
 *
 * A tile is a matrix of 16-bit elements in local memory with rows of `width` elements, aligned to 16 bytes. 8 lanes
 * that read a chunk of 8 elements (16 bytes) each from 8 rows below each other hit all banks: if PADDED_TILES is
 * defined, because a chunk of nothing follows each row, else because the chunks of a row are permuted. That needs
 * no memory, but more addresses, and `width` has to be a power of two from 16 up. tile_at says where an element is.
 */
#include "element.cl"

#define CHUNK 8 /* elements of 16 bits that are copied at once */

#define FRAGMENT_UNROLL     _Pragma("unroll")   /* fragments must live in registers */
#define NOT_UNROLLED        _Pragma("unroll 1") /* before loops that would make code too long */
#define EACH_BY(i, n, step) FRAGMENT_UNROLL for (uint i = 0; i < (n); i += (step))
#define EACH(i, n)          EACH_BY(i, n, 1)
#define EACH_ELEMENT(n, fragments, i)                                                                              \
    EACH(n, fragments)                                                                                             \
        EACH(i, FRAGMENT_ELEMENTS)

INLINED uint tile_at(uint width, uint row, uint column) {
#ifdef PADDED_TILES
    return row * (width + CHUNK) + column;
#else
    const uint chunks = width / CHUNK, together = chunks < 8 ? 8 / chunks : 1;
    const uint turn = row / together & (min(chunks, 8u) - 1);
    return row * width + ((column / CHUNK ^ turn) * CHUNK | column % CHUNK);
#endif
}

struct work_item {
    uint lane;             /* in the warp */
    uint warp;             /* in the work-group */
    __local uint *scratch; /* of the emulation, the warp's own */
};

/* Elements of A and B: one that is rounded, its value, and two rounded ones in a word. */
INLINED ushort operand_round(float x) {
    ushort bits = element_round_bf16(x);
    if (FP16)
        vstore_half_rte(x, 0, (half *)&bits);
    return bits;
}

INLINED float half_value(ushort bits, int type) {
    return type == TYPE_FP16 ? vload_half(0, (const half *)&bits) : as_float((uint)bits << 16);
}

/* The lower halves of two words, and their higher halves, as one. */
INLINED uint pair_of_lows(uint a, uint b) {
    return b << 16 | (a & 0xffff);
}

INLINED uint pair_of_highs(uint a, uint b) {
    return (b & 0xffff0000) | a >> 16;
}

#define OPERAND                       (FP16 ? TYPE_FP16 : TYPE_BF16)
#define operand_value(bits)           half_value(bits, OPERAND)
#define pair_round(low, high, type)   (type == TYPE_FP16 ? pair_round_fp16(low, high) : pair_round_bf16(low, high))
#define operand_round_pair(low, high) pair_round(low, high, OPERAND)

/* An element of global memory at a distance in bytes of 32 bits from an address that all work-items have, so that a
 * load can take the two apart. AMD's compiler does that only if it sees the distance computed next to the load: it
 * must not move out of a loop. */
INLINED __global const ushort *element_at(__global const ushort *from, uint index) {
    uint bytes = index * (uint)sizeof(ushort);
#if defined(__AMDGCN__) && WARP_SIZE == 32
    __asm__ volatile("" : "+v"(bytes));
#endif
    return (__global const ushort *)((__global const char *)from + bytes);
}

#define MATRIX_KERNEL(warps) __kernel __attribute__((reqd_work_group_size((warps) * WARP_SIZE, 1, 1)))
#define MATRIX_BEGIN(item, warps)                                                                                  \
    const struct work_item item = {get_local_id(0) % WARP_SIZE, get_local_id(0) / WARP_SIZE, 0}

/* A loop of memset in a function is not unrolled by clang 15, and the fragments stay in memory. */
#define FRAGMENTS_CLEAR(c, count)                                                                                  \
    EACH_ELEMENT(clear_n, count, clear_i)                                                                          \
    (c)[clear_n].v[clear_i] = 0.0f
