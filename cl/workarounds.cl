/* What kernels do for the sake of one compiler: its name and version, what goes wrong there, and when the
 * workaround can go. A short one that only one file needs stands there. */
#ifndef __has_attribute
#define __has_attribute(name) 0
#endif

/* Before a loop over an array that should stay in registers. clang 15 (AMD, NVIDIA's PTX by clang, PoCL) unrolls
 * loops too late to take such arrays out of memory. Can go when compilers do so by themselves; compilers without
 * the attribute, such as clspv, go without. */
#if __has_attribute(opencl_unroll_hint)
#define UNROLL(n) __attribute__((opencl_unroll_hint(n)))
#else
#define UNROLL(n)
#endif

/* The same where only the lanes of a GPU need it: their share of a row is a few registers each, while a single
 * work-item of a CPU has an array in its cache. Fewer than 32 lanes are a test on a CPU, which would take long to
 * compile. */
#if LANES < 32
#define UNROLL_LANES(n)
#else
#define UNROLL_LANES(n) UNROLL(n)
#endif

/* For helpers that get private arrays: those stay in registers only if nothing is called. Also for those that get
 * local memory: where all calls of a function pass the same array, LLVM 15 puts the array's address into the
 * function as a constant, and PoCL 3.1 then gives all threads the same array. The second reason can go with PoCL
 * 3.1. */
#define INLINED static inline __attribute__((always_inline))

/* Stores a vector of this type to private memory on a CPU, at any place. vstore of PoCL 3.1 writes pieces of 16
 * bytes, and a load of the whole vector soon after stalls until all of them have arrived. Can go when PoCL's vstore
 * is one instruction. */
#define STORE_PRIVATE(type, v, p)                                                                                  \
    do {                                                                                                           \
        typedef type kept_t __attribute__((aligned(2)));                                                           \
        *(__private kept_t *)(p) = (v);                                                                            \
    } while (0)

/* For arguments that a kernel may not use as it is built. clspv (on LLVM 22), where it has addresses of buffers,
 * crashes on a pointer without any use. Can go when it does not. */
#ifdef CLSPV_ADDRESSES
#define UNUSED_POINTER(pointer) prefetch(pointer, 1)
#else
#define UNUSED_POINTER(pointer)
#endif
#define UNUSED_POINTERS(a, b, c)                                                                                   \
    UNUSED_POINTER(a);                                                                                             \
    UNUSED_POINTER(b);                                                                                             \
    UNUSED_POINTER(c)

/* NVIDIA's compiler (clang for its targets defines __NVPTX__, its own OpenCL __NV_CL_C_VERSION) makes 16-bit loads
 * and stores of vloada_half4 and vstorea_half4_rte. So fp16 moves between global and private memory as vectors of
 * ushort, and is converted in private memory. Elsewhere those functions are vectors by themselves, and quicker to
 * compile (on llvmpipe in 3/5 of the time). A test defines FP16_IN_PRIVATE on PoCL. */
#if ACT == 2 && (defined(__NVPTX__) || defined(__NV_CL_C_VERSION))
#define FP16_IN_PRIVATE
#endif

/* Comes after __kernel where many registers are needed. On some of Intel's GPUs the host asks for sub-groups of
 * SUB_GROUP work-items, because Intel's compilers (22.43 to 26.27) take wider ones even if registers spill. */
#ifdef SUB_GROUP
#define SUB_GROUP_SIZE __attribute__((intel_reqd_sub_group_size(SUB_GROUP)))
#else
#define SUB_GROUP_SIZE
#endif
