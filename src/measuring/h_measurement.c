#include "src/measuring/h_measurement.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include "src/model/frame.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 256 };              /* that one thread multiplies through all sublayers */
#define MOST_ROW_MAXIMA ((size_t)1 << 24) /* of all ranks together */
static const double histogram_low = -1.5, histogram_width = 0.01;

/* ---- small matrices */

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

/* ---- a forward pass */

/* Its matrices, and what pieces of work share. */
struct pass {
    struct h_measurement *measurement;
    size_t sublayers, tokens, n;
    size_t first_tokens; /* of them in the first sequence of all passes */
    size_t h_row;        /* of a token, the matrix at its end */
    float *h;            /* [sublayers, tokens, h_row] */
    float *gram;         /* [sublayers, tokens, n, n]: inner products of the streams before mixing */
    double *products;    /* [sublayers, tokens, n, n] of the matrices up to each sublayer */
};

/* A token's matrix in a sublayer. */
static void read_matrix(const struct pass *pass, size_t sublayer, size_t token, double *matrix) {
    const size_t n = pass->n;
    const float *h = pass->h + (sublayer * pass->tokens + token + 1) * pass->h_row - n * n;
    for (size_t i = 0; i < n * n; i++) {
        matrix[i] = (double)h[i];
    }
}

/* A piece of work: some tokens through all sublayers. */
static int multiply_block(void *context, size_t block) {
    const struct pass *pass = context;
    const size_t n = pass->n, begin = block * BLOCK_TOKENS;
    const size_t end = begin + BLOCK_TOKENS < pass->tokens ? begin + BLOCK_TOKENS : pass->tokens;
    for (size_t token = begin; token < end; token++) {
        double matrix[STREAM_MATRIX_MOST], product[STREAM_MATRIX_MOST] = {0};
        for (size_t i = 0; i < n; i++) {
            product[i * n + i] = 1.0;
        }
        for (size_t sublayer = 0; sublayer < pass->sublayers; sublayer++) {
            read_matrix(pass, sublayer, token, matrix);
            stream_matrix_compose(product, matrix, (int64_t)n);
            memcpy(pass->products + (sublayer * pass->tokens + token) * n * n, product, n * n * sizeof *product);
        }
    }
    return 0;
}

/* ---- one matrix */

/* Metrics of a token's streams in a sublayer, which H mixes: their inner products G become H G H^T. */
static void measure_streams(const struct pass *pass, size_t sublayer, size_t token, struct h_measured *measured) {
    const size_t n = pass->n;
    const float *stored = pass->gram + (sublayer * pass->tokens + token) * n * n;
    double gram[STREAM_MATRIX_MOST], half[STREAM_MATRIX_MOST], mixed[STREAM_MATRIX_MOST];
    double cosines = 0.0, largest = 0.0, all = 0.0;
    for (size_t i = 0; i < n * n; i++) {
        gram[i] = (double)stored[i];
    }
    multiply(measured->matrix, gram, false, (int64_t)n, half); /* the mixed streams' Gram matrix is H G H^T */
    multiply(half, measured->matrix, true, (int64_t)n, mixed);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < i; j++) {
            const double scale = sqrt(fmax(mixed[i * n + i] * mixed[j * n + j], 0.0));
            cosines += scale > 0.0 ? mixed[i * n + j] / scale : 0.0;
        }
        largest = fmax(largest, mixed[i * n + i]);
        all += mixed[i * n + i];
    }
    measured->metrics[H_COSINE] = cosines / (double)(n * (n - 1) / 2);
    measured->metrics[H_LARGEST_SHARE] = all > 0.0 ? largest / all : 0.0;
    measured->metrics[H_EFFECTIVE_RANK] = stream_matrix_effective_rank(gram, (int64_t)n);
}

/* A token's matrix in a sublayer, or, where `sublayer` is the number of sublayers, the product of all. */
static void measure_matrix(const struct pass *pass, size_t sublayer, size_t token, struct h_measured *measured) {
    const size_t n = pass->n;
    const bool is_product = sublayer == pass->sublayers;
    const double *product =
        pass->products + ((is_product ? sublayer - 1 : sublayer) * pass->tokens + token) * n * n;
    double values[RESIDUAL_MAX_STREAMS], square = 0.0;
    double *matrix = measured->matrix, *metrics = measured->metrics;
    *measured = (struct h_measured){.diagonal = true};
    if (is_product) {
        memcpy(matrix, product, n * n * sizeof *matrix);
    } else {
        read_matrix(pass, sublayer, token, matrix);
        measure_streams(pass, sublayer, token, measured);
    }
    for (size_t i = 0; i < n; i++) {
        size_t largest = 0; /* of equal ones the first */
        for (size_t j = 0; j < n; j++) {
            const double rest = matrix[i * n + j] - (i == j ? 1.0 : 0.0);
            square += rest * rest;
            measured->row_sums[i] += matrix[i * n + j];
            measured->column_sums[i] += matrix[j * n + i];
            largest = matrix[i * n + j] > matrix[i * n + largest] ? j : largest;
        }
        measured->row_maxima[i] = matrix[i * n + largest];
        measured->diagonal &= largest == i;
    }
    metrics[H_DISTANCE] = sqrt(square / (double)n);
    stream_matrix_singular_values(matrix, (int64_t)n, values);
    metrics[H_NORM] = values[0];
    measured->smallest_singular = values[n - 1];
    stream_matrix_singular_values(product, (int64_t)n, values);
    metrics[H_PRODUCT_FIRST] = values[0];
    metrics[H_PRODUCT_SECOND] = values[1];
    metrics[H_PRODUCT_SMALLEST] = values[n - 1];
}

/* ---- tallies of matrices */

const struct h_tally h_tally_empty = {.entry = {HUGE_VAL, -HUGE_VAL},
                                      .row_sum = {HUGE_VAL, -HUGE_VAL},
                                      .column_sum = {HUGE_VAL, -HUGE_VAL},
                                      .norm = {HUGE_VAL, -HUGE_VAL},
                                      .singular = {HUGE_VAL, -HUGE_VAL}};

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
    widen(&tally->singular, measured->smallest_singular, measured->metrics[H_NORM]);
    for (size_t i = 0; i < n * n; i++) {
        tally->negative += measured->matrix[i] < 0.0;
        widen(&tally->entry, measured->matrix[i], measured->matrix[i]);
    }
    for (size_t i = 0; i < n; i++) {
        widen(&tally->row_sum, measured->row_sums[i], measured->row_sums[i]);
        widen(&tally->column_sum, measured->column_sums[i], measured->column_sums[i]);
    }
}

static void tally_merge(struct h_tally *tally, const struct h_tally *other) {
    tally->matrices += other->matrices;
    tally->entries += other->entries;
    tally->diagonal += other->diagonal;
    tally->negative += other->negative;
    for (size_t i = 0; i < H_METRICS; i++) {
        tally->sums[i] += other->sums[i];
    }
    widen(&tally->norm, other->norm.minimum, other->norm.maximum);
    widen(&tally->singular, other->singular.minimum, other->singular.maximum);
    widen(&tally->entry, other->entry.minimum, other->entry.maximum);
    widen(&tally->row_sum, other->row_sum.minimum, other->row_sum.maximum);
    widen(&tally->column_sum, other->column_sum.minimum, other->column_sum.maximum);
}

double h_tally_mean(const struct h_tally *tally, enum h_metric metric) {
    return tally->sums[metric] / tally->matrices;
}

/* ---- details of checkpoints */

static void detail_begin(struct h_detail *detail) {
    *detail = (struct h_detail){.entries = {0}};
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_begin(&detail->distributions[i]);
    }
}

static void detail_end(struct h_detail *detail) {
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_end(&detail->distributions[i]);
    }
}

static int detail_add(struct h_detail *detail, const struct h_measured *measured, size_t n, bool first_sequence) {
    for (size_t i = 0; i < n * n; i++) {
        const double bin = floor((measured->matrix[i] - histogram_low) / histogram_width);
        detail->entries[(size_t)fmin(fmax(bin + 1.0, 0.0), H_BINS + 1)]++;
        detail->sum[i] += measured->matrix[i];
        detail->first_sequence[i] += first_sequence ? measured->matrix[i] : 0.0;
    }
    for (size_t i = 0; i < n; i++) {
        if (distribution_add(&detail->distributions[H_ROW_MAXIMUM], measured->row_maxima[i]) ||
            distribution_add(&detail->distributions[H_ROW_SUM], measured->row_sums[i]) ||
            distribution_add(&detail->distributions[H_COLUMN_SUM], measured->column_sums[i])) {
            return -1;
        }
    }
    return distribution_add(&detail->distributions[H_PRODUCT_NORM], measured->metrics[H_PRODUCT_FIRST]);
}

/* ---- all sublayers */

void h_measurement_begin(struct h_measurement *measurement, const struct model_config *config, bool in_detail) {
    *measurement =
        (struct h_measurement){.streams = (size_t)config->n_streams,
                               .sublayers = (size_t)(2 * config->n_layer),
                               .invariants = residual_invariants(config->residual, config->h_res_transposed),
                               .hc_eps = config->hc_eps,
                               .transposed = config->h_res_transposed,
                               .each = h_tally_empty};
    measurement->tallies = memory_allocate(measurement->sublayers + 1, sizeof *measurement->tallies);
    measurement->details =
        in_detail ? memory_allocate(measurement->sublayers + 1, sizeof *measurement->details) : NULL;
    for (size_t i = 0; i <= measurement->sublayers; i++) {
        measurement->tallies[i] = h_tally_empty;
        if (in_detail) {
            detail_begin(&measurement->details[i]);
        }
    }
}

void h_measurement_end(struct h_measurement *measurement) {
    for (size_t i = 0; measurement->details && i <= measurement->sublayers; i++) {
        detail_end(&measurement->details[i]);
    }
    free(measurement->details);
    free(measurement->tallies);
    free(measurement->row_maxima);
    *measurement = (struct h_measurement){.streams = 0};
}

/* A piece of work: all tokens of one sublayer, or of the product. */
static int add_sublayer(void *context, size_t index) {
    const struct pass *pass = context;
    struct h_measurement *measurement = pass->measurement;
    for (size_t token = 0; token < pass->tokens; token++) {
        struct h_measured measured;
        measure_matrix(pass, index, token, &measured);
        h_tally_add(&measurement->tallies[index], &measured, pass->n);
        if (!measurement->details && index < pass->sublayers) {
            memcpy(measurement->row_maxima + (index * pass->tokens + token) * pass->n, measured.row_maxima,
                   pass->n * sizeof(double));
        } else if (measurement->details &&
                   detail_add(&measurement->details[index], &measured, pass->n, token < pass->first_tokens)) {
            return index < pass->sublayers ? error_prefix("H_res of sublayer %zu", index)
                                           : error_prefix("the product of all H_res");
        }
    }
    return 0;
}

int h_measurement_add(struct h_measurement *measurement, struct gpt *gpt) {
    const size_t n = measurement->streams, tokens = gpt_tokens(gpt), rows = measurement->sublayers * tokens;
    const size_t h_row = gpt->operations.h_row;
    struct pass pass = {.measurement = measurement,
                        .sublayers = measurement->sublayers,
                        .tokens = tokens,
                        .n = n,
                        .first_tokens = measurement->tokens == 0 ? (size_t)gpt->shape.sequence : 0,
                        .h_row = h_row,
                        .h = memory_allocate(rows * h_row, sizeof *pass.h),
                        .gram = memory_allocate(rows * n * n, sizeof *pass.gram),
                        .products = memory_allocate(rows * n * n, sizeof *pass.products)};
    int result = 0;
    for (size_t i = 0; i < pass.sublayers && result == 0; i++) {
        const struct sublayer *sublayer = &gpt->sublayers[i];
        const struct buffer *gram = sublayer->gram;
        if (!gram) {
            gram = gpt->scratch.d_h;
            stream_gram(&gpt->operations, tokens, sublayer->mix.streams, gram);
        }
        result =
            buffer_read(gpt->compute, sublayer->mix.h, 0, pass.h + i * tokens * h_row,
                        tokens * h_row * sizeof *pass.h) ||
            buffer_read(gpt->compute, gram, 0, pass.gram + i * tokens * n * n, tokens * n * n * sizeof *pass.gram);
    }
    result = result || parallel_run((tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS, multiply_block, &pass) ||
             parallel_run(pass.sublayers + 1, add_sublayer, &pass);
    measurement->first_tokens += pass.first_tokens;
    measurement->tokens += tokens;
    free(pass.h);
    free(pass.gram);
    free(pass.products);
    return result ? -1 : 0;
}

/* ---- over all ranks */

/* The tallies of all ranks become one, and rank 0 gets all row maxima, for percentiles. Where these are too many,
 * each rank sends as many as its share of MOST_ROW_MAXIMA, spread evenly over its sorted ones. */
static int merge(struct h_measurement *measurement, const struct ranks *ranks) {
    const size_t count = measurement->sublayers + 1, maxima = measurement->row_maximum_count,
                 job = (size_t)ranks->count, share = MOST_ROW_MAXIMA / job, kept = maxima < share ? maxima : share;
    struct h_tally *tallies = memory_allocate(job * count, sizeof *tallies);
    double *all = memory_allocate(job * kept, sizeof *all), *values = measurement->row_maxima;
    for (size_t i = 0; i < kept; i++) {
        values[i] = values[i * maxima / kept];
    }
    const int status = ranks_gather(ranks, measurement->tallies, count * sizeof *tallies, tallies) ||
                       ranks_gather(ranks, values, kept * sizeof *all, all);
    for (size_t i = 0; status == 0 && i < count; i++) {
        measurement->tallies[i] = h_tally_empty;
        for (size_t rank = 0; rank < job; rank++) {
            tally_merge(&measurement->tallies[i], &tallies[rank * count + i]);
        }
    }
    free(tallies);
    free(values);
    measurement->row_maxima = all;
    measurement->row_maximum_count = job * kept;
    if (status == 0 && ranks->index == 0) {
        percentile_sort(all, measurement->row_maximum_count);
    }
    return status;
}

int h_measurement_of_pass(struct h_measurement *measurement, struct gpt *gpt, const struct ranks *ranks) {
    h_measurement_begin(measurement, &gpt->config, false);
    measurement->row_maximum_count = measurement->sublayers * gpt_tokens(gpt) * measurement->streams;
    measurement->row_maxima = memory_allocate(measurement->row_maximum_count, sizeof *measurement->row_maxima);
    int status = h_measurement_add(measurement, gpt);
    if (status == 0) {
        percentile_sort(measurement->row_maxima, measurement->row_maximum_count);
        status = ranks->count > 1 ? merge(measurement, ranks) : 0;
    }
    if (status) {
        h_measurement_end(measurement);
        return -1;
    }
    for (size_t i = 0; i < measurement->sublayers; i++) {
        tally_merge(&measurement->each, &measurement->tallies[i]);
    }
    const double *maxima = measurement->row_maxima;
    measurement->row_maximum_p10 = percentile(maxima, measurement->row_maximum_count, 0.1);
    measurement->row_maximum_median = percentile(maxima, measurement->row_maximum_count, 0.5);
    measurement->row_maximum_p90 = percentile(maxima, measurement->row_maximum_count, 0.9);
    return 0;
}

/* ---- invariants */

/* Of a range of sums, norms or singular values, the end that is farther from one. */
static double farthest(struct range range) {
    return fabs(range.minimum - 1.0) > fabs(range.maximum - 1.0) ? range.minimum : range.maximum;
}

/* The value that an invariant is about in a sublayer; NaN of an invariant that is not measured here. */
static double value_of(const struct h_tally *tally, enum residual_invariant invariant) {
    switch (invariant) {
    case INVARIANT_ROW_SUMS:
        return farthest(tally->row_sum);
    case INVARIANT_COLUMN_SUMS:
        return farthest(tally->column_sum);
    case INVARIANT_SPECTRAL_NORM:
        return farthest(tally->norm);
    case INVARIANT_ORTHOGONAL:
        return farthest(tally->singular);
    case INVARIANT_CONTRACTION:
        return tally->norm.maximum;
    case INVARIANT_SIGN:
        return tally->entry.minimum;
    }
    return (double)NAN;
}

/* How far that is from what it should be. NaN is as far as can be. */
static double deviation_of(enum residual_invariant invariant, double value) {
    if (isnan(value)) {
        return HUGE_VAL;
    }
    if (invariant == INVARIANT_SIGN) {
        return -value;
    }
    return invariant == INVARIANT_CONTRACTION ? value - 1.0 : fabs(value - 1.0);
}

struct h_violation h_measurement_check(const struct h_measurement *measurement, unsigned looked_for) {
    const unsigned shifted = measurement->transposed ? INVARIANT_COLUMN_SUMS : INVARIANT_ROW_SUMS;
    struct h_violation violation = {.invariant = 0};
    enum residual_invariant invariant;
    const char *name;
    for (size_t i = 0; (invariant = residual_invariant_at(i, &name)) && !violation.invariant; i++) {
        double most = RESIDUAL_TOLERANCE + (invariant == shifted ? measurement->hc_eps : 0.0);
        for (size_t k = 0; measurement->invariants & looked_for & invariant && k < measurement->sublayers; k++) {
            const double value = value_of(&measurement->tallies[k], invariant);
            if (deviation_of(invariant, value) > most) {
                most = deviation_of(invariant, value);
                violation = (struct h_violation){invariant, name, k, value};
            }
        }
    }
    return violation;
}

int depth_check(struct h_violation *violation, struct gpt *gpt, unsigned looked_for) {
    const size_t tokens = gpt_tokens(gpt), sublayers = (size_t)(BRANCHES * gpt->config.n_layer) + 1;
    struct h_measurement measurement = {.sublayers = sublayers,
                                        .invariants = gpt->config.residual->invariants,
                                        .tallies = memory_allocate(sublayers, sizeof *measurement.tallies)};
    int status = 0;
    for (size_t i = 0; i < sublayers && status == 0; i++) {
        struct h_tally *tally = &measurement.tallies[i];
        struct frame_value values[FRAME_MOST_VALUES];
        if (gpt->frame->values(gpt, (int64_t)i, values) == 0) { /* the top of dar */
            measurement.sublayers = i;
            break;
        }
        const size_t count = (size_t)values[0].shape[values[0].rank - 1];
        const size_t rows = tokens * (values[0].row / count); /* of tokens and heads */
        float *weights = memory_allocate(rows * count, sizeof *weights);
        status = buffer_read(gpt->compute, values[0].buffer, 0, weights, rows * count * sizeof *weights);
        *tally = h_tally_empty;
        for (size_t row = 0; row < rows && status == 0; row++) {
            double sum = 0.0;
            for (size_t k = 0; k < count; k++) {
                const double weight = (double)weights[row * count + k];
                sum += weight;
                widen(&tally->entry, weight, weight);
            }
            widen(&tally->row_sum, sum, sum);
        }
        free(weights);
    }
    if (status == 0) {
        *violation = h_measurement_check(&measurement, looked_for);
    }
    free(measurement.tallies);
    return status;
}

/* ---- as JSON */

json_t *h_measurement_line(const struct h_measurement *measurement, int64_t iteration) {
    static const struct {
        const char *name;
        enum h_metric metric;
    } metrics[] = {{"identity_distance", H_DISTANCE},       {"stream_cosine", H_COSINE},
                   {"largest_share", H_LARGEST_SHARE},      {"effective_rank", H_EFFECTIVE_RANK},
                   {"product_first", H_PRODUCT_FIRST},      {"product_second", H_PRODUCT_SECOND},
                   {"product_smallest", H_PRODUCT_SMALLEST}};
    const struct h_tally *each = &measurement->each, *product = &measurement->tallies[measurement->sublayers];
    json_t *json = json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:f}",
        "iter", (json_int_t)iteration, "row_max_p10", measurement->row_maximum_p10, "row_max_median",
        measurement->row_maximum_median, "row_max_p90", measurement->row_maximum_p90, "diagonal_fraction",
        each->diagonal / each->matrices, "smallest_entry", each->entry.minimum, "negative_fraction",
        each->negative / each->entries, "row_sum", each->row_sum.minimum, each->row_sum.maximum, "column_sum",
        each->column_sum.minimum, each->column_sum.maximum, "norm_mean", h_tally_mean(each, H_NORM), "norm_max",
        each->norm.maximum, "composite_norm_mean", h_tally_mean(product, H_NORM), "composite_norm_max",
        product->norm.maximum, "composite_row_sum", product->row_sum.minimum, product->row_sum.maximum,
        "composite_column_sum", product->column_sum.minimum, product->column_sum.maximum,
        "composite_identity_distance", h_tally_mean(product, H_DISTANCE));
    for (size_t i = 0; json && i < COUNT(metrics); i++) {
        json_t *means = json_array(); /* of each sublayer, null where it is not a number */
        for (size_t k = 0; k < measurement->sublayers; k++) {
            json_array_append_new(means, json_file_real(h_tally_mean(&measurement->tallies[k], metrics[i].metric)));
        }
        json_object_set_new(json, metrics[i].name, means);
    }
    return json;
}

static json_t *distribution_json(const struct h_detail *detail, size_t which) {
    const struct distribution *distribution = &detail->distributions[which];
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "min", distribution->minimum, "p10",
                     distribution_quantile(distribution, 0.1), "median", distribution_quantile(distribution, 0.5),
                     "p90", distribution_quantile(distribution, 0.9), "max", distribution->maximum, "mean",
                     distribution_mean(distribution), "deviation", distribution_deviation(distribution));
}

/* values / count as rows */
static json_t *matrix_json(const double *values, size_t n, uint64_t count) {
    json_t *rows = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_array();
        for (size_t j = 0; j < n; j++) {
            json_array_append_new(row, json_real(values[i * n + j] / (double)count));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

/* What one sublayer and all of them have in common, and the members of `more`, which it takes. */
static json_t *common_json(const struct h_tally *tally, const struct h_detail *detail, json_t *more) {
    json_t *json =
        json_pack("{s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "row_max",
                  distribution_json(detail, H_ROW_MAXIMUM), "diagonal_fraction", tally->diagonal / tally->matrices,
                  "row_sum", distribution_json(detail, H_ROW_SUM), "column_sum",
                  distribution_json(detail, H_COLUMN_SUM), "negative_fraction", tally->negative / tally->entries,
                  "smallest_entry", tally->entry.minimum, "largest_entry", tally->entry.maximum, "norm_mean",
                  h_tally_mean(tally, H_NORM), "norm_max", tally->norm.maximum, "identity_distance",
                  h_tally_mean(tally, H_DISTANCE), "stream_cosine", h_tally_mean(tally, H_COSINE), "largest_share",
                  h_tally_mean(tally, H_LARGEST_SHARE), "effective_rank", h_tally_mean(tally, H_EFFECTIVE_RANK));
    json_object_update_new(json, more);
    return json;
}

json_t *h_measurement_json(const struct h_measurement *measurement) {
    const struct h_detail *product = &measurement->details[measurement->sublayers];
    struct h_tally each = h_tally_empty;
    struct h_detail all;
    json_t *sublayers = json_array(), *counts = json_array();
    detail_begin(&all);
    for (size_t i = 0; i < measurement->sublayers; i++) {
        const struct h_tally *tally = &measurement->tallies[i];
        const struct h_detail *detail = &measurement->details[i];
        const struct distribution *norm = &detail->distributions[H_PRODUCT_NORM];
        json_t *more =
            json_pack("{s:f, s:f, s:f, s:f, s:o, s:o}", "product_norm_mean", distribution_mean(norm),
                      "product_norm_deviation", distribution_deviation(norm), "product_second_mean",
                      h_tally_mean(tally, H_PRODUCT_SECOND), "product_smallest_mean",
                      h_tally_mean(tally, H_PRODUCT_SMALLEST), "mean",
                      matrix_json(detail->sum, measurement->streams, measurement->tokens), "first_sequence",
                      matrix_json(detail->first_sequence, measurement->streams, measurement->first_tokens));
        json_array_append_new(sublayers, common_json(tally, detail, more));
        tally_merge(&each, tally);
        for (size_t bin = 0; bin < H_BINS + 2; bin++) {
            all.entries[bin] += detail->entries[bin];
        }
        for (size_t k = 0; k < H_DISTRIBUTIONS; k++) {
            distribution_merge(&all.distributions[k], &detail->distributions[k]);
        }
    }
    for (size_t bin = 1; bin <= H_BINS; bin++) {
        json_array_append_new(counts, json_integer((json_int_t)all.entries[bin]));
    }
    json_t *json = common_json(
        &each, &all,
        json_pack("{s:I, s:I, s:{s:f, s:f, s:I, s:I, s:o}, s:o, s:{s:o, s:o, s:o, s:f, s:o}}", "n_streams",
                  (json_int_t)measurement->streams, "tokens", (json_int_t)measurement->tokens, "entries", "low",
                  histogram_low, "width", histogram_width, "below", (json_int_t)all.entries[0], "above",
                  (json_int_t)all.entries[H_BINS + 1], "counts", counts, "sublayers", sublayers, "product",
                  "row_sum", distribution_json(product, H_ROW_SUM), "column_sum",
                  distribution_json(product, H_COLUMN_SUM), "norm", distribution_json(product, H_PRODUCT_NORM),
                  "identity_distance", h_tally_mean(&measurement->tallies[measurement->sublayers], H_DISTANCE),
                  "first_sequence",
                  matrix_json(product->first_sequence, measurement->streams, measurement->first_tokens)));
    detail_end(&all);
    return json;
}
