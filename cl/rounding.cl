/* Stochastic rounding of floats to bf16, for what an optimizer keeps between steps.
 *
 *   round(x, r) = the upper half of bits(x) + r,   r uniform in 0 .. 2^16 - 1
 *
 * So x becomes one of the two bf16 numbers around it, with probabilities that make the mean x. A number of bf16
 * stays what it is, as infinities do, and NaN stays NaN; a finite number above the largest one becomes that. r
 * depends on a key and on the number of the element alone: not on the width of vectors, and not on the rank.
 *
 * MOMENTS: how the optimizer's states are stored: 0 fp32, 1 bf16; MASTER: how embeddings and weights of GEMMs are
 * (types.cl). */
#include "random.cl"

#ifndef MOMENTS
#define MOMENTS 0
#endif

#define uint1   uint
#define ushort1 ushort
typedef CONCAT(uint, VEC) bits_t;
typedef CONCAT(ushort, VEC) bf16_t;
#if VEC == 1
#define AS_BITS(v)   as_uint(v)
#define AS_FLOATS(v) as_float(v)
#define TO_BITS(v)   ((uint)(v))
#define TO_BF16(v)   ((ushort)(v))
#define LANE_NUMBERS 0
#else
#define AS_BITS(v)   CONCAT(as_uint, VEC)(v)
#define AS_FLOATS(v) CONCAT(as_float, VEC)(v)
#define TO_BITS(v)   CONCAT(convert_uint, VEC)(v)
#define TO_BF16(v)   CONCAT(convert_ushort, VEC)(v)
#define NUMBERS2     0, 1
#define NUMBERS4     NUMBERS2, 2, 3
#define NUMBERS8     NUMBERS4, 4, 5, 6, 7
#define NUMBERS16    NUMBERS8, 8, 9, 10, 11, 12, 13, 14, 15
#define LANE_NUMBERS (CONCAT(NUMBERS, VEC))
#endif

/* Philox's first two words (random.cl) with the counters (element + lane, 0): 64 random bits for each of VEC
 * elements. An element's number below a vector's first one's plus VEC does not pass a multiple of 2^32. */
INLINED void rounding_bits(ulong key, ulong element, bits_t *first, bits_t *second) {
    bits_t x = (bits_t)((uint)element) + (bits_t)LANE_NUMBERS, y = (bits_t)((uint)(element >> 32));
    bits_t z = (bits_t)(0u), w = (bits_t)(0u);
    uint2 keys = philox_key(key);
    for (int round = 0; round < 10; round++) {
        const bits_t high0 = mul_hi((bits_t)(0xD2511F53u), x), low0 = 0xD2511F53u * x;
        const bits_t high1 = mul_hi((bits_t)(0xCD9E8D57u), z), low1 = 0xCD9E8D57u * z;
        x = high1 ^ y ^ keys.x;
        y = low1;
        z = high0 ^ w ^ keys.y;
        w = low0;
        keys += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    *first = x;
    *second = y;
}

/* The rounded numbers, as floats; the lower half of `random` is r. */
INLINED vec_t round_randomly(vec_t v, bits_t random) {
    const bits_t bits = AS_BITS(v), magnitude = bits & 0x7fffffffu;
    const bits_t rounded = bits + (random & 0xffffu), lowered = magnitude > 0x7f800000u ? bits | 0x400000u : bits;
    const bits_t stays = (rounded & 0x7fffffffu) >= 0x7f800000u || magnitude >= 0x7f800000u ? lowered : rounded;
    return AS_FLOATS(stays & 0xffff0000u);
}

/* Both take a multiple of a vector's size; the latter what round_randomly returned. */
INLINED vec_t bf16_load(__global const ushort *p) {
    return AS_FLOATS(TO_BITS(*(__global const bf16_t *)p) << 16);
}

INLINED void bf16_store(vec_t v, __global ushort *p) {
    *(__global bf16_t *)p = TO_BF16(AS_BITS(v) >> 16);
}

#if MOMENTS
typedef ushort moment_t;
#define MOMENT_LOAD(p)          bf16_load(p)
#define MOMENT_STORE(v, p)      bf16_store(v, p)
#define MOMENT_ROUND(v, random) round_randomly(v, random)
#else
typedef float moment_t;
#define MOMENT_LOAD(p)          VEC_LOAD(p)
#define MOMENT_STORE(v, p)      VEC_STORE(v, p)
#define MOMENT_ROUND(v, random) (v)
#endif

/* What gradients with this norm are multiplied by, so that it is at most `clip`; clip <= 0: no clipping. */
static inline float clip_factor(float norm, float clip) {
    return clip > 0.0f && norm + 1e-6f > clip ? clip / (norm + 1e-6f) : 1.0f;
}
