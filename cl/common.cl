/* What every kernel file starts with: vector and storage types, sums over a work-group, random bits.
 *
 * Constants given at build time:
 *   LANES    work-items that share one row (a work-group): 1 on CPUs, where a row is one work-item's vector loop
 *   VEC      floats per vector; divides every row length that it is used on
 *   VEC_MAX  the widest vector that suits the device
 *   ACT      how activations are stored: 0 fp32, 1 bf16, 2 fp16; what is not told is fp32
 *
 * A row of `width` elements is walked as  for (c = lane * VEC; c < width; c += LANES * VEC)  so that one source serves
 * both kinds of device: explicit vectors without barriers on CPUs, coalesced lanes on GPUs.
 */
#pragma OPENCL FP_CONTRACT ON

#define CONCAT_(a, b) a##b
#define CONCAT(a, b)  CONCAT_(a, b)

/* Before a loop over an array that should stay in registers: compilers that unroll late leave it in memory. */
#ifdef __has_attribute
#if __has_attribute(opencl_unroll_hint)
#define UNROLL(n) __attribute__((opencl_unroll_hint(n)))
#endif
#endif
#ifndef UNROLL
#define UNROLL(n)
#endif

/* The same for what only the lanes of a GPU need unrolled: their share of a row is a few registers each, that of a single
 * work-item on a CPU an array in its cache, and few lanes are a test of the CPU's, which would be long in compiling. */
#if LANES < 32
#define UNROLL_LANES(n)
#else
#define UNROLL_LANES(n) UNROLL(n)
#endif

/* ---- vectors of VEC floats */
#if VEC == 1
typedef float vec_t;
#define VEC_LOAD(p)     (*(p))
#define VEC_STORE(v, p) (*(p) = (v))
#else
typedef CONCAT(float, VEC) vec_t;
#define VEC_LOAD(p)     CONCAT(vload, VEC)(0, p)
#define VEC_STORE(v, p) CONCAT(vstore, VEC)(v, 0, p)
#endif

static inline float sum2(float2 v) {
    return v.x + v.y;
}
static inline float sum4(float4 v) {
    return sum2(v.lo + v.hi);
}
static inline float highest2(float2 v) {
    return fmax(v.x, v.y);
}
static inline float highest4(float4 v) {
    return highest2(fmax(v.lo, v.hi));
}
#if VEC_MAX > 4 /* clspv refuses longer vectors wherever they stand */
static inline float sum8(float8 v) {
    return sum4(v.lo + v.hi);
}
static inline float sum16(float16 v) {
    return sum8(v.lo + v.hi);
}
static inline float highest8(float8 v) {
    return highest4(fmax(v.lo, v.hi));
}
static inline float highest16(float16 v) {
    return highest8(fmax(v.lo, v.hi));
}
#endif
#if VEC == 1
#define VEC_SUM(v) (v)
#define VEC_HIGHEST(v) (v)
#else
#define VEC_SUM(v)     CONCAT(sum, VEC)(v)
#define VEC_HIGHEST(v) CONCAT(highest, VEC)(v)
#endif

/* ---- activations: stored as act_t, computed in float
 *
 * act_load<n>(p) and act_store<n>(v, p) move n of them, n = 1, 2, 4, 8, 16; p need not be aligned to more than one. Storing
 * rounds to nearest even; NaN stays NaN. Neither type needs an extension: bf16, the upper half of a float, is rounded by its
 * bits, and fp16 goes through vload_half and vstore_half, which every device has.
 */
#ifndef ACT
#define ACT 0
#endif

#if ACT == 0
typedef float act_t;
#define act_load1(p)      (*(p))
#define act_load2(p)      vload2(0, p)
#define act_load4(p)      vload4(0, p)
#define act_load8(p)      vload8(0, p)
#define act_load16(p)     vload16(0, p)
#define act_store1(v, p)  (*(p) = (v))
#define act_store2(v, p)  vstore2(v, 0, p)
#define act_store4(v, p)  vstore4(v, 0, p)
#define act_store8(v, p)  vstore8(v, 0, p)
#define act_store16(v, p) vstore16(v, 0, p)

#elif ACT == 1
typedef ushort act_t;
/* Adding 0x7fff and the lowest bit that stays carries into it where the rest is above a half, or is one and the bit odd. A NaN
 * could carry on into infinity; instead it becomes quiet, so that a payload in the lower half alone is not lost. */
#define BF16(width, n, READ, WRITE)                                                                                     \
    static inline float##n act_load##width(__global const act_t *p) {                                                   \
        return as_float##n(convert_uint##n(READ) << 16);                                                                \
    }                                                                                                                   \
    static inline void act_store##width(float##n v, __global act_t *p) {                                                \
        const uint##n bits = as_uint##n(v);                                                                             \
        const uint##n rounded = bits + ((bits >> 16) & 1u) + 0x7fffu;                                                   \
        const uint##n upper = select(rounded, bits | 0x400000u, (bits & 0x7fffffffu) > 0x7f800000u) >> 16;              \
        const ushort##n stored = convert_ushort##n(upper);                                                              \
        WRITE;                                                                                                          \
    }
BF16(1, , *p, *p = stored)
BF16(2, 2, vload2(0, p), vstore2(stored, 0, p))
BF16(4, 4, vload4(0, p), vstore4(stored, 0, p))
#if VEC_MAX > 4
BF16(8, 8, vload8(0, p), vstore8(stored, 0, p))
BF16(16, 16, vload16(0, p), vstore16(stored, 0, p))
#endif

#else
typedef half act_t;
#define act_load1(p)      vload_half(0, p)
#define act_load2(p)      vload_half2(0, p)
#define act_load4(p)      vload_half4(0, p)
#define act_load8(p)      vload_half8(0, p)
#define act_load16(p)     vload_half16(0, p)
#define act_store1(v, p)  vstore_half_rte(v, 0, p)
#define act_store2(v, p)  vstore_half2_rte(v, 0, p)
#define act_store4(v, p)  vstore_half4_rte(v, 0, p)
#define act_store8(v, p)  vstore_half8_rte(v, 0, p)
#define act_store16(v, p) vstore_half16_rte(v, 0, p)
#endif

#define ACT_LOAD(p)            CONCAT(act_load, VEC)(p)
#define ACT_STORE(v, p)        CONCAT(act_store, VEC)(v, p)
#define ACT_LOAD_SCALAR(p)     act_load1(p)
#define ACT_STORE_SCALAR(v, p) act_store1(v, p)

/* ---- sums and maxima over the lanes of a work-group; every lane gets the result. The tree is fixed. */
#if LANES == 1
#define GROUP_SCRATCH(name)
#define GROUP_SUM(x, name) (x)
#define GROUP_MAX(x, name) (x)
#define GROUP_BARRIER()
#else
#define GROUP_BARRIER() barrier(CLK_GLOBAL_MEM_FENCE)
#define GROUP_SCRATCH(name) __local float name[LANES]
#define GROUP_SUM(x, name)  group_reduce(x, name, 0)
#define GROUP_MAX(x, name)  group_reduce(x, name, 1)
static inline float group_reduce(float x, __local float *scratch, int take_max) {
    const int lane = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[lane] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int width = LANES / 2; width > 0; width /= 2) {
        if (lane < width) {
            const float other = scratch[lane + width];
            scratch[lane] = take_max ? fmax(scratch[lane], other) : scratch[lane] + other;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return scratch[0];
}
#endif

/* Sums of products that a lane has many of side by side: vectors where its registers are wide, else one float each. */
#if LANES == 1
typedef vec_t products_t;
#define PRODUCTS(v)  (v)
#define PRODUCTS_SUM(v) VEC_SUM(v)
#else
typedef float products_t;
#define PRODUCTS(v)  VEC_SUM(v)
#define PRODUCTS_SUM(v) (v)
#endif

/* Steps that a lane takes along a row, for private arrays that hold its share of it. */
#define SLOTS(width) (((width) / VEC + LANES - 1) / LANES)

#define ROW_KERNEL __kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))

/* ---- Philox4x32-10, as runtime/system/random.h */
static inline uint4 philox(uint4 counter, uint2 key) {
    for (int round = 0; round < 10; round++) {
        const uint high0 = mul_hi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        const uint high1 = mul_hi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = (uint4)(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}

/* Factor of dropout for element `element` of row `row` at one site: 0 with probability rate, else 1/(1-rate).
 * key: of this iteration and site; row: number of the token row in the global batch, so that the way in which rows are
 * divided among ranks and micro-steps changes nothing. */
static inline float dropout_factor(uint2 key, ulong row, uint element, float rate) {
    const uint4 words = philox((uint4)(element / 4, 0, (uint)row, (uint)(row >> 32)), key);
    /* two selections instead of a switch on two bits, which oclgrind 21.10 gets wrong */
    const uint2 half_words = element & 2 ? words.hi : words.lo;
    const uint word = element & 1 ? half_words.y : half_words.x;
    return (word >> 8) * 0x1p-24f < rate ? 0.0f : 1.0f / (1.0f - rate);
}
