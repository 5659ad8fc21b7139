/* Products of few rows, one a sequence when text is generated:  y [rows, out] = x [rows, in] W^T,  W [out, in].
 *
 * Such a product costs what reading W from memory costs. A general one copies W into another layout first, which is worth its
 * while for many rows only. Here W is read once, as it lies and in its order: blocks of several rows of W at a time were half as
 * fast on CPUs. A sum's order does not depend on how many rows x has.
 *
 * Build constants: VEC (divides `in`); BLOCK_ROWS, sums that stay in registers.
 */

/* One work-group a row of W. Rows past the end of x repeat its last one. */
ROW_KERNEL void few_rows_multiply(__global const act_t *x_all, ulong x_at, int rows, int in,
                                  __global const float *w_all, ulong w_at, int out, __global act_t *y) {
    GROUP_SCRATCH(scratch);
    const int lane = get_local_id(0);
    const size_t column = get_group_id(0);
    __global const act_t *x = x_all + x_at;
    __global const float *w = w_all + w_at + column * in;
    for (int first = 0; first < rows; first += BLOCK_ROWS) {
        vec_t sums[BLOCK_ROWS];
        UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
            sums[r] = (vec_t)(0.0f);
        }
        for (int k = lane * VEC; k < in; k += LANES * VEC) {
            const vec_t factor = VEC_LOAD(w + k);
            UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
                sums[r] += ACT_LOAD(x + (size_t)min(first + r, rows - 1) * in + k) * factor;
            }
        }
        float totals[BLOCK_ROWS];
        UNROLL(BLOCK_ROWS) for (int r = 0; r < BLOCK_ROWS; r++) {
            totals[r] = VEC_SUM(sums[r]);
        }
        for (int r = 0; r < BLOCK_ROWS; r++) {
            const float total = GROUP_SUM(totals[r], scratch);
            if (lane == 0 && first + r < rows) {
                ACT_STORE_SCALAR(total, y + (size_t)(first + r) * out + column);
            }
        }
    }
}
