#include "src/operations/attention_sums.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a query and the keys up to it. */
struct weights {
    double *p;      /* [T] */
    double *factor; /* [T], dropout's */
};

static int weights_create(size_t sequence, struct weights *weights) {
    weights->p = malloc(2 * sequence * sizeof *weights->p);
    weights->factor = weights->p + sequence;
    return weights->p ? 0 : error_set("out of memory");
}

/* Where the row of a head begins in y, and part 0 (q), 1 (k) or 2 (v) of it in qkv. */
static size_t row_at(const struct attention_sums *sums, size_t token, size_t head) {
    return (token * sums->heads + head) * sums->head_size;
}

static size_t part_at(const struct attention_sums *sums, size_t token, size_t part, size_t head) {
    return ((token * 3 + part) * sums->heads + head) * sums->head_size;
}

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0.0;
    for (size_t d = 0; d < count; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

static void add(double factor, const double *row, size_t count, double *sum) {
    for (size_t d = 0; d < count; d++) {
        sum[d] += factor * row[d];
    }
}

/* As cl/common.cl draws it. */
static double dropout_factor(const struct attention_sums *sums, size_t head, size_t query, size_t key) {
    const struct dropout *dropout = &sums->dropout;
    const uint64_t row = dropout->first_row + query;
    const uint32_t element = (uint32_t)(head * sums->sequence + key);
    const uint32_t counter[4] = {element / 4, 0, (uint32_t)row, (uint32_t)(row >> 32)};
    const uint32_t seed[2] = {(uint32_t)dropout->key, (uint32_t)(dropout->key >> 32)};
    uint32_t words[4];
    if (dropout->rate <= 0.0f) {
        return 1.0;
    }
    random_philox(counter, seed, words);
    return (words[element % 4] >> 8) * 0x1p-24 < (double)dropout->rate ? 0.0 : 1.0 / (1.0 - (double)dropout->rate);
}

/* The weights of a query; returns its lse. */
static double weigh(const struct attention_sums *sums, size_t head, size_t query, const struct weights *weights) {
    const double scale = 1.0 / sqrt((double)sums->head_size), *q = sums->qkv + part_at(sums, query, 0, head);
    double highest = -INFINITY, total = 0.0;
    for (size_t key = 0; key <= query; key++) {
        weights->p[key] = scale * dot(q, sums->qkv + part_at(sums, key, 1, head), sums->head_size);
        highest = fmax(highest, weights->p[key]);
    }
    for (size_t key = 0; key <= query; key++) {
        total += exp(weights->p[key] - highest);
    }
    for (size_t key = 0; key <= query; key++) {
        weights->p[key] = exp(weights->p[key] - highest) / total;
        weights->factor[key] = dropout_factor(sums, head, query, key);
    }
    return highest + log(total);
}

int attention_sums_forward(const struct attention_sums *sums, double *y, double *lse) {
    struct weights weights;
    if (weights_create(sums->sequence, &weights)) {
        return -1;
    }
    memset(y, 0, sums->sequence * sums->heads * sums->head_size * sizeof *y);
    for (size_t i = 0; i < sums->heads * sums->sequence; i++) {
        const size_t head = i / sums->sequence, query = i % sums->sequence;
        lse[i] = weigh(sums, head, query, &weights);
        for (size_t key = 0; key <= query; key++) {
            add(weights.factor[key] * weights.p[key], sums->qkv + part_at(sums, key, 2, head), sums->head_size,
                y + row_at(sums, query, head));
        }
    }
    free(weights.p);
    return 0;
}

static void query_backward(const struct attention_sums *sums, size_t head, size_t query,
                           const struct weights *weights, const double *y, const double *d_y, double *d_qkv) {
    const size_t count = sums->head_size, q = part_at(sums, query, 0, head), row = row_at(sums, query, head);
    const double scale = 1.0 / sqrt((double)count), delta = dot(d_y + row, y + row, count);
    for (size_t key = 0; key <= query; key++) {
        const size_t k = part_at(sums, key, 1, head), v = part_at(sums, key, 2, head);
        const double p = weights->p[key], factor = weights->factor[key];
        const double d_s = scale * p * (factor * dot(d_y + row, sums->qkv + v, count) - delta);
        add(d_s, sums->qkv + k, count, d_qkv + q);
        add(d_s, sums->qkv + q, count, d_qkv + k);
        add(factor * p, d_y + row, count, d_qkv + v);
    }
}

int attention_sums_backward(const struct attention_sums *sums, const double *y, const double *d_y, double *d_qkv) {
    struct weights weights;
    if (weights_create(sums->sequence, &weights)) {
        return -1;
    }
    memset(d_qkv, 0, 3 * sums->sequence * sums->heads * sums->head_size * sizeof *d_qkv);
    for (size_t i = 0; i < sums->heads * sums->sequence; i++) {
        const size_t head = i / sums->sequence, query = i % sums->sequence;
        weigh(sums, head, query, &weights);
        query_backward(sums, head, query, &weights, y, d_y, d_qkv);
    }
    free(weights.p);
    return 0;
}
