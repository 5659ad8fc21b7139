/* The projections of a hyper-connection: z = X packed^T, where X [R, LENGTH] holds the rows that the RMSNorm runs
 * over, R of them in all tokens, and packed [PROJECTIONS, LENGTH] the projections of all leaves with the norm's
 * gain folded in. z and all gradients are float.
 *
 * z is computed by few_rows.cl. X is read once from memory; what a block of LENGTH needs again is in a cache.
 *
 * Build constants: PROJECTIONS, LENGTH; GAINED, whether the norm has a gain (else it is 1); WIDE, vectors that a
 * work-item of projections_gradient has side by side.
 */
#include "types.cl"

#define BLOCK_SUMS 6 /* of projections_gradient: BLOCK_SUMS x WIDE */

/* A row of the table, see struct projection_leaf of the host. */
struct leaf {
    ulong w, gain, width, column, packed;
};
#define PACK_GROUP  64
#define LEAF_GROUPS ((LENGTH + PACK_GROUP - 1) / PACK_GROUP)

/* Columns of leaves from first_leaf on: packed[first + k, i] = gain_i w[i, k], w [LENGTH, width] in parameters. One
 * work-item an i of a leaf, LEAF_GROUPS groups a leaf. */
__kernel void projections_pack(__global const float *parameters, __global const struct leaf *table, int first_leaf,
                               __global act_t *packed) {
    __global const struct leaf *leaf = table + first_leaf + get_group_id(0) / LEAF_GROUPS;
    const size_t i = get_group_id(0) % LEAF_GROUPS * PACK_GROUP + get_local_id(0);
    if (i >= LENGTH) {
        return;
    }
    const int width = leaf->width;
    __global const float *w = parameters + leaf->w + i * width;
    const float gain = GAINED ? parameters[leaf->gain + i] : 1.0f;
    for (int k = 0; k < width; k++) {
        ACT_STORE_SCALAR(gain * w[k], packed + leaf->packed + (leaf->column + k) * LENGTH + i);
    }
}

/* And back, of sublayers with `leaves` leaves each: d_w[i, k] += gain_i d_packed[first + k, i], d_gain_i += sum_k
 * w[i, k] d_packed[first + k, i]; with keep == 0 they are these sums, whatever they were. One work-item an i of a
 * sublayer, LEAF_GROUPS groups a sublayer. */
__kernel void projections_unpack(__global const float *parameters, __global const struct leaf *table,
                                 int first_leaf, int leaves, __global const float *d_packed, int keep,
                                 __global float *gradients) {
    const size_t i = get_group_id(0) % LEAF_GROUPS * PACK_GROUP + get_local_id(0);
    if (i >= LENGTH) {
        return;
    }
    first_leaf += get_group_id(0) / LEAF_GROUPS * leaves;
    for (int at = first_leaf; at < first_leaf + leaves; at++) {
        __global const struct leaf *leaf = table + at;
        const int width = leaf->width;
        const size_t w_at = leaf->w + i * width, gain_at = leaf->gain + i;
        const float gain = GAINED ? parameters[gain_at] : 1.0f;
        float d_gain = 0.0f;
        for (int k = 0; k < width; k++) {
            const float d = d_packed[leaf->packed + (leaf->column + k) * LENGTH + i];
            d_gain += d * parameters[w_at + k];
            gradients[w_at + k] = (keep ? gradients[w_at + k] : 0.0f) + gain * d;
        }
        if (GAINED) { /* one for all leaves */
            gradients[gain_at] = (keep || at > first_leaf ? gradients[gain_at] : 0.0f) + d_gain;
        }
    }
}

/* d_packed [PROJECTIONS, LENGTH] of a sublayer = d_z^T x. One work-item WIDE vectors of LENGTH. */
__kernel SUB_GROUP_SIZE void projections_gradient(__global const act_t *x, __global const float *d_z, ulong rows,
                                                  __global float *d_packed, ulong d_packed_at) {
    const size_t k = get_global_id(0) * (WIDE * VEC);
    if (k >= LENGTH) {
        return;
    }
    for (int column = 0; column < PROJECTIONS; column += BLOCK_SUMS) {
        vec_t sums[BLOCK_SUMS][WIDE];
        UNROLL(BLOCK_SUMS) for (int b = 0; b < BLOCK_SUMS; b++) {
            CLEAR(vec_t, sums[b], WIDE);
        }
        for (size_t row = 0; row < rows; row++) {
            vec_t in[WIDE];
            UNROLL(WIDE) for (int w = 0; w < WIDE; w++) {
                in[w] = ACT_LOAD(x + row * LENGTH + k + w * VEC);
            }
            UNROLL(BLOCK_SUMS) for (int b = 0; b < BLOCK_SUMS; b++) {
                const float factor = d_z[row * PROJECTIONS + min(column + b, PROJECTIONS - 1)];
                UNROLL(WIDE) for (int w = 0; w < WIDE; w++) {
                    sums[b][w] += factor * in[w];
                }
            }
        }
        UNROLL(BLOCK_SUMS) for (int b = 0; b < BLOCK_SUMS; b++) {
            UNROLL(WIDE) for (int w = 0; w < WIDE && column + b < PROJECTIONS; w++) {
                VEC_STORE(sums[b][w], d_packed + d_packed_at + (size_t)(column + b) * LENGTH + k + w * VEC);
            }
        }
    }
}
