/* Intel's matrix cores: cl_intel_subgroup_matrix_multiply_accumulate. A lane holds column `lane` of B and of C, and
 * of each row of A the FRAGMENT_K / WARP_SIZE elements from lane * FRAGMENT_K / WARP_SIZE on. Sub-groups have 8 or
 * 16 lanes. */
#include "matrix_cores_plain.cl"

#define COPY_UNROLL       FRAGMENT_UNROLL
#define WARP_FENCE()      barrier(CLK_LOCAL_MEM_FENCE)
#define FRAGMENT_M        8
#define FRAGMENT_N        WARP_SIZE
#define FRAGMENT_K        16
#define FRAGMENT_ELEMENTS 8
#define FRAGMENT_PAIRS    0
#define C_TO_A_LOCAL

typedef int8 fragment_b;
typedef struct {
    float8 v;
} fragment_c;

#undef MATRIX_KERNEL
#define MATRIX_KERNEL(warps)                                                                                       \
    __kernel __attribute__((intel_reqd_sub_group_size(WARP_SIZE)))                                                 \
    __attribute__((reqd_work_group_size((warps) * WARP_SIZE, 1, 1)))

#define fragment_row(item, i)    (i)
#define fragment_column(item, i) ((item).lane)

/* Two elements in one int, the first one below. */
INLINED int pair_of(ushort low, ushort high) {
    return (int)((uint)high << 16 | low);
}

/* What a lane has of a row of A: one element in sub-groups of 16, two in sub-groups of 8. */
#if WARP_SIZE == 16
typedef short8 fragment_a;
#define ROW_SHARE(lane, tile, width, row, column)    (short)(tile)[tile_at(width, row, (column) + (lane))]
#define COLUMN_SHARE(lane, tile, width, row, column) (short)(tile)[tile_at(width, (row) + (lane), column)]
#else
typedef int8 fragment_a;
#define ROW_SHARE(lane, tile, width, row, column)                                                                  \
    *(__local const int *)((tile) + tile_at(width, row, (column) + (lane) * 2))
#define COLUMN_SHARE(lane, tile, width, row, column)                                                               \
    pair_of((tile)[tile_at(width, (row) + (lane) * 2, column)],                                                    \
            (tile)[tile_at(width, (row) + (lane) * 2 + 1, column)])
#endif

INLINED fragment_a fragment_load_a(struct work_item item, __local const ushort *tile, uint width, uint row,
                                   uint column) {
    fragment_a a;
    EACH(i, FRAGMENT_M)
        a[i] = ROW_SHARE(item.lane, tile, width, row + i, column);
    return a;
}

INLINED fragment_a fragment_load_a_transposed(struct work_item item, __local const ushort *tile, uint width,
                                              uint row, uint column) {
    fragment_a a;
    EACH(i, FRAGMENT_M)
        a[i] = COLUMN_SHARE(item.lane, tile, width, row, column + i);
    return a;
}

INLINED fragment_b fragment_load_b(struct work_item item, __local const ushort *tile, uint width, uint row,
                                   uint column) {
    fragment_b b;
    EACH(i, FRAGMENT_K / 2)
        b[i] = pair_of(tile[tile_at(width, row + i * 2, column + item.lane)],
                       tile[tile_at(width, row + i * 2 + 1, column + item.lane)]);
    return b;
}

INLINED fragment_b fragment_load_b_transposed(struct work_item item, __local const ushort *tile, uint width,
                                              uint row, uint column) {
    fragment_b b;
    EACH(i, FRAGMENT_K / 2)
        b[i] = *(__local const int *)(tile + tile_at(width, row + item.lane, column + i * 2));
    return b;
}

INLINED void fragment_multiply(struct work_item item, fragment_c *c, fragment_a a, fragment_b b) {
#if FP16
    c->v = intel_sub_group_f16_f16_matrix_mad_k16(a, b, c->v);
#else
    c->v = intel_sub_group_bf16_bf16_matrix_mad_k16(a, b, c->v);
#endif
}

#define LANE_ROWS              FRAGMENT_ELEMENTS
#define LANE_ROW_OF(i)         (i)
#define LANE_IN_ROW(r)         (r)
#define ROW_LANES              (FRAGMENT_N - 1)
#define EXCHANGE(item, x, bit) intel_sub_group_shuffle_xor(x, bit)
