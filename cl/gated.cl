/* Gated MLPs:  y = f(g) u,  d_g = d_y u f'(g),  d_u = d_y f(g). The activation f is that of elementwise.cl.
 *
 * A row of x [rows, 2 M] has g [M] and then u [M], so that one GEMM computes both. M is a multiple of VEC. A
 * work-item takes one vector of y [rows, M], and items past the end return.
 */
#include "activation_*.cl"

/* Where x has g of element i of y; u is `width` = M behind it. */
#define GATE_AT(i, width) ((i) + (i) / (width) * (width))

__kernel void gated_forward(__global const act_t *x, ulong count, int width, __global act_t *y) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        const vec_t g = ACT_LOAD(x + GATE_AT(i, width));
        ACT_STORE(g * activation_factor(g) * ACT_LOAD(x + GATE_AT(i, width) + width), y + i);
    }
}

/* In place: x becomes its gradient. */
__kernel void gated_backward(__global const act_t *d_y, ulong count, int width, __global act_t *x) {
    const size_t i = get_global_id(0) * VEC;
    if (i < count) {
        __global act_t *gate = x + GATE_AT(i, width);
        const vec_t d = ACT_LOAD(d_y + i), g = ACT_LOAD(gate), u = ACT_LOAD(gate + width);
        ACT_STORE(d * u * activation_derivative(g), gate);
        ACT_STORE(d * (g * activation_factor(g)), gate + width);
    }
}
