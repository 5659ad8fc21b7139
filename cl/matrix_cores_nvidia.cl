/* NVIDIA's instructions, of compute capability 8.0 and later: PTX ISA, mma.m16n8k16, ldmatrix and cp.async. */
#include "matrix_cores.cl"

#define SHARED_ADDRESS(pointer) ((uint)(size_t)(pointer))

/* Four 8 x 8 matrices, each transposed by the second function; lane l gives where row l % 8 of matrix l / 8 is. */
#define PTX_LOAD(name, instruction)                                                                                \
    INLINED uint4 name(struct work_item item, __local const ushort *row) {                                         \
        uint r0, r1, r2, r3;                                                                                       \
        __asm__ volatile(instruction " {%0, %1, %2, %3}, [%4];"                                                    \
                         : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3)                                                  \
                         : "r"(SHARED_ADDRESS(row))                                                                \
                         : "memory");                                                                              \
        return (uint4)(r0, r1, r2, r3);                                                                            \
    }
PTX_LOAD(ptx_load, "ldmatrix.sync.aligned.m8n8.x4.shared.b16")
PTX_LOAD(ptx_load_transposed, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")

#if FP16
#define PTX_TYPE "f16"
#else
#define PTX_TYPE "bf16"
#endif

/* C [16, 8] += A [16, 16] B [16, 8] */
INLINED void ptx_multiply(struct work_item item, float *c, uint4 a, uint2 b) {
    float d0, d1, d2, d3;
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX_TYPE "." PTX_TYPE ".f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
                     : "=f"(d0), "=f"(d1), "=f"(d2), "=f"(d3)
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y), "f"(c[0]), "f"(c[1]), "f"(c[2]),
                       "f"(c[3]));
    c[0] = d0, c[1] = d1, c[2] = d2, c[3] = d3;
}

/* 16 bytes, of which the first `bytes` come from `from` and the others are zero. Both are aligned to 16 bytes. */
INLINED void copy_chunk(__local ushort *to, __global const ushort *from, uint bytes) {
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SHARED_ADDRESS(to)), "l"(from),
                     "r"(bytes)
                     : "memory");
}

INLINED void copy_commit(void) {
    __asm__ volatile("cp.async.commit_group;" ::: "memory");
}

#define WARP_FENCE() __asm__ volatile("bar.warp.sync 0xffffffff;" ::: "memory")

#define COPY_WAIT_(groups) __asm__ volatile("cp.async.wait_group " #groups ";" ::: "memory")
#define COPY_WAIT(groups)  COPY_WAIT_(groups)

/* The lane whose number differs in one bit. */
#define EXCHANGE(item, x, bit) ptx_exchange(x, bit)
INLINED float ptx_exchange(float x, uint bit) {
    uint other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(as_uint(x)), "r"(bit));
    return as_float(other);
}

#define PAIR_ROUND(name, instruction)                                                                              \
    INLINED uint name(float low, float high) {                                                                     \
        uint pair;                                                                                                 \
        __asm__(instruction " %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));                                    \
        return pair;                                                                                               \
    }
PAIR_ROUND(pair_round_fp16, "cvt.rn.f16x2.f32")
PAIR_ROUND(pair_round_bf16, "cvt.rn.bf16x2.f32")

#include "matrix_cores_ptx.cl"
