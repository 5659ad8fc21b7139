#include "tests/support/reference.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/operations/policy.h"
#include "tests/support/freed.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* sum over all streams of z w[., column], w [S C, columns] */
static double project(const struct reference_gates *gates, const double *z, const double *w, size_t columns,
                      size_t column) {
    double sum = 0.0;
    for (size_t k = 0; k < gates->streams * gates->channels; k++) {
        sum += z[k] * w[k * columns + column];
    }
    return sum / (double)gates->streams;
}

void reference_gates_read(const struct reference_gates *gates, const double *x, double *u, double *s) {
    const size_t streams = gates->streams, c = gates->channels, row = streams * c;
    FREED double *z = calloc(row, sizeof *z), *hidden = calloc(gates->rank, sizeof *hidden);
    for (size_t k = 0; k < row; k++) {
        const double *stream = x + k / c * c;
        z[k] = x[k] / sqrt(reference_dot(c, stream, stream) / (double)c + gates->epsilon) *
               (gates->gain ? 1.0 + gates->gain[k] : 1.0);
    }
    for (size_t k = 0; k < gates->rank; k++) {
        hidden[k] = reference_silu(project(gates, z, gates->down, gates->rank, k));
    }
    for (size_t i = 0; i < streams && gates->post; i++) {
        s[i] = 2.0 / (1.0 + exp(-project(gates, z, gates->post, streams, i)));
    }
    for (size_t k = 0; k < row; k++) {
        double logit = 0.0;
        for (size_t j = 0; j < gates->rank; j++) {
            logit += hidden[j] * gates->up[j * row + k];
        }
        u[k % c] = (k < c ? 0.0 : u[k % c]) + z[k] / (1.0 + exp(-logit)) / (double)streams;
    }
}

double reference_log_sum_exp(const double *x, size_t count, size_t stride) {
    double highest = x[0], sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        highest = fmax(highest, x[i * stride]);
    }
    for (size_t i = 0; i < count; i++) {
        sum += exp(x[i * stride] - highest);
    }
    return highest + log(sum);
}

void reference_norm(const struct reference_norm *norm, size_t width, const double *x, double *y,
                    double *statistics) {
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < width && norm->kind == NORM_LAYER; i++) {
        mean += x[i] / (double)width;
    }
    for (size_t i = 0; i < width; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)width;
    }
    const double scale = 1.0 / sqrt(variance + norm->epsilon);
    for (size_t i = 0; i < width; i++) {
        y[i] = (x[i] - mean) * scale * (norm->gain ? norm->gain[i] : 1.0) + (norm->bias ? norm->bias[i] : 0.0);
    }
    if (statistics) {
        statistics[0] = mean;
        statistics[1] = scale;
    }
}

void reference_width_mix(const struct reference_norm *norm, size_t streams, size_t channels, const double *x,
                         const double *h, double *normed, double *statistics) {
    FREED double *u = malloc(channels * sizeof *u);
    for (size_t c = 0; c < channels; c++) {
        u[c] = 0.0;
        for (size_t s = 0; s < streams; s++) {
            u[c] += (h ? h[s] : 1.0) * x[s * channels + c];
        }
    }
    reference_norm(norm, channels, u, normed, statistics);
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

/* mixed [S, C / S] = matrix [S, S] x */
static void mix_fractions(size_t fractions, size_t channels, const double *matrix, const double *x, double *mixed) {
    const size_t e = channels / fractions;
    for (size_t c = 0; c < channels; c++) {
        mixed[c] = 0.0;
        for (size_t j = 0; j < fractions; j++) {
            mixed[c] += matrix[c / e * fractions + j] * x[j * e + c % e];
        }
    }
}

void reference_fractions_read(size_t fractions, size_t channels, const double *x, const double *h, double *u) {
    mix_fractions(fractions, channels, h, x, u);
}

void reference_fractions_write(size_t fractions, size_t channels, const double *x, const double *h,
                               const double *output, double *mixed) {
    const double *post = h + fractions * fractions;
    mix_fractions(fractions, channels, post + fractions, x, mixed);
    for (size_t c = 0; c < channels; c++) {
        mixed[c] += post[c * fractions / channels] * output[c];
    }
}

/* ---- branches and head */

/* What scores are multiplied by; 0 stands for 1 / sqrt(D). */
static double scale_of(double scale, size_t head_size) {
    return scale > 0.0 ? scale : 1.0 / sqrt((double)head_size);
}

/* One query of one head over `count` keys, which lie `stride` apart as the values do: p = softmax of their scores
 * times `factors` (NULL: 1), and y = sum_k p_k v_k. Returns log sum exp. */
static double attend(size_t head_size, double scale, const double *query, const double *keys, const double *values,
                     size_t stride, size_t count, const double *factors, double *p, double *y) {
    for (size_t k = 0; k < count; k++) {
        p[k] = scale_of(scale, head_size) * reference_dot(head_size, query, keys + k * stride);
    }
    const double normaliser = reference_log_sum_exp(p, count, 1);
    for (size_t k = 0; k < count; k++) {
        p[k] = exp(p[k] - normaliser) * (factors ? factors[k] : 1.0);
    }
    for (size_t d = 0; d < head_size; d++) {
        y[d] = 0.0;
        for (size_t k = 0; k < count; k++) {
            y[d] += p[k] * values[k * stride + d];
        }
    }
    return normaliser;
}

void reference_attention(const struct reference_attention *shape, const double *qkv, double *y, double *lse) {
    const size_t size = shape->head_size, sequence = shape->sequence, heads = shape->heads;
    const size_t row = (heads + 2 * shape->kv_heads) * size;
    FREED double *p = malloc(sequence * sizeof *p), *factors = malloc(sequence * sizeof *factors);
    for (size_t i = 0; i < shape->batch * heads * sequence; i++) {
        const size_t b = i / sequence / heads, head = i / sequence % heads, query = i % sequence;
        const double *rows = qkv + b * sequence * row;
        const double *keys = rows + (heads + head * shape->kv_heads / heads) * size;
        for (size_t k = 0; k <= query; k++) {
            factors[k] = reference_dropout(shape->dropout, shape->key, shape->first_row + b * sequence + query,
                                           (uint32_t)(head * sequence + k));
        }
        lse[i] = attend(size, shape->scale, rows + query * row + head * size, keys, keys + shape->kv_heads * size,
                        row, query + 1, factors, p, y + ((b * sequence + query) * heads + head) * size);
    }
}

static double frequency(const struct reference_head_rows *shape, size_t d) {
    const size_t turning = (size_t)round(shape->fraction * (double)shape->head_size / 2.0);
    if (!(shape->fraction > 0.0 && shape->fraction < 1.0)) {
        return 1.0 / pow(shape->theta, 2.0 * (double)d / (double)shape->head_size);
    }
    return d >= turning ? 0.0 : turning == 1 ? 1.0 : 1.0 / pow(shape->theta, (double)d / ((double)turning - 1.0));
}

void reference_head_rows(const struct reference_head_rows *shape, size_t position, const double *qkv,
                         double *changed) {
    const size_t size = shape->head_size, half = size / 2;
    memcpy(changed, qkv, (shape->heads + 2 * shape->kv_heads) * size * sizeof *changed);
    for (size_t head = 0; head < shape->heads + shape->kv_heads; head++) {
        double *row = changed + head * size;
        const struct reference_norm norm = {.kind = NORM_RMS,
                                            .epsilon = shape->epsilon,
                                            .gain = head < shape->heads ? shape->q_gain : shape->k_gain};
        if (shape->normed) {
            reference_norm(&norm, size, qkv + head * size, row, NULL);
        }
        for (size_t d = 0; shape->theta > 0.0 && d < half; d++) {
            const double angle = (double)position * frequency(shape, d);
            const double u = row[d], w = row[half + d];
            row[d] = u * cos(angle) - w * sin(angle);
            row[half + d] = w * cos(angle) + u * sin(angle);
        }
    }
}

/* Where the cache has a position of a head. */
static size_t cache_at(const struct reference_cache *cache, size_t row, size_t head, size_t position) {
    return ((row * cache->kv_heads + head) * cache->capacity + position) * cache->head_size;
}

void reference_cache_put(const struct reference_cache *cache, size_t row, size_t position, const double *qkv) {
    const size_t width = cache->kv_heads * cache->head_size;
    qkv += cache->heads * cache->head_size;
    for (size_t i = 0; i < width; i++) {
        const size_t at = cache_at(cache, row, i / cache->head_size, position) + i % cache->head_size;
        cache->keys[at] = qkv[i];
        cache->values[at] = qkv[width + i];
    }
}

void reference_cache_attend(const struct reference_cache *cache, size_t row, size_t position, const double *qkv,
                            double *y) {
    const size_t size = cache->head_size;
    FREED double *p = malloc((position + 1) * sizeof *p);
    for (size_t head = 0; head < cache->heads; head++) {
        const size_t at = cache_at(cache, row, head * cache->kv_heads / cache->heads, 0);
        attend(size, cache->scale, qkv + head * size, cache->keys + at, cache->values + at, size, position + 1,
               NULL, p, y + head * size);
    }
}

double reference_gelu(double x) {
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

double reference_silu(double x) {
    return x / (1.0 + exp(-x));
}

double reference_relu2(double x) {
    return x > 0.0 ? x * x : 0.0;
}

double reference_gelu_tanh(double x) {
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

double reference_capped(double s, int kind, double x) {
    return !(s > 0.0) ? x : kind == SOFTCAP_RSQRT ? s * x / sqrt(x * x + s * s) : s * tanh(x / s);
}

double reference_cross_entropy(size_t vocabulary, const double *logits, int32_t target) {
    return target < 0 ? 0.0 : reference_log_sum_exp(logits, vocabulary, 1) - logits[target];
}

/* y = x z for x [rows, inner], z [inner, columns]. */
static double *reference_product(size_t rows, size_t inner, size_t columns, const double *x, const double *z) {
    double *y = memory_zeroed(rows * columns, sizeof *y);
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < inner; k++) {
            for (size_t j = 0; j < columns; j++) {
                y[i * columns + j] += x[i * inner + k] * z[k * columns + j];
            }
        }
    }
    return y;
}

void reference_newton_schulz(size_t rows, size_t columns, int64_t steps, const float coefficients[3], double *x) {
    for (int64_t step = 0; step < steps; step++) {
        FREED double *transposed = memory_allocate(rows * columns, sizeof *transposed);
        for (size_t i = 0; i < rows * columns; i++) {
            transposed[i % columns * rows + i / columns] = x[i];
        }
        FREED double *gram = reference_product(rows, columns, rows, x, transposed);
        FREED double *square = reference_product(rows, rows, rows, gram, gram);
        for (size_t i = 0; i < rows * rows; i++) {
            gram[i] = (i / rows == i % rows ? (double)coefficients[0] : 0.0) + (double)coefficients[1] * gram[i] +
                      (double)coefficients[2] * square[i];
        }
        FREED double *next = reference_product(rows, rows, columns, gram, x);
        memcpy(x, next, rows * columns * sizeof *x);
    }
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
    *weight -= settings->rate * settings->decay * (*weight - settings->centre);
    *weight -= settings->rate * m / (sqrt(v) + 1e-8);
}

void reference_depth_read(const struct reference_depth *depth, const double *const *states, double *weights,
                          double *mixed) {
    const size_t c = depth->channels, heads = depth->heads ? depth->heads : 1, count = depth->count;
    memset(weights, 0, heads * count * sizeof *weights);
    memset(mixed, 0, c * sizeof *mixed);
    for (size_t s = 0; s < count; s++) {
        const double scale = 1.0 / sqrt(reference_dot(c, states[s], states[s]) / (double)c + depth->epsilon);
        for (size_t i = 0; i < c; i++) {
            weights[i * heads / c * count + s] +=
                depth->query[i] * (depth->gain ? depth->gain[i] : 1.0) * states[s][i] * scale;
        }
    }
    for (size_t head = 0; head < heads; head++) {
        const double sum = reference_log_sum_exp(weights + head * count, count, 1);
        for (size_t s = 0; s < count; s++) {
            weights[head * count + s] = exp(weights[head * count + s] - sum);
        }
    }
    for (size_t k = 0; k < count * c; k++) {
        mixed[k % c] += weights[k % c * heads / c * count + k / c] * states[k / c][k % c];
    }
}
