/* From raw projections to H, per token, and back: the variant's map inside RMSNorm.
 *
 *   r_g = 1/sqrt(sum of squares of group g / (group length) + eps)     z = r_g * (raw projections of group g)
 *   h   = map(z; theta)
 *
 * RMS_GROUPS is 1 when the norm runs over all streams together, STREAMS when over each stream (hc).
 * COLUMNS is the number of projections per group. Sums of squares come from the kernel that wrote the streams.
 */
#define RMS_EPSILON      1e-6f
#define RMS_GROUP_LENGTH (STREAMS * CHANNELS / RMS_GROUPS)
#define Z_ROW            (RMS_GROUPS * COLUMNS)

static inline float rms_inverse(__global const float *squares, int group) {
    float sum = 0.0f;
    for (int s = 0; s < STREAMS / RMS_GROUPS; s++) {
        sum += squares[group * (STREAMS / RMS_GROUPS) + s];
    }
    return rsqrt(sum / RMS_GROUP_LENGTH + RMS_EPSILON);
}

/* One work-item a token. z [N, Z_ROW]: raw projections in, normalised out. squares [N, S]. h [N, H_ROW]. */
ROW_KERNEL void hc_map_forward(__global const float *parameters, ulong theta_at, __global const float *squares,
                               ulong tokens, __global float *z_all, __global float *h_all) {
    const size_t token = get_global_id(0);
    if (token >= tokens) {
        return;
    }
    __global float *z = z_all + token * Z_ROW;
    for (int group = 0; group < RMS_GROUPS; group++) {
        const float inverse = rms_inverse(squares + token * STREAMS, group);
        for (int k = 0; k < COLUMNS; k++) {
            z[group * COLUMNS + k] *= inverse;
        }
    }
    hc_forward(parameters + theta_at, z, h_all + token * H_ROW);
}

/* One work-item a chunk of tokens, which on a GPU is a token or few.
 * d_z [N, Z_ROW]: gradient of the raw projections. rms_scale [N, RMS_GROUPS]: the factor of x in its own gradient, since
 *   d r / d x = -r^3 x / length   gives   -(r^2 / length) sum_k z_k dz_k.
 * partials [chunks, THETA]: the chunk's gradients of theta. Of a work-group's rows the first one gets the sum; chunks are whole
 * work-groups, the last of them without tokens. */
ROW_KERNEL void hc_map_backward(__global const float *parameters, ulong theta_at, __global const float *squares,
                                __global const float *z_all, __global const float *h_all, __global const float *d_h,
                                ulong tokens, ulong tokens_per_chunk, __global float *d_z_all,
                                __global float *rms_scale, __global float *partials) {
    const size_t chunk = get_global_id(0);
    const size_t first = chunk * tokens_per_chunk;
    const size_t last = min((ulong)(first + tokens_per_chunk), tokens);
    __global float *d_theta = partials + chunk * THETA;
    for (int k = 0; k < THETA; k++) {
        d_theta[k] = 0.0f;
    }
    for (size_t token = first; token < last; token++) {
        __global const float *z = z_all + token * Z_ROW;
        __global float *d_z = d_z_all + token * Z_ROW;
        hc_backward(parameters + theta_at, z, h_all + token * H_ROW, d_h + token * H_ROW, d_z, d_theta);
        for (int group = 0; group < RMS_GROUPS; group++) {
            const float inverse = rms_inverse(squares + token * STREAMS, group);
            float product = 0.0f;
            for (int k = group * COLUMNS; k < (group + 1) * COLUMNS; k++) {
                product += z[k] * d_z[k];
                d_z[k] *= inverse;
            }
            rms_scale[token * RMS_GROUPS + group] = -product * inverse * inverse / RMS_GROUP_LENGTH;
        }
    }
#if LANES > 1
    __global float *rows = partials + get_group_id(0) * (LANES * (size_t)THETA);
    GROUP_BARRIER();
    for (int k = LANE; k < THETA; k += LANES) {
        float sum = rows[k];
        for (int row = 1; row < LANES; row++) {
            sum += rows[row * (size_t)THETA + k];
        }
        rows[k] = sum;
    }
#endif
}
