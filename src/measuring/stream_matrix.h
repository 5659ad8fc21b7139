/* Small matrices that mix streams, n x n, row-major, in double; n <= RESIDUAL_MAX_STREAMS. */
#pragma once

#include "src/variants/residual.h"
#include <stdbool.h>
#include <stdint.h>

#define STREAM_MATRIX_MOST (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* Singular values [n] of a matrix of finite numbers, the largest first; and that one alone, the spectral norm.
 * tests/ hold them to LAPACK. */
void stream_matrix_singular_values(const double *matrix, int64_t n, double *values);
double stream_matrix_norm(const double *matrix, int64_t n);

/* composite <- matrix composite: later sublayers act from the left. */
void stream_matrix_compose(double *composite, const double *matrix, int64_t n);

/* Sums of rows [n] and of columns [n]. */
void stream_matrix_sums(const double *matrix, int64_t n, double *rows, double *columns);

/* The largest entry of each row [n]; whether all of them are on the diagonal. Of equal ones the first counts. */
bool stream_matrix_row_maxima(const double *matrix, int64_t n, double *maxima);

/* How far it is from the identity: the root mean square of the lengths of the rows of H - I. */
double stream_matrix_distance(const double *matrix, int64_t n);

/* Inner products [n, n] of the streams after mixing by the matrix, from those before it, gram [n, n]. */
void stream_matrix_mix(const double *matrix, const double *gram, int64_t n, double *mixed);

/* Of streams with these inner products: the mean over pairs of their cosines, and the largest one's share of the
 * energy, the sum of all squares; 0 where all are zero. */
double stream_matrix_cosine(const double *mixed, int64_t n);
double stream_matrix_largest_share(const double *mixed, int64_t n);

/* How many directions the streams with these inner products [n, n] use: exp of the entropy of the Gram matrix's
 * eigenvalues, divided by their sum. 1: all streams are multiples of one vector; n: they are orthogonal and equally
 * long; 0: all are zero. */
double stream_matrix_effective_rank(const double *gram, int64_t n);
