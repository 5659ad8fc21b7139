/* GEMM on the cores of a CPU: C = op(A) op(B) + beta C in float, C [m, n], of a batch of matrices that follow each
 * other in their buffers.
 *
 * A work-item, alone in its work-group, computes up to group_rows rows of a panel of C, PANEL columns wide. Of
 * op(B) it copies DEPTH rows of its panel at a time, side by side, into private memory, which stays in the
 * first-level cache; A is read as it lies. TILE_ROWS rows of sums are in registers: 12 vectors, for which any CPU
 * has the registers and which are enough to hide what a multiply-add takes.
 *
 * Each element of C is the sum over blocks of DEPTH, each in order, so it depends neither on the launch nor on the
 * number of cores. beta == 0 does not read C.
 *
 * With SYMMETRIC, C is symmetric and beta 0: a panel's work-item begins at the diagonal, and copies what is below
 * the diagonal's square to its place in C's upper triangle.
 *
 * Build constants: VEC, SYMMETRIC. Which operand is transposed is an argument: a kernel for each case would take
 * three times as long to compile, and be no faster.
 */
#include "types.cl"

#define TILE_ROWS 6
#define PANEL     (2 * VEC)
#define DEPTH     (4096 / PANEL)

/* A vector at any place in one piece, where PoCL's vload and vstore move 16 bytes at a time. */
typedef vec_t any_vec_t __attribute__((aligned(4)));
#define LOAD_ANY(p)     (*(__global const any_vec_t *)(p))
#define STORE_ANY(v, p) (*(__global any_vec_t *)(p) = (v))

/* Makes the rows of a square its columns. Each time the numbers of two rows, half of the square apart, take
 * turns in two new rows; after log2(VEC) times number k of row i is number i of row k. */
INLINED void transpose(vec_t *square) {
#if VEC > 1
    UNROLL(4) for (int n = VEC; n > 1; n /= 2) {
        vec_t mixed[VEC];
        UNROLL(VEC) for (int i = 0; i < VEC / 2; i++) {
            mixed[2 * i].even = square[i].lo;
            mixed[2 * i].odd = square[i + VEC / 2].lo;
            mixed[2 * i + 1].even = square[i].hi;
            mixed[2 * i + 1].odd = square[i + VEC / 2].hi;
        }
        UNROLL(VEC) for (int i = 0; i < VEC; i++) {
            square[i] = mixed[i];
        }
    }
#endif
}

/* Rows and columns of op(B) from `b` on. Columns past the edge repeat the last one. */
INLINED void copy_panel(bool transposed, __global const float *b, ulong stride, int depth, int columns,
                        float *panel) {
    if (transposed) {
        const int whole = depth / VEC * VEC;
        for (int p = 0; p < whole; p += VEC) {
            for (int j = 0; j < PANEL; j += VEC) {
                vec_t square[VEC];
                UNROLL(VEC) for (int i = 0; i < VEC; i++) {
                    square[i] = LOAD_ANY(b + min(j + i, columns - 1) * stride + p);
                }
                transpose(square);
                UNROLL(VEC) for (int i = 0; i < VEC; i++) {
                    VEC_STORE(square[i], panel + (p + i) * PANEL + j);
                }
            }
        }
        for (int j = 0; j < PANEL; j++) {
            for (int p = whole; p < depth; p++) {
                panel[p * PANEL + j] = b[min(j, columns - 1) * stride + p];
            }
        }
        return;
    }
    for (int p = 0; p < depth; p++) {
        __global const float *from = b + p * stride;
        if (columns == PANEL) {
            VEC_STORE(LOAD_ANY(from), panel + p * PANEL);
            VEC_STORE(LOAD_ANY(from + VEC), panel + p * PANEL + VEC);
        } else {
            for (int j = 0; j < PANEL; j++) {
                panel[p * PANEL + j] = from[min(j, columns - 1)];
            }
        }
    }
}

/* Adds a tile's rows of A times the panel. `step`: from one column of A to the next. */
INLINED void multiply(__global const float *const *from, ulong step, const float *panel, int depth,
                      vec_t (*sums)[2]) {
    UNROLL(4) for (int p = 0; p < depth; p++) {
        const vec_t left = VEC_LOAD(panel + p * PANEL), right = VEC_LOAD(panel + p * PANEL + VEC);
        UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) {
            const float factor = from[i][p * step];
            sums[i][0] += factor * left;
            sums[i][1] += factor * right;
        }
    }
}

/* One row of a tile to C, where `keep` times what is there is added. */
INLINED void store_row(const vec_t *sums, float keep, int columns, __global float *c) {
    if (columns == PANEL) {
        STORE_ANY(keep == 0.0f ? sums[0] : sums[0] + keep * LOAD_ANY(c), c);
        STORE_ANY(keep == 0.0f ? sums[1] : sums[1] + keep * LOAD_ANY(c + VEC), c + VEC);
        return;
    }
    float row[PANEL];
    VEC_STORE(sums[0], row);
    VEC_STORE(sums[1], row + VEC);
    for (int j = 0; j < columns; j++) {
        c[j] = keep == 0.0f ? row[j] : row[j] + keep * c[j];
    }
}

/* Copies rows [first, end) of PANEL columns, from c on, to as many rows of C's other triangle, from `mirrored` on:
 * in squares, since a cache keeps few lines at this distance. */
INLINED void mirror(__global const float *c, __global float *mirrored, ulong stride, ulong first, ulong end) {
    for (; first + VEC <= end; first += VEC) {
        for (int j = 0; j < PANEL; j += VEC) {
            vec_t square[VEC];
            UNROLL(VEC) for (int i = 0; i < VEC; i++) {
                square[i] = LOAD_ANY(c + (first + i) * stride + j);
            }
            transpose(square);
            UNROLL(VEC) for (int i = 0; i < VEC; i++) {
                STORE_ANY(square[i], mirrored + (j + i) * stride + first);
            }
        }
    }
    for (; first < end; first++) {
        for (int j = 0; j < PANEL; j++) {
            mirrored[j * stride + first] = c[first * stride + j];
        }
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void
gemm_panels(int transpose_a, int transpose_b, ulong m, ulong n, ulong k, ulong group_rows, __global const float *a,
            ulong a_at, ulong a_stride, __global const float *b, ulong b_at, ulong b_stride, float beta,
            __global float *c, ulong c_at, ulong c_stride) {
    float panel[DEPTH * PANEL] ALIGNED;
    const ulong panels = (n + PANEL - 1) / PANEL, blocks = (m + group_rows - 1) / group_rows;
    const ulong matrix = get_group_id(0) / (panels * blocks), place = get_group_id(0) % (panels * blocks);
    const ulong column = place % panels * PANEL, block = place / panels * group_rows;
    const ulong first = SYMMETRIC ? max(block, column) : block, end = min(block + group_rows, m);
    if (first >= end) {
        return;
    }
    a_at += matrix * a_stride * (transpose_a ? k : m);
    b_at += matrix * b_stride * (transpose_b ? n : k);
    c_at += matrix * c_stride * m;
    /* in A, to the next k and to the next row */
    const ulong step = transpose_a ? a_stride : 1, next = transpose_a ? 1 : a_stride;
    const int columns = min((ulong)PANEL, n - column);
    for (ulong start = 0; start == 0 || start < k; start += DEPTH) { /* once for k == 0, too */
        const int depth = min((ulong)DEPTH, k - start);
        const ulong corner = transpose_b ? column * b_stride + start : start * b_stride + column;
        copy_panel(transpose_b, b + b_at + corner, b_stride, depth, columns, panel);
        for (ulong row = first; row < end; row += TILE_ROWS) {
            __global const float *from[TILE_ROWS];
            vec_t sums[TILE_ROWS][2];
            UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) { /* past the end: the last one again */
                const ulong own = min(row + i, end - 1);
                from[i] = a + a_at + start * step + own * next;
                sums[i][0] = sums[i][1] = (vec_t)(0.0f);
            }
            if (transpose_a) {
                multiply(from, a_stride, panel, depth, sums);
            } else {
                multiply(from, 1, panel, depth, sums);
            }
            UNROLL(TILE_ROWS) for (int i = 0; i < TILE_ROWS; i++) {
                if (row + i < end) {
                    store_row(sums[i], start ? 1.0f : beta, columns, c + c_at + (row + i) * c_stride + column);
                }
            }
        }
    }
    if (SYMMETRIC && column + PANEL < end) { /* so this panel is whole */
        mirror(c + c_at + column, c + c_at + column * c_stride, c_stride, max(first, column + PANEL), end);
    }
}
