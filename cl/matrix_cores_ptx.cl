/* Fragments of NVIDIA's matrix cores: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". B and
 * C are two fragments side by side, so that ldmatrix.x4 fills either operand. matrix_cores_nvidia.cl
 * and matrix_cores_emulated.cl include this file behind their instructions. */
#define FRAGMENT_M        16
#define FRAGMENT_N        16
#define FRAGMENT_K        16
#define FRAGMENT_ELEMENTS 8
#define FRAGMENT_PAIRS    1

typedef uint4 fragment_a;
typedef uint4 fragment_b; /* x, y: columns 0 to 7; z, w: columns 8 to 15 */
typedef struct {
    float v[FRAGMENT_ELEMENTS]; /* 0 to 3: columns 0 to 7; 4 to 7: columns 8 to 15 */
} fragment_c;

#define fragment_row(item, i)    ((item).lane / 4 + ((i) & 2) * 4)
#define fragment_column(item, i) ((item).lane % 4 * 2 + ((i) & 1) + ((i) & 4) * 2)

#define COPY_UNROLL _Pragma("nounroll") /* copies go on beside the computation: registers are scarcer */

#define LANE_ROWS      2
#define LANE_ROW_OF(i) ((i) >> 1 & 1)
#define LANE_IN_ROW(r) ((r) * 2)
#define ROW_LANES      3

/* Where the row is whose address this lane gives, in a fragment at (row, column) of the tile: the second of its
 * four 8 x 8 matrices lies below the first one, or across, beside it. */
INLINED uint ptx_row_down(struct work_item item, uint width, uint row, uint column) {
    return tile_at(width, row + item.lane % 16, column + item.lane / 16 * 8);
}

INLINED uint ptx_row_across(struct work_item item, uint width, uint row, uint column) {
    return tile_at(width, row + item.lane / 16 * 8 + item.lane % 8, column + item.lane / 8 % 2 * 8);
}

/* The A whose element (i, p) is element (row + i, column + p) of the tile. */
INLINED fragment_a fragment_load_a(struct work_item item, __local const ushort *tile, uint width, uint row,
                                   uint column) {
    return ptx_load(item, tile + ptx_row_down(item, width, row, column));
}

/* Element (i, p) of A is element (row + p, column + i) of the tile. */
INLINED fragment_a fragment_load_a_transposed(struct work_item item, __local const ushort *tile, uint width,
                                              uint row, uint column) {
    return ptx_load_transposed(item, tile + ptx_row_across(item, width, row, column));
}

/* Element (p, j) of B is element (row + p, column + j) of the tile. */
INLINED fragment_b fragment_load_b(struct work_item item, __local const ushort *tile, uint width, uint row,
                                   uint column) {
    return ptx_load_transposed(item, tile + ptx_row_down(item, width, row, column));
}

/* Element (p, j) of B is element (row + j, column + p) of the tile. */
INLINED fragment_b fragment_load_b_transposed(struct work_item item, __local const ushort *tile, uint width,
                                              uint row, uint column) {
    return ptx_load(item, tile + ptx_row_across(item, width, row, column));
}

INLINED void fragment_multiply(struct work_item item, fragment_c *c, fragment_a a, fragment_b b) {
    ptx_multiply(item, c->v, a, b.lo);
    ptx_multiply(item, c->v + 4, a, b.hi);
}

/* C [FRAGMENT_M, FRAGMENT_K] rounded to an A: a lane's share of A is where its share of C is (PTX ISA, the two
 * figures of fragments). */
INLINED fragment_a c_to_a(struct work_item item, const fragment_c *c) {
    return (fragment_a)(operand_round_pair(c->v[0], c->v[1]), operand_round_pair(c->v[2], c->v[3]),
                        operand_round_pair(c->v[4], c->v[5]), operand_round_pair(c->v[6], c->v[7]));
}
