/* Muon (Keller Jordan 2024; the scale match_rms_adamw is Moonshot's, arXiv 2502.16982) on matrices W of rows r and
 * columns k, with gradient g and momentum m, both clipped and scaled as in adamw.cl:
 *
 *   m = mu m + (1 - mu) g          u = (1 - mu) g + mu m                    muon_momentum
 *   X = u / max(|u|_F, 1e-7)                                                muon_normalise
 *   some times: A = X X^T, X = (a I + b A + c A A) X                        GEMMs and muon_polynomial
 *   W = W (1 - rate * decay) - rate * scale * X                             muon_update
 *
 * Where r > k, A = X^T X and X = X (a I + b A + c A A), which is the same transposed. A norm of all gradients
 * that is not finite leaves W and m as they were. A launch takes a batch of matrices of one shape. Matrices lie in
 * the arena at any place, and in scratch one behind the other. ACT is the type of X and A; for muon_update it is
 * that of activations. VEC is 1 on GPUs. With MOMENTS m is rounded as it is stored, and with MASTER W, which then
 * is in weights_lowp alone, in bf16 (rounding.cl). */
#include "group.cl"
#include "rounding.cl"

#define LEAST_NORM 1e-7f

/* load_<what>: VEC numbers from p on, of which only `left` are there, then zeros; store_<what>: those that are. */
#define SOME(what, type, LOAD, STORE, LOAD_ONE, STORE_ONE)                                                         \
    INLINED vec_t load_##what(__global const type *p, ulong left) {                                                \
        float numbers[VEC];                                                                                        \
        if (left >= VEC) {                                                                                         \
            return LOAD(p);                                                                                        \
        }                                                                                                          \
        for (int i = 0; i < VEC; i++) {                                                                            \
            numbers[i] = i < left ? LOAD_ONE(p + i) : 0.0f;                                                        \
        }                                                                                                          \
        return FLOATS_LOAD(VEC, numbers);                                                                          \
    }                                                                                                              \
    INLINED void store_##what(vec_t v, __global type *p, ulong left) {                                             \
        float numbers[VEC];                                                                                        \
        if (left >= VEC) {                                                                                         \
            STORE(v, p);                                                                                           \
            return;                                                                                                \
        }                                                                                                          \
        FLOATS_STORE(VEC, v, numbers);                                                                             \
        for (int i = 0; i < left; i++) {                                                                           \
            STORE_ONE(numbers[i], p + i);                                                                          \
        }                                                                                                          \
    }
#define ONE_LOAD(p)     (*(p))
#define ONE_STORE(v, p) (*(p) = (v))
SOME(floats, float, VEC_LOAD_ANY, VEC_STORE_ANY, ONE_LOAD, ONE_STORE)
#if MOMENTS
#define BF16_LOAD(p)         AS_FLOATS(TO_BITS(FLOATS_LOAD(VEC, p)) << 16)
#define BF16_STORE(v, p)     FLOATS_STORE(VEC, TO_BF16(AS_BITS(v) >> 16), p)
#define ONE_BF16_LOAD(p)     as_float((uint) * (p) << 16)
#define ONE_BF16_STORE(v, p) (*(p) = (ushort)(as_uint(v) >> 16))
SOME(moments, moment_t, BF16_LOAD, BF16_STORE, ONE_BF16_LOAD, ONE_BF16_STORE)
#else
#define load_moments  load_floats
#define store_moments store_floats
#endif
SOME(acts, act_t, ACT_LOAD_ANY, ACT_STORE_ANY, ACT_LOAD_SCALAR, ACT_STORE_SCALAR)

/* The work-item's matrix in the batch, and its first element there, if each matrix has `count`. */
#define ITEMS         ((uint)get_local_size(0))
#define GROUPS(count) ((uint)(((count) + VEC * ITEMS - 1) / (VEC * ITEMS)))
#define MATRIX(count) ((ulong)((uint)get_group_id(0) / GROUPS(count)))
#define PLACE(count)  (((ulong)((uint)get_group_id(0) % GROUPS(count)) * ITEMS + get_local_id(0)) * VEC)

#define LINE 64 /* vectors summed before they join a total, as in reduce.cl */

/* Matrices of `count` elements, that begin at `first`, first + apart, ... in gradients, and at momentum_first and
 * so on in momentum; `padded` is count rounded up to a multiple of 64. update [matrices, padded], from update_at
 * on = u, then zeros. A work-group takes a chunk of per_chunk elements, which divides padded: sums [matrices,
 * chunks], from sums_at on = sums of squares of u. settings: mu, clip, unscale. key: of this step's random
 * bits, for MOMENTS. */
ROW_KERNEL void muon_momentum(__global const float *gradients, ulong first, ulong apart,
                              __global moment_t *momentum, ulong momentum_first, ulong count, ulong padded,
                              ulong per_chunk, float4 settings, ulong key, __global const float *norm,
                              __global float *update, ulong update_at, __global float *sums, ulong sums_at) {
    GROUP_SCRATCH(scratch);
    const float mu = settings.x, size = norm[0], factor = clip_factor(size, settings.y) * settings.z;
    const ulong chunks = padded / per_chunk, matrix = get_group_id(0) / chunks;
    const ulong begin = get_group_id(0) % chunks * per_chunk, end = begin + per_chunk;
    gradients += first + matrix * apart;
    momentum += momentum_first + matrix * apart;
    update += update_at + matrix * padded;
    vec_t total = (vec_t)(0.0f);
    ulong i = begin + LANE * VEC;
    while (i < end) {
        vec_t line = (vec_t)(0.0f);
        for (int k = 0; k < LINE && i < end; k++, i += LANES * VEC) {
            vec_t u = (vec_t)(0.0f);
            if (i < count && isfinite(size)) {
                const vec_t g = (1.0f - mu) * (factor * load_floats(gradients + i, count - i));
                const vec_t m = mu * load_moments(momentum + i, count - i) + g;
                bits_t random = (bits_t)(0u), others = (bits_t)(0u);
                if (MOMENTS) {
                    rounding_bits(key, first + matrix * apart + i, &random, &others);
                }
                store_moments(MOMENT_ROUND(m, random), momentum + i, count - i);
                u = g + mu * m;
            }
            store_floats(u, update + i, end - i);
            line += u * u;
        }
        total += line;
    }
    const float sum = GROUP_SUM(VEC_SUM(total), scratch);
    if (LANE == 0) {
        sums[sums_at + get_group_id(0)] = sum;
    }
}

/* x [matrices, count] = update / max(size, LEAST_NORM), size being the root of the sum of a matrix's squares. */
__kernel void muon_normalise(__global const float *update, __global const float *sizes, ulong count, ulong padded,
                             __global act_t *x) {
    const ulong matrix = MATRIX(count), i = PLACE(count);
    if (i < count) {
        const vec_t u = load_floats(update + matrix * padded + i, count - i);
        store_acts(u / fmax(sizes[matrix], LEAST_NORM), x + matrix * count + i, count - i);
    }
}

/* polynomial = a I + b gram + c square, all [matrices, side, side]; square is A A. A work-group takes a row. */
ROW_KERNEL void muon_polynomial(__global const act_t *gram, __global const float *square, int side,
                                float4 coefficients, __global act_t *polynomial) {
    const int diagonal = (uint)get_group_id(0) % (uint)side;
    const ulong row = (ulong)get_group_id(0) * side;
    for (int c = LANE * VEC; c < side; c += LANES * VEC) {
        const ulong left = side - c;
        vec_t sum =
            coefficients.y * load_acts(gram + row + c, left) + coefficients.z * load_floats(square + row + c, left);
        if (diagonal >= c && diagonal < c + VEC) {
            float numbers[VEC];
            FLOATS_STORE(VEC, sum, numbers);
            numbers[diagonal - c] += coefficients.x;
            sum = FLOATS_LOAD(VEC, numbers);
        }
        store_acts(sum, polynomial + row + c, left);
    }
}

/* W = W keep - step x, with keep = 1 - rate * decay and step = rate * scale, of matrices that begin at `first`,
 * first + apart, ... in the arena, and in x [matrices, count] at x_at. With ACT the new weights are also stored as
 * act_t, for GEMMs. key: of this step's random bits, for MASTER. */
__kernel void muon_update(__global float *weights, __global act_t *weights_lowp, ulong first, ulong apart,
                          ulong count, __global const float *x, ulong x_at, float keep, float step, ulong key,
                          __global const float *norm) {
    const ulong matrix = MATRIX(count), i = PLACE(count);
    if (i >= count || !isfinite(norm[0])) {
        return;
    }
    const ulong at = first + matrix * apart + i;
    const vec_t change = step * load_floats(x + x_at + matrix * count + i, count - i);
#if MASTER
    bits_t others = (bits_t)(0u), random = (bits_t)(0u);
    rounding_bits(key, at, &others, &random);
    const vec_t w = round_randomly(load_acts(weights_lowp + at, count - i) * keep - change, random);
    UNUSED_POINTER(weights);
#else
    const vec_t w = load_floats(weights + at, count - i) * keep - change;
    store_floats(w, weights + at, count - i);
#endif
    if (ACT) {
        store_acts(w, weights_lowp + at, count - i);
    }
    UNUSED_POINTER(weights_lowp);
}
