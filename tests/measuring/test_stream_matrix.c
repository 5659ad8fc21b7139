/* Singular values by one-sided Jacobi against LAPACK's. */
#include "runtime/system/random.h"
#include "src/measuring/h_measurement.h"
#include "tests/support/test.h"
#include <lapacke.h>
#include <math.h>
#include <string.h>

static void lapack_singular_values(const double *matrix, int64_t n, double *values) {
    double copy[64], work[8];
    const lapack_int size = (lapack_int)n;
    memcpy(copy, matrix, (size_t)(n * n) * sizeof *copy);
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', size, size, copy, size, values, NULL, 1, NULL, 1,
                                    work),
                     0);
}

static void check(const double *matrix, int64_t n) {
    double expected[8], values[8];
    lapack_singular_values(matrix, n, expected);
    stream_matrix_singular_values(matrix, n, values);
    for (int64_t i = 0; i < n; i++) {
        assert_true(fabs(values[i] - expected[i]) <= 1e-13 * expected[0]);
    }
}

UNIT_TEST(random_matrices_agree_with_lapack) {
    for (int64_t n = 2; n <= 8; n++) {
        for (uint64_t trial = 0; trial < 200; trial++) {
            double matrix[64];
            const uint64_t key = random_key(trial, "matrix");
            for (int64_t i = 0; i < n * n; i++) {
                matrix[i] = 2.0 * random_uniform(key, (uint64_t)i) - 1.0;
            }
            check(matrix, n);
        }
    }
}

UNIT_TEST(nearly_singular_matrices_agree_with_lapack) {
    for (int64_t n = 2; n <= 8; n++) {
        double matrix[64];
        for (int64_t i = 0; i < n * n; i++) {
            matrix[i] = 1.0 + 1e-9 * random_uniform(1, (uint64_t)i); /* rank one but for rounding */
        }
        check(matrix, n);
    }
}

static double norm_of(const double *matrix) {
    double values[8];
    stream_matrix_singular_values(matrix, 8, values);
    return values[0];
}

UNIT_TEST(zero_identity_and_diagonal_are_exact) {
    double matrix[64] = {0};
    assert_true(norm_of(matrix) == 0.0);
    for (int i = 0; i < 8; i++) {
        matrix[i * 8 + i] = 1.0;
    }
    assert_true(norm_of(matrix) == 1.0);
    matrix[3 * 8 + 3] = -5.0;
    assert_true(norm_of(matrix) == 5.0);
}

UNIT_TEST_MAIN(NULL, NULL)
