/* From raw projections to H, per token, and back: the variant's map inside RMSNorm.
 *
 *   r_g = 1/sqrt(sum of squares of group g / (group length) + eps)     z = r_g * (raw projections of group g)
 *   h   = map(z; theta)
 *
 * An RMS_EPSILON of 0 stands for torch.nn.functional.normalize, which divides by the norm, at least 1e-12: then r_g
 * = sqrt(group length / max(sum of squares, 1e-24)).
 *
 * RMS_GROUPS is 1 when the norm runs over all streams together, STREAMS when over each stream (hc). PROJECTIONS is
 * the number of projections per group; 0: there are none, and no norm. With STATIC they are zero: all tokens share
 * a row z of zeros. Sums of squares come from the kernel that wrote the streams.
 */
#include "hc_*.cl"

#define LEAST_SQUARES    1e-24f
#define RMS_GROUP_LENGTH (ROW_LENGTH / RMS_GROUPS)
#define Z_ROW            (RMS_GROUPS * PROJECTIONS)
#define Z_AT(token)      (STATIC ? 0 : (token) * Z_ROW)
#define HAS_NORM         (PROJECTIONS > 0 && !STATIC)

static inline float group_squares(__global const float *squares, int group) {
    float sum = 0.0f;
    for (int s = 0; s < STREAMS / RMS_GROUPS; s++) {
        sum += squares[group * (STREAMS / RMS_GROUPS) + s];
    }
    return sum;
}

static inline float rms_inverse(float sum) {
    return RMS_EPSILON > 0.0f ? rsqrt(sum / RMS_GROUP_LENGTH + RMS_EPSILON)
                              : rsqrt(fmax(sum, LEAST_SQUARES) / RMS_GROUP_LENGTH);
}

/* A token's z [Z_ROW], raw projections in, normalised out, and h [H_ROW]. */
INLINED void map_token_forward(__global const float *theta, __global const float *squares, __global float *z,
                               __global float *h) {
    if (HAS_NORM) {
        for (int group = 0; group < RMS_GROUPS; group++) {
            const float inverse = rms_inverse(group_squares(squares, group));
            for (int k = 0; k < PROJECTIONS; k++) {
                z[group * PROJECTIONS + k] *= inverse;
            }
        }
    }
    hc_forward(theta, z, h);
}

#ifndef MAP_WORK
#define WORK_PARAMETER
#define WORK_ARGUMENT
#define WORK_DECLARE(local_memory)
#else
#define WORK_PARAMETER , MAP_SPACE float *work
#define WORK_ARGUMENT  , work
#if MAP_WORK <= MAP_LOCAL
#define WORK_DECLARE(local_memory) __local float *work = local_memory
#else
#define WORK_DECLARE(local_memory) float work[MAP_WORK]
#endif
#endif

/* A token's gradient d_z [Z_ROW] of the raw projections, rms_scale [RMS_GROUPS], the factor of x in its own
 * gradient, since
 *   d r / d x = -r^3 x / length   gives   -(r^2 / length) sum_k z_k dz_k,
 * and its part of the gradients of theta; FREEZE_ALPHA_RES: none of alpha_res. */
INLINED void map_token_backward(__global const float *theta, __global const float *squares, __global const float *z,
                                __global const float *h, __global const float *d_h, __global float *d_z,
                                __global float *rms_scale, __global float *d_theta WORK_PARAMETER) {
    hc_backward(theta, z, h, d_h, d_z, d_theta WORK_ARGUMENT);
#ifdef FREEZE_ALPHA_RES
    d_theta[P_alpha_res] = 0.0f;
#endif
    if (!HAS_NORM) {
        for (int group = 0; group < RMS_GROUPS; group++) {
            rms_scale[group] = 0.0f;
        }
        return;
    }
    for (int group = 0; group < RMS_GROUPS; group++) {
        const float sum = group_squares(squares, group), inverse = rms_inverse(sum);
        const bool is_constant = RMS_EPSILON == 0.0f && sum < LEAST_SQUARES; /* the norm then does not matter */
        float product = 0.0f;
        for (int k = group * PROJECTIONS; k < (group + 1) * PROJECTIONS; k++) {
            product += z[k] * d_z[k];
        }
        for (int k = group * PROJECTIONS; k < (group + 1) * PROJECTIONS; k++) {
            d_z[k] *= inverse;
        }
        rms_scale[group] = is_constant ? 0.0f : -product * inverse * inverse / RMS_GROUP_LENGTH;
    }
}
