/* The portable GEMM for GPUs: C = op(A) op(B) + beta C; op(A) is [m, k], op(B) [k, n], C [m, n]. A and B are act_t,
 * C is act_t or float, sums are float.
 *
 * A work-group makes a block of C, BLOCK x BLOCK, in steps of 16 along k. It puts the next 16 columns of op(A) and
 * rows of op(B) into local memory as floats, in vectors of 4 read as they lie in memory; they are fetched into
 * registers while the tiles before are multiplied. A work-item has DOWN x ACROSS sums in registers: from each k it
 * reads DOWN + ACROSS floats of local memory, in vectors, for DOWN ACROSS multiply-adds, which is a quarter of a
 * float each in large blocks and a half in small ones.
 *
 * Each sum runs over k in order, whatever the block. Several groups may share a block, each with `depth` of k: part
 * p then makes the matrix that begins part_size elements after that of part p - 1, and gemm_parts.cl adds them up.
 *
 * Constants given at build time:
 *   BLOCK            128, 64 or 32; it takes 2 BLOCK work-items and 128 BLOCK bytes of local memory
 *   TRANSPOSE_A, _B  whether op is the transpose of how the matrix lies in memory
 *   VECTORS          whether all rows in memory begin at multiples of 4 elements and have multiples of 4
 *   FLOAT_C          whether C is float though A and B may not be
 *   VEC              4
 *
 * No array in it has a dimension of 1 within another: clspv mixes up their indices.
 */
#include "gemm_c.cl"

#define EACH(i, n)   UNROLL(n) for (uint i = 0; i < (n); i++)
#define BLOCK_K      16
#define ITEMS        (2 * BLOCK)
#define DOWN         (BLOCK == 32 ? 4 : 8) /* rows and columns of a work-item */
#define ACROSS       (BLOCK == 128 ? 8 : 4)
#define QUADS_DOWN   (DOWN / 4)
#define QUADS_ACROSS (ACROSS / 4)
#define LINE_QUADS   (BLOCK / 4) /* of a tile's line: one k of all rows of op(A), or of all columns of op(B) */
#define ITEMS_ACROSS (BLOCK / ACROSS)
#define FETCHES      2 /* vectors that a work-item brings to each tile */
#define BAND         8 /* rows of blocks that groups go through column by column, for the sake of caches */

/* Whether a row in memory runs along k. Such vectors are turned on their way into the tile: their four elements go
 * to four lines. Work-items that are neighbours write the same lines or, four lines on, other ones; so that these
 * are not in the same banks, every four lines more the rows of the tile change places, 8 with the next 8. */
#define ALONG_A            (!TRANSPOSE_A)
#define ALONG_B            TRANSPOSE_B
#define WIDTH(along)       ((along) ? BLOCK_K : BLOCK)
#define EXCHANGE(along, k) ((along) ? (k) / 4 * 8 : 0)

/* Four neighbours of a row in memory which has `extent` more elements: zeros for what is not there. */
INLINED float4 quad_fetch(__global const act_t *from, ulong at, int extent) {
    if (VECTORS)
        return extent > 0 ? ACT_LOAD(from + at) : (float4)(0.0f);
    return (float4)(extent > 0 ? ACT_LOAD_SCALAR(from + at) : 0.0f,
                    extent > 1 ? ACT_LOAD_SCALAR(from + at + 1) : 0.0f,
                    extent > 2 ? ACT_LOAD_SCALAR(from + at + 2) : 0.0f,
                    extent > 3 ? ACT_LOAD_SCALAR(from + at + 3) : 0.0f);
}

/* The work-item's vectors of a tile, which begins at element `at` of the matrix. Of the whole op(A) or op(B) there
 * are `lines` rows or columns and `depth` of k from there on. */
INLINED void tile_fetch(float4 *quads, __global const act_t *from, ulong at, uint stride, int lines, int depth,
                        bool along) {
    EACH(i, FETCHES) {
        const uint quad = get_local_id(0) + i * ITEMS;
        const uint row = quad / (WIDTH(along) / 4), column = quad % (WIDTH(along) / 4) * 4;
        const int rows = along ? lines : depth, columns = along ? depth : lines;
        quads[i] = quad_fetch(from, at + (row * stride + column), (int)row < rows ? columns - (int)column : 0);
    }
}

INLINED void tile_put(__local float4 *tile, const float4 *quads, bool along) {
    EACH(i, FETCHES) {
        const uint quad = get_local_id(0) + i * ITEMS;
        if (along) {
            const uint row = quad / (BLOCK_K / 4), k = quad % (BLOCK_K / 4) * 4;
            __local float *to = (__local float *)tile + (k * BLOCK + (row ^ EXCHANGE(true, k)));
            to[0] = quads[i].x;
            to[BLOCK] = quads[i].y;
            to[2 * BLOCK] = quads[i].z;
            to[3 * BLOCK] = quads[i].w;
        } else {
            tile[quad] = quads[i];
        }
    }
}

/* sum += the work-item's part of the tiles multiplied. Its rows and columns are in fours, BLOCK / 2 apart, so that
 * neighbours read neighbouring vectors. */
INLINED void tiles_multiply(__local const float4 *tile_a, __local const float4 *tile_b, uint down, uint across,
                            float4 *sum) {
    EACH(k, BLOCK_K) {
        float4 a[QUADS_DOWN], b[QUADS_ACROSS];
        EACH(i, QUADS_DOWN)
            a[i] = tile_a[k * LINE_QUADS + i * (LINE_QUADS / 2) + (down ^ EXCHANGE(ALONG_A, k) / 4)];
        EACH(j, QUADS_ACROSS)
            b[j] = tile_b[k * LINE_QUADS + j * (LINE_QUADS / 2) + (across ^ EXCHANGE(ALONG_B, k) / 4)];
        EACH(i, QUADS_DOWN) {
            EACH(j, QUADS_ACROSS) {
                float4 *s = sum + i * 4 * QUADS_ACROSS + j;
                s[0] += a[i].x * b[j];
                s[QUADS_ACROSS] += a[i].y * b[j];
                s[2 * QUADS_ACROSS] += a[i].z * b[j];
                s[3 * QUADS_ACROSS] += a[i].w * b[j];
            }
        }
    }
}

/* Four neighbours of a row of C, of which there are `extent`. */
INLINED void quad_store(float4 v, float beta, __global c_t *c, ulong at, int extent) {
    if (VECTORS) {
        if (extent > 0) {
            if (beta != 0.0f)
                v += beta * C_LOAD(c + at);
            C_STORE(v, c + at);
        }
        return;
    }
    const float values[4] = {v.x, v.y, v.z, v.w};
    EACH(i, 4) {
        if ((int)i < extent) {
            const float value = beta == 0.0f ? values[i] : values[i] + beta * C_LOAD_SCALAR(c + at + i);
            C_STORE_SCALAR(value, c + at + i);
        }
    }
}

/* The block's place among those of C, counted in blocks: down a band, then one across. */
INLINED uint2 block_place(uint block, uint blocks_down, uint blocks_across) {
    const uint band = block / (BAND * blocks_across), in_band = block % (BAND * blocks_across);
    const uint height = min(blocks_down - band * BAND, (uint)BAND);
    return (uint2)(band * BAND + in_band % height, in_band / height);
}

/* One work-group a block of a part; the blocks of a part follow one another. beta != 0 is for GEMMs of one part. */
__kernel SUB_GROUP_SIZE __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void
gemm_blocks(uint m, uint n, uint k, uint depth, __global const act_t *a, ulong a_offset, uint a_stride,
            __global const act_t *b, ulong b_offset, uint b_stride, float beta, __global c_t *c, ulong c_offset,
            ulong c_stride, ulong part_size) {
    __local float4 tile_a[BLOCK_K * LINE_QUADS], tile_b[BLOCK_K * LINE_QUADS];
    const uint blocks_down = (m - 1) / BLOCK + 1, blocks_across = (n - 1) / BLOCK + 1;
    const uint group = get_group_id(0), part = group / (blocks_down * blocks_across);
    const uint2 place = block_place(group - part * (blocks_down * blocks_across), blocks_down, blocks_across);
    const uint row = place.x * BLOCK, column = place.y * BLOCK, first = part * depth;
    const uint down = get_local_id(0) / ITEMS_ACROSS, across = get_local_id(0) % ITEMS_ACROSS;

    ulong a_at = a_offset + (ALONG_A ? (ulong)row * a_stride + first : (ulong)first * a_stride + row);
    ulong b_at = b_offset + (ALONG_B ? (ulong)column * b_stride + first : (ulong)first * b_stride + column);
    const ulong a_step = ALONG_A ? BLOCK_K : (ulong)BLOCK_K * a_stride,
                b_step = ALONG_B ? BLOCK_K : (ulong)BLOCK_K * b_stride;
    const int a_lines = m - row, b_lines = n - column;
    int left = min(k - first, depth);

    float4 sum[DOWN * QUADS_ACROSS], a_next[FETCHES], b_next[FETCHES];
    EACH(i, DOWN * QUADS_ACROSS)
        sum[i] = (float4)(0.0f);
    tile_fetch(a_next, a, a_at, a_stride, a_lines, left, ALONG_A);
    tile_fetch(b_next, b, b_at, b_stride, b_lines, left, ALONG_B);
    while (left > 0) {
        barrier(CLK_LOCAL_MEM_FENCE); /* nobody reads the tiles before these */
        tile_put(tile_a, a_next, ALONG_A);
        tile_put(tile_b, b_next, ALONG_B);
        barrier(CLK_LOCAL_MEM_FENCE);
        left -= BLOCK_K;
        a_at += a_step;
        b_at += b_step;
        /* behind the last tile there is nothing left, and nothing is read */
        tile_fetch(a_next, a, a_at, a_stride, a_lines, left, ALONG_A);
        tile_fetch(b_next, b, b_at, b_stride, b_lines, left, ALONG_B);
        tiles_multiply(tile_a, tile_b, down, across, sum);
    }

    const ulong c_at = c_offset + part * part_size + (ulong)row * c_stride + column;
    EACH(i, DOWN) {
        const uint below = i / 4 * (BLOCK / 2) + down * 4 + i % 4;
        EACH(j, QUADS_ACROSS) {
            const uint beside = j * (BLOCK / 2) + across * 4;
            const int extent = row + below < m ? b_lines - (int)beside : 0;
            quad_store(sum[i * QUADS_ACROSS + j], beta, c, c_at + below * c_stride + beside, extent);
        }
    }
}
