/* Between a 16-bit type and float, element by element: to float exactly, from float rounded to nearest even.
 *
 * A work-item takes VEC elements; where fewer are left one by one. Build constants: ACT (1 or 2), VEC.
 */
#include "types.cl"

__kernel void convert_to_fp32(__global const act_t *from, ulong from_at, ulong count, __global float *to,
                              ulong to_at) {
    size_t i = get_global_id(0) * VEC;
    if (i + VEC <= count) {
        if (from_at % VEC == 0 && to_at % VEC == 0) {
            VEC_STORE(ACT_LOAD(from + from_at + i), to + to_at + i);
        } else {
            VEC_STORE_ANY(ACT_LOAD_ANY(from + from_at + i), to + to_at + i);
        }
        return;
    }
    for (; i < count; i++) {
        to[to_at + i] = ACT_LOAD_SCALAR(from + from_at + i);
    }
}

__kernel void convert_from_fp32(__global const float *from, ulong from_at, ulong count, __global act_t *to,
                                ulong to_at) {
    size_t i = get_global_id(0) * VEC;
    if (i + VEC <= count) {
        if (from_at % VEC == 0 && to_at % VEC == 0) {
            ACT_STORE(VEC_LOAD(from + from_at + i), to + to_at + i);
        } else {
            ACT_STORE_ANY(VEC_LOAD_ANY(from + from_at + i), to + to_at + i);
        }
        return;
    }
    for (; i < count; i++) {
        ACT_STORE_SCALAR(from[from_at + i], to + to_at + i);
    }
}
