/* What follows the sums of a GEMM on matrix cores, in two kernels (mma_gemm.cl, mma_parts.cl):
 *
 *   y = sum + beta C + bias
 *   SIDE 0:  C = y
 *   SIDE 1:  C = y,  side = f(y), of y before it is rounded
 *   SIDE 2:  C = y f'(side)
 *   SIDE 3:  C = y side f'(g),  side = y f(g),  where g was in C
 *
 * C and side are [m, n], bias is [n].
 *
 * Constants given at build time, so that a kernel has only what it needs:
 *   TYPE_C, TYPE_BIAS, TYPE_SIDE   of their elements
 *   ADDS        whether beta C is added
 *   BIAS        whether there is a bias
 *   SIDE        as above
 *   RUN         elements of a row of C that a work-item finishes at once: 8, where rows of C, bias and side begin
 *               at multiples of 8 elements and n is one, so that a run is there or is not; else 1
 *   BLOCK_M, _N of the blocks of C that work-groups make
 *
 * VEC is 1. Without SIDE the host names no file for the activation.
 */
#include "activation_*.cl"
#include "matrix_cores.cl"
#include "matrix_cores_*.cl"

/* C, the bias and what lies beside C; without bias or side they are any buffer. */
struct target {
    __global void *c;
    ulong c_at, c_stride;
    uint rows, columns; /* m, n */
    float beta;
    __global const void *bias;
    ulong bias_at;
    __global void *side;
    ulong side_at, side_stride;
};

#define TARGET_PARAMETERS                                                                                          \
    float beta, __global void *c, ulong c_at, ulong c_stride, __global const void *bias, ulong bias_at,            \
        __global void *side, ulong side_at, ulong side_stride
#define TARGET(m, n) {c, c_at, c_stride, m, n, beta, bias, bias_at, side, side_at, side_stride}

/* ---- runs of elements */

#if RUN == 8
INLINED void run_load(float *x, __global const void *from, ulong at, int type) {
    if (type == TYPE_FP32) {
        __global const float4 *quads = (__global const float4 *)((__global const float *)from + at);
        vstore4(quads[0], 0, x);
        vstore4(quads[1], 1, x);
        return;
    }
    const uint4 words = *(__global const uint4 *)((__global const ushort *)from + at);
    const uint each[4] = {words.x, words.y, words.z, words.w};
    EACH(i, 4) {
        x[i * 2] = half_value((ushort)each[i], type);
        x[i * 2 + 1] = half_value((ushort)(each[i] >> 16), type);
    }
}

INLINED void run_from_local(float *x, __local const float *from) {
    __local const float4 *quads = (__local const float4 *)from;
    vstore4(quads[0], 0, x);
    vstore4(quads[1], 1, x);
}

INLINED void run_store(const float *x, __global void *to, ulong at, int type) {
    if (type == TYPE_FP32) {
        __global float4 *quads = (__global float4 *)((__global float *)to + at);
        quads[0] = (float4)(x[0], x[1], x[2], x[3]);
        quads[1] = (float4)(x[4], x[5], x[6], x[7]);
        return;
    }
    *(__global uint4 *)((__global ushort *)to + at) =
        (uint4)(pair_round(x[0], x[1], type), pair_round(x[2], x[3], type), pair_round(x[4], x[5], type),
                pair_round(x[6], x[7], type));
}
#else
#define run_from_local(x, from)     ((x)[0] = *(from))
#define run_load(x, from, at, type) ((x)[0] = element_load(from, at, type))
#define run_store(x, to, at, type)  element_store((x)[0], to, at, type)
#endif

/* ---- blocks */

/* Where number `block` begins, as row and column: eight rows of blocks are walked together, so that what neighbours
 * in time read stays in the cache. */
#define WALK 8
INLINED uint2 block_corner(uint block, uint m, uint n) {
    const uint down = (m - 1) / BLOCK_M + 1, across = (n - 1) / BLOCK_N + 1;
    const uint first = block / (WALK * across) * WALK, inside = block % (WALK * across);
    const uint rows = min(down - first, (uint)WALK);
    return (uint2)((first + inside % rows) * BLOCK_M, inside / rows * BLOCK_N);
}

/* ---- all that follows the sums y [RUN] of C from (row, column) on */
INLINED void run_finish(float *y, struct target target, uint row, uint column) {
    const ulong at = target.c_at + row * target.c_stride + column;
    float other[RUN];
    if (ADDS) {
        run_load(other, target.c, at, TYPE_C);
        EACH(i, RUN)
            y[i] += target.beta * other[i];
    }
    if (BIAS) {
        run_load(other, target.bias, target.bias_at + column, TYPE_BIAS);
        EACH(i, RUN)
            y[i] += other[i];
    }
#if SIDE
    const ulong beside = target.side_at + row * target.side_stride + column;
    if (SIDE == 1) {
        EACH(i, RUN)
            other[i] = y[i] * activation_factor(y[i]);
        run_store(other, target.side, beside, TYPE_SIDE);
    } else if (SIDE == 2) {
        run_load(other, target.side, beside, TYPE_SIDE);
        EACH(i, RUN)
            y[i] *= activation_derivative(other[i]);
    } else {
        float gates[RUN];
        run_load(gates, target.c, at, TYPE_C);
        run_load(other, target.side, beside, TYPE_SIDE);
        EACH(i, RUN) {
            const float d_product = y[i];
            y[i] = d_product * other[i] * activation_derivative(gates[i]);
            other[i] = d_product * (gates[i] * activation_factor(gates[i]));
        }
        run_store(other, target.side, beside, TYPE_SIDE);
    }
#endif
    run_store(y, target.c, at, TYPE_C);
}
