/* Sums in a fixed order: partial sums of chunks, then their sum in a second pass. No atomics, so a result does not
 * depend on the order in which work-groups run.
 */
#include "group.cl"

#define LINE 64 /* vectors summed before they join a total, which keeps float sums of millions accurate */

/* One work-group a chunk of rows: partials [chunks, width] = column sums of x [rows, width]. width a multiple of
 * VEC. */
ROW_KERNEL void column_sums(__global const act_t *x, ulong rows, int width, __global float *partials) {
    const size_t first = chunk_begin(rows, 0), last = chunk_begin(rows, 1);
    for (int c = get_local_id(0) * VEC; c < width; c += LANES * VEC) {
        vec_t sum = (vec_t)(0.0f);
        for (size_t row = first; row < last; row++) {
            sum += ACT_LOAD(x + row * width + c);
        }
        VEC_STORE(sum, partials + get_group_id(0) * width + c);
    }
}

/* Up to three ranges of columns of partials [chunks, width], one after the other, and where in `gradients` their
 * sums over the chunks are added to what is there, or with keep == 0 written, whatever that is. */
#define TARGETS                                                                                                    \
    int first0, int count0, ulong at0, int first1, int count1, ulong at1, int first2, int count2, ulong at2

/* Number k of all ranges together, which begin at these numbers: its column or its place. */
#define IN_TARGET(k, at0, at1, at2)                                                                                \
    ((k) < count0 ? (at0) + (k) : (k) < count0 + count1 ? (at1) + (k) - count0 : (at2) + (k) - count0 - count1)

/* On a CPU one work-item a column; else a work-group takes LANES / PARTS columns, PARTS work-items each. */
#if LANES == 1
__kernel void partials_add(__global const float *partials, ulong chunks, int width, TARGETS, int keep,
                           __global float *gradients) {
    const int k = get_global_id(0);
    if (k < count0 + count1 + count2) {
        const int column = IN_TARGET(k, first0, first1, first2);
        float sum = 0.0f;
        for (size_t chunk = 0; chunk < chunks; chunk++) {
            sum += partials[chunk * width + column];
        }
        __global float *place = gradients + IN_TARGET(k, at0, at1, at2);
        *place = keep ? *place + sum : sum;
    }
}
#else
#define PARTS (LANES < 8 ? LANES : 8)
ROW_KERNEL void partials_add(__global const float *partials, ulong chunks, int width, TARGETS, int keep,
                             __global float *gradients) {
    __local float sums[LANES];
    const int columns = LANES / PARTS, part = LANE / columns;
    const int k = get_group_id(0) * columns + LANE % columns;
    const bool real = k < count0 + count1 + count2;
    const int column = IN_TARGET(k, first0, first1, first2);
    float sum = 0.0f;
    UNROLL_LANES(4) for (size_t chunk = part; chunk < (real ? chunks : 0); chunk += PARTS) {
        sum += partials[chunk * width + column];
    }
    sums[LANE] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (part == 0 && real) {
        for (int other = 1; other < PARTS; other++) {
            sum += sums[LANE + other * columns];
        }
        __global float *place = gradients + IN_TARGET(k, at0, at1, at2);
        *place = keep ? *place + sum : sum;
    }
}
#endif

/* One work-group a chunk: partials[chunk] = sum of squares of x[chunk], of count elements from `at` on. at, count
 * and per_chunk are multiples of VEC. */
ROW_KERNEL void square_sums(__global const float *x, ulong at, ulong count, ulong per_chunk,
                            __global float *partials) {
    GROUP_SCRATCH(scratch);
    const size_t first = get_group_id(0) * per_chunk;
    const size_t last = min((ulong)(first + per_chunk), count);
    vec_t total = (vec_t)(0.0f);
    size_t i = first + get_local_id(0) * VEC;
    while (i < last) {
        vec_t line = (vec_t)(0.0f);
        for (int k = 0; k < LINE && i < last; k++, i += LANES * VEC) {
            const vec_t v = VEC_LOAD(x + at + i);
            line += v * v;
        }
        total += line;
    }
    const float sum = GROUP_SUM(VEC_SUM(total), scratch);
    if (get_local_id(0) == 0) {
        partials[get_group_id(0)] = sum;
    }
}

/* One work-group a row of x [rows, count]: out[at + row] = scale * sum of the row (+ the old out[at + row] if add).
 * root != 0 takes the square root. */
ROW_KERNEL void sum_total(__global const float *x, ulong count, float scale, int add, int root, __global float *out,
                          ulong at) {
    GROUP_SCRATCH(scratch);
    float total = 0.0f;
    size_t i = get_local_id(0);
    x += get_group_id(0) * count;
    at += get_group_id(0);
    while (i < count) {
        float line = 0.0f;
        for (int k = 0; k < LINE && i < count; k++, i += LANES) {
            line += x[i];
        }
        total += line;
    }
    const float sum = GROUP_SUM(total, scratch) * scale;
    if (get_local_id(0) == 0) {
        const float value = add ? out[at] + sum : sum;
        out[at] = root ? sqrt(value) : value;
    }
}
