/* What attention needs of matrix units besides products: maxima and sums along the rows of C, and C as the A of a next
 * product. Comes after matrix_unit.cl.
 *
 *   UNIT_ROWS         rows of C that a lane has elements of; element i lies in number UNIT_ROW_OF(i) of them, and
 *                     UNIT_IN_ROW(r) is an element of number r
 *   UNIT_TURN_LOCAL   whether C passes through local memory on its way to an A; may be set to 1 for tests
 */
#if UNIT == 1 || UNIT == 5
#define UNIT_ROWS      2
#define UNIT_ROW_OF(i) ((i) >> 1 & 1)
#define UNIT_IN_ROW(r) ((r) * 2)
#define UNIT_ROW_LANES 4
#ifndef UNIT_TURN_LOCAL
#define UNIT_TURN_LOCAL 0
#endif
#else
#define UNIT_ROWS      UNIT_ELEMENTS
#define UNIT_ROW_OF(i) (i)
#define UNIT_IN_ROW(r) (r)
#define UNIT_ROW_LANES UNIT_N
#undef UNIT_TURN_LOCAL
#define UNIT_TURN_LOCAL 1
#endif

/* ---- rows: they lie in UNIT_ROW_LANES neighbours, which exchange with the one whose number differs in one bit */
#if UNIT == 1
#define UNIT_EXCHANGE(unit, x, bit) ptx_exchange(x, bit)
INLINED float ptx_exchange(float x, uint bit) {
    uint other;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(as_uint(x)), "r"(bit));
    return as_float(other);
}
#elif defined(UNIT_AMD)
/* ds_swizzle, bit mask mode: all five bits of the lane's number are kept and then these ones flipped */
#define UNIT_EXCHANGE(unit, x, bit) as_float(__builtin_amdgcn_ds_swizzle(as_int(x), 0x1f | (bit) << 10))
#elif UNIT == 4
#define UNIT_EXCHANGE(unit, x, bit) intel_sub_group_shuffle_xor(x, bit)
#else
#define UNIT_EXCHANGE(unit, x, bit) emulated_exchange(unit, x, bit)
INLINED float emulated_exchange(struct unit unit, float x, uint bit) {
    unit.scratch[unit.lane] = as_uint(x);
    barrier(CLK_LOCAL_MEM_FENCE);
    const float other = as_float(unit.scratch[unit.lane ^ bit]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return other;
}
#endif

/* The highest of what the lanes of a row have; every one of them gets it. */
INLINED float unit_row_highest(struct unit unit, float x) {
    x = fmax(x, UNIT_EXCHANGE(unit, x, 1));
    x = fmax(x, UNIT_EXCHANGE(unit, x, 2));
#if UNIT_ROW_LANES >= 8
    x = fmax(x, UNIT_EXCHANGE(unit, x, 4));
#endif
#if UNIT_ROW_LANES >= 16
    x = fmax(x, UNIT_EXCHANGE(unit, x, 8));
#endif
    return x;
}

/* The sum, in a fixed order. */
INLINED float unit_row_sum(struct unit unit, float x) {
    x += UNIT_EXCHANGE(unit, x, 1);
    x += UNIT_EXCHANGE(unit, x, 2);
#if UNIT_ROW_LANES >= 8
    x += UNIT_EXCHANGE(unit, x, 4);
#endif
#if UNIT_ROW_LANES >= 16
    x += UNIT_EXCHANGE(unit, x, 8);
#endif
    return x;
}

/* ---- elements */

INLINED float unit_value(ushort bits) {
#if UNIT_FP16
    return vload_half(0, (const half *)&bits);
#else
    return as_float((uint)bits << 16);
#endif
}

/* Two rounded elements, the first one in the lower half. */
INLINED uint unit_round_pair(float low, float high) {
#if UNIT == 1
    uint pair;
#if UNIT_FP16
    __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
#else
    return (uint)unit_round(high) << 16 | unit_round(low);
#endif
}

/* ---- C [UNIT_M, UNIT_K], which is UNIT_K / UNIT_N fragments side by side, rounded to an A */
#define UNIT_TURN_SIZE (UNIT_M * UNIT_K) /* elements of the local memory that a warp has for that */

#if UNIT_TURN_LOCAL
INLINED unit_a unit_turn(struct unit unit, const unit_c *c, __local ushort *tiles) {
    __local ushort *tile = tiles + unit.warp * UNIT_TURN_SIZE;
    UNIT_UNROLL
    for (uint n = 0; n < UNIT_K / UNIT_N; n++) {
        UNIT_UNROLL
        for (uint i = 0; i < UNIT_ELEMENTS; i++)
            tile[tile_at(UNIT_K, unit_row(unit, i), n * UNIT_N + unit_column(unit, i))] = unit_round(c[n].v[i]);
    }
    UNIT_WARP_FENCE();
    const unit_a a = unit_load_a(unit, tile, UNIT_K, 0, 0);
    UNIT_WARP_FENCE();
    return a;
}
#else
/* A lane's share of A is where its share of C is: PTX ISA, the two figures of fragments. */
INLINED unit_a unit_turn(struct unit unit, const unit_c *c, __local ushort *tiles) {
    return (unit_a)(unit_round_pair(c->v[0], c->v[1]), unit_round_pair(c->v[2], c->v[3]),
                    unit_round_pair(c->v[4], c->v[5]), unit_round_pair(c->v[6], c->v[7]));
}
#endif
