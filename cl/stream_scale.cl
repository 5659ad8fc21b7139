/* The gradient of the embedding's gains (embedding.cl, which is compiled before this file):  d_scale_s = sum over
 * tokens of d_streams_s e. */

/* One work-group a chunk of tokens: partials [chunks, S, C], its part of the sum. */
ROW_KERNEL void stream_scale_backward(__global const int *tokens, __global const float *parameters, ulong wte_at,
                                      ulong wpe_at, int sequence, float dropout, ulong key, ulong first_row,
                                      __global const act_t *d_streams, ulong count, ulong per_chunk,
                                      __global float *partials) {
    const size_t first = get_group_id(0) * per_chunk;
    const size_t last = min((ulong)(first + per_chunk), count);
    for (int c = get_local_id(0) * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t sums[STREAMS];
        UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
            sums[s] = (vec_t)(0.0f);
        }
        for (size_t token = first; token < last; token++) {
            const vec_t word = VEC_LOAD(parameters + wte_at + (size_t)tokens[token] * CHANNELS + c);
            const vec_t place = VEC_LOAD(parameters + wpe_at + token % sequence * CHANNELS + c);
            const vec_t x = embedding_dropped(word + place, dropout, key, first_row + token, c);
            UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
                sums[s] += ACT_LOAD(d_streams + token * ROW_LENGTH + s * CHANNELS + c) * x;
            }
        }
        UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
            VEC_STORE(sums[s], partials + get_group_id(0) * ROW_LENGTH + s * CHANNELS + c);
        }
    }
}
