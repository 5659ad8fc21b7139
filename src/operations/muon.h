/* The step of the optimizer Muon on one matrix, whose formulas are at the top of cl/muon.cl; they launch as
 * those of operations.h do. */
#pragma once

#include "src/operations/operations.h"

struct muon_settings {
    float momentum, rate, decay;
    float scale;   /* of the orthogonal matrix */
    float clip;    /* largest global norm; 0: none */
    float unscale; /* as in adamw_settings */
};

/* A matrix [rows, columns] in the arena, and in the state. */
struct muon_matrix {
    size_t rows, columns;
    uint64_t first, state_first;
};

struct muon_arenas {
    const struct buffer *weights, *gradients, *momentum;
    const struct buffer *weights_lowp; /* as in adamw_arenas */
};

/* Buffers of the largest matrix, of shape.muon_type if nothing else is said. Matrices have `elements` at most, and
 * `side` rows or columns at most, whichever are fewer. */
struct muon_scratch {
    const struct buffer *x[2];   /* [elements], rounded up to a multiple of 64 */
    const struct buffer *update; /* the same as float; if shape.muon_type is fp32 it is x[1] */
    const struct buffer *gram;   /* [side, side] */
    const struct buffer *square; /* [side, side] float */
    const struct buffer *norm;   /* [1] float */
};

/* Updates the momentum; x[0] [rows, columns] becomes what the iterations begin with. norm [1]: the gradients'
 * global norm, unscaled. If it is not finite the momentum stays, and x[0] is zero. */
void muon_begin(struct operations *operations, const struct muon_arenas *arenas, const struct muon_matrix *matrix,
                const struct muon_settings *settings, const struct muon_scratch *scratch,
                const struct buffer *norm);

/* x[0] [rows, columns] becomes nearly U V^T of its singular value decomposition U S V^T, if the norm of S is at
 * most 1: singular values that are not tiny come to 0.7 .. 1.2 with the usual coefficients. Returns the buffer
 * with it, of float. steps: at least 1. */
const struct buffer *newton_schulz(struct operations *operations, size_t rows, size_t columns, int64_t steps,
                                   const float coefficients[3], const struct muon_scratch *scratch);

/* Updates the weights, and weights_lowp, by x [rows, columns], float. If `norm` is not finite they stay. */
void muon_end(struct operations *operations, const struct muon_arenas *arenas, const struct muon_matrix *matrix,
              const struct muon_settings *settings, const struct buffer *x, const struct buffer *norm);
