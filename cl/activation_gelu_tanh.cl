/* GELU by tanh:  gelu(x) = x (1 + tanh v) / 2 = x S(2 v),  v = sqrt(2 / pi) (x + 0.044715 x^3),
 *                S(t) = 1 / (1 + exp(-t)),
 *                gelu'(x) = S(2 v) + 2 x v' S(2 v) (1 - S(2 v)) */
#include "types.cl"

/* Beyond 15 S is 0 or 1 to the last bit, and x^2 must not become infinite. */
static inline vec_t clamped(vec_t x) {
    return clamp(x, (vec_t)(-15.0f), (vec_t)(15.0f));
}

static inline vec_t activation_factor(vec_t x) {
    const vec_t w = clamped(x);
    return 1.0f / (1.0f + exp(-1.5957691216057308f * w * fma((vec_t)(0.044715f), w * w, (vec_t)(1.0f))));
}

static inline vec_t activation_derivative(vec_t x) {
    const vec_t w = clamped(x), factor = activation_factor(x);
    const vec_t slope = 1.5957691216057308f * fma((vec_t)(0.134145f), w * w, (vec_t)(1.0f));
    return factor + x * (slope * factor * (1.0f - factor));
}
