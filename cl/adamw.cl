/* AdamW (Loshchilov & Hutter 2019) on a part of the arena, with clipping by the global norm:
 *
 *   g = gradient * unscale * min(1, clip / (norm + 1e-6))
 *   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
 *   w = w - rate * decay * (w - centre) - rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *
 * The gradients are those of the loss times 1 / unscale; the norm is that of the loss alone. With ACT the new
 * weights are also stored as act_t, for GEMMs. Weights from `decayed_from` on have weight decay, to `centre`. A
 * norm that is not finite leaves everything as it was, so that the host, which reads the norm later, can stop with
 * sound weights.
 * With MOMENTS m and v are rounded as they are stored (rounding.cl); the step's own update is of what they were
 * before. With MASTER weights from `lowp_only_from` on are in weights_lowp alone, in bf16, and rounded in this way,
 * too. */
#include "rounding.cl"

/* One work-item a vector: elements `first` on of weights, weights_lowp and gradients, `first_at` on of the first
 * moments, `second_at` on of the second. settings: rate, beta1, beta2, decay. corrections: 1 / (1 - beta1^t),
 * 1 / sqrt(1 - beta2^t), clip (<= 0: no clipping), unscale. constants: epsilon, centre. key: of this step's random
 * bits, for MOMENTS and MASTER. Without ACT weights_lowp is not touched. */
__kernel void adamw(__global float *weights, __global act_t *weights_lowp, __global const float *gradients,
                    __global moment_t *first_moments, __global moment_t *second_moments, ulong first,
                    ulong first_at, ulong second_at, ulong count, ulong decayed_from, ulong lowp_only_from,
                    float4 settings, float4 corrections, float4 constants, ulong key, __global const float *norm) {
    const float clip = corrections.z, unscale = corrections.w, epsilon = constants.x, centre = constants.y;
    const float rate = settings.x, beta1 = settings.y, beta2 = settings.z, decay = settings.w;
    const size_t item = get_global_id(0) * VEC, i = first + item, m_at = first_at + item, v_at = second_at + item;
    const float size = norm[0];
    if (item >= count || !isfinite(size)) {
        return;
    }
    const float factor = clip_factor(size, clip);
    const vec_t g = factor * unscale * VEC_LOAD(gradients + i);
    const vec_t m = beta1 * MOMENT_LOAD(first_moments + m_at) + (1.0f - beta1) * g;
    const vec_t v = beta2 * MOMENT_LOAD(second_moments + v_at) + (1.0f - beta2) * g * g;
    const bool decays = i >= decayed_from;
    const float keep = decays ? 1.0f - rate * decay : 1.0f, pull = decays ? rate * decay * centre : 0.0f;
    const bool lowp_only = MASTER && i >= lowp_only_from;
    const vec_t w = keep * (lowp_only ? ACT_LOAD(weights_lowp + i) : VEC_LOAD(weights + i));
    bits_t random = (bits_t)(0u), others = (bits_t)(0u);
    if (MOMENTS || lowp_only) {
        rounding_bits(key, i, &random, &others);
    }
    MOMENT_STORE(MOMENT_ROUND(m, random), first_moments + m_at);
    MOMENT_STORE(MOMENT_ROUND(v, random >> 16), second_moments + v_at);
    const vec_t updated = w - rate * corrections.x * m / (sqrt(v) * corrections.y + epsilon) + pull;
    if (!lowp_only) {
        VEC_STORE(updated, weights + i);
    }
    if (ACT) {
        ACT_STORE(lowp_only ? round_randomly(updated, others) : updated, weights_lowp + i);
    }
    UNUSED_POINTER(weights_lowp);
}
