/* GELU:  gelu(x) = x Phi(x), Phi(x) = (1 + erf(x / sqrt 2)) / 2, gelu'(x) = Phi(x) + x exp(-x^2/2) / sqrt(2 pi) */
#include "types.cl"

/* erf(x) = 1 - exp(-u P(u)) for u = |x|, P of degree 8 fitted to -log(erfc(u)) / u on [0, 4] (least squares,
 * weighted so that erf's own error is even): off by 5e-9, and 7e-8 with rounding. Beyond 4 erf is 1 in float.
 * Built-in ones take three times as long on CPUs. */
static inline vec_t error_function(vec_t x) {
    const vec_t u = fmin(fabs(x), (vec_t)(4.0f));
    vec_t p = (vec_t)(-8.04382307e-6f);
    p = fma(p, u, (vec_t)(1.06026651e-4f));
    p = fma(p, u, (vec_t)(-5.87950693e-4f));
    p = fma(p, u, (vec_t)(1.57676009e-3f));
    p = fma(p, u, (vec_t)(-5.87815121e-5f));
    p = fma(p, u, (vec_t)(-1.92171428e-2f));
    p = fma(p, u, (vec_t)(1.02799207e-1f));
    p = fma(p, u, (vec_t)(6.36616111e-1f));
    p = fma(p, u, (vec_t)(1.12837934f));
    return copysign(1.0f - exp(-u * p), x);
}

static inline vec_t activation_factor(vec_t x) {
    return 0.5f * (1.0f + error_function(x * 0.70710678118654752f));
}

static inline vec_t activation_derivative(vec_t x) {
    const vec_t density = 0.39894228040143268f * exp(-0.5f * x * x);
    return activation_factor(x) + x * density;
}
