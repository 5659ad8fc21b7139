/* GEMM on the cores of a CPU: C = op(A) op(B) + beta C in float, C [m, n].
 *
 * A work-item, alone in its work-group, computes up to group_rows rows of a panel of C, PANEL columns wide. Of
 * op(B) it copies DEPTH rows of its panel at a time, side by side, into private memory, which stays in the
 * first-level cache; A is read as it lies. TILE_ROWS rows of sums are in registers: 12 vectors, for which any CPU
 * has the registers and which are enough to hide what a multiply-add takes.
 *
 * Each element of C is the sum over blocks of DEPTH, each in order, so it depends neither on the launch nor on the
 * number of cores. beta == 0 does not read C.
 *
 * Build constants: VEC; TRANSPOSE_A, TRANSPOSE_B.
 */
#define TILE_ROWS 6
#define PANEL     (2 * VEC)
#define DEPTH     (4096 / PANEL)

/* Rows and columns of op(B) from `b` on. Columns past the edge repeat the last one. */
INLINED void copy_panel(__global const float *b, ulong stride, int depth, int columns, float *panel) {
    if (TRANSPOSE_B) {
        for (int j = 0; j < PANEL; j++) {
            __global const float *from = b + min(j, columns - 1) * stride;
            for (int p = 0; p < depth; p++) {
                panel[p * PANEL + j] = from[p];
            }
        }
        return;
    }
    for (int p = 0; p < depth; p++) {
        __global const float *from = b + p * stride;
        if (columns == PANEL) {
            VEC_STORE(VEC_LOAD_ANY(from), panel + p * PANEL);
            VEC_STORE(VEC_LOAD_ANY(from + VEC), panel + p * PANEL + VEC);
        } else {
            for (int j = 0; j < PANEL; j++) {
                panel[p * PANEL + j] = from[min(j, columns - 1)];
            }
        }
    }
}

/* One row of a tile to C, where `keep` times what is there is added. */
INLINED void store_row(const vec_t *sums, float keep, int columns, __global float *c) {
    if (columns == PANEL) {
        VEC_STORE_ANY(keep == 0.0f ? sums[0] : sums[0] + keep * VEC_LOAD_ANY(c), c);
        VEC_STORE_ANY(keep == 0.0f ? sums[1] : sums[1] + keep * VEC_LOAD_ANY(c + VEC), c + VEC);
        return;
    }
    float row[PANEL];
    VEC_STORE(sums[0], row);
    VEC_STORE(sums[1], row + VEC);
    for (int j = 0; j < columns; j++) {
        c[j] = keep == 0.0f ? row[j] : row[j] + keep * c[j];
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
gemm_panels(ulong m, ulong n, ulong k, ulong group_rows, __global const float *a, ulong a_at, ulong a_stride,
            __global const float *b, ulong b_at, ulong b_stride, float beta, __global float *c, ulong c_at,
            ulong c_stride) {
    float panel[DEPTH * PANEL] ALIGNED;
    const ulong panels = (n + PANEL - 1) / PANEL;
    const ulong column = get_group_id(0) % panels * PANEL;
    const ulong first = get_group_id(0) / panels * group_rows, end = min(first + group_rows, m);
    const int columns = min((ulong)PANEL, n - column);
    for (ulong start = 0; start == 0 || start < k; start += DEPTH) { /* once for k == 0, too */
        const int depth = min((ulong)DEPTH, k - start);
        const ulong corner = TRANSPOSE_B ? column * b_stride + start : start * b_stride + column;
        copy_panel(b + b_at + corner, b_stride, depth, columns, panel);
        for (ulong row = first; row < end; row += TILE_ROWS) {
            __global const float *from[TILE_ROWS];
            vec_t sums[TILE_ROWS][2];
            UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) { /* past the end: the last one again */
                const ulong own = min(row + i, end - 1);
                from[i] = a + a_at + (TRANSPOSE_A ? start * a_stride + own : own * a_stride + start);
                sums[i][0] = sums[i][1] = (vec_t)(0.0f);
            }
            for (int p = 0; p < depth; p++) {
                const vec_t left = VEC_LOAD(panel + p * PANEL), right = VEC_LOAD(panel + p * PANEL + VEC);
                UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) {
                    const float factor = from[i][TRANSPOSE_A ? p * a_stride : (ulong)p];
                    sums[i][0] += factor * left;
                    sums[i][1] += factor * right;
                }
            }
            UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) {
                if (row + i < end) {
                    store_row(sums[i], start ? 1.0f : beta, columns, c + c_at + (row + i) * c_stride + column);
                }
            }
        }
    }
}
