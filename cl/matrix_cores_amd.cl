/* Fragments of AMD's matrix cores. Lane l holds OPERAND_SHARE neighbours along k of row l % 16 of A and of column
 * l % 16 of B. Which ones does not matter as long as it is the same for both, since the sum over k has no order.
 * The cores make C^T = B^T A^T, for which A and B only change places: then a lane holds elements of one row of C,
 * as it does of A. matrix_cores_amd_*.cl include this file behind their definitions. */
#include "matrix_cores_plain.cl"

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define COPY_UNROLL FRAGMENT_UNROLL
#define FRAGMENT_M  16
#define FRAGMENT_N  16
#define FRAGMENT_K  16

#define LANE_ROWS      1
#define LANE_ROW_OF(i) 0
#define LANE_IN_ROW(r) 0
#define ROW_LANES      (WARP_SIZE - 16)
#if WARP_SIZE == 32 /* bit 16: from the other half of the wave, whose 16 lanes keep their order */
#define EXCHANGE(item, x, bit)                                                                                     \
    as_float(__builtin_amdgcn_permlanex16(as_uint(x), as_uint(x), 0x76543210, 0xfedcba98, true, true))
#else
#define EXCHANGE(item, x, bit)                                                                                     \
    as_float(__builtin_amdgcn_ds_bpermute((int)(((item).lane ^ (bit)) * sizeof(float)), as_int(x)))
#endif

/* Which warp this is, in a scalar register: branches on it are not masks. */
#undef MATRIX_BEGIN
#define MATRIX_BEGIN(item, warps)                                                                                  \
    const struct work_item item = {get_local_id(0) % WARP_SIZE,                                                    \
                                   __builtin_amdgcn_readfirstlane(get_local_id(0) / WARP_SIZE), 0}

/* A wave's accesses to local memory happen in order; the compiler has to know. */
#define WARP_FENCE()                                                                                               \
    do {                                                                                                           \
        __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");                                                     \
        __builtin_amdgcn_wave_barrier();                                                                           \
    } while (0)

/* Left alone, the compiler brings all loads forward until registers run out, and also stores that must wait for
 * loads from global memory. No load or store crosses this point, and `sum` is computed before it. */
#ifndef __NVPTX__ /* as where these kernels are emulated */
#define IN_ORDER(sum) __asm__ volatile("" : "+v"(sum) : : "memory")
#endif

typedef operand_bits_t fragment_a;
typedef operand_bits_t fragment_b;
typedef struct {
    floats_t v;
} fragment_c;

#define fragment_row(item, i) ((item).lane % 16)

/* v_perm, which compilers do not always find: byte i of the result is the byte of (b, a) that the selector's byte i
 * names */
#define pair_of_lows(a, b)  __builtin_amdgcn_perm(b, a, 0x05040100)
#define pair_of_highs(a, b) __builtin_amdgcn_perm(b, a, 0x07060302)

/* Two numbers as elements of A, the first one in the lower half. A NaN stays one if its lower half is 0, as of one
 * that comes of arithmetic. */
INLINED uint factors_round(float low, float high) {
#if FP16
    return pair_round_fp16(low, high);
#else
    const uint a = as_uint(low), b = as_uint(high);
    return pair_of_highs(a + 0x7fff + (a >> 16 & 1), b + 0x7fff + (b >> 16 & 1));
#endif
}

/* C rounded to an A. A lane has elements of the same row of both; where it needs the whole row, the halves of the
 * wave, which have every second element, give each other theirs. */
INLINED fragment_a c_to_a(struct work_item item, const fragment_c *c) {
    fragment_a a;
    EACH_BY(i, FRAGMENT_ELEMENTS, 2) {
        const uint pair = factors_round(c->v[i], c->v[i + 1]);
#if OPERAND_SHARE == FRAGMENT_ELEMENTS
        a[i] = (ushort)pair;
        a[i + 1] = (ushort)(pair >> 16);
#else
        const uint other = as_uint(EXCHANGE(item, as_float(pair), 16)),
                   even = item.lane < 16 ? 0x05040100 : 0x01000504;
        const uint first = __builtin_amdgcn_perm(other, pair, even),
                   second = __builtin_amdgcn_perm(other, pair, even + 0x02020202);
        a[i * 2] = (ushort)first;
        a[i * 2 + 1] = (ushort)(first >> 16);
        a[i * 2 + 2] = (ushort)second;
        a[i * 2 + 3] = (ushort)(second >> 16);
#endif
    }
    return a;
}

/* OPERAND_SHARE neighbours of one row of the tile. */
INLINED operand_bits_t fragment_load_a(struct work_item item, __local const ushort *tile, uint width, uint row,
                                       uint column) {
#if OPERAND_SHARE > CHUNK
    const ushort8 low = *(__local const ushort8 *)(tile + tile_at(width, row + item.lane % 16, column));
    const ushort8 high = *(__local const ushort8 *)(tile + tile_at(width, row + item.lane % 16, column + CHUNK));
    return (ushort16)(low, high);
#else
    return *(__local const operand_bits_t *)(tile +
                                             tile_at(width, row + item.lane % 16, column + LANE_FIRST(item.lane)));
#endif
}

/* OPERAND_SHARE elements of one column of the tile. */
INLINED operand_bits_t fragment_load_a_transposed(struct work_item item, __local const ushort *tile, uint width,
                                                  uint row, uint column) {
    operand_bits_t bits;
    EACH(i, OPERAND_SHARE)
        bits[i] = tile[tile_at(width, row + LANE_FIRST(item.lane) + i, column + item.lane % 16)];
    return bits;
}

#define fragment_load_b            fragment_load_a_transposed
#define fragment_load_b_transposed fragment_load_a

INLINED void fragment_multiply(struct work_item item, fragment_c *c, fragment_a a, fragment_b b) {
#if FP16
    c->v = MULTIPLY_FP16(OPERAND_FP16(b), OPERAND_FP16(a), c->v);
#else
    c->v = MULTIPLY_BF16(OPERAND_BF16(b), OPERAND_BF16(a), c->v);
#endif
}
