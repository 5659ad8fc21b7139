/* Element by element: the activation, whose file has activation_factor(x), so that activation(x) = x
 * activation_factor(x), and activation_derivative(x); bias; dropout of branch outputs.
 *
 * Lengths are multiples of VEC; a work-item takes one vector; global sizes are rounded up, so items past the end
 * return.
 */
#include "activation_*.cl"
#include "random.cl"

#define VECTOR_INDEX() (get_global_id(0) * VEC)

__kernel void activation_forward(__global const act_t *x, ulong count, __global act_t *y) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        const vec_t v = ACT_LOAD(x + i);
        ACT_STORE(v * activation_factor(v), y + i);
    }
}

/* In place: d becomes d * activation'(x). */
__kernel void activation_backward(__global const act_t *x, ulong count, __global act_t *d) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        ACT_STORE(ACT_LOAD(d + i) * activation_derivative(ACT_LOAD(x + i)), d + i);
    }
}

/* x [rows, width] += bias [width] */
__kernel void bias_add(__global const float *parameters, ulong bias_at, ulong count, int width, __global act_t *x) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        ACT_STORE(ACT_LOAD(x + i) + VEC_LOAD(parameters + bias_at + i % width), x + i);
    }
}

/* Dropout in place, forward and backward alike; x [rows, width]. */
__kernel void dropout_apply(ulong count, int width, float rate, ulong key, ulong first_row, __global act_t *x) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        const vec_t out = dropout_vector(ACT_LOAD(x + i), key, first_row + i / width, i % width, rate);
        ACT_STORE(out, x + i);
    }
}
