/* What attention needs of matrix cores besides GEMM: maxima and sums along the rows of C, and C as the A of a next
 * multiplication. Comes after the files that matrix_cores.cl lists.
 *
 *   C_TO_A_LOCAL  0: a lane's share of A is its share of C; 1: C passes through local memory (all but NVIDIA's)
 */
#ifndef IN_ORDER
#define IN_ORDER()
#define FORGET(me)
#endif

/* The greatest of what the lanes of a row have; every one of them gets it. */
INLINED float fragment_row_max(struct work_item me, float x) {
    x = fmax(x, EXCHANGE(me, x, 1));
    x = fmax(x, EXCHANGE(me, x, 2));
    if (ROW_LANES >= 8)
        x = fmax(x, EXCHANGE(me, x, 4));
    if (ROW_LANES >= 16)
        x = fmax(x, EXCHANGE(me, x, 8));
    return x;
}

/* The sum, in a fixed order. */
INLINED float fragment_row_sum(struct work_item me, float x) {
    x += EXCHANGE(me, x, 1);
    x += EXCHANGE(me, x, 2);
    if (ROW_LANES >= 8)
        x += EXCHANGE(me, x, 4);
    if (ROW_LANES >= 16)
        x += EXCHANGE(me, x, 8);
    return x;
}

/* C [FRAGMENT_M, FRAGMENT_K], which is FRAGMENT_K / FRAGMENT_N fragments side by side, rounded to an A. A warp has
 * C_TO_A_SIZE elements of local memory for that. */
#define C_TO_A_SIZE (FRAGMENT_M * FRAGMENT_K)

INLINED fragment_a c_to_a(struct work_item me, const fragment_c *c, __local ushort *tiles) {
#if C_TO_A_LOCAL
    __local ushort *tile = tiles + me.warp * C_TO_A_SIZE;
    FRAGMENT_UNROLL
    for (uint n = 0; n < FRAGMENT_K / FRAGMENT_N; n++) {
        FRAGMENT_UNROLL
        for (uint i = 0; i < FRAGMENT_ELEMENTS; i++)
            tile[tile_at(FRAGMENT_K, fragment_row(me, i), n * FRAGMENT_N + fragment_column(me, i))] =
                operand_round(c[n].v[i]);
    }
    WARP_FENCE();
    const fragment_a a = fragment_load_a(me, tile, FRAGMENT_K, 0, 0);
    WARP_FENCE();
    return a;
#else
    return c_to_a_direct(c);
#endif
}
