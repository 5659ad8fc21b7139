/* Element by element: GELU, exact or by tanh, bias, dropout of branch outputs, sums.
 *
 *   GELU_TANH 0:  gelu(x) = x Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2,  gelu'(x) = Phi(x) + x exp(-x^2/2) / sqrt(2 pi)
 *   GELU_TANH 1:  gelu(x) = x (1 + tanh v) / 2 = x S(2 v),  v = sqrt(2 / pi) (x + 0.044715 x^3),  S(t) = 1 / (1 + exp(-t)),
 *                 gelu'(x) = S(2 v) + 2 x v' S(2 v) (1 - S(2 v))
 *
 * Lengths are multiples of VEC; a work-item takes one vector; global sizes are rounded up, so items past the end return.
 */
#define VECTOR_INDEX() (get_global_id(0) * VEC)

#if GELU_TANH

/* Beyond 15 S is 0 or 1 to the last bit, and x^2 must not become infinite. */
static inline vec_t clamped(vec_t x) {
    return clamp(x, (vec_t)(-15.0f), (vec_t)(15.0f));
}

static inline vec_t gelu_factor(vec_t x) {
    const vec_t w = clamped(x);
    return 1.0f / (1.0f + exp(-1.5957691216057308f * w * fma((vec_t)(0.044715f), w * w, (vec_t)(1.0f))));
}

static inline vec_t gelu_derivative(vec_t x) {
    const vec_t w = clamped(x), factor = gelu_factor(x);
    const vec_t slope = 1.5957691216057308f * fma((vec_t)(0.134145f), w * w, (vec_t)(1.0f));
    return factor + x * (slope * factor * (1.0f - factor));
}

#else

/* erf(x) = 1 - exp(-u P(u)) for u = |x|, P of degree 8 fitted to -log(erfc(u)) / u on [0, 4] (least squares, weighted so
 * that erf's own error is even): off by 5e-9, and 7e-8 with rounding. Beyond 4 erf is 1 in float. Built-in ones take three
 * times as long on CPUs. */
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

static inline vec_t gelu_factor(vec_t x) {
    return 0.5f * (1.0f + error_function(x * 0.70710678118654752f));
}

static inline vec_t gelu_derivative(vec_t x) {
    const vec_t density = 0.39894228040143268f * exp(-0.5f * x * x);
    return gelu_factor(x) + x * density;
}

#endif

__kernel void gelu_forward(__global const act_t *x, ulong count, __global act_t *y) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        const vec_t v = ACT_LOAD(x + i);
        ACT_STORE(v * gelu_factor(v), y + i);
    }
}

/* In place: d becomes d * gelu'(x). */
__kernel void gelu_backward(__global const act_t *x, ulong count, __global act_t *d) {
    const size_t i = VECTOR_INDEX();
    if (i < count) {
        ACT_STORE(ACT_LOAD(d + i) * gelu_derivative(ACT_LOAD(x + i)), d + i);
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
        float values[VEC];
        const vec_t in = ACT_LOAD(x + i);
        VEC_STORE(in, values);
        UNROLL_LANES(VEC) for (int k = 0; k < VEC; k++) {
            values[k] *= dropout_factor(key, first_row + i / width, i % width + k, rate);
        }
        const vec_t out = VEC_LOAD(values);
        ACT_STORE(out, x + i);
    }
}
