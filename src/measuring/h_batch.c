#include "src/measuring/h_batch.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 256 }; /* that one thread multiplies through all sublayers */

/* ---- a forward pass */

static int fetch(struct h_batch *batch, struct gpt *gpt) {
    const size_t h_count = batch->tokens * batch->n * (batch->n + 2),
                 gram_count = batch->tokens * batch->n * batch->n;
    for (size_t i = 0; i < batch->sublayers; i++) {
        const struct sublayer *sublayer = &gpt->sublayers[i];
        const struct buffer *gram = sublayer->gram;
        if (!gram) {
            gram = gpt->scratch.d_h;
            stream_gram(&gpt->operations, batch->tokens, sublayer->mix.streams, gram);
        }
        if (buffer_read(gpt->compute, sublayer->mix.h, 0, batch->h + i * h_count, h_count * sizeof *batch->h) ||
            buffer_read(gpt->compute, gram, 0, batch->gram + i * gram_count, gram_count * sizeof *batch->gram)) {
            return -1;
        }
    }
    return 0;
}

static void read_matrix(const struct h_batch *batch, size_t sublayer, size_t token, double *matrix) {
    const size_t n = batch->n;
    const float *h = batch->h + (sublayer * batch->tokens + token) * n * (n + 2) + 2 * n;
    for (size_t i = 0; i < n * n; i++) {
        matrix[i] = (double)h[i];
    }
}

/* A piece of work: some tokens through all sublayers. */
static int multiply_block(void *context, size_t block) {
    const struct h_batch *batch = context;
    const size_t n = batch->n, begin = block * BLOCK_TOKENS;
    const size_t end = begin + BLOCK_TOKENS < batch->tokens ? begin + BLOCK_TOKENS : batch->tokens;
    for (size_t token = begin; token < end; token++) {
        double matrix[STREAM_MATRIX_MOST], *product = batch->products + token * n * n;
        for (size_t i = 0; i < n; i++) {
            product[i * n + i] = 1.0;
        }
        for (size_t sublayer = 0; sublayer < batch->sublayers; sublayer++) {
            const size_t place = sublayer * batch->tokens + token;
            read_matrix(batch, sublayer, token, matrix);
            stream_matrix_compose(product, matrix, (int64_t)n);
            batch->norms[place] = stream_matrix_norm(matrix, (int64_t)n);
            stream_matrix_singular_values(product, (int64_t)n, batch->values + place * n);
        }
    }
    return 0;
}

int h_batch_read(struct h_batch *batch, struct gpt *gpt) {
    const size_t sublayers = (size_t)(2 * gpt->config.n_layer), n = (size_t)gpt->config.n_streams;
    const size_t tokens = gpt_tokens(gpt), blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    *batch = (struct h_batch){.sublayers = sublayers,
                              .tokens = tokens,
                              .n = n,
                              .h = memory_allocate(sublayers * tokens * n * (n + 2), sizeof *batch->h),
                              .gram = memory_allocate(sublayers * tokens * n * n, sizeof *batch->gram),
                              .norms = memory_allocate(sublayers * tokens, sizeof *batch->norms),
                              .products = memory_zeroed(tokens * n * n, sizeof *batch->products),
                              .values = memory_allocate(sublayers * tokens * n, sizeof *batch->values)};
    return fetch(batch, gpt) || parallel_run(blocks, multiply_block, batch) ? -1 : 0;
}

void h_batch_release(struct h_batch *batch) {
    free(batch->h);
    free(batch->gram);
    free(batch->norms);
    free(batch->products);
    free(batch->values);
}

/* ---- one matrix */

void h_batch_measure(const struct h_batch *batch, size_t sublayer, size_t token, struct h_measured *measured) {
    const int64_t n = (int64_t)batch->n;
    const size_t place = sublayer * batch->tokens + token, square = batch->n * batch->n;
    const bool product = sublayer == batch->sublayers;
    const double *values = batch->values + (product ? place - batch->tokens : place) * batch->n;
    double *metrics = measured->metrics;
    if (product) {
        memcpy(measured->matrix, batch->products + token * square, square * sizeof *measured->matrix);
        metrics[H_NORM] = values[0];
        metrics[H_COSINE] = metrics[H_LARGEST_SHARE] = 0.0;
    } else {
        double mixed[STREAM_MATRIX_MOST];
        read_matrix(batch, sublayer, token, measured->matrix);
        stream_matrix_mix(measured->matrix, batch->gram + place * square, n, mixed);
        metrics[H_NORM] = batch->norms[place];
        metrics[H_COSINE] = stream_matrix_cosine(mixed, n);
        metrics[H_LARGEST_SHARE] = stream_matrix_largest_share(mixed, n);
    }
    metrics[H_DISTANCE] = stream_matrix_distance(measured->matrix, n);
    metrics[H_PRODUCT_FIRST] = values[0];
    metrics[H_PRODUCT_SECOND] = values[1];
    metrics[H_PRODUCT_SMALLEST] = values[n - 1];
    measured->diagonal = stream_matrix_row_maxima(measured->matrix, n, measured->row_maxima);
    stream_matrix_sums(measured->matrix, n, measured->row_sums, measured->column_sums);
}

/* ---- many of them */

const struct h_tally h_tally_empty = {.entry = {HUGE_VAL, -HUGE_VAL},
                                      .row_sum = {HUGE_VAL, -HUGE_VAL},
                                      .column_sum = {HUGE_VAL, -HUGE_VAL},
                                      .norm = {HUGE_VAL, -HUGE_VAL}};

/* NaN stays: what is not a number is outside of every range. */
static void widen(struct range *range, double minimum, double maximum) {
    const bool wrong = isnan(minimum + maximum) || isnan(range->minimum);
    range->minimum = wrong ? (double)NAN : fmin(range->minimum, minimum);
    range->maximum = wrong ? (double)NAN : fmax(range->maximum, maximum);
}

void h_tally_add(struct h_tally *tally, const struct h_measured *measured, size_t n) {
    tally->matrices++;
    tally->entries += (double)(n * n);
    tally->diagonal += measured->diagonal;
    for (size_t i = 0; i < H_METRICS; i++) {
        tally->sums[i] += measured->metrics[i];
    }
    widen(&tally->norm, measured->metrics[H_NORM], measured->metrics[H_NORM]);
    for (size_t i = 0; i < n * n; i++) {
        tally->negative += measured->matrix[i] < 0.0;
        widen(&tally->entry, measured->matrix[i], measured->matrix[i]);
    }
    for (size_t i = 0; i < n; i++) {
        widen(&tally->row_sum, measured->row_sums[i], measured->row_sums[i]);
        widen(&tally->column_sum, measured->column_sums[i], measured->column_sums[i]);
    }
}

void h_tally_merge(struct h_tally *tally, const struct h_tally *other) {
    tally->matrices += other->matrices;
    tally->entries += other->entries;
    tally->diagonal += other->diagonal;
    tally->negative += other->negative;
    for (size_t i = 0; i < H_METRICS; i++) {
        tally->sums[i] += other->sums[i];
    }
    widen(&tally->norm, other->norm.minimum, other->norm.maximum);
    widen(&tally->entry, other->entry.minimum, other->entry.maximum);
    widen(&tally->row_sum, other->row_sum.minimum, other->row_sum.maximum);
    widen(&tally->column_sum, other->column_sum.minimum, other->column_sum.maximum);
}

double h_tally_mean(const struct h_tally *tally, enum h_metric metric) {
    return tally->sums[metric] / tally->matrices;
}
