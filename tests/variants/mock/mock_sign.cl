/* An optimizer for tests: m = memory m + g, w = w - rate m / (|m| + 1e-12). Arguments as in adamw.cl. */
#include "types.cl"

__kernel void mock_sign(__global float *weights, __global act_t *weights_lowp, __global const float *gradients,
                        __global float *sums, ulong first, ulong state_first, ulong count, float rate, float memory,
                        __global const float *norm) {
    const size_t item = get_global_id(0) * VEC, i = first + item, state = state_first + item;
    if (item >= count || !isfinite(norm[0])) {
        return;
    }
    const vec_t m = memory * VEC_LOAD(sums + state) + VEC_LOAD(gradients + i);
    const vec_t updated = VEC_LOAD(weights + i) - rate * m / (fabs(m) + 1e-12f);
    VEC_STORE(m, sums + state);
    VEC_STORE(updated, weights + i);
#if ACT
    ACT_STORE(updated, weights_lowp + i);
#else
    UNUSED_POINTER(weights_lowp);
#endif
}
