#include "src/measuring/stream_matrix.h"
#include <math.h>
#include <string.h>

/* Rotates columns p and q so that they become orthogonal. Returns their cosine before that, 0 where one of them is
 * zero. */
static double orthogonalise(double *matrix, int64_t n, int64_t p, int64_t q) {
    double pp = 0.0, qq = 0.0, pq = 0.0;
    for (int64_t i = 0; i < n; i++) {
        pp += matrix[i * n + p] * matrix[i * n + p];
        qq += matrix[i * n + q] * matrix[i * n + q];
        pq += matrix[i * n + p] * matrix[i * n + q];
    }
    if (pp == 0.0 || qq == 0.0 || pq == 0.0) {
        return 0.0;
    }
    const double zeta = (qq - pp) / (2.0 * pq);
    const double tangent = copysign(1.0, zeta) / (fabs(zeta) + hypot(1.0, zeta));
    const double cosine = 1.0 / hypot(1.0, tangent), sine = cosine * tangent;
    for (int64_t i = 0; i < n; i++) {
        const double x = matrix[i * n + p], y = matrix[i * n + q];
        matrix[i * n + p] = cosine * x - sine * y;
        matrix[i * n + q] = sine * x + cosine * y;
    }
    return pq / sqrt(pp * qq);
}

/* One-sided Jacobi (Hestenes 1958): once all columns are orthogonal their lengths are the singular values. It is
 * here because linking LAPACK would load the host's BLAS before main, and so before it can be set not to spin. */
void stream_matrix_singular_values(const double *matrix, int64_t n, double *values) {
    double copy[STREAM_MATRIX_MOST], cosine = 1.0;
    memcpy(copy, matrix, (size_t)(n * n) * sizeof *copy);
    for (int sweep = 0; sweep < 60 && cosine > 1e-15; sweep++) {
        cosine = 0.0;
        for (int64_t p = 0; p < n; p++) {
            for (int64_t q = p + 1; q < n; q++) {
                cosine = fmax(cosine, fabs(orthogonalise(copy, n, p, q)));
            }
        }
    }
    for (int64_t j = 0; j < n; j++) {
        double square = 0.0;
        for (int64_t i = 0; i < n; i++) {
            square += copy[i * n + j] * copy[i * n + j];
        }
        int64_t place = j; /* in order */
        for (; place > 0 && values[place - 1] < sqrt(square); place--) {
            values[place] = values[place - 1];
        }
        values[place] = sqrt(square);
    }
}

/* product <- a b, or a b^T. */
static void multiply(const double *a, const double *b, bool transposed, int64_t n, double *product) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) {
                sum += a[i * n + k] * b[transposed ? j * n + k : k * n + j];
            }
            product[i * n + j] = sum;
        }
    }
}

void stream_matrix_compose(double *composite, const double *matrix, int64_t n) {
    double product[STREAM_MATRIX_MOST];
    multiply(matrix, composite, false, n, product);
    memcpy(composite, product, (size_t)(n * n) * sizeof *product);
}

/* The Gram matrix of the mixed streams is H G H^T. */
void stream_matrix_mix(const double *matrix, const double *gram, int64_t n, double *mixed) {
    double half[STREAM_MATRIX_MOST];
    multiply(matrix, gram, false, n, half);
    multiply(half, matrix, true, n, mixed);
}

/* The Gram matrix is symmetric and has no negative eigenvalues, so its singular values are the eigenvalues. */
double stream_matrix_effective_rank(const double *gram, int64_t n) {
    double values[RESIDUAL_MAX_STREAMS], sum = 0.0, entropy = 0.0;
    stream_matrix_singular_values(gram, n, values);
    for (int64_t i = 0; i < n; i++) {
        sum += values[i];
    }
    for (int64_t i = 0; i < n && sum > 0.0; i++) {
        const double share = values[i] / sum;
        entropy -= share > 0.0 ? share * log(share) : 0.0;
    }
    return sum > 0.0 ? exp(entropy) : 0.0;
}
