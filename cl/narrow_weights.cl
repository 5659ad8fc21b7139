/* Weights in blocks of 64 along a row, narrow, to the type of activations. A work-item expands one vector.
 *
 * Build constants: VEC (divides a row), NARROW (1: int8, 2: nf4; enum frozen_weights - FROZEN_BF16).
 */
#include "types.cl"

#define BLOCK   64
#define IN_WORD (NARROW == 1 ? 4 : 8)
#define WORDS                                                                                                      \
    (NARROW == 1 ? BLOCK / 4 : BLOCK / 8) /* of a block's codes: bytes need an extension on some devices */

#if NARROW == 2
/* Quantiles of the normal distribution (NF4 of QLoRA, arXiv 2305.14314). */
__constant float values[16] = {-1.0f,
                               -0.6961928009986877f,
                               -0.5250730514526367f,
                               -0.39491748809814453f,
                               -0.28444138169288635f,
                               -0.18477343022823334f,
                               -0.09105003625154495f,
                               0.0f,
                               0.07958029955625534f,
                               0.16093020141124725f,
                               0.24611230194568634f,
                               0.33791524171829224f,
                               0.44070982933044434f,
                               0.5626170039176941f,
                               0.7229568362236023f,
                               1.0f};
#endif

/* Codes of a block from element `first` on, a multiple of VEC: those in the lowest bits belong to it. */
static uint narrow_word(__global const uint *block, uint first) {
    return NARROW == 1 ? block[first / 4] >> first % 4 * 8 : block[first / 8] >> first % 8 / 2 * 8;
}

/* The value of scale 1 of code k of a word; of two in a byte the first is in the high half. */
static float narrow_value(uint word, int k) {
#if NARROW == 1
    return (int)(word << (24 - 8 * k)) >> 24;
#else
    return values[word >> (k / 2 * 8 + (k % 2 ? 0 : 4)) & 15];
#endif
}

/* weights [count / columns, columns] of the blocks from first_block on; a row begins with a block. */
__kernel void narrow_expand(__global const uint *codes, __global const float *scales, ulong first_block, uint count,
                            uint columns, __global act_t *weights) {
    const uint i = get_global_id(0) * VEC;
    if (i < count) {
        const uint row = i / columns, column = i % columns, first = column % BLOCK;
        const size_t in_row = (columns + BLOCK - 1) / BLOCK, block = first_block + row * in_row + column / BLOCK;
        const float scale = scales[block];
        float numbers[VEC];
        UNROLL(VEC) for (int k = 0; k < VEC; k++) {
            const uint word = narrow_word(codes + block * WORDS, first + k / IN_WORD * IN_WORD);
            numbers[k] = narrow_value(word, NARROW == 2 && VEC == 1 ? first % 2 : k % IN_WORD) * scale;
        }
        ACT_STORE(VEC_LOAD(numbers), weights + i);
    }
}
