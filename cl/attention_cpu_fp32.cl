/* Multiplication of tiles for cl/attention_cpu.cl, in float whatever type is stored: a row of a block is HEAD_SIZE
 * floats, and the lanes of a vector are keys. Queries are scaled when they are loaded. */
#include "attention.cl"

typedef float row_t;
#define ROW_ITEMS              HEAD_SIZE
#define KEY_ELEMENTS           1 /* of a key in a row of a transposed tile */
#define WORD_LOAD(row, i)      ACT_LOAD_SCALAR((row) + (i))
#define WORD_STORE(v, tile, i) ACT_STORE_SCALAR(v, (tile) + (i))
#define QUERY_FACTOR           SCALE /* of queries as they are loaded */
#define SCORE_FACTOR           1.0f  /* what scores and dk are still to be multiplied with */

INLINED vec_t row_vec(const row_t *rows, int q, int d) {
    return VEC_LOAD(rows + q * HEAD_SIZE + d);
}

/* Rows first .. first + QUERIES - 1 of a [T, stride] matrix, times factor; rows past the end repeat the last
 * one. */
static inline void rows_load(__global const act_t *from, size_t stride, int first, int sequence, float factor,
                             row_t rows[QUERIES * ROW_ITEMS]) {
    for (int q = 0; q < QUERIES; q++) {
        __global const act_t *row = from + (size_t)min(first + q, sequence - 1) * stride;
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            VEC_STORE(factor * ACT_LOAD(row + d), rows + q * HEAD_SIZE + d);
        }
    }
}

/* out[q][k] = factor * <rows[q], column k> for `keys` columns of a transposed tile [D, KEYS]. */
static inline void tile_products(const row_t rows[QUERIES * ROW_ITEMS], __global const act_t *columns, int keys,
                                 float factor, float *out) {
    for (int k = 0; k < keys; k += KEY_VEC) {
        keys_t sum[QUERIES];
        CLEAR(keys_t, sum, QUERIES);
        for (int d = 0; d < HEAD_SIZE; d++) {
            const keys_t column = ACT_LOAD_N(KEY_VEC, columns + d * KEYS + k);
            UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
                sum[q] += rows[q * HEAD_SIZE + d] * column;
            }
        }
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            STORE_PRIVATE(keys_t, factor * sum[q], out + q * keys + k);
        }
    }
}

/* sums[q] += sum over k < count of tile[q][k] * matrix row k. matrix [.., stride] in natural layout. */
static inline void tile_accumulate(const float *tile, int keys, int count, __global const act_t *matrix,
                                   size_t stride, float sums[QUERIES * HEAD_SIZE]) {
    for (int d = 0; d < HEAD_SIZE; d += VEC) {
        vec_t sum[QUERIES];
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            sum[q] = VEC_LOAD(sums + q * HEAD_SIZE + d);
        }
        for (int k = 0; k < count; k++) {
            const vec_t row = ACT_LOAD(matrix + k * stride + d);
            UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
                sum[q] += tile[q * keys + k] * row;
            }
        }
        UNROLL(QUERIES) for (int q = 0; q < QUERIES; q++) {
            VEC_STORE(sum[q], sums + q * HEAD_SIZE + d);
        }
    }
}

/* sums[k] += sum over q < count of tile[q][k] * rows[q], for all keys of a tile of width KEYS_BACKWARD. */
static inline void tile_accumulate_keys(const float *tile, int count, const row_t rows[QUERIES * ROW_ITEMS],
                                        float sums[KEYS_BACKWARD * HEAD_SIZE]) {
    for (int k = 0; k < KEYS_BACKWARD; k += QUERIES) {
        for (int d = 0; d < HEAD_SIZE; d += VEC) {
            vec_t sum[QUERIES];
            UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                sum[i] = VEC_LOAD(sums + (k + i) * HEAD_SIZE + d);
            }
            for (int q = 0; q < count; q++) {
                const vec_t row = VEC_LOAD(rows + q * HEAD_SIZE + d);
                UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                    sum[i] += tile[q * KEYS_BACKWARD + k + i] * row;
                }
            }
            UNROLL(QUERIES) for (int i = 0; i < QUERIES; i++) {
                VEC_STORE(sum[i], sums + (k + i) * HEAD_SIZE + d);
            }
        }
    }
}

#include "attention_cpu.cl"
