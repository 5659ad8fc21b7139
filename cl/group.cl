/* Rows that the work-items of a work-group share: lanes, loops along a row, and sums over the lanes.
 *
 * Constants given at build time:
 *   LANES       work-items that share one row: 1 on CPUs, where a row is one work-item's vector loop
 *   GROUP_ROWS  rows of a work-group (default: 1)
 *
 * A row of `width` elements is walked as  for (c = lane * VEC; c < width; c += LANES * VEC),  or by LANE_STEPS,
 * so that one source serves both kinds of device: explicit vectors without barriers on CPUs, coalesced lanes on
 * GPUs. */
#include "types.cl"

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

/* Totals over the lanes of sums that each lane has, vectors or PRODUCTS (LANE_TOTALS), stored to `to`. */
#define LANE_SUMS_STORE(SUM, to, sums, count, name)                                                                \
    do {                                                                                                           \
        LANE_TOTALS(SUM, lane_totals, sums, count);                                                                \
        GROUP_SUMS(lane_totals, count, name);                                                                      \
        GROUP_STORE_TOTALS(to, lane_totals, count, name)                                                           \
    } while (0)

/* Where the chunk of this work-group begins, or with `after` 1 ends, where groups share `rows` rows in equal
 * chunks. */
INLINED size_t chunk_begin(ulong rows, int after) {
    const ulong each = (rows + get_num_groups(0) - 1) / get_num_groups(0);
    return min((get_group_id(0) + after) * each, rows);
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

/* Declares `totals`, for GROUP_SUMS: of each of `count` sums that a lane has, vectors or PRODUCTS, its SUM. */
#define LANE_TOTALS(SUM, totals, sums, count)                                                                      \
    float totals[count];                                                                                           \
    UNROLL_LANES(count) for (int total_i = 0; total_i < (count); total_i++) {                                      \
        totals[total_i] = SUM((sums)[total_i]);                                                                    \
    }

/* Steps that a lane takes along a row of `width` elements, for private arrays that hold its share of it. */
#define SLOTS(width) (((width) / VEC + LANES - 1) / LANES)

/* A work-item's vectors of all streams, as one array: clspv mistakes the indices of an array of arrays of one
 * element. */
#define STREAM_SLOTS     (STREAMS * SLOTS(CHANNELS))
#define AT(stream, slot) ((stream) * SLOTS(CHANNELS) + (slot))

/* Those steps as a loop: slot counts them, c is the first of the step's VEC elements. Every lane makes the same
 * number of turns, known to the compiler, which only then unrolls the loop and keeps arrays indexed by slot in
 * registers; the last turn may be empty. `width` is a constant. */
#define LANE_STEPS(slot, c, width)                                                                                 \
    UNROLL_LANES(SLOTS(width))                                                                                     \
    for (int slot = 0, c = LANE * VEC; slot < SLOTS(width); slot++, c += LANES * VEC)                              \
        if ((width) % (LANES * VEC) == 0 || c < (width))

/* Elements of a token's streams, and of its h (hc_gates.cl). With FRACTIONS the streams are parts of the CHANNELS,
 * and each part of a branch's input has an H_pre of its own (hc_frac.cl). */
#ifndef FRACTIONS
#define FRACTIONS 0
#endif
#define STREAM_CHANNELS (FRACTIONS ? CHANNELS / STREAMS : CHANNELS)
#define ROW_LENGTH      (STREAMS * STREAM_CHANNELS)
#define PRE_ENTRIES     (FRACTIONS ? STREAMS * STREAMS : STREAMS)
#define H_ROW           (PRE_ENTRIES + STREAMS * (STREAMS + 1))

#define ROW_KERNEL __kernel SUB_GROUP_SIZE __attribute__((reqd_work_group_size(LANES * GROUP_ROWS, 1, 1)))
