#include "src/measuring/h_statistics.h"
#include "runtime/system/error.h"
#include "runtime/system/percentile.h"
#include "src/measuring/stream_matrix.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ROW_MAXIMA ((size_t)1 << 24) /* of all ranks together */
#define MOST            (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

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
    double row_sums[RESIDUAL_MAX_STREAMS], column_sums[RESIDUAL_MAX_STREAMS];
    stream_matrix_sums(matrix, n, row_sums, column_sums);
    for (int64_t i = 0; i < n; i++) {
        widen(rows, row_sums[i]);
        widen(columns, column_sums[i]);
    }
}

static void add_matrix(struct accumulation *sums, const double *matrix) {
    const int64_t n = sums->streams;
    struct h_statistics *statistics = sums->statistics;
    for (int64_t i = 0; i < n * n; i++) {
        sums->negative += matrix[i] < 0.0;
        statistics->smallest_entry = fmin(statistics->smallest_entry, matrix[i]);
    }
    const double norm = stream_matrix_norm(matrix, n);
    sums->matrices++;
    sums->diagonal += stream_matrix_row_maxima(matrix, n, sums->row_maxima + sums->row_maxima_count);
    sums->row_maxima_count += (size_t)n;
    sums->norm_sum += norm;
    statistics->norm_maximum = fmax(statistics->norm_maximum, norm);
    add_sums(matrix, n, &statistics->row_sum, &statistics->column_sum);
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
        stream_gram(&gpt->operations, tokens, gpt->sublayers[index].mix.streams, gram);
    }
    if (buffer_read(gpt->compute, gpt->sublayers[index].mix.h, 0, host->h, tokens * row * sizeof *host->h) ||
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
        stream_matrix_compose(host->composites + token * n * n, matrix, sums->streams);
        cosine += stream_matrix_cosine(matrix, host->gram + token * n * n, sums->streams);
    }
    sums->statistics->cosine[index] = cosine / (double)tokens;
    return 0;
}

static void add_composites(struct accumulation *sums, const double *composites, size_t tokens) {
    struct h_statistics *statistics = sums->statistics;
    const int64_t n = sums->streams;
    for (size_t token = 0; token < tokens; token++) {
        const double *composite = composites + token * (size_t)(n * n);
        const double norm = stream_matrix_norm(composite, n);
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

static int gather(struct gpt *gpt, const struct ranks *ranks, struct accumulation *sums,
                  const struct host_copies *host) {
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
    if (merge(sums, ranks)) {
        return -1;
    }
    conclude(sums);
    return 0;
}

int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics) {
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
        status = gather(gpt, ranks, &sums, &host);
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
