/* Small matrices that mix streams, n x n, row-major, in double; n <= RESIDUAL_MAX_STREAMS. */
#pragma once

#include "src/variants/residual.h"
#include <stdint.h>

#define STREAM_MATRIX_MOST (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* Singular values [n] of a matrix of finite numbers, the largest first, which is its spectral norm. tests/ compare
 * them with LAPACK's. */
void stream_matrix_singular_values(const double *matrix, int64_t n, double *values);

/* composite <- matrix composite: later sublayers act from the left. */
void stream_matrix_compose(double *composite, const double *matrix, int64_t n);

/* Inner products [n, n] of the streams after mixing by the matrix, from those before it, gram [n, n]. */
void stream_matrix_mix(const double *matrix, const double *gram, int64_t n, double *mixed);

/* How many directions the streams with these inner products [n, n] use: exp of the entropy of the Gram matrix's
 * eigenvalues, divided by their sum. 1: all streams are multiples of one vector; n: they are orthogonal and equally
 * long; 0: all are zero. */
double stream_matrix_effective_rank(const double *gram, int64_t n);
