/* What the kernels of stream_mix.cl and mix_between.cl share: how they read H (shapes for one token).
 *
 *   width   u = sum_s pre_s x_s                        a = LN(u)                     X [S, C] -> a [C]
 *   depth   x'_i = sum_j res_ij x_j + post_i o         q_i = sum_c x'_ic^2           o [C] -> X' [S, C], q [S]
 *
 * h [H_ROW] holds the token's pre [S] | post [S] | res [S, S]. With PLAIN (rc) S = 1 and pre = post = res = 1: no
 * h.
 *
 * A work-item of a CPU reads a token's h where it lies; the lanes of a GPU have a small one in registers, from few
 * loads.
 *
 * Build constants: STREAMS (S), CHANNELS (C), PLAIN, BIAS (layer norm has one).
 */
#include "group.cl"

#define H_ROW      (STREAMS * (STREAMS + 2))
#define ROW_LENGTH (STREAMS * CHANNELS)

#define PRE(s)    (PLAIN ? 1.0f : h[s])
#define POST(s)   (PLAIN ? 1.0f : h[STREAMS + (s)])
#define RES(i, j) (PLAIN ? 1.0f : h[2 * STREAMS + (i) * STREAMS + (j)])

/* What registers have room for: not a wide H and its sums, nor fp16's conversions, which are long where libraries
 * make them. */
#define IN_REGISTERS (LANES > 1 && STREAMS <= 4 && ACT != 2)

/* Loops along a row where nothing is indexed by the step, and over streams. */
#if IN_REGISTERS
#define MIX_STEPS(c)  LANE_STEPS(slot, c, CHANNELS)
#define UNROLL_MIX(n) UNROLL_LANES(n)
#else
#define MIX_STEPS(c) for (int c = LANE * VEC; c < CHANNELS; c += LANES * VEC)
#define UNROLL_MIX(n)
#endif

/* H_OF_TOKEN(name, h) declares what PRE, POST and RES read. */
#if PLAIN || !IN_REGISTERS
#define H_OF_TOKEN(name, from)                                                                                     \
    __global const float *name = from;                                                                             \
    if (PLAIN) {                                                                                                   \
        UNUSED_POINTER(name);                                                                                      \
    }
#define H_POINTER __global const float *
#else
#define H_OF_TOKEN(name, from)                                                                                     \
    float name[H_ROW];                                                                                             \
    h_load(from, name)
#define H_POINTER const float *
INLINED void h_load(__global const float *from, float h[H_ROW]) {
    if (H_ROW % 4 == 0) { /* and so a token's row begins on a multiple of four */
        UNROLL(H_ROW / 4) for (int k = 0; k < H_ROW; k += 4) {
            vstore4(*(__global const float4 *)(from + k), 0, h + k);
        }
        return;
    }
    UNROLL(H_ROW) for (int k = 0; k < H_ROW; k++) {
        h[k] = from[k];
    }
}
#endif
