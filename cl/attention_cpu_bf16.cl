/* Multiplication of tiles for cl/attention_cpu.cl on CPUs with AVX512_BF16: one instruction multiplies 16 pairs of
 * bf16 with as many others and adds each pair's two products to a float. A row of a block stays in bf16. p and ds
 * are rounded to bf16 before they enter a product, as on the matrix cores of GPUs. Sums are floats. The instruction
 * takes numbers below the normal range for zero.
 *
 * A word is a pair: two channels of a row, two keys of a row of p, or two rows at one channel; the first one lies
 * in the lower half. In transposed tiles a row has the words of KEYS keys for two channels.
 *
 * Build constants: EMULATED, the instructions in OpenCL C, for tests on CPUs without them. HEAD_SIZE is a multiple
 * of 16, QUERIES and KEYS_BACKWARD of 8, KEYS of 32.
 */
#include "attention.cl"

typedef uint row_t;
#define ROW_ITEMS              (HEAD_SIZE / 2)
#define KEY_ELEMENTS           2
#define WORD_LOAD(row, i)      ((__global const uint *)(row))[i]
#define WORD_STORE(v, tile, i) (((__global uint *)(tile))[i] = (v))
#define QUERY_FACTOR           1.0f
#define SCORE_FACTOR           SCALE

/* sum + the products of both halves */
INLINED float16 pairs_add(float16 sum, uint16 a, uint16 b) {
#if EMULATED
    sum = fma(as_float16(a << 16), as_float16(b << 16), sum);
    return fma(as_float16(a & 0xffff0000u), as_float16(b & 0xffff0000u), sum);
#else
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
#endif
}

/* Rounded to nearest even. */
INLINED ushort16 to_bf16(float16 v) {
#if EMULATED
    return act_encode16(v);
#else
    ushort16 rounded;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v));
    return rounded;
#endif
}

INLINED uint16 to_pairs(ushort16 first, ushort16 second) {
    return convert_uint16(first) | convert_uint16(second) << 16;
}

/* Channels from d on of row q of a block. */
INLINED vec_t row_vec(const row_t *rows, int q, int d) {
    const CONCAT(ushort, VEC) upper = CONCAT(vload, VEC)(0, (const ushort *)(rows + q * ROW_ITEMS) + d);
    return CONCAT(as_float, VEC)(CONCAT(convert_uint, VEC)(upper) << 16);
}

/* sums[r][c] += sum over i < steps of the pairs words[r * row_step + i * step] and vectors[i * vector_step + c],
 * for 8 rows of 16 x `wide` columns; from zero where `begin` says so, and times factor at last. */
#define BLOCK_OF(name, space, wide)                                                                                \
    INLINED void name(const uint *words, int row_step, int step, int steps, space const uint *vectors,             \
                      int vector_step, float *sums, int sums_row, bool begin, float factor) {                      \
        float16 sum[8 * wide];                                                                                     \
        UNROLL(8 * wide) for (int s = 0; s < 8 * wide; s++) {                                                      \
            sum[s] = begin ? (float16)(0.0f) : vload16(0, sums + s / wide * sums_row + s % wide * 16);             \
        }                                                                                                          \
        for (int i = 0; i < steps; i++) {                                                                          \
            uint16 vector[wide];                                                                                   \
            UNROLL(wide) for (int v = 0; v < wide; v++) {                                                          \
                vector[v] = vload16(v, vectors + i * vector_step);                                                 \
            }                                                                                                      \
            UNROLL(8 * wide) for (int s = 0; s < 8 * wide; s++) {                                                  \
                sum[s] = pairs_add(sum[s], (uint16)(words[s / wide * row_step + i * step]), vector[s % wide]);     \
            }                                                                                                      \
        }                                                                                                          \
        UNROLL(8 * wide) for (int s = 0; s < 8 * wide; s++) {                                                      \
            STORE_PRIVATE(float16, factor *sum[s], sums + s / wide * sums_row + s % wide * 16);                    \
        }                                                                                                          \
    }
#define HEAD_WIDE (HEAD_SIZE % 32 ? 1 : 2)
BLOCK_OF(scores_of, __global, 2)
BLOCK_OF(channels_of, , HEAD_WIDE)

/* Rows first .. first + QUERIES - 1 of a [T, stride] matrix, as they are; rows past the end repeat the last one. */
static inline void rows_load(__global const act_t *from, size_t stride, int first, int sequence, float factor,
                             row_t rows[QUERIES * ROW_ITEMS]) {
    for (int q = 0; q < QUERIES; q++) {
        __global const uint *row = (__global const uint *)(from + (size_t)min(first + q, sequence - 1) * stride);
        for (int i = 0; i < ROW_ITEMS; i += 8) {
            STORE_PRIVATE(uint8, vload8(0, row + i), rows + q * ROW_ITEMS + i);
        }
    }
}

/* out[q][k] = factor * <rows[q], column k> for `keys` columns of a transposed tile. */
static inline void tile_products(const row_t rows[QUERIES * ROW_ITEMS], __global const act_t *columns, int keys,
                                 float factor, float *out) {
    for (int k = 0; k < keys; k += 32) {
        for (int q = 0; q < QUERIES; q += 8) {
            scores_of(rows + q * ROW_ITEMS, ROW_ITEMS, 1, ROW_ITEMS, (__global const uint *)columns + k, KEYS,
                      out + q * keys + k, keys, true, factor);
        }
    }
}

/* sums[q] += sum over k < count of tile[q][k] * matrix row k. matrix [.., stride] in natural layout. If count
 * is odd, the last matrix row is also the second of its pair. That adds nothing: the tile is 0 there (masked),
 * except in rows of sums past the end of the sequence, which nobody stores. */
static inline void tile_accumulate(const float *tile, int keys, int count, __global const act_t *matrix,
                                   size_t stride, float sums[QUERIES * HEAD_SIZE]) {
    uint rounded[QUERIES * KEYS / 2] ALIGNED, rows[KEYS / 2 * HEAD_SIZE] ALIGNED;
    for (int i = 0; i < QUERIES * keys; i += 16) {
        STORE_PRIVATE(ushort16, to_bf16(vload16(0, tile + i)), (ushort *)rounded + i);
    }
    for (int k = 0; k < count; k += 2) {
        __global const act_t *first = matrix + k * stride, *second = matrix + min(k + 1, count - 1) * stride;
        for (int d = 0; d < HEAD_SIZE; d += 16) {
            STORE_PRIVATE(uint16, to_pairs(vload16(0, first + d), vload16(0, second + d)),
                          rows + k / 2 * HEAD_SIZE + d);
        }
    }
    for (int d = 0; d < HEAD_SIZE; d += 16 * HEAD_WIDE) {
        for (int q = 0; q < QUERIES; q += 8) {
            channels_of(rounded + q * keys / 2, keys / 2, 1, (count + 1) / 2, rows + d, HEAD_SIZE,
                        sums + q * HEAD_SIZE + d, HEAD_SIZE, false, 1.0f);
        }
    }
}

/* sums[k] += sum over q < count of tile[q][k] * rows[q], for all keys of a tile of width KEYS_BACKWARD. */
static inline void tile_accumulate_keys(const float *tile, int count, const row_t rows[QUERIES * ROW_ITEMS],
                                        float sums[KEYS_BACKWARD * HEAD_SIZE]) {
    uint factors[QUERIES / 2 * KEYS_BACKWARD] ALIGNED, pairs[QUERIES / 2 * HEAD_SIZE] ALIGNED;
    for (int q = 0; q < count; q += 2) {
        const bool alone = q + 1 == count;
        for (int k = 0; k < KEYS_BACKWARD; k += 16) {
            const float16 first = vload16(0, tile + q * KEYS_BACKWARD + k);
            const float16 second = alone ? (float16)(0.0f) : vload16(0, tile + (q + 1) * KEYS_BACKWARD + k);
            STORE_PRIVATE(uint16, to_pairs(to_bf16(first), to_bf16(second)), factors + q / 2 * KEYS_BACKWARD + k);
        }
        for (int d = 0; d < HEAD_SIZE; d += 16) {
            const ushort16 first = vload16(0, (const ushort *)(rows + q * ROW_ITEMS) + d);
            const ushort16 second = vload16(0, (const ushort *)(rows + (q + 1) * ROW_ITEMS) + d);
            STORE_PRIVATE(uint16, to_pairs(first, second), pairs + q / 2 * HEAD_SIZE + d);
        }
    }
    for (int d = 0; d < HEAD_SIZE; d += 16 * HEAD_WIDE) {
        for (int k = 0; k < KEYS_BACKWARD; k += 8) {
            channels_of(factors + k, 1, KEYS_BACKWARD, (count + 1) / 2, pairs + d, HEAD_SIZE,
                        sums + k * HEAD_SIZE + d, HEAD_SIZE, false, 1.0f);
        }
    }
}

#include "attention_cpu.cl"
