/* Embeddings of values, as nanochat has them: a layer adds a row of a table E [V, K D] to the values of attention,
 * through a gate for each of K heads, which depends on the first INPUTS channels of what they are made of, y:
 *
 *   G = BOUND sigmoid(W y[0 .. INPUTS-1])     v += G E[token]                                W [K, INPUTS]
 *
 * and backward, with g_k = <d_v_k, E[token]_k> G_k (1 - G_k / BOUND), k a head:
 *
 *   d_E[token] += G d_v     d_W += g y^T     d_y += W^T g
 *
 * A token has a row of qkv [N, (H + 2 K) D], see attention.cl.
 *
 * Build constants: HEADS (H), KV_HEADS (K), HEAD_SIZE (D), CHANNELS (C), INPUTS, MASTER (types.cl); VEC divides D.
 */
#include "group.cl"

#define BOUND      3.0f
#define VALUE_ROW  (KV_HEADS * HEAD_SIZE)
#define QKV_ROW    ((HEADS + 2 * KV_HEADS) * HEAD_SIZE)
#define VALUES(of) ((of) * (size_t)QKV_ROW + (HEADS + KV_HEADS) * HEAD_SIZE)

/* One work-group a token: y [N, C] -> gates [N, K], and the values in qkv. */
ROW_KERNEL void value_embed_forward(__global const int *tokens, __global const master_t *tables, ulong table_at,
                                    __global const float *parameters, ulong gate_at, __global const act_t *y,
                                    __global float *gates, __global act_t *qkv) {
    const size_t token = get_group_id(0);
    __global const master_t *row = tables + table_at + (size_t)tokens[token] * VALUE_ROW;
    __global act_t *v = qkv + VALUES(token);
    for (int k = LANE; k < KV_HEADS; k += LANES) {
        float sum = 0.0f;
        for (int c = 0; c < INPUTS; c++) {
            sum += parameters[gate_at + k * INPUTS + c] * ACT_LOAD_SCALAR(y + token * CHANNELS + c);
        }
        gates[token * KV_HEADS + k] = BOUND / (1.0f + exp(-sum));
    }
    GROUP_BARRIER(); /* the gates are there */
    for (int c = LANE * VEC; c < VALUE_ROW; c += LANES * VEC) {
        ACT_STORE(ACT_LOAD(v + c) + gates[token * KV_HEADS + c / HEAD_SIZE] * MASTER_LOAD(row + c), v + c);
    }
}

/* One work-group a chunk of tokens: d_qkv -> d_gates [N, K], which are g, and what is added to d_y [N, C]; partial
 * sums [chunks, K, INPUTS] of the gradient of W. */
ROW_KERNEL void value_embed_backward(__global const int *tokens, __global const master_t *tables, ulong table_at,
                                     __global const float *parameters, ulong gate_at, __global const act_t *y,
                                     __global const float *gates, __global const act_t *d_qkv, ulong count,
                                     __global float *d_gates, __global act_t *d_y, __global float *partials) {
    GROUP_SCRATCH(scratch);
    __global float *partial = partials + get_group_id(0) * (KV_HEADS * INPUTS);
    for (int i = LANE; i < KV_HEADS * INPUTS; i += LANES) {
        partial[i] = 0.0f;
    }
    for (size_t token = chunk_begin(count, 0), end = chunk_begin(count, 1); token < end; token++) {
        __global const master_t *row = tables + table_at + (size_t)tokens[token] * VALUE_ROW;
        __global const act_t *d_v = d_qkv + VALUES(token);
        __global float *g = d_gates + token * KV_HEADS;
        for (int k = 0; k < KV_HEADS; k++) {
            vec_t product = (vec_t)(0.0f);
            for (int c = k * HEAD_SIZE + LANE * VEC; c < (k + 1) * HEAD_SIZE; c += LANES * VEC) {
                product += ACT_LOAD(d_v + c) * MASTER_LOAD(row + c);
            }
            const float sum = GROUP_SUM(VEC_SUM(product), scratch), gate = gates[token * KV_HEADS + k];
            if (LANE == 0) {
                g[k] = sum * gate * (1.0f - gate / BOUND);
            }
        }
        GROUP_BARRIER(); /* g is there */
        for (int i = LANE; i < KV_HEADS * INPUTS; i += LANES) {
            partial[i] += g[i / INPUTS] * ACT_LOAD_SCALAR(y + token * CHANNELS + i % INPUTS);
        }
        for (int c = LANE; c < INPUTS; c += LANES) {
            float sum = ACT_LOAD_SCALAR(d_y + token * CHANNELS + c);
            for (int k = 0; k < KV_HEADS; k++) {
                sum += g[k] * parameters[gate_at + k * INPUTS + c];
            }
            ACT_STORE_SCALAR(sum, d_y + token * CHANNELS + c);
        }
    }
}

/* One work-group a distinct token: gradients[its row of the table] += the sum over its places, in their order. ids
 * [U], starts [U + 1] and places [N] as in embedding_backward_tokens. */
ROW_KERNEL void value_embed_backward_table(__global const float *gates, __global const act_t *d_qkv,
                                           __global const int *ids, __global const int *starts,
                                           __global const int *places, __global float *gradients, ulong table_at) {
    const int first = starts[get_group_id(0)], last = starts[get_group_id(0) + 1];
    __global float *row = gradients + table_at + (size_t)ids[get_group_id(0)] * VALUE_ROW;
    for (int c = LANE * VEC; c < VALUE_ROW; c += LANES * VEC) {
        vec_t sum = VEC_LOAD(row + c);
        for (int i = first; i < last; i++) {
            const size_t token = places[i];
            sum += gates[token * KV_HEADS + c / HEAD_SIZE] * ACT_LOAD(d_qkv + VALUES(token) + c);
        }
        VEC_STORE(sum, row + c);
    }
}
