/* The backward pass of the RMSNorm behind the embedding, of x = wte[token] + wpe[position]; without POSITIONS there
 * is no wpe. The forward pass is in embedding.cl, and has stored the scale of each token.
 *
 *   n = x scale    e = g n    d_g = sum over tokens of d_e n    d_x = scale (g d_e - n mean over C of (g d_e n))
 *
 * Build constants: CHANNELS (C), POSITIONS, MASTER (types.cl).
 */
#include "group.cl"

/* One work-group a chunk of tokens [N]: d_embedding [N, C], which is d_e, becomes d_x; partials [chunks, C] are the
 * chunks' parts of d_g. */
ROW_KERNEL void embedding_norm_backward(__global const int *tokens, __global const master_t *tables, ulong wte_at,
                                        ulong wpe_at, __global const float *parameters, ulong gain_at, int sequence,
                                        __global const float *scales, ulong count, __global float *d_embedding,
                                        __global float *partials) {
    GROUP_SCRATCH(scratch);
    const size_t first = chunk_begin(count, 0), last = chunk_begin(count, 1);
    __global const float *gain = parameters + gain_at;
    vec_t d_gain[SLOTS(CHANNELS)];
    CLEAR(vec_t, d_gain, SLOTS(CHANNELS));
    for (size_t token = first; token < last; token++) {
        __global const master_t *word = tables + wte_at + (size_t)tokens[token] * CHANNELS;
        __global const master_t *place = tables + wpe_at + token % sequence * CHANNELS;
        __global float *d_row = d_embedding + token * CHANNELS;
        const float scale = scales[token];
        vec_t sum = (vec_t)(0.0f);
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t normal = scale * EMBEDDED(word + c, place + c), d = VEC_LOAD(d_row + c);
            sum += d * VEC_LOAD(gain + c) * normal;
            d_gain[slot] += d * normal;
        }
        const float mean = GROUP_SUM(VEC_SUM(sum), scratch) / CHANNELS;
        LANE_STEPS(slot, c, CHANNELS) {
            const vec_t normal = scale * EMBEDDED(word + c, place + c);
            VEC_STORE(scale * (VEC_LOAD(d_row + c) * VEC_LOAD(gain + c) - normal * mean), d_row + c);
        }
    }
    LANE_STEPS(slot, c, CHANNELS) {
        VEC_STORE(d_gain[slot], partials + get_group_id(0) * CHANNELS + c);
    }
}
