/* Heads as they are, where positions are learned embeddings or there are none; see position_rope.cl. */
#include "types.cl"

INLINED void position_turn(__global const float *table, int d, bool backward, vec_t *u, vec_t *w) {
    UNUSED_POINTER(table);
}
