#include "tests/support/attention_reference.h"
#include "runtime/system/error.h"
#include "runtime/system/random.h"
#include "tests/support/rounding.h"
#include <math.h>
#include <stdlib.h>

#define QUANTUM 0x1p-6 /* of the numbers drawn, which have at most 8 digits: every type has them exactly */
#define MOST    (255 * QUANTUM)

/* ---- numbers of a case */

static int draw(uint64_t key, size_t count, double deviation, enum element_type type, uint16_t **bits,
                double **values) {
    float *normals = malloc(count * sizeof(*normals));
    *bits = malloc(count * sizeof(**bits));
    *values = malloc(count * sizeof(**values));
    if (!normals || !*bits || !*values) {
        free(normals);
        return error_set("out of memory");
    }
    random_normal(key, 0, count, 0.0, deviation, normals);
    for (size_t i = 0; i < count; i++) {
        (*values)[i] = fmax(-MOST, fmin(MOST, QUANTUM * rint((double)normals[i] / QUANTUM)));
        (*bits)[i] = rounding_encode(type, (*values)[i]);
    }
    free(normals);
    return 0;
}

int attention_numbers_draw(const struct attention_case *shape, struct attention_numbers *numbers) {
    const size_t elements = shape->batch * shape->sequence * shape->heads * shape->head_size;
    *numbers = (struct attention_numbers){0};
    if (draw(shape->key, 3 * elements, shape->spread, shape->type, &numbers->qkv_bits, &numbers->qkv) ||
        draw(shape->key + 1, elements, 1.0, shape->type, &numbers->d_y_bits, &numbers->d_y)) {
        attention_numbers_free(numbers);
        return -1;
    }
    return 0;
}

void attention_numbers_free(struct attention_numbers *numbers) {
    free(numbers->qkv_bits);
    free(numbers->d_y_bits);
    free(numbers->qkv);
    free(numbers->d_y);
    *numbers = (struct attention_numbers){0};
}

/* ---- attention */

/* One head of one sequence, and the query that is computed. */
struct head {
    const struct attention_case *shape;
    const double *qkv, *d_y; /* the head's elements of token 0, and as the results */
    struct bounded *y, *lse, *d_qkv;
    size_t number;
    uint64_t first_row;        /* of token 0 in the global batch */
    double roundoff, smallest; /* u and t of the header */
    double precision;          /* h */
    double *p, *factor;        /* [T] of the query */
};

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0.0;
    for (size_t d = 0; d < count; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

static double dot_magnitude(const double *a, const double *b, size_t count) {
    double sum = 0.0;
    for (size_t d = 0; d < count; d++) {
        sum += fabs(a[d] * b[d]);
    }
    return sum;
}

/* From one token to the next in y; three times that in qkv. */
static size_t width_of(const struct head *head) {
    return head->shape->heads * head->shape->head_size;
}

/* Where part 0 (q), 1 (k) or 2 (v) of a token is in qkv. */
static size_t at(const struct head *head, size_t token, size_t part) {
    return (token * 3 + part) * width_of(head);
}

static double dropout_factor(const struct head *head, size_t query, size_t key) {
    const struct attention_case *shape = head->shape;
    const uint64_t row = head->first_row + query;
    const uint32_t element = (uint32_t)(head->number * shape->sequence + key);
    const uint32_t counter[4] = {element / 4, 0, (uint32_t)row, (uint32_t)(row >> 32)};
    const uint32_t seed[2] = {(uint32_t)shape->key, (uint32_t)(shape->key >> 32)};
    uint32_t words[4];
    random_philox(counter, seed, words);
    return (words[element % 4] >> 8) * 0x1p-24 < (double)shape->dropout ? 0.0
                                                                        : 1.0 / (1.0 - (double)shape->dropout);
}

/* What fp32 loses in a product of rows, relative to its terms' magnitudes. */
static double product_precision(const struct head *head) {
    return 0x1p-22 * (double)(head->shape->head_size + 8);
}

/* p, factors, lse, and the precision of p. */
static void query_scores(struct head *head, size_t query) {
    const size_t count = head->shape->head_size;
    const double scale = 1.0 / sqrt((double)count), *q = head->qkv + at(head, query, 0);
    double highest = -INFINITY, sum = 0.0, magnitude = 0.0;
    for (size_t k = 0; k <= query; k++) {
        const double *key = head->qkv + at(head, k, 1);
        head->p[k] = scale * dot(q, key, count);
        highest = fmax(highest, head->p[k]);
        magnitude = fmax(magnitude, scale * dot_magnitude(q, key, count));
    }
    for (size_t k = 0; k <= query; k++) {
        head->p[k] = exp(head->p[k] - highest);
        sum += head->p[k];
    }
    for (size_t k = 0; k <= query; k++) {
        head->p[k] /= sum;
        head->factor[k] = head->shape->dropout > 0.0f ? dropout_factor(head, query, k) : 1.0;
    }
    head->precision = magnitude * product_precision(head) + 0x1p-17;
    head->lse[query].value = highest + log(sum);
    head->lse[query].bound = head->precision + 0x1p-20 * fabs(head->lse[query].value);
}

/* Adds `factor` times a row, and `error` times its magnitudes to the bound. */
static void row_add(struct bounded *sum, double factor, double error, const double *row, size_t count) {
    for (size_t d = 0; d < count; d++) {
        sum[d].value += factor * row[d];
        sum[d].bound += error * fabs(row[d]);
    }
}

/* A row is done: what rounding it adds. */
static void row_finish(const struct head *head, struct bounded *row) {
    for (size_t d = 0; d < head->shape->head_size; d++) {
        row[d].bound = (1.0 + head->roundoff) * row[d].bound + head->roundoff * fabs(row[d].value) + head->smallest;
    }
}

static void query_forward(struct head *head, size_t query) {
    struct bounded *y = head->y + query * width_of(head);
    query_scores(head, query);
    for (size_t k = 0; k <= query; k++) {
        const double p = head->factor[k] * head->p[k];
        row_add(y, p, p * (head->roundoff + head->precision) + head->factor[k] * head->smallest,
                head->qkv + at(head, k, 2), head->shape->head_size);
    }
    row_finish(head, y);
}

static void query_backward(struct head *head, size_t query) {
    const size_t count = head->shape->head_size;
    const double scale = 1.0 / sqrt((double)count), u = head->roundoff, h = head->precision, t = head->smallest;
    const double *q = head->qkv + at(head, query, 0), *d_y = head->d_y + query * width_of(head);
    const struct bounded *y = head->y + query * width_of(head);
    double delta = 0.0, delta_error = 0.0;
    for (size_t d = 0; d < count; d++) {
        delta += d_y[d] * y[d].value;
        delta_error += fabs(d_y[d]) * y[d].bound;
    }
    for (size_t k = 0; k <= query; k++) {
        const double *key = head->qkv + at(head, k, 1), *value = head->qkv + at(head, k, 2);
        const double p = head->p[k], factor = head->factor[k], d_p = factor * dot(d_y, value, count);
        const double d_s = p * (d_p - delta);
        const double products = product_precision(head) * factor * dot_magnitude(d_y, value, count);
        const double error = p * (delta_error + products) + 3.0 * h * p * (fabs(d_p) + fabs(delta));
        const double rounded = scale * ((1.0 + u) * error + (u + h) * fabs(d_s) + t);
        row_add(head->d_qkv + at(head, query, 0), scale * d_s, rounded, key, count);
        row_add(head->d_qkv + at(head, k, 1), scale * d_s, rounded, q, count);
        row_add(head->d_qkv + at(head, k, 2), factor * p, factor * p * (u + 3.0 * h) + t, d_y, count);
    }
}

static void head_compute(struct head *head) {
    for (size_t query = 0; query < head->shape->sequence; query++) {
        query_forward(head, query);
        query_backward(head, query);
    }
    for (size_t token = 0; token < head->shape->sequence; token++) {
        for (size_t part = 0; part < 3; part++) {
            row_finish(head, head->d_qkv + at(head, token, part));
        }
    }
}

static void heads_compute(const struct attention_case *shape, const double *qkv, const double *d_y,
                          struct attention_results *results, double *p, double *factor) {
    const size_t width = shape->heads * shape->head_size;
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        const size_t token = i / shape->heads * shape->sequence, column = i % shape->heads * shape->head_size;
        struct head head = {
            .shape = shape,
            .qkv = qkv + token * 3 * width + column,
            .d_y = d_y + token * width + column,
            .y = results->y + token * width + column,
            .lse = results->lse + i * shape->sequence,
            .d_qkv = results->d_qkv + token * 3 * width + column,
            .number = i % shape->heads,
            .first_row = shape->first_row + token,
            .roundoff = rounding_unit(shape->type),
            .smallest = shape->type == ELEMENT_BF16 ? 0x1p-134 : 0x1p-25,
            .p = p,
            .factor = factor,
        };
        head_compute(&head);
    }
}

int attention_reference(const struct attention_case *shape, const double *qkv, const double *d_y,
                        struct attention_results *results) {
    const size_t tokens = shape->batch * shape->sequence, width = shape->heads * shape->head_size;
    *results = (struct attention_results){
        .y = calloc(tokens * width, sizeof(struct bounded)),
        .lse = calloc(tokens * shape->heads, sizeof(struct bounded)),
        .d_qkv = calloc(tokens * 3 * width, sizeof(struct bounded)),
    };
    double *p = calloc(shape->sequence, sizeof(*p)), *factor = calloc(shape->sequence, sizeof(*factor));
    const int status = results->y && results->lse && results->d_qkv && p && factor ? 0 : error_set("out of memory");
    if (status == 0) {
        heads_compute(shape, qkv, d_y, results, p, factor);
    } else {
        attention_results_free(results);
    }
    free(p);
    free(factor);
    return status;
}

void attention_results_free(struct attention_results *results) {
    free(results->y);
    free(results->lse);
    free(results->d_qkv);
    *results = (struct attention_results){0};
}
