/* Elements of a buffer whose type is known when the kernel is compiled or only when it runs: TYPE_..., as enum
 * element_type of the host has them. Computed in float whatever is stored. */
#include "workarounds.cl"

#define TYPE_FP32 0
#define TYPE_BF16 1 /* the upper half of an fp32, rounded to nearest even */
#define TYPE_FP16 2

INLINED ushort element_round_bf16(float x) {
    const uint bits = as_uint(x);
    /* a NaN's payload may lie in the lower half, which is lost */
    return isnan(x) ? (ushort)(bits >> 16 | 0x40) : (ushort)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINED float element_load(__global const void *from, ulong at, int type) {
    if (type == TYPE_FP32)
        return ((__global const float *)from)[at];
    if (type == TYPE_BF16)
        return as_float((uint)((__global const ushort *)from)[at] << 16);
    return vload_half(at, (__global const half *)from);
}

INLINED void element_store(float x, __global void *to, ulong at, int type) {
    if (type == TYPE_FP32)
        ((__global float *)to)[at] = x;
    else if (type == TYPE_BF16)
        ((__global ushort *)to)[at] = element_round_bf16(x);
    else
        vstore_half_rte(x, at, (__global half *)to);
}
