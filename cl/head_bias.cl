/* The bias of the logits [rows, V], and its gradient:
 *
 *   l_tv += b_v      d_b_v += sum over t of d_l_tv
 *
 * Build constants: VOCABULARY (V).
 */
#include "types.cl"

/* One work-item: a column in a chunk of rows. parameters has b at bias_at. */
__kernel void head_bias_forward(__global const float *parameters, ulong bias_at, ulong rows, ulong rows_per_chunk,
                                __global float *logits) {
    const size_t chunk = get_global_id(0) / VOCABULARY, column = get_global_id(0) % VOCABULARY;
    const size_t first = chunk * rows_per_chunk, last = min((ulong)(first + rows_per_chunk), rows);
    const float bias = parameters[bias_at + column];
    for (size_t row = first; row < last; row++) {
        logits[row * VOCABULARY + column] += bias;
    }
}

/* The same; partials [chunks, V] are the chunks' parts of the sum. */
__kernel void head_bias_backward(__global const act_t *d_logits, ulong rows, ulong rows_per_chunk,
                                 __global float *partials) {
    const size_t chunk = get_global_id(0) / VOCABULARY, column = get_global_id(0) % VOCABULARY;
    const size_t first = chunk * rows_per_chunk, last = min((ulong)(first + rows_per_chunk), rows);
    if (first >= rows) {
        return;
    }
    float sum = 0.0f;
    for (size_t row = first; row < last; row++) {
        sum += ACT_LOAD_SCALAR(d_logits + row * VOCABULARY + column);
    }
    partials[chunk * VOCABULARY + column] = sum;
}
