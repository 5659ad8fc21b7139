/* Vectors of floats and how numbers are stored: fp32, bf16, fp16.
 *
 * Constants given at build time:
 *   VEC      floats per vector; divides every row length that it is used on
 *   VEC_MAX  the widest vector that suits the device
 *   ACT      how activations are stored: 0 fp32, 1 bf16, 2 fp16 (default: fp32)
 *   MASTER   how embeddings and weights of GEMMs are stored: 0 fp32, else as activations (default: fp32)
 */
#include "workarounds.cl"

#pragma OPENCL FP_CONTRACT ON

#define CONCAT_(a, b) a##b
#define CONCAT(a, b)  CONCAT_(a, b)

/* Sets the first `count` elements of a private array to zero. */
#define CLEAR(type, array, count)                                                                                  \
    UNROLL_LANES(count) for (int clear_i = 0; clear_i < (count); clear_i++) {                                      \
        (array)[clear_i] = (type)(0.0f);                                                                           \
    }

/* For a private array that whole vectors are kept in: one that crosses a line of the cache costs twice. */
#define ALIGNED __attribute__((aligned(64)))

/* ---- vectors of VEC floats
 *
 * In global memory a vector lies on a multiple of its size: buffers do, the parts of an arena begin there, and
 * VEC divides what a row is counted in. Told that, NVIDIA's compiler moves a vector by one instruction and not
 * number by number. VEC_LOAD_ANY and VEC_STORE_ANY are for places that are not such a multiple. In local and
 * private memory both take any place. */
#define float1              float
#define vload1(zero, p)     (*(p))
#define vstore1(v, zero, p) (*(p) = (v))

/* Of n floats, 1, 2, 4, 8 or 16, from and to any place; that n is expanded, and the rest is not. */
#define FLOATS_LOAD(n, p)      FLOATS_LOAD_(n, p)
#define FLOATS_LOAD_(n, p)     vload##n(0, p)
#define FLOATS_STORE(n, v, p)  FLOATS_STORE_(n, v, p)
#define FLOATS_STORE_(n, v, p) vstore##n(v, 0, p)

typedef CONCAT(float, VEC) vec_t;
#define VEC_LOAD_ANY(p)     FLOATS_LOAD(VEC, p)
#define VEC_STORE_ANY(v, p) FLOATS_STORE(VEC, v, p)

#if __has_attribute(overloadable) && VEC > 1
#define OVERLOADED static inline __attribute__((overloadable, always_inline))
OVERLOADED vec_t vec_load(__global const float *p) {
    return *(__global const vec_t *)p;
}
OVERLOADED vec_t vec_load(__local const float *p) {
    return VEC_LOAD_ANY(p);
}
OVERLOADED vec_t vec_load(__private const float *p) {
    return VEC_LOAD_ANY(p);
}
OVERLOADED void vec_store(vec_t v, __global float *p) {
    *(__global vec_t *)p = v;
}
OVERLOADED void vec_store(vec_t v, __local float *p) {
    VEC_STORE_ANY(v, p);
}
OVERLOADED void vec_store(vec_t v, __private float *p) {
#if LANES == 1
    STORE_PRIVATE(vec_t, v, p);
#else
    VEC_STORE_ANY(v, p);
#endif
}
#define VEC_LOAD(p)     vec_load(p)
#define VEC_STORE(v, p) vec_store(v, p)
#else
#define VEC_LOAD(p)     VEC_LOAD_ANY(p)
#define VEC_STORE(v, p) VEC_STORE_ANY(v, p)
#endif

/* The sum and the highest of a vector's elements, by halves. */
#define FOLD(n, half)                                                                                              \
    static inline float sum##n(float##n v) {                                                                       \
        return sum##half(v.lo + v.hi);                                                                             \
    }                                                                                                              \
    static inline float highest##n(float##n v) {                                                                   \
        return highest##half(fmax(v.lo, v.hi));                                                                    \
    }
#define sum1(v)     (v)
#define highest1(v) (v)
FOLD(2, 1)
FOLD(4, 2)
#if VEC_MAX > 4 /* clspv refuses longer vectors wherever they stand */
FOLD(8, 4)
FOLD(16, 8)
#endif
#define VEC_SUM(v)     CONCAT(sum, VEC)(v)
#define VEC_HIGHEST(v) CONCAT(highest, VEC)(v)

/* ---- activations: stored as act_t, computed in float
 *
 * ACT_LOAD(p) and ACT_STORE(v, p) move VEC of them, in global memory, on a multiple of a vector's size as above;
 * ACT_LOAD_ANY and ACT_STORE_ANY from and to any place, as ACT_LOAD_N(n, p) and ACT_STORE_N(n, v, p) do with n = 1,
 * 2, 4, 8, 16 of them. ACT_ROUND(v) is what a load gives after v was stored. Storing rounds to nearest even; NaN
 * stays NaN. Neither type needs an extension: bf16, the upper half of a float, is rounded by its bits, and fp16
 * goes through vload_half and vstore_half, which every device has. */
#ifndef ACT
#define ACT 0
#endif

#if ACT == 0
typedef float act_t;
#define ACT_LOAD_N(n, p)     FLOATS_LOAD(n, p)
#define ACT_STORE_N(n, v, p) FLOATS_STORE(n, v, p)
#define ACT_LOAD(p)          VEC_LOAD(p)
#define ACT_STORE(v, p)      VEC_STORE(v, p)
#define ACT_ROUND(v)         (v)

#elif ACT == 1 || defined(FP16_IN_PRIVATE)
typedef ushort act_t;
#if ACT == 1
/* Adding 0x7fff and the lowest bit that stays carries into it where the rest is above a half, or is one and the
 * bit odd. A NaN could carry on into infinity; instead it becomes quiet, so that a payload in the lower half
 * alone is not lost. */
#define ENCODE(n)                                                                                                  \
    const uint##n bits = as_uint##n(v), rounded = bits + ((bits >> 16) & 1u) + 0x7fffu;                            \
    return convert_ushort##n(select(rounded, bits | 0x400000u, (bits & 0x7fffffffu) > 0x7f800000u) >> 16)
#define DECODE(n, stored) as_float##n(convert_uint##n(stored) << 16)
#else
#define ENCODE(n)                                                                                                  \
    ushort##n bits;                                                                                                \
    vstore_half##n##_rte(v, 0, (half *)&bits);                                                                     \
    return bits
#define DECODE(n, stored) vload_half##n(0, (const half *)&stored)
#endif
#define ACT_BITS(width, n, READ, WRITE)                                                                            \
    static inline ushort##n act_encode##width(float##n v) {                                                        \
        ENCODE(n);                                                                                                 \
    }                                                                                                              \
    static inline float##n act_load##width(__global const act_t *p) {                                              \
        const ushort##n stored = READ;                                                                             \
        return DECODE(n, stored);                                                                                  \
    }                                                                                                              \
    static inline void act_store##width(float##n v, __global act_t *p) {                                           \
        const ushort##n stored = act_encode##width(v);                                                             \
        WRITE;                                                                                                     \
    }                                                                                                              \
    static inline float##n act_round##width(float##n v) {                                                          \
        const ushort##n stored = act_encode##width(v);                                                             \
        return DECODE(n, stored);                                                                                  \
    }
ACT_BITS(1, , *p, *p = stored)
ACT_BITS(2, 2, vload2(0, p), vstore2(stored, 0, p))
ACT_BITS(4, 4, vload4(0, p), vstore4(stored, 0, p))
#if VEC_MAX > 4
ACT_BITS(8, 8, vload8(0, p), vstore8(stored, 0, p))
ACT_BITS(16, 16, vload16(0, p), vstore16(stored, 0, p))
#endif
#if VEC > 1
typedef CONCAT(ushort, VEC) act_vec_t;
#define ACT_BITS_OF(width, n, READ, WRITE) ACT_BITS(width, n, READ, WRITE)
ACT_BITS_OF(_vector, VEC, *(__global const act_vec_t *)p, *(__global act_vec_t *)p = stored)
#define ACT_LOAD(p)                        act_load_vector(p)
#define ACT_STORE(v, p)                    act_store_vector(v, p)
#endif
#define ACT_ROUND(v) CONCAT(act_round, VEC)(v)

#else
typedef half act_t;
#define act_load1(p)      vload_half(0, p)
/* Two one by one, since clspv does not come to an end of vload_half2(0, p), nor where pairs are stored and read
 * one by one. */
#define act_load2(p)      ((float2)(vload_half(0, p), vload_half(1, p)))
#define act_load4(p)      vload_half4(0, p)
#define act_load8(p)      vload_half8(0, p)
#define act_load16(p)     vload_half16(0, p)
#define act_store1(v, p)  vstore_half_rte(v, 0, p)
#define act_store2(v, p)  (vstore_half_rte((v).x, 0, p), vstore_half_rte((v).y, 1, p))
#define act_store4(v, p)  vstore_half4_rte(v, 0, p)
#define act_store8(v, p)  vstore_half8_rte(v, 0, p)
#define act_store16(v, p) vstore_half16_rte(v, 0, p)
#if VEC > 2
#define ACT_LOAD(p)     CONCAT(vloada_half, VEC)(0, p)
#define ACT_STORE(v, p) CONCAT(CONCAT(vstorea_half, VEC), _rte)(v, 0, p)
#endif
static inline vec_t act_round(vec_t v) {
    ushort stored[VEC];
#if VEC > 1
    CONCAT(CONCAT(vstore_half, VEC), _rte)(v, 0, (half *)stored);
    return CONCAT(vload_half, VEC)(0, (const half *)stored);
#else
    vstore_half_rte(v, 0, (half *)stored);
    return vload_half(0, (const half *)stored);
#endif
}
#define ACT_ROUND(v) act_round(v)
#endif

#ifndef ACT_LOAD_N
#define ACT_LOAD_N(n, p)     CONCAT(act_load, n)(p)
#define ACT_STORE_N(n, v, p) CONCAT(act_store, n)(v, p)
#endif
#define ACT_LOAD_ANY(p)     ACT_LOAD_N(VEC, p)
#define ACT_STORE_ANY(v, p) ACT_STORE_N(VEC, v, p)
#ifndef ACT_LOAD
#define ACT_LOAD(p)     ACT_LOAD_ANY(p)
#define ACT_STORE(v, p) ACT_STORE_ANY(v, p)
#endif
#define ACT_LOAD_SCALAR(p)     ACT_LOAD_N(1, p)
#define ACT_STORE_SCALAR(v, p) ACT_STORE_N(1, v, p)

/* Embeddings and weights of GEMMs are kept in fp32, or with MASTER as activations are. */
#ifndef MASTER
#define MASTER 0
#endif
#if MASTER
typedef act_t master_t;
#define MASTER_LOAD(p) ACT_LOAD(p)
#else
typedef float master_t;
#define MASTER_LOAD(p) VEC_LOAD(p)
#endif

/* A vector of the embedding, wte's + wpe's; without POSITIONS there is no wpe. */
#define EMBEDDED(word, place) (POSITIONS ? MASTER_LOAD(word) + MASTER_LOAD(place) : MASTER_LOAD(word))
