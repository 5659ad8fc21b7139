#include "tests/support/reference_residual.h"
#include "runtime/system/array.h"
#include "tests/support/freed.h"
#include "tests/support/reference.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = RESIDUAL_MAX_STREAMS, BLOCK = 2, MOST_ROWS = BLOCK * MOST_STREAMS /* go_mhc has so many */ };

/* A square or tall matrix. */
struct small_matrix {
    size_t rows, columns;
    double at[MOST_ROWS][MOST_ROWS];
};

/* ---- matrices */

static struct small_matrix zero_matrix(size_t rows, size_t columns) {
    struct small_matrix matrix;
    memset(&matrix, 0, sizeof matrix);
    matrix.rows = rows;
    matrix.columns = columns;
    return matrix;
}

static struct small_matrix product(const struct small_matrix *a, const struct small_matrix *b) {
    struct small_matrix c = zero_matrix(a->rows, b->columns);
    for (size_t i = 0; i < a->rows; i++) {
        for (size_t j = 0; j < b->columns; j++) {
            for (size_t k = 0; k < a->columns; k++) {
                c.at[i][j] += a->at[i][k] * b->at[k][j];
            }
        }
    }
    return c;
}

static struct small_matrix transposed(const struct small_matrix *a) {
    struct small_matrix t = zero_matrix(a->columns, a->rows);
    for (size_t i = 0; i < a->rows; i++) {
        for (size_t j = 0; j < a->columns; j++) {
            t.at[j][i] = a->at[i][j];
        }
    }
    return t;
}

static void swap_rows(struct small_matrix *a, size_t i, size_t j) {
    for (size_t k = 0; k < a->columns; k++) {
        const double kept = a->at[i][k];
        a->at[i][k] = a->at[j][k];
        a->at[j][k] = kept;
    }
}

/* X with left X = right: Gauss-Jordan with partial pivoting. */
static struct small_matrix solve(struct small_matrix left, struct small_matrix right) {
    const size_t n = left.rows;
    for (size_t pivot = 0; pivot < n; pivot++) {
        size_t largest = pivot;
        for (size_t i = pivot + 1; i < n; i++) {
            largest = fabs(left.at[i][pivot]) > fabs(left.at[largest][pivot]) ? i : largest;
        }
        swap_rows(&left, pivot, largest);
        swap_rows(&right, pivot, largest);
        for (size_t i = 0; i < n; i++) {
            const double factor = i == pivot ? 0.0 : left.at[i][pivot] / left.at[pivot][pivot];
            for (size_t k = 0; k < n; k++) {
                left.at[i][k] -= factor * left.at[pivot][k];
                right.at[i][k] -= factor * right.at[pivot][k];
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < n; k++) {
            right.at[i][k] /= left.at[i][i];
        }
    }
    return right;
}

/* (I + A)^-1 (I - A) for the skew-symmetric A whose upper triangle, row by row, is `angles`. */
static struct small_matrix cayley(size_t size, const double *angles) {
    struct small_matrix plus = zero_matrix(size, size), minus = zero_matrix(size, size);
    for (size_t i = 0; i < size; i++) {
        for (size_t j = i + 1; j < size; j++) {
            const double a = *angles++;
            plus.at[i][j] = minus.at[j][i] = a;
            plus.at[j][i] = minus.at[i][j] = -a;
        }
        plus.at[i][i] = minus.at[i][i] = 1.0;
    }
    return solve(plus, minus);
}

/* [n, n - 1], column k (from 1): 1/sqrt(k(k+1)) in rows 1..k, -k/sqrt(k(k+1)) in row k + 1. */
static struct small_matrix helmert(size_t n) {
    struct small_matrix basis = zero_matrix(n, n - 1);
    for (size_t k = 1; k < n; k++) {
        const double norm = sqrt((double)(k * (k + 1)));
        for (size_t row = 1; row <= k; row++) {
            basis.at[row - 1][k - 1] = 1.0 / norm;
        }
        basis.at[k][k - 1] = -(double)k / norm;
    }
    return basis;
}

/* U_Z Cayley(skew(gamma tanh(tau z + b))) */
static struct small_matrix rotated_basis(size_t n, const double *z, double gamma, double tau, const double *b) {
    double angles[(MOST_STREAMS - 1) * (MOST_STREAMS - 2) / 2] = {0.0};
    for (size_t k = 0; k < (n - 1) * (n - 2) / 2; k++) {
        angles[k] = gamma * tanh(tau * z[k] + b[k]);
    }
    const struct small_matrix basis = helmert(n), rotation = cayley(n - 1, angles);
    return product(&basis, &rotation);
}

/* ---- maps */

/* The values of a leaf; NULL where the connection has none. */
static const double *leaf(const struct reference_map *map, const char *name) {
    const struct residual_leaf *leaves = map->residual->leaves;
    size_t i = 0;
    while (leaves[i].name && strcmp(leaves[i].name, name) != 0) {
        i++;
    }
    return leaves[i].name ? map->leaves[i] : NULL;
}

/* 1 where nothing depends on the token: then it multiplies z = 0, or rotations by biases alone. */
static double scalar(const struct reference_map *map, const char *name) {
    const double *value = leaf(map, name);
    return value ? *value : 1.0;
}

static double logistic(double x) {
    return x >= 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

static void shc(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams, angles = (n - 1) * (n - 2) / 2;
    const struct small_matrix u =
        rotated_basis(n, z, scalar(map, "gamma_u"), scalar(map, "tau_u"), leaf(map, "b_u"));
    const struct small_matrix v =
        rotated_basis(n, z + angles, scalar(map, "gamma_v"), scalar(map, "tau_v"), leaf(map, "b_v"));
    struct small_matrix sigma = zero_matrix(n - 1, n - 1);
    for (size_t k = 0; k + 1 < n; k++) {
        sigma.at[k][k] = tanh(scalar(map, "tau_s") * z[2 * angles + k] + leaf(map, "b_s")[k]);
    }
    const struct small_matrix scaled = product(&u, &sigma), v_transposed = transposed(&v);
    const struct small_matrix core = product(&scaled, &v_transposed);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            res[i * n + j] = 1.0 / (double)n + core.at[i][j];
        }
    }
}

static void shift_line(double *x, size_t count, size_t stride) {
    const double shift = reference_log_sum_exp(x, count, stride);
    for (size_t i = 0; i < count; i++) {
        x[i * stride] -= shift;
    }
}

/* Each line divided by its sum + eps. */
static void divide_lines(double *res, size_t n, size_t next_line, size_t next, double eps) {
    for (size_t i = 0; i < n; i++) {
        double sum = eps;
        for (size_t k = 0; k < n; k++) {
            sum += res[i * next_line + k * next];
        }
        for (size_t k = 0; k < n; k++) {
            res[i * next_line + k * next] /= sum;
        }
    }
}

/* DeepSeek-V4's, of logits whose columns sum to 1 as exponentials. */
static void divide_shifted(double *res, size_t n, size_t iterations, double eps) {
    for (size_t k = 0; k < n * n; k++) {
        res[k] = exp(res[k]) + eps;
    }
    divide_lines(res, n, n, 1, eps);
    for (size_t iteration = 1; iteration < iterations; iteration++) {
        divide_lines(res, n, 1, n, eps);
        divide_lines(res, n, n, 1, eps);
    }
}

static void mhc(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams;
    const size_t iterations = (size_t)map->settings->values[residual_setting_find("sinkhorn_iters")].number;
    for (size_t k = 0; k < n * n; k++) {
        res[k] = scalar(map, "alpha_res") * z[k] + leaf(map, "b_res")[k];
    }
    for (size_t iteration = 0; iteration < iterations; iteration++) {
        for (size_t j = 0; j < n; j++) {
            shift_line(res + j, n, n);
        }
        if (map->eps > 0.0) {
            divide_shifted(res, n, iterations, map->eps);
            return;
        }
        for (size_t i = 0; i < n; i++) {
            shift_line(res + i * n, n, 1);
        }
    }
    for (size_t k = 0; k < n * n; k++) {
        res[k] = exp(res[k]);
    }
}

static size_t factorial(size_t n) {
    return n < 2 ? 1 : n * factorial(n - 1);
}

/* The r-th permutation of 0 .. n-1 in lexicographic order, from the digits of r in the factorial number system. */
static void permutation(size_t n, size_t r, size_t *to) {
    bool used[MOST_STREAMS] = {false};
    for (size_t i = 0; i < n; i++) {
        const size_t block = factorial(n - 1 - i);
        size_t skip = r / block, value = 0;
        r %= block;
        while (used[value] || skip > 0) {
            skip -= !used[value];
            value++;
        }
        used[value] = true;
        to[i] = value;
    }
}

static void mhc_lite(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams, permutations = factorial(n);
    FREED double *logits = calloc(permutations, sizeof *logits);
    for (size_t r = 0; r < permutations; r++) {
        logits[r] = scalar(map, "alpha_res") * z[r] + leaf(map, "b_res")[r];
    }
    const double normaliser = reference_log_sum_exp(logits, permutations, 1);
    memset(res, 0, n * n * sizeof *res);
    for (size_t r = 0; r < permutations; r++) {
        size_t to[MOST_STREAMS];
        permutation(n, r, to);
        for (size_t i = 0; i < n; i++) {
            res[i * n + to[i]] += exp(logits[r] - normaliser);
        }
    }
}

static void identity(const struct reference_map *map, const double *z, double *res) {
    (void)z;
    for (size_t k = 0; k < map->streams * map->streams; k++) {
        res[k] = k / map->streams == k % map->streams ? 1.0 : 0.0;
    }
}

/* matrix_ij = alpha tanh(z_ji) + bias_ij, or the identity without biases; z_j is row j. */
static void tanh_matrix(const struct reference_map *map, size_t columns, const double *z, const char *alpha,
                        const char *bias, double *matrix) {
    const size_t n = map->streams;
    const double *b = leaf(map, bias);
    identity(map, z, matrix);
    for (size_t k = 0; b && k < n * n; k++) {
        matrix[k] = scalar(map, alpha) * tanh(z[k % n * columns + k / n]) + b[k];
    }
}

/* z_s, the normalised projections of stream s, are row s: pre, post, res[0 .. S). */
static void hc(const struct reference_map *map, size_t columns, const double *z, double *h) {
    const size_t n = map->streams;
    for (size_t s = 0; s < n; s++) {
        h[s] = scalar(map, "alpha_pre") * tanh(z[s * columns]) + leaf(map, "b_pre")[s];
        h[n + s] = scalar(map, "alpha_post") * tanh(z[s * columns + 1]) + leaf(map, "b_post")[s];
    }
    tanh_matrix(map, columns, z + 2, "alpha_res", "b_res", h + 2 * n);
}

/* Here row s is pre[0 .. S), post, res[0 .. S), and h is pre [S, S], post [S], res [S, S]. */
static void frac(const struct reference_map *map, size_t columns, const double *z, double *h) {
    const size_t n = map->streams;
    tanh_matrix(map, columns, z, "alpha_mix", "b_pre", h);
    for (size_t s = 0; s < n; s++) {
        h[n * n + s] = scalar(map, "alpha_post") * tanh(z[s * columns + n]) + leaf(map, "b_post")[s];
    }
    tanh_matrix(map, columns, z + n + 1, "alpha_mix", "b_res", h + n * (n + 1));
}

/* Each factor [[p, 1 - p], [1 - p, p]], p the first of a softmax of two, is multiplied from the right: the first is
 * outermost. */
static void krom(const struct reference_map *map, const double *z, double *res) {
    const double alpha = scalar(map, "alpha_res"), *b = leaf(map, "b_res");
    double whole[MOST_STREAMS * MOST_STREAMS] = {1.0};
    for (size_t size = 1; size < map->streams; size *= 2, z += 2, b += 2) {
        const double p = logistic(alpha * z[0] + b[0] - alpha * z[1] - b[1]);
        for (size_t i = 0; i < 2 * size; i++) {
            for (size_t j = 0; j < 2 * size; j++) {
                res[i * 2 * size + j] = whole[i / 2 * size + j / 2] * (i % 2 == j % 2 ? p : 1.0 - p);
            }
        }
        memcpy(whole, res, 4 * size * size * sizeof *res);
    }
}

static double asymmetry(size_t streams, const double *matrix) {
    double most = 0.0;
    for (size_t k = 0; k < streams * streams; k++) {
        most = fmax(most, fabs(matrix[k] - matrix[k % streams * streams + k / streams]));
    }
    return most;
}

static double circulant_share(const struct residual_settings *settings, size_t sublayers) {
    return fmin(1.0, settings->values[residual_setting_find("circulant_beta")].real / (2.0 * (double)sublayers));
}

/* The identity, and the rotations i <- i + k mod n with the shares of a softmax. */
static void circulant(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams;
    const double share = circulant_share(map->settings, map->sublayers);
    double logits[MOST_STREAMS];
    for (size_t k = 0; k < n; k++) {
        logits[k] = scalar(map, "alpha_res") * z[k] + leaf(map, "b_res")[k];
    }
    identity(map, z, res);
    for (size_t k = 0; k < n; k++) {
        const double weight = exp(logits[k] - reference_log_sum_exp(logits, n, 1));
        for (size_t i = 0; i < n; i++) {
            res[i * n + i] -= k == 0 ? share : 0.0;
            res[i * n + (i + k) % n] += share * weight;
        }
    }
}

/* Circulant matrices commute: what is one is the same along all diagonals. */
static double not_circulant(size_t streams, const double *matrix) {
    double most = 0.0;
    for (size_t i = 0; i < streams; i++) {
        for (size_t j = 0; j < streams; j++) {
            const double next = matrix[(i + 1) % streams * streams + (j + 1) % streams];
            most = fmax(most, fabs(matrix[i * streams + j] - next));
        }
    }
    return most;
}

/* Eigenvalues are (1 - g) + g w with |w| <= 1, and all have the same eigenvectors. */
static double least_of_circulants(const struct residual_settings *settings, size_t sublayers) {
    return pow(fmax(0.0, 1.0 - 2.0 * circulant_share(settings, sublayers)), (double)sublayers);
}

/* The mean of squares over the blocks of a rotation. */
static void go_mhc(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams, size = BLOCK * n;
    double angles[MOST_ROWS * (MOST_ROWS - 1) / 2];
    for (size_t k = 0; k < size * (size - 1) / 2; k++) {
        angles[k] = scalar(map, "alpha_res") * z[k] + leaf(map, "b_res")[k];
    }
    const struct small_matrix rotation = cayley(size, angles);
    memset(res, 0, n * n * sizeof *res);
    for (size_t i = 0; i < size; i++) {
        for (size_t j = 0; j < size; j++) {
            res[i / BLOCK * n + j / BLOCK] += rotation.at[i][j] * rotation.at[i][j] / BLOCK;
        }
    }
}

/* [4, 4]: column j is the product of two quaternions, u e_j or, with `right`, e_j u. */
static struct small_matrix quaternion_matrix(const double u[4], bool right) {
    static const int unit[4][4] = {{0, 1, 2, 3}, {1, 0, 3, 2}, {2, 3, 0, 1}, {3, 2, 1, 0}}; /* e_a e_b is +- this */
    static const int sign[4][4] = {{1, 1, 1, 1}, {1, -1, 1, -1}, {1, -1, -1, 1}, {1, 1, -1, -1}};
    struct small_matrix matrix = zero_matrix(4, 4);
    for (size_t a = 0; a < 4; a++) {
        for (size_t j = 0; j < 4; j++) {
            matrix.at[unit[a][j]][j] = u[a] * (right ? sign[j][a] : sign[a][j]);
        }
    }
    return matrix;
}

/* x -> q x conj(r), as a matrix */
static void ohc(const struct reference_map *map, const double *z, double *res) {
    double units[2][4];
    for (size_t k = 0; k < 8; k++) {
        units[k / 4][k % 4] = scalar(map, "alpha_res") * z[k] + leaf(map, "b_res")[k] + (k % 4 == 0 ? 1.0 : 0.0);
    }
    for (size_t k = 0; k < 2; k++) {
        double square = 1e-12;
        for (size_t i = 0; i < 4; i++) {
            square += units[k][i] * units[k][i];
        }
        for (size_t i = 0; i < 4; i++) {
            units[k][i] *= (k == 1 && i > 0 ? -1.0 : 1.0) / sqrt(square); /* the second is conjugated */
        }
    }
    const struct small_matrix left = quaternion_matrix(units[0], false), right = quaternion_matrix(units[1], true);
    const struct small_matrix both = product(&left, &right);
    for (size_t k = 0; k < 16; k++) {
        res[k] = both.at[k / 4][k % 4];
    }
}

/* By minors. */
static double determinant(const struct small_matrix *a) {
    double sum = a->rows == 1 ? a->at[0][0] : 0.0;
    for (size_t column = 0; column < a->rows && a->rows > 1; column++) {
        struct small_matrix minor = zero_matrix(a->rows - 1, a->rows - 1);
        for (size_t k = 0; k < minor.rows * minor.rows; k++) {
            const size_t i = k / minor.rows, j = k % minor.rows;
            minor.at[i][j] = a->at[i + 1][j + (j >= column)];
        }
        sum += (column % 2 ? -1.0 : 1.0) * a->at[0][column] * determinant(&minor);
    }
    return sum;
}

/* How far the determinant is from 1: rotations have no reflection. */
static double not_a_rotation(size_t streams, const double *matrix) {
    struct small_matrix a = zero_matrix(streams, streams);
    for (size_t k = 0; k < streams * streams; k++) {
        a.at[k / streams][k % streams] = matrix[k];
    }
    return fabs(determinant(&a) - 1.0);
}

/* Orthogonal matrices have no other singular values. */
static double least_of_rotations(const struct residual_settings *settings, size_t sublayers) {
    (void)settings;
    (void)sublayers;
    return 1.0;
}

static double least_of_retentions(const struct residual_settings *settings, size_t sublayers) {
    (void)settings;
    return pow(0.9, (double)sublayers);
}

/* The gates that all but hc have. */
static void gates(const struct reference_map *map, const double *z, double *h) {
    const size_t n = map->streams;
    for (size_t s = 0; s < n; s++) {
        h[s] = logistic(scalar(map, "alpha_pre") * z[s] + leaf(map, "b_pre")[s]) + map->eps;
        h[n + s] = 2.0 * logistic(scalar(map, "alpha_post") * z[n + s] + leaf(map, "b_post")[s]);
    }
}

/* No token changes it: sigmoids of its leaves, and a diagonal. */
static void wide(const struct reference_map *map, size_t columns, const double *z, double *h) {
    const size_t n = map->streams;
    const double *kept = leaf(map, "b_res");
    (void)columns;
    identity(map, z, h + 2 * n);
    for (size_t s = 0; s < n; s++) {
        h[s] = logistic(leaf(map, "b_pre")[s]) + map->eps;
        h[n + s] = 2.0 * logistic(leaf(map, "b_post")[s]);
        h[2 * n + s * (n + 1)] -= kept ? 0.1 * logistic(-kept[s]) : 0.0;
    }
}

/* Streams are not mixed, and keep nine tenths of themselves at least. */
static double not_a_retention(size_t streams, const double *matrix) {
    double most = 0.0;
    for (size_t k = 0; k < streams * streams; k++) {
        const bool diagonal = k % (streams + 1) == 0;
        most = fmax(most, diagonal ? matrix[k] - 1.0 : fabs(matrix[k]));
    }
    return most;
}

/* Every variant: H_res from the columns of z after the gates', or all of h where it has gates of its own; and what
 * the other two functions of the header say, where they say something. */
static const struct reference {
    const char *variant;
    void (*matrix)(const struct reference_map *map, const double *z, double *res);
    void (*whole)(const struct reference_map *map, size_t columns, const double *z, double *h);
    double (*structure)(size_t streams, const double *matrix);
    double (*least_singular)(const struct residual_settings *settings, size_t sublayers);
} references[] = {
    {"identity", .matrix = identity},
    {"hc", .whole = hc},
    {"mhc", .matrix = mhc},
    {"mhc_lite", .matrix = mhc_lite},
    {"shc", .matrix = shc},
    {"go_mhc", .matrix = go_mhc},
    {"circulant", .matrix = circulant, .structure = not_circulant, .least_singular = least_of_circulants},
    {"krom", .matrix = krom, .structure = asymmetry},
    {"wide", .whole = wide, .structure = not_a_retention, .least_singular = least_of_retentions},
    {"frac", .whole = frac},
    {"ohc", .matrix = ohc, .structure = not_a_rotation, .least_singular = least_of_rotations},
};

static const struct reference *reference_of(const struct residual_variant *residual) {
    for (size_t i = 0; i < COUNT(references); i++) {
        if (strcmp(references[i].variant, residual->name) == 0) {
            return &references[i];
        }
    }
    fprintf(stderr, "%s has no row in tests/support/reference_residual.c\n", residual->name);
    exit(2);
}

static void transpose_square(size_t n, double *matrix) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            const double entry = matrix[i * n + j];
            matrix[i * n + j] = matrix[j * n + i];
            matrix[j * n + i] = entry;
        }
    }
}

void reference_map_token(const struct reference_map *map, size_t columns, const double *raw, const double *squares,
                         double *z, double *h) {
    const bool per_stream = map->residual->norm_per_stream;
    double all = 0.0;
    for (size_t s = 0; s < map->streams; s++) {
        all += squares[s];
    }
    for (size_t group = 0; group < (per_stream ? map->streams : 1); group++) {
        const double length = (double)(per_stream ? map->channels : map->streams * map->channels),
                     sum = per_stream ? squares[group] : all;
        const double norm =
            map->norm_eps > 0.0 ? sqrt(sum / length + map->norm_eps) : fmax(sqrt(sum), 1e-12) / sqrt(length);
        for (size_t k = group * columns; k < (group + 1) * columns; k++) {
            z[k] = raw[k] / norm;
        }
    }
    const struct reference *reference = reference_of(map->residual);
    if (reference->whole) {
        reference->whole(map, columns, z, h);
    } else {
        gates(map, z, h);
        (map->settings->is_unmixed ? identity : reference->matrix)(map, z + 2 * map->streams, h + 2 * map->streams);
    }
    if (map->transposed) {
        transpose_square(map->streams, h + 2 * map->streams);
    }
}

double reference_structure(const struct residual_variant *residual, size_t streams, const double *matrix) {
    const struct reference *reference = reference_of(residual);
    return reference->structure ? reference->structure(streams, matrix) : 0.0;
}

double reference_least_singular(const struct residual_variant *residual, const struct residual_settings *settings,
                                size_t sublayers) {
    const struct reference *reference = reference_of(residual);
    return reference->least_singular ? reference->least_singular(settings, sublayers) : 0.0;
}

void reference_set(struct residual_settings *settings, const char *name, double value) {
    const size_t number = residual_setting_find(name);
    const struct residual_setting *setting = residual_setting_at(number, NULL);
    if (!setting) {
        fprintf(stderr, "no variant has a setting %s\n", name);
        exit(2);
    }
    if (setting->type == RESIDUAL_INT) {
        settings->values[number].number = (int64_t)value;
    } else if (setting->type == RESIDUAL_FLOAT) {
        settings->values[number].real = value;
    } else if (setting->type == RESIDUAL_CHOICE) {
        settings->values[number].choice = (int)value;
    } else {
        settings->values[number].flag = value != 0.0;
    }
}

int64_t reference_streams(const struct residual_variant *residual, int64_t wanted) {
    for (int64_t away = 0; away < RESIDUAL_MAX_STREAMS; away++) {
        if (residual_takes(residual, wanted + away) || residual_takes(residual, wanted - away)) {
            return residual_takes(residual, wanted + away) ? wanted + away : wanted - away;
        }
    }
    return 1;
}
