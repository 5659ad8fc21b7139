/* The top of the model: final layer norm with the streams reduced, and cross entropy.
 *
 *   norm_sum   y = sum_s LN(x_s)           sum_norm   y = LN(sum_s x_s)
 *   loss_t = log sum_v exp(logit_tv) - logit_t,target      0 where target = -1
 *
 * Build constants: STREAMS (S), CHANNELS (C), NORM_SUM (1 or 0), BIAS, VOCABULARY (V).
 */
#define ROW_LENGTH (STREAMS * CHANNELS)
#define LN_EPSILON 1e-5f
#if NORM_SUM
#define NORMS   STREAMS /* rows normalised per token */
#define SUMMED  1       /* streams summed into each */
#else
#define NORMS   1
#define SUMMED  STREAMS
#endif

static inline vec_t norm_input(__global const act_t *x, int norm, int c) {
    vec_t u = ACT_LOAD(x + norm * CHANNELS + c);
    for (int s = 1; s < SUMMED; s++) {
        u += ACT_LOAD(x + (norm + s) * CHANNELS + c);
    }
    return u;
}

/* One work-group a token. streams [N, S, C] -> output [N, C], statistics [N, NORMS, 2] (mean, 1/deviation). */
ROW_KERNEL void final_norm_forward(__global const act_t *streams, __global const float *parameters, ulong gain_at,
                                   ulong bias_at, __global act_t *output, __global float *statistics) {
    GROUP_SCRATCH(scratch);
    const size_t token = get_group_id(0);
    const int lane = get_local_id(0);
    __global const act_t *x = streams + token * ROW_LENGTH;
    vec_t sum_normal[SLOTS(CHANNELS)];
    UNROLL_LANES(SLOTS(CHANNELS)) for (int slot = 0; slot < SLOTS(CHANNELS); slot++) {
        sum_normal[slot] = (vec_t)(0.0f);
    }
    for (int norm = 0; norm < NORMS; norm++) {
        vec_t u[SLOTS(CHANNELS)];
        vec_t sum = (vec_t)(0.0f), squares = (vec_t)(0.0f);
        UNROLL_LANES(SLOTS(CHANNELS)) for (int c = lane * VEC, slot = 0; c < CHANNELS; c += LANES * VEC, slot++) {
            u[slot] = norm_input(x, norm, c);
            sum += u[slot];
        }
        const float mean = GROUP_SUM(VEC_SUM(sum), scratch) / CHANNELS;
        UNROLL_LANES(SLOTS(CHANNELS)) for (int c = lane * VEC, slot = 0; c < CHANNELS; c += LANES * VEC, slot++) {
            u[slot] -= mean;
            squares += u[slot] * u[slot];
        }
        const float scale = rsqrt(GROUP_SUM(VEC_SUM(squares), scratch) / CHANNELS + LN_EPSILON);
        UNROLL_LANES(SLOTS(CHANNELS)) for (int slot = 0; slot < SLOTS(CHANNELS); slot++) {
            sum_normal[slot] += u[slot] * scale;
        }
        if (lane == 0) {
            statistics[(token * NORMS + norm) * 2] = mean;
            statistics[(token * NORMS + norm) * 2 + 1] = scale;
        }
    }
    UNROLL_LANES(SLOTS(CHANNELS)) for (int c = lane * VEC, slot = 0; c < CHANNELS; c += LANES * VEC, slot++) {
        vec_t y = sum_normal[slot] * VEC_LOAD(parameters + gain_at + c);
#if BIAS
        y += (float)NORMS * VEC_LOAD(parameters + bias_at + c);
#endif
        ACT_STORE(y, output + token * CHANNELS + c);
    }
}

/* One work-group a chunk of tokens.
 * d_output [N, C] -> d_streams [N, S, C], partial sums [chunks, 2 C] of the gradients of gain and bias. */
ROW_KERNEL void final_norm_backward(__global const act_t *streams, __global const float *parameters, ulong gain_at,
                                    __global const float *statistics, __global const act_t *d_output, ulong tokens,
                                    ulong tokens_per_chunk, __global act_t *d_streams, __global float *partials) {
    GROUP_SCRATCH(scratch);
    const int lane = get_local_id(0);
    const size_t first = get_group_id(0) * tokens_per_chunk;
    const size_t last = min((ulong)(first + tokens_per_chunk), tokens);
    vec_t d_gain[SLOTS(CHANNELS)], d_bias[SLOTS(CHANNELS)];
    UNROLL_LANES(SLOTS(CHANNELS)) for (int slot = 0; slot < SLOTS(CHANNELS); slot++) {
        d_gain[slot] = d_bias[slot] = (vec_t)(0.0f);
    }
    for (size_t token = first; token < last; token++) {
        __global const act_t *x = streams + token * ROW_LENGTH;
        __global const act_t *d_y = d_output + token * CHANNELS;
        for (int norm = 0; norm < NORMS; norm++) {
            const float mean = statistics[(token * NORMS + norm) * 2];
            const float scale = statistics[(token * NORMS + norm) * 2 + 1];
            vec_t sum = (vec_t)(0.0f), product = (vec_t)(0.0f);
            UNROLL_LANES(SLOTS(CHANNELS)) for (int c = lane * VEC, slot = 0; c < CHANNELS; c += LANES * VEC, slot++) {
                const vec_t normal = (norm_input(x, norm, c) - mean) * scale;
                const vec_t d = ACT_LOAD(d_y + c);
                const vec_t d_normal = d * VEC_LOAD(parameters + gain_at + c);
                sum += d_normal;
                product += d_normal * normal;
                d_gain[slot] += d * normal;
                d_bias[slot] += d;
            }
            const float mean_d = GROUP_SUM(VEC_SUM(sum), scratch) / CHANNELS;
            const float mean_product = GROUP_SUM(VEC_SUM(product), scratch) / CHANNELS;
            for (int c = lane * VEC; c < CHANNELS; c += LANES * VEC) {
                const vec_t normal = (norm_input(x, norm, c) - mean) * scale;
                const vec_t d_normal = ACT_LOAD(d_y + c) * VEC_LOAD(parameters + gain_at + c);
                const vec_t d = scale * (d_normal - mean_d - normal * mean_product);
                for (int s = 0; s < SUMMED; s++) {
                    ACT_STORE(d, d_streams + token * ROW_LENGTH + (norm + s) * CHANNELS + c);
                }
            }
        }
    }
    __global float *partial = partials + get_group_id(0) * (2 * CHANNELS);
    UNROLL_LANES(SLOTS(CHANNELS)) for (int c = lane * VEC, slot = 0; c < CHANNELS; c += LANES * VEC, slot++) {
        VEC_STORE(d_gain[slot], partial + c);
        VEC_STORE(d_bias[slot], partial + CHANNELS + c);
    }
}

/* One work-group a row of logits [rows, V], float. losses[first + row] is written; with gradient != 0 d_logits [rows, V]
 * becomes scale * (softmax - one-hot), or zeros for target -1. Without ACT d_logits may be the logits themselves. Rows need not be a multiple of VEC long: lanes take the vectors,
 * and the tail one by one. */
ROW_KERNEL void cross_entropy(__global const float *logits, __global const int *targets, ulong first, float scale,
                              int gradient, __global act_t *d_logits, __global float *losses) {
    GROUP_SCRATCH(scratch);
    const int lane = get_local_id(0);
    const int whole = VOCABULARY / VEC * VEC;
    __global const float *row = logits + get_group_id(0) * (size_t)VOCABULARY;
    __global act_t *d_row = d_logits + get_group_id(0) * (size_t)VOCABULARY;
    const int target = targets[first + get_group_id(0)];
    vec_t high = (vec_t)(-INFINITY);
    float highest = -INFINITY;
    for (int v = lane * VEC; v < whole; v += LANES * VEC) {
        high = fmax(high, VEC_LOAD_ANY(row + v));
    }
    for (int v = whole + lane; v < VOCABULARY; v += LANES) {
        highest = fmax(highest, row[v]);
    }
    highest = GROUP_MAX(fmax(highest, VEC_HIGHEST(high)), scratch);
    vec_t sums = (vec_t)(0.0f);
    float sum = 0.0f;
    for (int v = lane * VEC; v < whole; v += LANES * VEC) {
        sums += exp(VEC_LOAD_ANY(row + v) - highest);
    }
    for (int v = whole + lane; v < VOCABULARY; v += LANES) {
        sum += exp(row[v] - highest);
    }
    sum = GROUP_SUM(sum + VEC_SUM(sums), scratch);
    const float log_sum = highest + log(sum);
    if (lane == 0) {
        losses[first + get_group_id(0)] = target < 0 ? 0.0f : log_sum - row[target];
    }
    if (!gradient) {
        return;
    }
    /* every lane has read the target's logit (lane 0) before any lane overwrites it */
    GROUP_BARRIER();
    const float factor = target < 0 ? 0.0f : scale;
    for (int v = lane * VEC; v < whole; v += LANES * VEC) {
        ACT_STORE_ANY(factor * exp(VEC_LOAD_ANY(row + v) - log_sum), d_row + v);
    }
    for (int v = whole + lane; v < VOCABULARY; v += LANES) {
        ACT_STORE_SCALAR(factor * exp(row[v] - log_sum), d_row + v);
    }
    GROUP_BARRIER();
    if (lane == 0 && target >= 0) {
#if ACT
        const float probable = factor * exp(row[target] - log_sum); /* rounded once, after the difference */
#else
        const float probable = d_row[target];
#endif
        ACT_STORE_SCALAR(probable - factor, d_row + target);
    }
}
