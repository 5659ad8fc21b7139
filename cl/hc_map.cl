/* The map of hc_token.cl over all tokens, on its own: one work-item a token. z [N, Z_ROW]: raw projections in,
 * normalised out. squares [N, S]. h [N, H_ROW]. */
#include "hc_token.cl"

ROW_KERNEL void hc_map_forward(__global const float *parameters, ulong theta_at, __global const float *squares,
                               ulong tokens, __global float *z_all, __global float *h_all) {
    const size_t token = get_global_id(0);
    UNUSED_POINTER(squares);
    UNUSED_POINTER(z_all);
    if (token >= tokens) {
        return;
    }
    map_token_forward(parameters + theta_at, squares + token * STREAMS, z_all + Z_AT(token), h_all + token * H_ROW);
}

/* One work-item a chunk of tokens, which on a GPU is a token or few. d_z [N, Z_ROW], rms_scale [N, RMS_GROUPS] as
 * map_token_backward has them. partials [chunks, THETA]: the chunk's gradients of theta. Of a work-group's rows the
 * first one gets the sum; chunks are whole work-groups, the last of them without tokens. */
ROW_KERNEL void hc_map_backward(__global const float *parameters, ulong theta_at, __global const float *squares,
                                __global const float *z_all, __global const float *h_all, __global const float *d_h,
                                ulong tokens, ulong tokens_per_chunk, __global float *d_z_all,
                                __global float *rms_scale, __global float *partials) {
    const size_t chunk = get_global_id(0);
    const size_t first = chunk * tokens_per_chunk;
    const size_t last = min((ulong)(first + tokens_per_chunk), tokens);
    __global float *d_theta = partials + chunk * THETA;
    UNUSED_POINTERS(squares, z_all, d_z_all);
    for (int k = 0; k < THETA; k++) {
        d_theta[k] = 0.0f;
    }
    for (size_t token = first; token < last; token++) {
        WORK_DECLARE(0);
        map_token_backward(parameters + theta_at, squares + token * STREAMS, z_all + Z_AT(token),
                           h_all + token * H_ROW, d_h + token * H_ROW, d_z_all + token * Z_ROW,
                           rms_scale + token * RMS_GROUPS, d_theta WORK_ARGUMENT);
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
