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

double stream_matrix_norm(const double *matrix, int64_t n) {
    double values[RESIDUAL_MAX_STREAMS];
    stream_matrix_singular_values(matrix, n, values);
    return values[0];
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

double stream_matrix_distance(const double *matrix, int64_t n) {
    double square = 0.0;
    for (int64_t i = 0; i < n * n; i++) {
        const double rest = matrix[i] - (i % (n + 1) == 0 ? 1.0 : 0.0);
        square += rest * rest;
    }
    return sqrt(square / (double)n);
}

/* The Gram matrix of the mixed streams is H G H^T. */
void stream_matrix_mix(const double *matrix, const double *gram, int64_t n, double *mixed) {
    double half[STREAM_MATRIX_MOST];
    multiply(matrix, gram, false, n, half);
    multiply(half, matrix, true, n, mixed);
}

double stream_matrix_cosine(const double *mixed, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < i; j++) {
            const double scale = sqrt(fmax(mixed[i * n + i] * mixed[j * n + j], 0.0));
            sum += scale > 0.0 ? mixed[i * n + j] / scale : 0.0;
        }
    }
    return sum / (double)(n * (n - 1) / 2);
}

double stream_matrix_largest_share(const double *mixed, int64_t n) {
    double largest = 0.0, all = 0.0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, mixed[i * n + i]);
        all += mixed[i * n + i];
    }
    return all > 0.0 ? largest / all : 0.0;
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

void stream_matrix_sums(const double *matrix, int64_t n, double *rows, double *columns) {
    for (int64_t i = 0; i < n; i++) {
        rows[i] = columns[i] = 0.0;
        for (int64_t j = 0; j < n; j++) {
            rows[i] += matrix[i * n + j];
            columns[i] += matrix[j * n + i];
        }
    }
}

bool stream_matrix_row_maxima(const double *matrix, int64_t n, double *maxima) {
    bool diagonal = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t largest = 0;
        for (int64_t j = 0; j < n; j++) {
            largest = matrix[i * n + j] > matrix[i * n + largest] ? j : largest;
        }
        diagonal &= largest == i;
        maxima[i] = matrix[i * n + largest];
    }
    return diagonal;
}
