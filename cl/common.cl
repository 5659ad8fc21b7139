/* What every kernel file starts with: vector and storage types, sums over a work-group, random bits.
 *
 * Constants given at build time:
 *   LANES    work-items that share one row (a work-group): 1 on CPUs, where a row is one work-item's vector loop
 *   VEC      floats per vector; divides every row length that it is used on
 *   VEC_MAX  the widest vector that suits the device
 *   ACT      how activations are stored: 0 fp32, 1 bf16, 2 fp16 (default: fp32)
 *
 * A row of `width` elements is walked as  for (c = lane * VEC; c < width; c += LANES * VEC),  or by LANE_STEPS,
 * so that one source serves both kinds of device: explicit vectors without barriers on CPUs, coalesced lanes on
 * GPUs. */
#pragma OPENCL FP_CONTRACT ON

/* The two numbers of ARG_U64X2 (runtime/device/compute.h): clspv passes 64-bit numbers well only one by one. */
#define FIRST_U64(pair)  ((ulong)(pair).y << 32 | (pair).x)
#define SECOND_U64(pair) ((ulong)(pair).w << 32 | (pair).z)

#define CONCAT_(a, b) a##b
#define CONCAT(a, b)  CONCAT_(a, b)

#ifndef __has_attribute
#define __has_attribute(name) 0
#endif

/* Before a loop over an array that should stay in registers: compilers that unroll late leave it in memory. */
#if __has_attribute(opencl_unroll_hint)
#define UNROLL(n) __attribute__((opencl_unroll_hint(n)))
#else
#define UNROLL(n)
#endif

/* The same for what only the lanes of a GPU need unrolled: their share of a row is a few registers each, that of
 * a single work-item on a CPU an array in its cache, and few lanes are a test of the CPU's, which would be long
 * in compiling. */
#if LANES < 32
#define UNROLL_LANES(n)
#else
#define UNROLL_LANES(n) UNROLL(n)
#endif

/* Sets the first `count` elements of a private array to zero. */
#define CLEAR(type, array, count)                                                                                  \
    UNROLL_LANES(count) for (int clear_i = 0; clear_i < (count); clear_i++) {                                      \
        (array)[clear_i] = (type)(0.0f);                                                                           \
    }

/* For a private array that whole vectors are kept in: one that crosses a line of the cache costs twice. */
#define ALIGNED __attribute__((aligned(64)))

/* Stores a vector of this type to private memory on a CPU, at any place. PoCL's vstore writes pieces of 16
 * bytes; a load of the whole vector soon after stalls until all of them have arrived. */
#define STORE_PRIVATE(type, v, p)                                                                                  \
    do {                                                                                                           \
        typedef type kept_t __attribute__((aligned(2)));                                                           \
        *(__private kept_t *)(p) = (v);                                                                            \
    } while (0)

/* What gradients with this norm are multiplied by, so that it is at most `clip`; clip <= 0: no clipping. */
static inline float clip_factor(float norm, float clip) {
    return clip > 0.0f && norm + 1e-6f > clip ? clip / (norm + 1e-6f) : 1.0f;
}

/* For helpers that get private arrays: those stay in registers only if nothing is called. And for those that get
 * local memory: where all calls of a function pass the same array, LLVM puts the array's address into the
 * function as a constant; PoCL 3.1 then gives all threads the same array. */
#define INLINED static inline __attribute__((always_inline))

/* For what a kernel gets and, as it is built, does not use: where clspv has addresses of buffers, it crashes on a
 * pointer without any use. */
#ifdef CLSPV_ADDRESSES
#define UNUSED_POINTER(pointer) prefetch(pointer, 1)
#else
#define UNUSED_POINTER(pointer)
#endif

/* The work-item's place among those that share its row, and the row's place in the work-group, which has
 * GROUP_ROWS of them. */
#ifndef GROUP_ROWS
#define GROUP_ROWS 1
#endif
#if LANES == 1
#define LANE 0
#define ROW  ((int)get_local_id(0))
#elif GROUP_ROWS == 1
#define LANE_INDEX get_local_id(0)
#define LANE       ((int)LANE_INDEX)
#define ROW        0
#else
#define LANE_INDEX (get_local_id(0) % LANES)
#define LANE       ((int)LANE_INDEX)
#define ROW        ((int)get_local_id(0) / LANES)
#endif

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

#if ACT == 2 && (defined(__NVPTX__) || defined(__NV_CL_C_VERSION))
#define FP16_IN_PRIVATE
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
/* Bits move between global and private memory as whole vectors of ushort, and are converted in private memory:
 * NVIDIA's compiler (clang for its targets defines __NVPTX__, its own OpenCL __NV_CL_C_VERSION) makes 16-bit
 * loads and stores of vloada_half4 and vstorea_half4_rte. Elsewhere those are vectors by themselves, and quicker
 * to compile (on llvmpipe in 3/5 of the time). A test defines FP16_IN_PRIVATE on PoCL. */
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

/* ---- sums and maxima over the lanes of a work-group, in a fixed order
 *
 *   GROUP_SUM(x, scratch), GROUP_MAX(x, scratch)     of one number, which every lane gets
 *   GROUP_SUMS(values, count, scratch)               of `count` numbers, a private array, at once
 *   GROUP_TOTAL(values, scratch, i)                  the i-th sum of them, for every lane
 *   GROUP_STORE_TOTALS(to, values, count, scratch)   writes all of them to `to`, a lane each
 *
 * scratch is GROUP_SCRATCH(name), or GROUP_SUMS_SCRATCH(name, count), which is 4 count (LANES + GROUP_PARTS) bytes,
 * declared at the beginning of the kernel. All lanes come to GROUP_SUMS, which has three barriers however many
 * numbers there are; totals stay until the next use of the same scratch. GROUP_MAX writes to scratch before its
 * first barrier, so it must be the first use of that scratch in a kernel. */
#if LANES == 1
#define GROUP_SCRATCH(name)             __local float *const name = 0
#define GROUP_SUMS_SCRATCH(name, count) __local float *const name = 0
#define GROUP_SUM(x, name)              (x)
#define GROUP_MAX(x, name)              (x)
#define GROUP_SUMS(values, count, name)
#define GROUP_TOTAL(values, name, i) ((values)[i])
#define GROUP_BARRIER()
#else
/* Of each number GROUP_PARTS work-items add a part of what the lanes have, then whoever reads the total adds the
 * parts. With the gaps between numbers neighbouring work-items read neighbouring banks of local memory. */
#define GROUP_PARTS     (LANES >= 64 ? 8 : LANES >= 16 ? 4 : LANES >= 4 ? 2 : 1)
#define GROUP_DISTANCE  (LANES + GROUP_PARTS)
#define GROUP_BARRIER() barrier(CLK_GLOBAL_MEM_FENCE)
#if GROUP_ROWS == 1
#define GROUP_SUMS_SCRATCH(name, count) __local float name[(count) * GROUP_DISTANCE]
#else
#define GROUP_SUMS_SCRATCH(name, count)                                                                            \
    __local float name##_rows[GROUP_ROWS * (count) * GROUP_DISTANCE];                                              \
    __local float *const name = name##_rows + ROW * (count) * GROUP_DISTANCE
#endif
#define GROUP_SCRATCH(name)          GROUP_SUMS_SCRATCH(name, 1)
#define GROUP_SUM(x, name)           group_sum(x, name)
#define GROUP_MAX(x, name)           group_max(x, name)
#define GROUP_TOTAL(values, name, i) group_total(name, i)
#define GROUP_SUMS(values, count, name)                                                                            \
    do {                                                                                                           \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                              \
        UNROLL(count) for (int group_i = 0; group_i < (count); group_i++) {                                        \
            name[group_i * GROUP_DISTANCE + LANE] = (values)[group_i];                                             \
        }                                                                                                          \
        group_sums(count, name);                                                                                   \
    } while (0)

INLINED void group_sums(int count, __local float *scratch) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int task = LANE_INDEX; task < count * GROUP_PARTS; task += LANES) {
        __local float *part = scratch + task / GROUP_PARTS * GROUP_DISTANCE + task % GROUP_PARTS;
        float sum = part[0];
        for (int k = GROUP_PARTS; k < LANES; k += GROUP_PARTS) {
            sum += part[k];
        }
        part[0] = sum; /* nobody else reads this one */
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

INLINED float group_total(__local const float *scratch, int i) {
    float sum = scratch[i * GROUP_DISTANCE];
    for (int part = 1; part < GROUP_PARTS; part++) {
        sum += scratch[i * GROUP_DISTANCE + part];
    }
    return sum;
}

INLINED float group_sum(float x, __local float *scratch) {
    barrier(CLK_LOCAL_MEM_FENCE);
    scratch[LANE_INDEX] = x; /* LLVM 15 ends where this is an int, as PoCL compiles it for 8 lanes */
    group_sums(1, scratch);
    return group_total(scratch, 0);
}

INLINED float group_max(float x, __local float *scratch) {
    const int lane = LANE_INDEX;
    scratch[lane] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int width = LANES / 2; width > 0; width /= 2) {
        if (lane < width) {
            scratch[lane] = fmax(scratch[lane], scratch[lane + width]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    return scratch[0];
}
#endif

#define GROUP_STORE_TOTALS(to, values, count, name)                                                                \
    for (int group_i = LANE; group_i < (count); group_i += LANES) {                                                \
        (to)[group_i] = GROUP_TOTAL(values, name, group_i);                                                        \
    }

/* Sums of products that a lane has many of side by side: vectors where its registers are wide, else one float
 * each. */
#if LANES == 1
typedef vec_t products_t;
#define PRODUCTS(v)     (v)
#define PRODUCTS_SUM(v) VEC_SUM(v)
#else
typedef float products_t;
#define PRODUCTS(v)     VEC_SUM(v)
#define PRODUCTS_SUM(v) (v)
#endif

/* Steps that a lane takes along a row of `width` elements, for private arrays that hold its share of it. */
#define SLOTS(width) (((width) / VEC + LANES - 1) / LANES)

/* Those steps as a loop: slot counts them, c is the first of the step's VEC elements. Every lane makes the same
 * number of turns, known to the compiler, which only then unrolls the loop and keeps arrays indexed by slot in
 * registers; the last turn may be empty. `width` is a constant. */
#define LANE_STEPS(slot, c, width)                                                                                 \
    UNROLL_LANES(SLOTS(width))                                                                                     \
    for (int slot = 0, c = LANE * VEC; slot < SLOTS(width); slot++, c += LANES * VEC)                              \
        if ((width) % (LANES * VEC) == 0 || c < (width))

/* Comes after __kernel where many registers are needed. On some of Intel's GPUs the host asks for sub-groups of
 * SUB_GROUP work-items, because the compiler takes wider ones even if registers spill. */
#ifdef SUB_GROUP
#define SUB_GROUP_SIZE __attribute__((intel_reqd_sub_group_size(SUB_GROUP)))
#else
#define SUB_GROUP_SIZE
#endif
#define ROW_KERNEL __kernel SUB_GROUP_SIZE __attribute__((reqd_work_group_size(LANES * GROUP_ROWS, 1, 1)))

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

static inline uint2 philox_key(ulong key) {
    return (uint2)((uint)key, (uint)(key >> 32));
}

/* Factor of dropout for element `element` of row `row` at one site: 0 with probability rate, else 1/(1-rate).
 * key: of this iteration and site; row: number of the token row in the global batch, so that the way in which
 * rows are divided among ranks and micro-steps changes nothing. */
static inline float dropout_factor(ulong key, ulong row, uint element, float rate) {
    const uint4 words = philox((uint4)(element / 4, 0, (uint)row, (uint)(row >> 32)), philox_key(key));
    /* two selections instead of a switch on two bits, which oclgrind 21.10 gets wrong */
    const uint2 half_words = element & 2 ? words.hi : words.lo;
    const uint word = element & 1 ? half_words.y : half_words.x;
    return (word >> 8) * 0x1p-24f < rate ? 0.0f : 1.0f / (1.0f - rate);
}

/* x times that of elements `element` .. of row `row`. */
static inline vec_t dropout_vector(vec_t x, ulong key, ulong row, uint element, float rate) {
    if (rate > 0.0f) {
        float values[VEC];
        VEC_STORE(x, values);
        UNROLL_LANES(VEC) for (int k = 0; k < VEC; k++) {
            values[k] *= dropout_factor(key, row, element + k, rate);
        }
        x = VEC_LOAD(values);
    }
    return x;
}
