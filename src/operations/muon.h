/* The step of the optimizer Muon on a batch of matrices of one shape, whose formulas are at the top of cl/muon.cl;
 * they launch as those of operations.h do. A matrix gets the same bits, whatever else is in the batch. */
#pragma once

#include "src/operations/operations.h"

enum { MUON_MOST_MATRICES = 64 }; /* in a batch */

/* Matrices [rows, columns] in the arena, and in the state. If there are several, rows * columns is a multiple of
 * 64. */
struct muon_batch {
    size_t rows, columns, count;
    uint64_t first[MUON_MOST_MATRICES]; /* elements in the arena, ascending */
    uint64_t state_shift;               /* from a place in the arena to that in the state, modulo 2^64 */
};

/* Buffers of a batch, of shape.muon_type if nothing else is said. n: elements of all its matrices; m: their
 * number times side * side, where side is the smaller one of rows and columns. */
struct muon_scratch {
    const struct buffer *x[2];          /* [n], rounded up to a multiple of 64 */
    const struct buffer *update;        /* the same as float; if shape.muon_type is fp32 it is x[1] */
    const struct buffer *gram;          /* [m] */
    const struct buffer *square;        /* [m] float */
    const struct buffer *polynomial[3]; /* [m]; the last two where newton_schulz_keeps_gram, else NULL */
    const struct buffer *sums;          /* [n / 64] float */
    const struct buffer *norms;         /* [MUON_MOST_MATRICES] float */
};

/* Updates the momentum; x[0] [matrices, rows, columns] becomes what the iterations begin with. norm [1]: the
 * gradients' global norm, unscaled. If it is not finite the momentum stays, and x[0] is zero. */
void muon_begin(struct operations *operations, const struct update_arenas *arenas, const struct muon_batch *batch,
                const struct update_settings *settings, const struct muon_scratch *scratch,
                const struct buffer *norm);

/* Whether newton_schulz multiplies Gram matrices for a few steps, instead of X. */
bool newton_schulz_keeps_gram(enum element_type type, size_t rows, size_t columns);

/* Each of the batch's matrices in x[0] becomes nearly U V^T of its singular value decomposition U S V^T, if the
 * norm of S is at most 1: singular values that are not tiny come to 0.7 .. 1.2 with the usual coefficients. Returns
 * the buffer with them, of float. steps: at least 1. */
const struct buffer *newton_schulz(struct operations *operations, const struct muon_batch *batch, int64_t steps,
                                   const float coefficients[3], const struct muon_scratch *scratch);

/* FLOPs of the GEMMs that newton_schulz makes of one matrix, where all of a symmetric result is computed. */
double newton_schulz_flops(enum element_type type, size_t rows, size_t columns, int64_t steps);

/* Updates the weights, and weights_lowp, by x [matrices, rows, columns], float. If `norm` is not finite they
 * stay. */
void muon_end(struct operations *operations, const struct update_arenas *arenas, const struct muon_batch *batch,
              const struct update_settings *settings, const struct buffer *x, const struct buffer *norm);
