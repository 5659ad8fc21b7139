/* Fragments of AMD's matrix cores. Lane l holds OPERAND_SHARE neighbours along k of row l % 16 of A and of column
 * l % 16 of B. Which ones does not matter as long as it is the same for both, since the sum over k has no order.
 * matrix_cores_amd_*.cl include this file behind their definitions. */
#include "matrix_cores_plain.cl"

#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define COPY_UNROLL    FRAGMENT_UNROLL
#define FRAGMENT_M     16
#define FRAGMENT_N     16
#define FRAGMENT_K     16
#define FRAGMENT_PAIRS 0

#define LANE_ROWS      FRAGMENT_ELEMENTS
#define LANE_ROW_OF(i) (i)
#define LANE_IN_ROW(r) (r)
#define ROW_LANES      FRAGMENT_N
/* ds_swizzle, bit mask mode: all five bits of the lane's number are kept and then these ones flipped */
#define EXCHANGE(item, x, bit) as_float(__builtin_amdgcn_ds_swizzle(as_int(x), 0x1f | (bit) << 10))

/* A wave's accesses to local memory happen in order; the compiler has to know. */
#define WARP_FENCE()                                                                                               \
    do {                                                                                                           \
        __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");                                                     \
        __builtin_amdgcn_wave_barrier();                                                                           \
    } while (0)

#if WARP_SIZE == 32
/* The compiler would bring all loads forward, and keep the address of every element that a lane ever gathers, until
 * registers run out. Loads may not cross IN_ORDER, and after FORGET it no longer knows which lane this is. */
#define IN_ORDER()   __builtin_amdgcn_sched_barrier(0)
#define FORGET(item) __asm__ volatile("" : "+v"((item).lane))
#endif

typedef operand_bits_t fragment_a;
typedef operand_bits_t fragment_b;
typedef struct {
    floats_t v;
} fragment_c;

#define fragment_column(item, i) ((item).lane % 16)

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
    c->v = MULTIPLY_FP16(OPERAND_FP16(a), OPERAND_FP16(b), c->v);
#else
    c->v = MULTIPLY_BF16(OPERAND_BF16(a), OPERAND_BF16(b), c->v);
#endif
}
