/* Token and position embedding, copied to every stream:  x_s = e = dropout(wte[token] + wpe[position]),  or with
 * SCALED  x_s = scale_s e, a scale for each stream and channel. Without POSITIONS there is no wpe. With EMBED_NORM
 * e = dropout(gain n), n = (wte[token] + wpe[position]) / sqrt(mean over C of its square + EMBED_EPSILON); the
 * backward pass of this norm is in embedding_norm.cl.
 *
 * A sequence's first token is at position `first`: 0 but where text is generated token by token.
 *
 * Build constants: STREAMS (S), CHANNELS (C), SCALED, POSITIONS (there is a wpe), EMBED_NORM,
 * EMBED_EPSILON, MASTER (types.cl).
 */
#include "group.cl"
#include "random.cl"

#define SCALE(x, scale, s, c) (SCALED ? (x) * VEC_LOAD((scale) + (s) * CHANNELS + (c)) : (x))
#define NORMED(x, norm, gain) (EMBED_NORM ? (x) * (norm) * VEC_LOAD(gain) : (x))
#define DISTINCT              (SCALED ? STREAMS : 1) /* streams that differ */

/* One work-group a token. tokens [N], N = B * sequence; streams [N, S, C]; squares [N, S] as in stream_mix.cl;
 * scale [S, C]; gain [C]; scales [N] become the tokens' 1 / sqrt(...) with EMBED_NORM. */
ROW_KERNEL void embedding_forward(__global const int *tokens, __global const master_t *tables, ulong wte_at,
                                  ulong wpe_at, __global const float *parameters, ulong scale_at, ulong gain_at,
                                  int sequence, int first, float dropout, ulong key, ulong first_row,
                                  __global act_t *streams, __global float *squares, __global float *scales) {
    GROUP_SCRATCH(scratch);
    UNUSED_POINTER(parameters);
    const size_t token = get_group_id(0);
    const size_t position = first + token % sequence;
    __global const master_t *word = tables + wte_at + (size_t)tokens[token] * CHANNELS;
    __global const master_t *place = tables + wpe_at + position * CHANNELS;
    __global act_t *row = streams + token * ROW_LENGTH;
    vec_t sums[DISTINCT];
    CLEAR(vec_t, sums, DISTINCT);
    float norm = 1.0f;
#if EMBED_NORM
    vec_t of_row = (vec_t)(0.0f);
    for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC) {
        const vec_t x = EMBEDDED(word + c, place + c);
        of_row += x * x;
    }
    norm = rsqrt(GROUP_SUM(VEC_SUM(of_row), scratch) / CHANNELS + EMBED_EPSILON);
    if (LANE == 0) {
        scales[token] = norm;
    }
#else
    UNUSED_POINTER(scales);
#endif
    for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC) {
        const vec_t e = NORMED(EMBEDDED(word + c, place + c), norm, parameters + gain_at + c);
        const vec_t x = dropout_vector(e, key, first_row + token, c, dropout);
        for (int s = 0; s < STREAMS; s++) {
            ACT_STORE(SCALE(x, parameters + scale_at, s, c), row + s * CHANNELS + c);
        }
        UNROLL(DISTINCT) for (int s = 0; s < DISTINCT; s++) {
            const vec_t stored = ACT_LOAD(row + s * CHANNELS + c);
            sums[s] += stored * stored;
        }
    }
    float total = 0.0f;
    UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
        if (s < DISTINCT) {
            total = GROUP_SUM(VEC_SUM(sums[s]), scratch);
        }
        if (LANE == 0) {
            squares[token * STREAMS + s] = total;
        }
    }
}

/* One work-group a token: d_embedding [N, C] = dropout'(sum_s scale_s d_streams [N, S, C]). */
ROW_KERNEL void embedding_backward_sum(__global const act_t *d_streams, __global const float *parameters,
                                       ulong scale_at, float dropout, ulong key, ulong first_row,
                                       __global float *d_embedding) {
    UNUSED_POINTER(parameters);
    const size_t token = get_group_id(0);
    for (int c = get_local_id(0) * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t d = SCALE(ACT_LOAD(d_streams + token * ROW_LENGTH + c), parameters + scale_at, 0, c);
        for (int s = 1; s < STREAMS; s++) {
            d += SCALE(ACT_LOAD(d_streams + token * ROW_LENGTH + s * CHANNELS + c), parameters + scale_at, s, c);
        }
        VEC_STORE(dropout_vector(d, key, first_row + token, c, dropout), d_embedding + token * CHANNELS + c);
    }
}

/* One work-group a distinct token: gradients[row of the token] += the sum over its places, in their order.
 * ids [U] the distinct tokens; starts [U + 1] into places [N], which lists token places grouped by id. */
ROW_KERNEL void embedding_backward_tokens(__global const float *d_embedding, __global const int *ids,
                                          __global const int *starts, __global const int *places,
                                          __global float *gradients, ulong wte_at) {
    const size_t unique = get_group_id(0);
    __global float *row = gradients + wte_at + (size_t)ids[unique] * CHANNELS;
    const int first = starts[unique], last = starts[unique + 1];
    for (int c = get_local_id(0) * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t sum = (vec_t)(0.0f);
        for (int i = first; i < last; i++) {
            sum += VEC_LOAD(d_embedding + (size_t)places[i] * CHANNELS + c);
        }
        VEC_STORE(VEC_LOAD(row + c) + sum, row + c);
    }
}

/* One work-group a position: gradients[wpe row] += the sum over the batch, or with keep == 0 it is that sum. */
ROW_KERNEL void embedding_backward_positions(__global const float *d_embedding, int batch, int sequence, int keep,
                                             __global float *gradients, ulong wpe_at) {
    const size_t position = get_group_id(0);
    __global float *row = gradients + wpe_at + position * CHANNELS;
    for (int c = get_local_id(0) * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t sum = (vec_t)(0.0f);
        for (int b = 0; b < batch; b++) {
            sum += VEC_LOAD(d_embedding + ((size_t)b * sequence + position) * CHANNELS + c);
        }
        if (keep) {
            sum = VEC_LOAD(row + c) + sum;
        }
        VEC_STORE(sum, row + c);
    }
}

/* Gradient of the scales: d_scale_s = sum over tokens of d_streams_s e. One work-group a chunk of tokens: partials
 * [chunks, S, C], its part of the sum. */
ROW_KERNEL void stream_scale_backward(__global const int *tokens, __global const master_t *tables, ulong wte_at,
                                      ulong wpe_at, __global const float *parameters, ulong gain_at, int sequence,
                                      float dropout, ulong key, ulong first_row, __global const act_t *d_streams,
                                      __global const float *scales, ulong count, __global float *partials) {
    UNUSED_POINTER(parameters);
    UNUSED_POINTER(scales);
    const size_t first = chunk_begin(count, 0), last = chunk_begin(count, 1);
    for (int c = get_local_id(0) * VEC; c < CHANNELS; c += LANES * VEC) {
        vec_t sums[STREAMS];
        CLEAR(vec_t, sums, STREAMS);
        for (size_t token = first; token < last; token++) {
            __global const master_t *word = tables + wte_at + (size_t)tokens[token] * CHANNELS + c;
            __global const master_t *place = tables + wpe_at + token % sequence * CHANNELS + c;
            const float norm = EMBED_NORM ? scales[token] : 1.0f;
            const vec_t e = NORMED(EMBEDDED(word, place), norm, parameters + gain_at + c);
            const vec_t x = dropout_vector(e, key, first_row + token, c, dropout);
            UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
                sums[s] += ACT_LOAD(d_streams + token * ROW_LENGTH + s * CHANNELS + c) * x;
            }
        }
        UNROLL(STREAMS) for (int s = 0; s < STREAMS; s++) {
            VEC_STORE(sums[s], partials + get_group_id(0) * ROW_LENGTH + s * CHANNELS + c);
        }
    }
}
