/* Blocks of C of a product on matrix cores that several work-groups each have made parts of: these, [blocks -
 * whole, parts, BLOCK_M, BLOCK_N] in fp32, are added in their order, and mma_finish.cl does the rest. A work-item
 * has a run of a row. */
#include "mma_finish.cl"

#define BLOCK_SIZE (BLOCK_M * BLOCK_N)

/* Global size: the runs of the blocks from `whole` on. */
__kernel void mma_parts(uint m, uint n, uint whole, uint parts, ulong runs, __global const float *partial,
                        TARGET_PARAMETERS) {
    const ulong run = get_global_id(0);
    const uint block = run / (BLOCK_SIZE / RUN), inside = run % (BLOCK_SIZE / RUN) * RUN;
    const struct target target = TARGET(m, n);
    if (run >= runs)
        return;
    const uint2 corner = block_corner(whole + block, m, n);
    const uint row = corner.x + inside / BLOCK_N, column = corner.y + inside % BLOCK_N;
    if (row >= m || column >= n)
        return;
    const ulong first = (ulong)block * parts * BLOCK_SIZE + inside;
    float y[RUN], other[RUN];
    run_load(y, partial, first, TYPE_FP32);
    for (uint part = 1; part < parts; part++) {
        run_load(other, partial, first + part * BLOCK_SIZE, TYPE_FP32);
        EACH(i, RUN)
            y[i] += other[i];
    }
    run_finish(y, target, row, column);
}
