#include "src/h_statistics.h"
#include "runtime/error.h"
#include "runtime/percentile.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROW_MAXIMA ((size_t)1 << 24) /* of all ranks together */
#define MOST            (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* Turns columns p and q so that they become orthogonal. Returns their cosine before that, 0 where one of them is
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
 * here because linking LAPACK would load the host's BLAS before main, and so before it can be told not to spin. */
double h_statistics_spectral_norm(const double *matrix, int64_t n) {
    double copy[MOST], largest = 0.0, cosine = 1.0;
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
        largest = fmax(largest, sqrt(square));
    }
    return largest;
}

/* ---- one matrix after the other */

struct accumulation {
    struct h_statistics *statistics;
    int64_t streams;
    double *row_maxima;
    size_t row_maxima_count;
    double matrices, diagonal, negative, composites; /* counts; double holds them and is what ranks add */
    double norm_sum, composite_norm_sum;
};

static void widen(struct range *range, double value) {
    range->minimum = fmin(range->minimum, value);
    range->maximum = fmax(range->maximum, value);
}

static void add_sums(const double *matrix, int64_t n, struct range *rows, struct range *columns) {
    for (int64_t i = 0; i < n; i++) {
        double row = 0.0, column = 0.0;
        for (int64_t j = 0; j < n; j++) {
            row += matrix[i * n + j];
            column += matrix[j * n + i];
        }
        widen(rows, row);
        widen(columns, column);
    }
}

static void add_matrix(struct accumulation *sums, const double *matrix) {
    const int64_t n = sums->streams;
    struct h_statistics *statistics = sums->statistics;
    bool diagonal = true;
    for (int64_t i = 0; i < n; i++) {
        int64_t largest = 0;
        for (int64_t j = 0; j < n; j++) {
            const double entry = matrix[i * n + j];
            largest = entry > matrix[i * n + largest] ? j : largest;
            sums->negative += entry < 0.0;
            statistics->smallest_entry = fmin(statistics->smallest_entry, entry);
        }
        diagonal &= largest == i;
        sums->row_maxima[sums->row_maxima_count++] = matrix[i * n + largest];
    }
    const double norm = h_statistics_spectral_norm(matrix, n);
    sums->matrices++;
    sums->diagonal += diagonal;
    sums->norm_sum += norm;
    statistics->norm_maximum = fmax(statistics->norm_maximum, norm);
    add_sums(matrix, n, &statistics->row_sum, &statistics->column_sum);
}

/* composite <- matrix composite: later sublayers act from the left. */
static void compose(double *composite, const double *matrix, int64_t n) {
    double product[MOST];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < n; k++) {
                sum += matrix[i * n + k] * composite[k * n + j];
            }
            product[i * n + j] = sum;
        }
    }
    memcpy(composite, product, (size_t)(n * n) * sizeof *product);
}

/* Mean over pairs of the cosines of the mixed streams, whose Gram matrix is H G H^T. */
static double mixed_cosine(const double *matrix, const float *gram, int64_t n) {
    double half[MOST], mixed[MOST];
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            half[i * n + j] = 0.0;
            for (int64_t k = 0; k < n; k++) {
                half[i * n + j] += matrix[i * n + k] * (double)gram[k * n + j];
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            mixed[i * n + j] = 0.0;
            for (int64_t k = 0; k < n; k++) {
                mixed[i * n + j] += half[i * n + k] * matrix[j * n + k];
            }
        }
    }
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < i; j++) {
            const double scale = sqrt(fmax(mixed[i * n + i] * mixed[j * n + j], 0.0));
            sum += scale > 0.0 ? mixed[i * n + j] / scale : 0.0;
        }
    }
    return sum / (double)(n * (n - 1) / 2);
}

/* ---- all sublayers */

struct host_copies {
    float *h, *gram;    /* of one sublayer */
    double *composites; /* [N, S, S] */
};

static int add_sublayer(struct gpt *gpt, struct accumulation *sums, const struct host_copies *host, int64_t index) {
    const size_t tokens = gpt_tokens(gpt), n = (size_t)sums->streams, row = n * (n + 2);
    const struct buffer *gram = gpt->sublayers[index].gram;
    if (!gram) {
        gram = gpt->scratch.d_h;
        stream_gram(&gpt->operations, tokens, gpt->sublayers[index].streams, gram);
    }
    if (buffer_read(gpt->compute, gpt->sublayers[index].h, 0, host->h, tokens * row * sizeof *host->h) ||
        buffer_read(gpt->compute, gram, 0, host->gram, tokens * n * n * sizeof *host->gram)) {
        return -1;
    }
    double cosine = 0.0;
    for (size_t token = 0; token < tokens; token++) {
        double matrix[MOST];
        for (size_t i = 0; i < n * n; i++) {
            matrix[i] = (double)host->h[token * row + 2 * n + i];
        }
        add_matrix(sums, matrix);
        compose(host->composites + token * n * n, matrix, sums->streams);
        cosine += mixed_cosine(matrix, host->gram + token * n * n, sums->streams);
    }
    sums->statistics->cosine[index] = cosine / (double)tokens;
    return 0;
}

static void add_composites(struct accumulation *sums, const double *composites, size_t tokens) {
    struct h_statistics *statistics = sums->statistics;
    const int64_t n = sums->streams;
    for (size_t token = 0; token < tokens; token++) {
        const double *composite = composites + token * (size_t)(n * n);
        const double norm = h_statistics_spectral_norm(composite, n);
        sums->composites++;
        sums->composite_norm_sum += norm;
        statistics->composite_norm_maximum = fmax(statistics->composite_norm_maximum, norm);
        add_sums(composite, n, &statistics->composite_row_sum, &statistics->composite_column_sum);
    }
}

/* ---- over all ranks */

/* Every rank's cosines and sums are added up, and ranks counted. */
static int merge_sums(struct accumulation *sums, const struct ranks *ranks) {
    double *counts[] = {&sums->matrices, &sums->diagonal,   &sums->negative,
                        &sums->norm_sum, &sums->composites, &sums->composite_norm_sum};
    const size_t plain = sizeof counts / sizeof *counts, cosines = (size_t)sums->statistics->sublayers;
    double *all = calloc(plain + cosines, sizeof *all);
    if (!all) {
        return error_set("out of memory for H statistics");
    }
    for (size_t i = 0; i < plain; i++) {
        all[i] = *counts[i];
    }
    memcpy(all + plain, sums->statistics->cosine, cosines * sizeof *all);
    const int status = ranks_sum(ranks, all, plain + cosines);
    for (size_t i = 0; i < plain; i++) {
        *counts[i] = all[i];
    }
    for (size_t i = 0; i < cosines; i++) {
        sums->statistics->cosine[i] = all[plain + i] / ranks->count;
    }
    free(all);
    return status;
}

/* Extremes: each rank's, least ones with their sign turned, so that all are largest ones. */
static int merge_extremes(struct h_statistics *statistics, const struct ranks *ranks) {
    struct range *sums[] = {&statistics->row_sum, &statistics->column_sum, &statistics->composite_row_sum,
                            &statistics->composite_column_sum};
    double own[11] = {-statistics->smallest_entry, statistics->norm_maximum, statistics->composite_norm_maximum};
    double *all = calloc((size_t)ranks->count, sizeof own);
    for (size_t i = 0; i < 4; i++) {
        own[3 + 2 * i] = -sums[i]->minimum;
        own[4 + 2 * i] = sums[i]->maximum;
    }
    const int status =
        all ? ranks_gather(ranks, own, sizeof own, all) : error_set("out of memory for H statistics");
    for (size_t i = 0; status == 0 && i < (size_t)ranks->count * 11; i++) {
        own[i % 11] = fmax(own[i % 11], all[i]);
    }
    free(all);
    statistics->smallest_entry = -own[0];
    statistics->norm_maximum = own[1];
    statistics->composite_norm_maximum = own[2];
    for (size_t i = 0; i < 4; i++) {
        *sums[i] = (struct range){-own[3 + 2 * i], own[4 + 2 * i]};
    }
    return status;
}

/* Rank 0 needs all ranks' row maxima for percentiles. Where they are too many, each rank sends as many as there is
 * room for, spread evenly over its sorted ones. */
static int merge_row_maxima(struct accumulation *sums, const struct ranks *ranks) {
    const size_t room = MOST_ROW_MAXIMA / (size_t)ranks->count;
    const size_t kept = sums->row_maxima_count < room ? sums->row_maxima_count : room;
    double *all = malloc((size_t)ranks->count * kept * sizeof *all);
    if (!all) {
        return error_set("out of memory for H statistics");
    }
    for (size_t i = 0; i < kept; i++) {
        sums->row_maxima[i] = sums->row_maxima[i * sums->row_maxima_count / kept];
    }
    const int status = ranks_gather(ranks, sums->row_maxima, kept * sizeof *all, all);
    free(sums->row_maxima);
    sums->row_maxima = all;
    sums->row_maxima_count = (size_t)ranks->count * kept;
    return status;
}

static int merge(struct accumulation *sums, const struct ranks *ranks) {
    percentile_sort(sums->row_maxima, sums->row_maxima_count);
    if (ranks->count == 1) {
        return 0;
    }
    if (merge_sums(sums, ranks) || merge_extremes(sums->statistics, ranks) || merge_row_maxima(sums, ranks)) {
        return -1;
    }
    if (ranks->index == 0) {
        percentile_sort(sums->row_maxima, sums->row_maxima_count);
    }
    return 0;
}

static void conclude(const struct accumulation *sums) {
    struct h_statistics *statistics = sums->statistics;
    const double entries = (double)(sums->streams * sums->streams);
    statistics->row_maximum_p10 = percentile(sums->row_maxima, sums->row_maxima_count, 0.1);
    statistics->row_maximum_median = percentile(sums->row_maxima, sums->row_maxima_count, 0.5);
    statistics->row_maximum_p90 = percentile(sums->row_maxima, sums->row_maxima_count, 0.9);
    statistics->diagonal_fraction = sums->diagonal / sums->matrices;
    statistics->negative_fraction = sums->negative / (sums->matrices * entries);
    statistics->norm_mean = sums->norm_sum / sums->matrices;
    statistics->composite_norm_mean = sums->composite_norm_sum / sums->composites;
}

static int gather(struct gpt *gpt, struct accumulation *sums, const struct host_copies *host) {
    const size_t tokens = gpt_tokens(gpt), n = (size_t)sums->streams;
    for (size_t i = 0; i < tokens * n * n; i++) {
        host->composites[i] = i % (n * n) / n == i % n ? 1.0 : 0.0;
    }
    for (int64_t index = 0; index < 2 * gpt->config.n_layer; index++) {
        if (add_sublayer(gpt, sums, host, index)) {
            return -1;
        }
    }
    add_composites(sums, host->composites, tokens);
    if (merge(sums, gpt->options.ranks)) {
        return -1;
    }
    conclude(sums);
    return 0;
}

int h_statistics_compute(struct gpt *gpt, struct h_statistics *statistics) {
    const struct range empty = {HUGE_VAL, -HUGE_VAL};
    const size_t tokens = gpt_tokens(gpt), n = (size_t)gpt->config.n_streams;
    const int64_t sublayers = 2 * gpt->config.n_layer;
    *statistics = (struct h_statistics){.smallest_entry = HUGE_VAL,
                                        .row_sum = empty,
                                        .column_sum = empty,
                                        .composite_row_sum = empty,
                                        .composite_column_sum = empty,
                                        .cosine = calloc((size_t)sublayers, sizeof(double)),
                                        .sublayers = sublayers};
    struct accumulation sums = {.statistics = statistics,
                                .streams = gpt->config.n_streams,
                                .row_maxima = calloc((size_t)sublayers * tokens * n, sizeof(double))};
    struct host_copies host = {.h = malloc(tokens * n * (n + 2) * sizeof(float)),
                               .gram = malloc(tokens * n * n * sizeof(float)),
                               .composites = malloc(tokens * n * n * sizeof(double))};
    int status = -1;
    if (statistics->cosine && sums.row_maxima && host.h && host.gram && host.composites) {
        status = gather(gpt, &sums, &host);
    } else {
        error_set("out of memory for H statistics");
    }
    free(sums.row_maxima);
    free(host.h);
    free(host.gram);
    free(host.composites);
    if (status) {
        h_statistics_release(statistics);
    }
    return status;
}

void h_statistics_release(struct h_statistics *statistics) {
    free(statistics->cosine);
    statistics->cosine = NULL;
}

static json_t *range_json(struct range range) {
    return json_pack("[f, f]", range.minimum, range.maximum);
}

char *h_statistics_json(const struct h_statistics *statistics, int64_t iteration) {
    json_t *cosine = json_array();
    for (int64_t i = 0; i < statistics->sublayers; i++) {
        json_array_append_new(cosine, json_real(statistics->cosine[i]));
    }
    json_t *json =
        json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:o, s:o, s:o}", "iter",
                  (json_int_t)iteration, "row_max_p10", statistics->row_maximum_p10, "row_max_median",
                  statistics->row_maximum_median, "row_max_p90", statistics->row_maximum_p90, "diagonal_fraction",
                  statistics->diagonal_fraction, "smallest_entry", statistics->smallest_entry, "negative_fraction",
                  statistics->negative_fraction, "row_sum", range_json(statistics->row_sum), "column_sum",
                  range_json(statistics->column_sum), "norm_mean", statistics->norm_mean, "norm_max",
                  statistics->norm_maximum, "composite_norm_mean", statistics->composite_norm_mean,
                  "composite_norm_max", statistics->composite_norm_maximum, "composite_row_sum",
                  range_json(statistics->composite_row_sum), "composite_column_sum",
                  range_json(statistics->composite_column_sum), "stream_cosine", cosine);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    return text;
}
