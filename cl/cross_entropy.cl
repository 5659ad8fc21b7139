/* Cross entropy of rows of logits x, and its gradient:
 *
 *   loss_t = log sum_v exp(l_tv) - l_t,target      0 where target = -1
 *   l = x, or with CAPPED 1  l = s tanh(x / s), s = SOFTCAP, whose slope is 1 - (l / s)^2
 *          or with CAPPED 2  l = s x / sqrt(x^2 + s^2), whose slope is (1 - (l / s)^2)^(3/2)
 *
 * A row is long and its lanes are many, see operations/ends.c. On a GPU a lane keeps the highest logit that it has
 * met and the sum of exponentials relative to that, so that a row is read once for the loss, and once more for the
 * gradient. On a CPU, where a row stays in a cache and exponentials are what takes time, the highest one is looked
 * for first.
 *
 * Build constants: VOCABULARY (V), LANES of its own, CAPPED, SOFTCAP.
 */
#include "group.cl"

#if CAPPED == 2
#define SCALED(x)      ((x) * (0x1p-40f / SOFTCAP)) /* x / s by 2^-40: squares up to x = 1e31 s are finite */
#define CAP(x)         (SOFTCAP * SCALED(x) * rsqrt(SCALED(x) * SCALED(x) + 0x1p-80f))
#define BELOW_CAP(cap) fmax(1.0f - (cap) * (cap) * (1.0f / (SOFTCAP * SOFTCAP)), 0.0f)
#define SLOPED(d, cap) ((d) * BELOW_CAP(cap) * sqrt(BELOW_CAP(cap)))
#else
#define CAP(x)         (CAPPED ? SOFTCAP * tanh((x) * (1.0f / SOFTCAP)) : (x))
#define SLOPED(d, cap) (CAPPED ? (d) * (1.0f - (cap) * (cap) * (1.0f / (SOFTCAP * SOFTCAP))) : (d))
#endif

/* Rows may begin anywhere. On a GPU elements before the first and behind the last whole vector are taken one by
 * one. */
#define AHEAD(row) (LANES == 1 ? 0 : (int)((VEC - (row) * VOCABULARY % VEC) % VEC))
#if LANES == 1 && VOCABULARY % VEC
#define ROW_LOAD(p)     VEC_LOAD_ANY(p)
#define ROW_STORE(v, p) ACT_STORE_ANY(v, p)
#else
#define ROW_LOAD(p)     VEC_LOAD(p)
#define ROW_STORE(v, p) ACT_STORE(v, p)
#endif

/* A row's vectors, and its ends. The body has their place v. */
#define EACH_VECTOR UNROLL_LANES(2) for (int v = ahead + LANE * VEC; v < behind; v += LANES * VEC)
#define EACH_OTHER                                                                                                 \
    for (int end = LANE, v; v = end < ahead ? end : end - ahead + behind, v < VOCABULARY; end += LANES)

/* log sum_v exp(l_v) */
INLINED float log_sum_of(__global const float *row, int ahead, int behind, __local float *scratch) {
#if LANES == 1
    vec_t high = (vec_t)(-INFINITY), sums = (vec_t)(0.0f);
    float highest = -INFINITY, sum = 0.0f;
    EACH_VECTOR {
        high = fmax(high, ROW_LOAD(row + v));
    }
    EACH_OTHER {
        highest = fmax(highest, row[v]);
    }
    highest = CAP(fmax(highest, VEC_HIGHEST(high)));
    EACH_VECTOR {
        sums += exp(CAP(ROW_LOAD(row + v)) - highest);
    }
    EACH_OTHER {
        sum += exp(CAP(row[v]) - highest);
    }
    return highest + log(sum + VEC_SUM(sums));
#else
    vec_t sums = (vec_t)(0.0f);
    float highest = -FLT_MAX; /* not infinite, from which an infinite logit's distance would be no number */
    EACH_VECTOR {
        const vec_t x = CAP(ROW_LOAD(row + v));
        const float next = fmax(highest, VEC_HIGHEST(x));
        sums = sums * exp(highest - next) + exp(x - next);
        highest = next;
    }
    float sum = VEC_SUM(sums);
    EACH_OTHER {
        const float x = CAP(row[v]), next = fmax(highest, x);
        sum = sum * exp(highest - next) + exp(x - next);
        highest = next;
    }
    const float of_all = GROUP_MAX(highest, scratch);
    return of_all + log(GROUP_SUM(sum * exp(highest - of_all), scratch));
#endif
}

/* One work-group a row of logits [rows, V], float. losses[first + row] is written; with gradient != 0 d_logits
 * [rows, V] becomes scale * slope * (softmax - one-hot), or zeros for target -1. Without ACT d_logits may be the
 * logits themselves. */
ROW_KERNEL void cross_entropy(__global const float *logits, __global const int *targets, ulong first, float scale,
                              int gradient, __global act_t *d_logits, __global float *losses) {
    GROUP_SCRATCH(scratch);
    const int ahead = AHEAD(get_group_id(0)), behind = ahead + (VOCABULARY - ahead) / VEC * VEC;
    __global const float *row = logits + get_group_id(0) * (size_t)VOCABULARY;
    __global act_t *d_row = d_logits + get_group_id(0) * (size_t)VOCABULARY;
    const int target = targets[first + get_group_id(0)];
    const float at_target = target < 0 ? 0.0f : CAP(row[target]);
    const float log_sum = log_sum_of(row, ahead, behind, scratch);
    if (LANE == 0) {
        losses[first + get_group_id(0)] = target < 0 ? 0.0f : log_sum - at_target;
    }
    if (!gradient) {
        return;
    }
    GROUP_BARRIER(); /* every lane has read the target's logit before any lane overwrites it */
    const float factor = target < 0 ? 0.0f : scale;
    EACH_VECTOR {
        const vec_t x = CAP(ROW_LOAD(row + v));
        ROW_STORE(SLOPED(factor * exp(x - log_sum), x), d_row + v);
    }
    EACH_OTHER {
        const float x = CAP(row[v]);
        ACT_STORE_SCALAR(SLOPED(factor * exp(x - log_sum), x), d_row + v);
    }
    GROUP_BARRIER();
    if (LANE == 0 && target >= 0) {
        const float whole = SLOPED(factor, at_target);
#if ACT || LANES > 1
        const float probable = whole * exp(at_target - log_sum); /* rounded once, after the difference */
#else
        const float probable = d_row[target];
#endif
        ACT_STORE_SCALAR(probable - whole, d_row + target);
    }
}
