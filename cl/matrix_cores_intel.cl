/* Intel's matrix cores: cl_intel_subgroup_matrix_multiply_accumulate, in sub-groups of 8 or 16. They multiply
 * 8 x 16 by 16 x WARP_SIZE. A lane holds a column of the second factor and of the result, and of each row of the
 * first one the FRAGMENT_K / WARP_SIZE elements from lane * FRAGMENT_K / WARP_SIZE on. Here they make
 * C^T = B^T A^T, so that a lane has a row of A and of C: then C becomes an A without other lanes.
 *
 * Fragments are read along k only, as TRANSPOSED_LOAD makes all tiles lie. */
#include "matrix_cores_plain.cl"

#define COPY_UNROLL       FRAGMENT_UNROLL
#define WARP_FENCE()      sub_group_barrier(CLK_LOCAL_MEM_FENCE)
#define FRAGMENT_M        WARP_SIZE
#define FRAGMENT_N        8
#define FRAGMENT_K        16
#define FRAGMENT_ELEMENTS 8
#define FRAGMENT_PAIRS    1

#undef MATRIX_KERNEL
#define MATRIX_KERNEL(warps)                                                                                       \
    __kernel __attribute__((intel_reqd_sub_group_size(WARP_SIZE)))                                                 \
    __attribute__((reqd_work_group_size((warps) * WARP_SIZE, 1, 1)))

#define fragment_row(item, i)    ((item).lane)
#define fragment_column(item, i) (i)

/* Tiles consist of panels of 8 rows by 16 elements (256 bytes): a B is read as a block
 * (cl_intel_subgroup_local_block_io), and a lane's row of an A as 32 bytes. */
INLINED uint panel_at(uint width, uint row, uint column) {
    return row / 8 * 8 * width + column / 16 * 128 + row % 8 * 16 + column % 16;
}
#define tile_at panel_at

typedef int8 fragment_a;
typedef struct {
    float8 v;
} fragment_c;
#if WARP_SIZE == 16
typedef short8 fragment_b;
#define PANEL_READ(panel) as_short8(intel_sub_group_block_read_us8(panel))
#else
typedef int8 fragment_b;
#define PANEL_READ(panel) as_int8(intel_sub_group_block_read8((__local const uint *)(panel)))
#endif

INLINED fragment_a fragment_load_a(struct work_item item, __local const ushort *tile, uint width, uint row,
                                   uint column) {
    return *(__local const int8 *)(tile + tile_at(width, row + item.lane, column));
}

INLINED fragment_b fragment_load_b_transposed(struct work_item item, __local const ushort *tile, uint width,
                                              uint row, uint column) {
    return PANEL_READ(tile + tile_at(width, row, column));
}

#define fragment_load_a_transposed fragment_load_a /* never called, as nothing reads across k */
#define fragment_load_b            fragment_load_b_transposed

INLINED void fragment_multiply(struct work_item item, fragment_c *c, fragment_a a, fragment_b b) {
#if FP16
    c->v = intel_sub_group_f16_f16_matrix_mad_k16(b, a, c->v);
#else
    c->v = intel_sub_group_bf16_bf16_matrix_mad_k16(b, a, c->v);
#endif
}

#ifdef cl_intel_bfloat16_conversions /* two instructions */
#define pair_round_bf16(low, high) as_uint(intel_convert_bfloat162_as_ushort2((float2)(low, high)))
#endif

INLINED fragment_a c_to_a(struct work_item item, const fragment_c *c) {
    fragment_a a;
    EACH(i, FRAGMENT_K / 2) {
        const uint n = i * 2 / FRAGMENT_N, column = i * 2 % FRAGMENT_N;
        a[i] = (int)operand_round_pair(c[n].v[column], c[n].v[column + 1]);
    }
    return a;
}

#define LANE_ROWS              1
#define LANE_ROW_OF(i)         0
#define LANE_IN_ROW(r)         0
#define ROW_LANES              0
#define EXCHANGE(item, x, bit) (x)
