/* Sums in a fixed order: partial sums of chunks, then their sum in a second pass. No atomics, so a result does not depend on
 * the order in which work-groups run.
 */
#define LINE 64 /* vectors summed before they join a total, which keeps float sums of millions accurate */

/* One work-group a chunk of rows: partials [chunks, width] = column sums of x [rows, width]. width a multiple of VEC. */
ROW_KERNEL void column_sums(__global const act_t *x, ulong rows, ulong rows_per_chunk, int width,
                            __global float *partials) {
    const size_t first = get_group_id(0) * rows_per_chunk;
    const size_t last = min((ulong)(first + rows_per_chunk), rows);
    for (int c = get_local_id(0) * VEC; c < width; c += LANES * VEC) {
        vec_t sum = (vec_t)(0.0f);
        for (size_t row = first; row < last; row++) {
            sum += ACT_LOAD(x + row * width + c);
        }
        VEC_STORE(sum, partials + get_group_id(0) * width + c);
    }
}

/* out[out_at + k] += sum over chunks of partials[chunk, first + k], k < count. On a CPU one work-item a column; else a work-group
 * takes LANES / PARTS columns, PARTS work-items each. */
#if LANES == 1
__kernel void partials_add(__global const float *partials, ulong chunks, int width, int first, int count,
                           __global float *out, ulong out_at) {
    const int k = get_global_id(0);
    if (k < count) {
        float sum = 0.0f;
        for (size_t chunk = 0; chunk < chunks; chunk++) {
            sum += partials[chunk * width + first + k];
        }
        out[out_at + k] += sum;
    }
}
#else
#define PARTS (LANES < 8 ? LANES : 8)
ROW_KERNEL void partials_add(__global const float *partials, ulong chunks, int width, int first, int count,
                             __global float *out, ulong out_at) {
    __local float sums[LANES];
    const int columns = LANES / PARTS, part = LANE / columns;
    const int k = get_group_id(0) * columns + LANE % columns;
    float sum = 0.0f;
    UNROLL_LANES(4) for (size_t chunk = part; chunk < (k < count ? chunks : 0); chunk += PARTS) {
        sum += partials[chunk * width + first + k];
    }
    sums[LANE] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (part == 0 && k < count) {
        for (int other = 1; other < PARTS; other++) {
            sum += sums[LANE + other * columns];
        }
        out[out_at + k] += sum;
    }
}
#endif

/* One work-group a chunk: partials[chunk] = sum of squares of x[chunk], of count elements from `at` on. at, count and
 * per_chunk are multiples of VEC. */
ROW_KERNEL void square_sums(__global const float *x, ulong at, ulong count, ulong per_chunk, __global float *partials) {
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

/* One work-group in all: out[at] = scale * sum of x[0..count) (+ the old out[at] if add). root != 0 takes the square root. */
ROW_KERNEL void sum_total(__global const float *x, ulong count, float scale, int add, int root, __global float *out,
                          ulong at) {
    GROUP_SCRATCH(scratch);
    float total = 0.0f;
    size_t i = get_local_id(0);
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
