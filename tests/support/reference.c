#include "tests/support/reference.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STREAMS = 8 };

/* A square or tall matrix of at most 8 x 8. */
struct small_matrix {
    size_t rows, columns;
    double at[MOST_STREAMS][MOST_STREAMS];
};

double reference_dropout(float rate, uint64_t key, uint64_t row, uint32_t element) {
    if (rate == 0.0f) {
        return 1.0;
    }
    const uint32_t counter[4] = {element / 4, 0, (uint32_t)row, (uint32_t)(row >> 32)};
    const uint32_t keys[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    uint32_t words[4];
    random_philox(counter, keys, words);
    const double uniform = (double)(words[element % 4] >> 8) / 16777216.0;
    return uniform < (double)rate ? 0.0 : 1.0 / (1.0 - (double)rate);
}

double reference_dot(size_t count, const double *a, const double *b) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

void reference_layer_norm(size_t width, const double *x, const double *gain, const double *bias, double *y,
                          double statistics[2]) {
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < width; i++) {
        mean += x[i] / (double)width;
    }
    for (size_t i = 0; i < width; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)width;
    }
    const double scale = 1.0 / sqrt(variance + 1e-5);
    for (size_t i = 0; i < width; i++) {
        y[i] = (x[i] - mean) * scale * gain[i] + (bias ? bias[i] : 0.0);
    }
    statistics[0] = mean;
    statistics[1] = scale;
}

/* ---- hyper-connections */

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

static void shc(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams, angles = (n - 1) * (n - 2) / 2;
    const struct reference_theta *theta = &map->theta;
    const struct small_matrix u = rotated_basis(n, z, *theta->gamma_u, *theta->tau_u, theta->b_u);
    const struct small_matrix v = rotated_basis(n, z + angles, *theta->gamma_v, *theta->tau_v, theta->b_v);
    struct small_matrix sigma = zero_matrix(n - 1, n - 1);
    for (size_t k = 0; k + 1 < n; k++) {
        sigma.at[k][k] = tanh(*theta->tau_s * z[2 * angles + k] + theta->b_s[k]);
    }
    const struct small_matrix scaled = product(&u, &sigma), v_transposed = transposed(&v);
    const struct small_matrix core = product(&scaled, &v_transposed);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            res[i * n + j] = 1.0 / (double)n + core.at[i][j];
        }
    }
}

/* log sum exp over `count` numbers `stride` apart */
static double log_sum_exp(const double *x, size_t count, size_t stride) {
    double highest = x[0], sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        highest = fmax(highest, x[i * stride]);
    }
    for (size_t i = 0; i < count; i++) {
        sum += exp(x[i * stride] - highest);
    }
    return highest + log(sum);
}

static void shift_line(double *x, size_t count, size_t stride) {
    const double shift = log_sum_exp(x, count, stride);
    for (size_t i = 0; i < count; i++) {
        x[i * stride] -= shift;
    }
}

static void mhc(const struct reference_map *map, const double *z, double *res) {
    const size_t n = map->streams;
    for (size_t k = 0; k < n * n; k++) {
        res[k] = *map->theta.alpha_res * z[k] + map->theta.b_res[k];
    }
    for (size_t iteration = 0; iteration < map->iterations; iteration++) {
        for (size_t j = 0; j < n; j++) {
            shift_line(res + j, n, n);
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
    double *logits = malloc(permutations * sizeof *logits);
    for (size_t r = 0; r < permutations; r++) {
        logits[r] = *map->theta.alpha_res * z[r] + map->theta.b_res[r];
    }
    const double normaliser = log_sum_exp(logits, permutations, 1);
    memset(res, 0, n * n * sizeof *res);
    for (size_t r = 0; r < permutations; r++) {
        size_t to[MOST_STREAMS];
        permutation(n, r, to);
        for (size_t i = 0; i < n; i++) {
            res[i * n + to[i]] += exp(logits[r] - normaliser);
        }
    }
    free(logits);
}

/* z_s, the normalised projections of stream s, are row s: pre, post, res[0 .. S). */
static void hc(const struct reference_map *map, size_t columns, const double *z, double *h) {
    const size_t n = map->streams;
    const struct reference_theta *theta = &map->theta;
    for (size_t s = 0; s < n; s++) {
        h[s] = *theta->alpha_pre * tanh(z[s * columns]) + theta->b_pre[s];
        h[n + s] = *theta->alpha_post * tanh(z[s * columns + 1]) + theta->b_post[s];
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            h[2 * n + i * n + j] = *theta->alpha_res * tanh(z[j * columns + 2 + i]) + theta->b_res[i * n + j];
        }
    }
}

static void identity(const struct reference_map *map, double *res) {
    for (size_t k = 0; k < map->streams * map->streams; k++) {
        res[k] = k / map->streams == k % map->streams ? 1.0 : 0.0;
    }
}

static double logistic(double x) {
    return x >= 0.0 ? 1.0 / (1.0 + exp(-x)) : exp(x) / (1.0 + exp(x));
}

static void gates_and_matrix(const struct reference_map *map, const double *z, double *h) {
    const size_t n = map->streams;
    const struct reference_theta *theta = &map->theta;
    for (size_t s = 0; s < n; s++) {
        h[s] = logistic(*theta->alpha_pre * z[s] + theta->b_pre[s]);
        h[n + s] = 2.0 * logistic(*theta->alpha_post * z[n + s] + theta->b_post[s]);
    }
    if (strcmp(map->variant, "mhc") == 0) {
        mhc(map, z + 2 * n, h + 2 * n);
    } else if (strcmp(map->variant, "mhc_lite") == 0) {
        mhc_lite(map, z + 2 * n, h + 2 * n);
    } else if (strcmp(map->variant, "shc") == 0) {
        shc(map, z + 2 * n, h + 2 * n);
    } else {
        identity(map, h + 2 * n);
    }
}

void reference_map_token(const struct reference_map *map, size_t columns, const double *raw, const double *squares,
                         double *z, double *h) {
    const bool per_stream = strcmp(map->variant, "hc") == 0;
    double all = 0.0;
    for (size_t s = 0; s < map->streams; s++) {
        all += squares[s];
    }
    for (size_t group = 0; group < (per_stream ? map->streams : 1); group++) {
        const double mean_square =
            per_stream ? squares[group] / (double)map->channels : all / (double)(map->streams * map->channels);
        for (size_t k = group * columns; k < (group + 1) * columns; k++) {
            z[k] = raw[k] / sqrt(mean_square + 1e-6);
        }
    }
    if (per_stream) {
        hc(map, columns, z, h);
    } else {
        gates_and_matrix(map, z, h);
    }
}

void reference_width_mix(size_t streams, size_t channels, const double *x, const double *h, const double *gain,
                         const double *bias, double *normed, double statistics[2]) {
    double *u = malloc(channels * sizeof *u);
    for (size_t c = 0; c < channels; c++) {
        u[c] = 0.0;
        for (size_t s = 0; s < streams; s++) {
            u[c] += (h ? h[s] : 1.0) * x[s * channels + c];
        }
    }
    reference_layer_norm(channels, u, gain, bias, normed, statistics);
    free(u);
}

void reference_depth_mix(size_t streams, size_t channels, const double *x, const double *h, const double *output,
                         double *mixed) {
    for (size_t i = 0; i < streams; i++) {
        for (size_t c = 0; c < channels; c++) {
            double sum = (h ? h[streams + i] : 1.0) * output[c];
            for (size_t j = 0; j < streams; j++) {
                sum += (h ? h[2 * streams + i * streams + j] : 1.0) * x[j * channels + c];
            }
            mixed[i * channels + c] = sum;
        }
    }
}

/* ---- branches and head */

/* One query of one head: p = softmax over keys 0 .. query, then y = sum_k factor p_k v_k. Returns log sum exp. */
static double attend(const struct reference_attention *shape, const double *qkv, size_t b, size_t head,
                     size_t query, double *p, double *y) {
    const size_t width = shape->heads * shape->head_size, column = head * shape->head_size;
    const double *rows = qkv + b * shape->sequence * 3 * width;
    for (size_t k = 0; k <= query; k++) {
        p[k] = reference_dot(shape->head_size, rows + query * 3 * width + column,
                             rows + k * 3 * width + width + column) /
               sqrt((double)shape->head_size);
    }
    const double normaliser = log_sum_exp(p, query + 1, 1);
    for (size_t k = 0; k <= query; k++) {
        const double factor =
            reference_dropout(shape->dropout, shape->key, shape->first_row + b * shape->sequence + query,
                              (uint32_t)(head * shape->sequence + k));
        p[k] = exp(p[k] - normaliser) * factor;
    }
    for (size_t d = 0; d < shape->head_size; d++) {
        y[d] = 0.0;
        for (size_t k = 0; k <= query; k++) {
            y[d] += p[k] * rows[k * 3 * width + 2 * width + column + d];
        }
    }
    return normaliser;
}

void reference_attention(const struct reference_attention *shape, const double *qkv, double *y, double *lse) {
    double *p = malloc(shape->sequence * sizeof *p);
    for (size_t b = 0; b < shape->batch; b++) {
        for (size_t head = 0; head < shape->heads; head++) {
            for (size_t query = 0; query < shape->sequence; query++) {
                const size_t token = b * shape->sequence + query;
                lse[(b * shape->heads + head) * shape->sequence + query] =
                    attend(shape, qkv, b, head, query, p, y + (token * shape->heads + head) * shape->head_size);
            }
        }
    }
    free(p);
}

/* Where the cache has a position of a head. */
static size_t cache_at(const struct reference_cache *cache, size_t row, size_t head, size_t position) {
    return ((row * cache->heads + head) * cache->capacity + position) * cache->head_size;
}

void reference_cache_put(const struct reference_cache *cache, size_t row, size_t position, const double *qkv) {
    const size_t width = cache->heads * cache->head_size;
    for (size_t i = 0; i < width; i++) {
        const size_t at = cache_at(cache, row, i / cache->head_size, position) + i % cache->head_size;
        cache->keys[at] = qkv[width + i];
        cache->values[at] = qkv[2 * width + i];
    }
}

void reference_cache_attend(const struct reference_cache *cache, size_t row, size_t position, const double *qkv,
                            double *y) {
    double *p = malloc((position + 1) * sizeof *p);
    for (size_t head = 0; head < cache->heads; head++) {
        for (size_t k = 0; k <= position; k++) {
            p[k] = reference_dot(cache->head_size, qkv + head * cache->head_size,
                                 cache->keys + cache_at(cache, row, head, k)) /
                   sqrt((double)cache->head_size);
        }
        const double normaliser = log_sum_exp(p, position + 1, 1);
        for (size_t d = 0; d < cache->head_size; d++) {
            double sum = 0.0;
            for (size_t k = 0; k <= position; k++) {
                sum += exp(p[k] - normaliser) * cache->values[cache_at(cache, row, head, k) + d];
            }
            y[head * cache->head_size + d] = sum;
        }
    }
    free(p);
}

double reference_gelu(double x) {
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

double reference_gelu_tanh(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

double reference_cross_entropy(size_t vocabulary, const double *logits, int32_t target) {
    return target < 0 ? 0.0 : log_sum_exp(logits, vocabulary, 1) - logits[target];
}

void reference_adamw(const struct reference_adamw *settings, double gradient, double *weight, double *first,
                     double *second) {
    if (!isfinite(settings->norm)) {
        return;
    }
    const double clipped = settings->clip / (settings->norm + 1e-6);
    const double g = gradient * (settings->clip > 0.0 ? fmin(1.0, clipped) : 1.0);
    *first = settings->beta1 * *first + (1.0 - settings->beta1) * g;
    *second = settings->beta2 * *second + (1.0 - settings->beta2) * g * g;
    const double m = *first / (1.0 - pow(settings->beta1, (double)settings->step));
    const double v = *second / (1.0 - pow(settings->beta2, (double)settings->step));
    *weight -= settings->rate * settings->decay * *weight;
    *weight -= settings->rate * m / (sqrt(v) + 1e-8);
}
