/* The mathematics of the mixes, for stream_mix.cl, mix_between.cl, mix_backward.cl and frame.cl (shapes for one
 * token):
 *
 *   width   u = sum_s pre_s x_s                        a = LN(u)                     X [S, C] -> a [C]
 *   depth   x'_i = sum_j res_ij x_j + post_i o         q_i = sum_c x'_ic^2           o [C] -> X' [S, C], q [S]
 *
 * and backward
 *   d_o = sum_i post_i d_x'_i     d_x_j = pre_j d_u + sum_i res_ij d_x'_i + what the projections pass back
 *   d_post_i = <d_x'_i, o>        d_res_ij = <d_x'_i, x_j>        d_pre_j = <d_u, x_j>
 *
 * h [H_ROW] holds the token's pre [S] | post [S] | res [S, S]. With PLAIN (rc) S = 1 and pre = post = res = 1: no
 * h. With FRACTIONS the streams are parts of the channels: part i of u is sum_s pre_is x_s, x'_i takes part i of o,
 * and h is that of hc_frac.cl. Sums over channels are PRODUCTS, in the order of the steps along a row.
 *
 * Build constants: STREAMS (S), CHANNELS (C), FRACTIONS, PLAIN, BIAS (layer norm has one).
 */
#include "norm.cl"

#define PARTS        (FRACTIONS ? STREAMS : 1) /* of u and o */
#define PRE(part, s) (PLAIN ? 1.0f : h[(part) * STREAMS + (s)])
#define POST(s)      (PLAIN ? 1.0f : h[PRE_ENTRIES + (s)])
#define RES(i, j)    (PLAIN ? 1.0f : h[PRE_ENTRIES + STREAMS + (i) * STREAMS + (j)])

/* Loops along a row where nothing is indexed by the step, and over streams. They are unrolled where registers have
 * room: not for a wide H and its sums, nor for fp16's conversions, which are long where libraries make them. */
#if (LANES > 1 && STREAMS <= 4 && ACT != 2) || defined(FUSED)
#define MIX_STEPS(c)  LANE_STEPS(slot, c, STREAM_CHANNELS)
#define UNROLL_MIX(n) UNROLL_LANES(n)
#else
#define MIX_STEPS(c) for (int c = LANE * VEC; c < STREAM_CHANNELS; c += LANES * VEC)
#define UNROLL_MIX(n)
#endif

/* Declares the token's h, which PRE, POST and RES read. */
#define H_OF_TOKEN(name, from)                                                                                     \
    __global const float *name = from;                                                                             \
    if (PLAIN) {                                                                                                   \
        UNUSED_POINTER(name);                                                                                      \
    }

/* u at channels c .. c+VEC-1 of streams in memory */
INLINED vec_t width_mix(__global const act_t *x, __global const float *h, int c) {
    const int part = FRACTIONS ? c / STREAM_CHANNELS : 0;
    c -= part * STREAM_CHANNELS;
    vec_t u = PRE(part, 0) * ACT_LOAD(x + c);
    UNROLL_MIX(STREAMS) for (int s = 1; s < STREAMS; s++) {
        u += PRE(part, s) * ACT_LOAD(x + s * STREAM_CHANNELS + c);
    }
    return u;
}

/* Channels c .. c+VEC-1 of all streams. Of a branch's input or output the first is at the same place of part i. */
#define PART_AT(i) (FRACTIONS ? (i) * STREAM_CHANNELS : 0)
INLINED void streams_load(__global const act_t *x, int c, vec_t in[STREAMS]) {
    UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
        in[j] = ACT_LOAD(x + j * STREAM_CHANNELS + c);
    }
}

/* x'_i */
INLINED vec_t depth_mix(int i, vec_t o, const vec_t in[STREAMS], __global const float *h) {
    vec_t out = POST(i) * o;
    UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
        out += RES(i, j) * in[j];
    }
    return out;
}

/* `start` + sum_i res_ij d_x'_i */
INLINED vec_t depth_mix_back(int j, vec_t start, const vec_t d[STREAMS], __global const float *h) {
    UNROLL_MIX(STREAMS) for (int i = 0; i < STREAMS; i++) {
        start += RES(i, j) * d[i];
    }
    return start;
}

/* Adds what these channels of d_x'_i give to the gradients of post and res, [S] | [S, S]. */
#define D_H_SUMS (STREAMS + STREAMS * STREAMS)
INLINED void add_h_gradients(int i, vec_t d, vec_t o, const vec_t in[STREAMS], products_t sums[D_H_SUMS]) {
    sums[i] += PRODUCTS(d * o);
    UNROLL_MIX(STREAMS) for (int j = 0; j < STREAMS; j++) {
        sums[STREAMS + i * STREAMS + j] += PRODUCTS(d * in[j]);
    }
}
