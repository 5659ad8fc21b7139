/* Rotary position embedding (RoPE; Su et al. 2021): components d and d + D/2 of a head at position t turn by the
 * angle a = t theta^(-2d/D), or with rope_fraction by another or none. The host has computed cosines and sines in
 * double (operations/branches.c).
 *
 *   u' = u cos a - w sin a        w' = w cos a + u sin a
 */
#include "types.cl"

/* Turns components d .. d + VEC - 1 (u) and those D/2 behind them (w); backward is the rotation by -a. `table` is
 * the position's row: cosines [D/2], then sines [D/2]. */
INLINED void position_turn(__global const float *table, int d, bool backward, vec_t *u, vec_t *w) {
    const vec_t cosine = VEC_LOAD(table + d), sine = VEC_LOAD(table + HEAD_SIZE / 2 + d);
    const vec_t first = *u, second = *w;
    *u = backward ? first * cosine + second * sine : first * cosine - second * sine;
    *w = backward ? second * cosine - first * sine : second * cosine + first * sine;
}
