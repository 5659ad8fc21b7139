/* ReLU squared:  f(x) = max(0, x)^2 = x max(0, x),  f'(x) = 2 max(0, x) */
#include "types.cl"

static inline vec_t activation_factor(vec_t x) {
    return fmax(x, (vec_t)(0.0f));
}

static inline vec_t activation_derivative(vec_t x) {
    return 2.0f * fmax(x, (vec_t)(0.0f));
}
