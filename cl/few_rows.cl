/* GEMM of few rows, or of few columns:  y [rows, out] = x [rows, in] W^T,  W [out, in].  x and W are act_t;
 * y is act_t, or float with y_float != 0. Generation of text and the projections of hyper-connections use it.
 *
 * Such a GEMM costs what reading x and W from memory costs. A general one copies them into another layout first,
 * which is worth its while for large GEMMs only. Here they are read as they lie, once from memory: what a
 * work-group needs again is in a cache. A sum's order depends neither on how many rows there are nor on the blocks.
 *
 * Build constants: VEC (divides `in`); BLOCK_ROWS x BLOCK_COLUMNS sums stay in registers. For one row both are 1,
 * which reads W in its order, twice as fast on CPUs; several rows are read from a cache again for each block of W,
 * so blocks are larger.
 */
#include "group.cl"

/* A work-group computes group_rows rows and group_columns columns of y, which begins at y_at and has y_row numbers
 * from row to row. What is past the end of x or W repeats the last row. */
ROW_KERNEL void few_rows_multiply(__global const act_t *x_all, ulong x_at, uint rows, int in,
                                  __global const act_t *w_all, ulong w_at, int out, uint group_rows,
                                  int group_columns, int y_float, __global act_t *y, ulong y_at, int y_row) {
    GROUP_SUMS_SCRATCH(scratch, BLOCK_ROWS * BLOCK_COLUMNS);
    const uint across = (out - 1) / group_columns + 1;
    const uint first_row = get_group_id(0) / across * group_rows, end_row = min(first_row + group_rows, rows);
    const int first_column = get_group_id(0) % across * group_columns,
              end_column = min(first_column + group_columns, out);
    __global const act_t *x = x_all + x_at;
    __global const act_t *w = w_all + w_at;
    for (int column = first_column; column < end_column; column += BLOCK_COLUMNS) {
        for (uint first = first_row; first < end_row; first += BLOCK_ROWS) {
            vec_t sums[BLOCK_ROWS][BLOCK_COLUMNS];
            UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
                CLEAR(vec_t, sums[r], BLOCK_COLUMNS);
            }
            for (int k = LANE * VEC; k < in; k += LANES * VEC) {
                vec_t factors[BLOCK_COLUMNS];
                UNROLL(BLOCK_COLUMNS) for (int b = 0; b < BLOCK_COLUMNS; b++) {
                    factors[b] = ACT_LOAD(w + (size_t)min(column + b, out - 1) * in + k);
                }
                UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
                    const vec_t row = ACT_LOAD(x + (size_t)min(first + r, rows - 1) * in + k);
                    UNROLL(BLOCK_COLUMNS) for (int b = 0; b < BLOCK_COLUMNS; b++) {
                        sums[r][b] += row * factors[b];
                    }
                }
            }
            float totals[BLOCK_ROWS * BLOCK_COLUMNS];
            UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
                UNROLL(BLOCK_COLUMNS) for (int b = 0; b < BLOCK_COLUMNS; b++) {
                    totals[r * BLOCK_COLUMNS + b] = VEC_SUM(sums[r][b]);
                }
            }
            GROUP_SUMS(totals, BLOCK_ROWS * BLOCK_COLUMNS, scratch);
            for (int i = LANE; i < BLOCK_ROWS * BLOCK_COLUMNS; i += LANES) {
                const uint row = first + i / BLOCK_COLUMNS;
                const int to = column + i % BLOCK_COLUMNS;
                if (row < end_row && to < end_column) {
                    const float total = GROUP_TOTAL(totals, scratch, i);
                    const size_t place = y_at + (size_t)row * y_row + to;
                    if (y_float) {
                        ((__global float *)y)[place] = total;
                    } else {
                        ACT_STORE_SCALAR(total, y + place);
                    }
                }
            }
        }
    }
}
