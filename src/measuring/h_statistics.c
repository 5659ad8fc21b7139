#include "src/measuring/h_statistics.h"
#include "runtime/system/distribution.h"
#include "runtime/system/memory.h"
#include <math.h>
#include <stdlib.h>

#define MOST_ROW_MAXIMA ((size_t)1 << 24) /* of all ranks together */

/* All row maxima, which exact percentiles need. */
struct maxima {
    double *values; /* owned */
    size_t count;
};

/* ---- this rank's */

/* One matrix after the other, sublayer by sublayer, the products last: the order of the sums. */
static void add_matrices(const struct h_batch *batch, struct h_statistics *statistics, struct maxima *maxima) {
    for (size_t sublayer = 0; sublayer <= batch->sublayers; sublayer++) {
        const bool product = sublayer == batch->sublayers;
        statistics->tallies[sublayer] = h_tally_empty;
        for (size_t token = 0; token < batch->tokens; token++) {
            struct h_measured measured;
            h_batch_measure(batch, sublayer, token, &measured);
            h_tally_add(&statistics->tallies[sublayer], &measured, batch->n);
            for (size_t i = 0; i < batch->n && !product; i++) {
                maxima->values[maxima->count++] = measured.row_maxima[i];
            }
        }
    }
}

/* ---- over all ranks */

static int merge_tallies(struct h_statistics *statistics, const struct ranks *ranks) {
    const size_t count = statistics->sublayers + 1;
    struct h_tally *all = memory_allocate((size_t)ranks->count * count, sizeof *all);
    const int status = ranks_gather(ranks, statistics->tallies, count * sizeof *all, all);
    for (size_t i = 0; status == 0 && i < count; i++) {
        statistics->tallies[i] = h_tally_empty;
        for (size_t rank = 0; rank < (size_t)ranks->count; rank++) {
            h_tally_merge(&statistics->tallies[i], &all[rank * count + i]);
        }
    }
    free(all);
    return status;
}

/* Rank 0 needs all ranks' row maxima for percentiles. Where they are too many, each rank sends as many as its share of
 * MOST_ROW_MAXIMA, spread evenly over its sorted ones. */
static int merge_maxima(struct maxima *maxima, const struct ranks *ranks) {
    const size_t share = MOST_ROW_MAXIMA / (size_t)ranks->count;
    const size_t kept = maxima->count < share ? maxima->count : share;
    double *all = memory_allocate((size_t)ranks->count * kept, sizeof *all);
    for (size_t i = 0; i < kept; i++) {
        maxima->values[i] = maxima->values[i * maxima->count / kept];
    }
    const int status = ranks_gather(ranks, maxima->values, kept * sizeof *all, all);
    free(maxima->values);
    *maxima = (struct maxima){all, (size_t)ranks->count * kept};
    if (ranks->index == 0) {
        percentile_sort(all, maxima->count);
    }
    return status;
}

/* ---- all of it */

static int gather(const struct ranks *ranks, const struct h_batch *batch, struct h_statistics *statistics,
                  struct maxima *maxima) {
    add_matrices(batch, statistics, maxima);
    percentile_sort(maxima->values, maxima->count);
    if (ranks->count > 1 && (merge_tallies(statistics, ranks) || merge_maxima(maxima, ranks))) {
        return -1;
    }
    for (size_t i = 0; i < statistics->sublayers; i++) {
        h_tally_merge(&statistics->each, &statistics->tallies[i]);
    }
    statistics->row_maximum_p10 = percentile(maxima->values, maxima->count, 0.1);
    statistics->row_maximum_median = percentile(maxima->values, maxima->count, 0.5);
    statistics->row_maximum_p90 = percentile(maxima->values, maxima->count, 0.9);
    return 0;
}

int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics) {
    struct h_batch batch;
    int status = h_batch_read(&batch, gpt);
    struct maxima maxima = {.values = memory_allocate(batch.sublayers * batch.tokens * batch.n, sizeof(double))};
    *statistics = (struct h_statistics){.each = h_tally_empty,
                                        .tallies = memory_allocate(batch.sublayers + 1, sizeof(struct h_tally)),
                                        .sublayers = batch.sublayers};
    status = status || gather(ranks, &batch, statistics, &maxima) ? -1 : 0;
    free(maxima.values);
    h_batch_release(&batch);
    if (status) {
        h_statistics_release(statistics);
    }
    return status;
}

void h_statistics_release(struct h_statistics *statistics) {
    free(statistics->tallies);
    statistics->tallies = NULL;
}

/* ---- what is promised */

/* Of a range of sums or norms, the end that is farther from one. */
static double farthest(struct range range) {
    return fabs(range.minimum - 1.0) > fabs(range.maximum - 1.0) ? range.minimum : range.maximum;
}

/* What a promise is about in a sublayer, and how far that is from what it should be: NaN is as far as can be. */
static double value_of(const struct h_tally *tally, enum residual_promise promise, double *deviation) {
    const double value = promise == PROMISE_ROW_SUMS      ? farthest(tally->row_sum)
                         : promise == PROMISE_COLUMN_SUMS ? farthest(tally->column_sum)
                         : promise == PROMISE_NORM        ? farthest(tally->norm)
                                                          : tally->entry.minimum;
    *deviation = promise == PROMISE_SIGN ? -value : fabs(value - 1.0);
    *deviation = isnan(*deviation) ? HUGE_VAL : *deviation;
    return value;
}

struct h_breach h_statistics_check(const struct h_statistics *statistics, const struct residual_variant *residual,
                                   unsigned looked_for) {
    struct h_breach breach = {.promise = 0};
    enum residual_promise promise;
    const char *name;
    for (size_t i = 0; (promise = residual_promise_at(i, &name)) && !breach.promise; i++) {
        double most = RESIDUAL_TOLERANCE, deviation;
        for (size_t k = 0; residual->promises & looked_for & promise && k < statistics->sublayers; k++) {
            const double value = value_of(&statistics->tallies[k], promise, &deviation);
            if (deviation > most) {
                most = deviation;
                breach = (struct h_breach){promise, name, k, value};
            }
        }
    }
    return breach;
}

/* ---- JSON */

/* A metric of each sublayer, null where it is not a number. */
static json_t *means_json(const struct h_statistics *statistics, enum h_metric metric) {
    json_t *means = json_array();
    for (size_t i = 0; i < statistics->sublayers; i++) {
        const double mean = h_tally_mean(&statistics->tallies[i], metric);
        json_array_append_new(means, isfinite(mean) ? json_real(mean) : json_null());
    }
    return means;
}

json_t *h_statistics_json(const struct h_statistics *statistics, int64_t iteration) {
    static const struct {
        const char *name;
        enum h_metric metric;
    } metrics[] = {{"identity_distance", H_DISTANCE},    {"stream_cosine", H_COSINE},
                   {"largest_share", H_LARGEST_SHARE},   {"product_first", H_PRODUCT_FIRST},
                   {"product_second", H_PRODUCT_SECOND}, {"product_smallest", H_PRODUCT_SMALLEST}};
    const struct h_tally *each = &statistics->each, *product = &statistics->tallies[statistics->sublayers];
    json_t *json = json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:f}",
        "iter", (json_int_t)iteration, "row_max_p10", statistics->row_maximum_p10, "row_max_median",
        statistics->row_maximum_median, "row_max_p90", statistics->row_maximum_p90, "diagonal_fraction",
        each->diagonal / each->matrices, "smallest_entry", each->entry.minimum, "negative_fraction",
        each->negative / each->entries, "row_sum", each->row_sum.minimum, each->row_sum.maximum, "column_sum",
        each->column_sum.minimum, each->column_sum.maximum, "norm_mean", h_tally_mean(each, H_NORM), "norm_max",
        each->norm.maximum, "composite_norm_mean", h_tally_mean(product, H_NORM), "composite_norm_max",
        product->norm.maximum, "composite_row_sum", product->row_sum.minimum, product->row_sum.maximum,
        "composite_column_sum", product->column_sum.minimum, product->column_sum.maximum,
        "composite_identity_distance", h_tally_mean(product, H_DISTANCE));
    for (size_t i = 0; json && i < sizeof metrics / sizeof *metrics; i++) {
        json_object_set_new(json, metrics[i].name, means_json(statistics, metrics[i].metric));
    }
    return json;
}
