/* Muon (Keller Jordan 2024; the scale match_rms_adamw is Moonshot's, arXiv 2502.16982) on one matrix W of rows r
 * and columns k, with gradient g and momentum m, both clipped and scaled as in adamw.cl:
 *
 *   m = mu m + (1 - mu) g          u = (1 - mu) g + mu m                    muon_momentum
 *   X = u / max(|u|_F, 1e-7)                                                muon_normalise
 *   some times: A = X X^T, X = (a I + b A + c A A) X                        GEMMs and muon_polynomial
 *   W = W (1 - rate * decay) - rate * scale * X                             muon_update
 *
 * Where r > k, A = X^T X and X = X (a I + b A + c A A), which is the same transposed. A norm of all gradients
 * that is not finite leaves W and m as they were. Matrices lie in the arena at any place, so all kernels take
 * numbers one by one. ACT is the type of X and A; for muon_update it is that of activations. */
#define LEAST_NORM 1e-7f

/* update [padded] = u, then zeros up to a multiple of 64. settings: mu, clip, unscale. */
__kernel void muon_momentum(__global const float *gradients, ulong first, __global float *momentum,
                            ulong momentum_first, ulong count, ulong padded, float4 settings,
                            __global const float *norm, __global float *update) {
    const float mu = settings.x, clip = settings.y, unscale = settings.z;
    const size_t i = get_global_id(0);
    const float size = norm[0];
    if (i >= padded) {
        return;
    }
    float u = 0.0f;
    if (i < count && isfinite(size)) {
        const float factor = clip_factor(size, clip);
        const float g = (1.0f - mu) * (factor * unscale * gradients[first + i]);
        const float m = mu * momentum[momentum_first + i] + g;
        momentum[momentum_first + i] = m;
        u = g + mu * m;
    }
    update[i] = u;
}

/* x [count] = update / max(size, LEAST_NORM), size being the root of the sum of its squares. */
__kernel void muon_normalise(__global const float *update, __global const float *size, ulong count,
                             __global act_t *x) {
    const size_t i = get_global_id(0);
    if (i < count) {
        ACT_STORE(update[i] / fmax(size[0], LEAST_NORM), x + i);
    }
}

/* gram [side, side], A, becomes a I + b A + c square, square being A A. */
__kernel void muon_polynomial(__global act_t *gram, __global const float *square, int side, float4 coefficients) {
    const size_t i = get_global_id(0), row = side;
    if (i < row * row) {
        const float diagonal = i / row == i % row ? coefficients.x : 0.0f;
        ACT_STORE(diagonal + (coefficients.y * ACT_LOAD(gram + i) + coefficients.z * square[i]), gram + i);
    }
}

/* W = W keep - step x, with keep = 1 - rate * decay and step = rate * scale. With ACT the new weights are also
 * stored as act_t, for GEMMs. */
__kernel void muon_update(__global float *weights, __global act_t *weights_lowp, ulong first, ulong count,
                          __global const float *x, float keep, float step, __global const float *norm) {
    const size_t i = get_global_id(0);
    if (i >= count || !isfinite(norm[0])) {
        return;
    }
    const float w = weights[first + i] * keep - step * x[i];
    weights[first + i] = w;
    if (ACT) {
        ACT_STORE(w, weights_lowp + first + i);
    } else {
        UNUSED_POINTER(weights_lowp);
    }
}
