/* C = sum of parts + beta C in the parts' order, C [m, n]; partial [parts, m, n] is what gemm_blocks.cl makes where
 * several groups share a block. One work-item computes an element. beta == 0 does not read C. */
#include "gemm_c.cl"

__kernel void gemm_parts(uint m, uint n, uint parts, __global const float *partial, float beta, __global c_t *c,
                         ulong c_offset, ulong c_stride) {
    const uint element = get_global_id(0), part_size = m * n; /* the host divides no products so large */
    if (element >= part_size)
        return;
    float sum = 0.0f;
    for (uint part = 0; part < parts; part++)
        sum += partial[part * part_size + element];
    __global c_t *to = c + (c_offset + element / n * c_stride + element % n);
    C_STORE_SCALAR(beta == 0.0f ? sum : sum + beta * C_LOAD_SCALAR(to), to);
}
