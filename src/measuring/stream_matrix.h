/* Small matrices that mix streams, n x n, row-major, in double; n <= RESIDUAL_MAX_STREAMS. */
#pragma once

#include "src/variants/residual.h"
#include <stdbool.h>
#include <stdint.h>

#define STREAM_MATRIX_MOST (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* Largest singular value of a matrix of finite numbers. tests/ hold it to LAPACK. */
double stream_matrix_norm(const double *matrix, int64_t n);

/* composite <- matrix composite: later sublayers act from the left. */
void stream_matrix_compose(double *composite, const double *matrix, int64_t n);

/* Sums of rows [n] and of columns [n]. */
void stream_matrix_sums(const double *matrix, int64_t n, double *rows, double *columns);

/* The largest entry of each row [n]; whether all of them are on the diagonal. Of equal ones the first counts. */
bool stream_matrix_row_maxima(const double *matrix, int64_t n, double *maxima);

/* Mean over pairs of the cosines of streams after mixing by the matrix; gram [n, n] has the streams' inner products
 * before it. */
double stream_matrix_cosine(const double *matrix, const float *gram, int64_t n);
