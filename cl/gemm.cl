/* The portable matrix product: C = A B + beta C in float32 on any device, without local memory or barriers.
 *
 * A is [m, k], B [k, n], C [m, n]. Element (i, p) of A is a[a_offset + i a_row + p a_column], B alike, so that a transposed
 * operand is one with its two steps exchanged; C has rows of c_stride elements. A work-item computes 4 x 4 elements of C,
 * each as one sum over p in order, so results do not depend on the launch. beta == 0 does not read C. */

#define TILE 4

kernel void gemm_tile(ulong m, ulong n, ulong k, global const float *a, ulong a_offset, ulong a_row, ulong a_column,
                      global const float *b, ulong b_offset, ulong b_row, ulong b_column, float beta,
                      global float *c, ulong c_offset, ulong c_stride) {
    const ulong tiles_across = (n + TILE - 1) / TILE;
    const ulong tiles_down = (m + TILE - 1) / TILE;
    const ulong tile = get_global_id(0);
    if (tile >= tiles_across * tiles_down)
        return;
    const ulong row = tile / tiles_across * TILE;
    const ulong column = tile % tiles_across * TILE;

    /* Tiles that reach over the edge repeat the last row and column, and store only what exists. */
    ulong a_at[TILE], b_at[TILE];
    float sum[TILE][TILE];
    for (uint i = 0; i < TILE; i++) {
        a_at[i] = a_offset + min(row + i, m - 1) * a_row;
        b_at[i] = b_offset + min(column + i, n - 1) * b_column;
        for (uint j = 0; j < TILE; j++)
            sum[i][j] = 0.0f;
    }
    for (ulong p = 0; p < k; p++) {
        float b_value[TILE];
        for (uint j = 0; j < TILE; j++)
            b_value[j] = b[b_at[j] + p * b_row];
        for (uint i = 0; i < TILE; i++) {
            const float a_value = a[a_at[i] + p * a_column];
            for (uint j = 0; j < TILE; j++)
                sum[i][j] = mad(a_value, b_value[j], sum[i][j]);
        }
    }
    for (uint i = 0; i < TILE && row + i < m; i++) {
        for (uint j = 0; j < TILE && column + j < n; j++) {
            const ulong at = c_offset + (row + i) * c_stride + column + j;
            c[at] = beta == 0.0f ? sum[i][j] : sum[i][j] + beta * c[at];
        }
    }
}

/* C = beta C, C [m, n]; beta == 0 does not read C. */
kernel void gemm_scale(ulong m, ulong n, float beta, global float *c, ulong c_offset, ulong c_stride) {
    const ulong element = get_global_id(0);
    if (element >= m * n)
        return;
    const ulong at = c_offset + element / n * c_stride + element % n;
    c[at] = beta == 0.0f ? 0.0f : beta * c[at];
}
