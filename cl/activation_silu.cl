/* SiLU:  silu(x) = x S(x), S(x) = 1 / (1 + exp(-x)),  silu'(x) = S(x) (1 + x (1 - S(x))) */
#include "types.cl"

static inline vec_t activation_factor(vec_t x) {
    return 1.0f / (1.0f + exp(-x));
}

static inline vec_t activation_derivative(vec_t x) {
    const vec_t factor = activation_factor(x);
    return factor + x * (factor * (1.0f - factor));
}
