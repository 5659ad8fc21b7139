#include "src/measuring/h_statistics.h"
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
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
        double cosine = 0.0;
        for (size_t token = 0; token < batch->tokens; token++) {
            struct h_figures figures;
            h_batch_measure(batch, sublayer, token, &figures);
            h_tally_add(product ? &statistics->product : &statistics->each, &figures, batch->n);
            cosine += figures.cosine;
            for (size_t i = 0; i < batch->n && !product; i++) {
                maxima->values[maxima->count++] = figures.row_maxima[i];
            }
        }
        if (!product) {
            statistics->cosine[sublayer] = cosine / (double)batch->tokens;
        }
    }
}

/* ---- over all ranks */

static int merge_tallies(struct h_statistics *statistics, const struct ranks *ranks) {
    const struct h_tally own[2] = {statistics->each, statistics->product};
    struct h_tally(*all)[2] = calloc((size_t)ranks->count, sizeof own);
    const int status =
        all ? ranks_gather(ranks, own, sizeof own, all) : error_set("out of memory for H statistics");
    statistics->each = statistics->product = h_tally_empty;
    for (int rank = 0; status == 0 && rank < ranks->count; rank++) {
        h_tally_merge(&statistics->each, &all[rank][0]);
        h_tally_merge(&statistics->product, &all[rank][1]);
    }
    free(all);
    return status;
}

/* Means of the ranks' means: all have as many tokens. */
static int merge_cosines(struct h_statistics *statistics, const struct ranks *ranks) {
    const int status = ranks_sum(ranks, statistics->cosine, statistics->sublayers);
    for (size_t i = 0; i < statistics->sublayers; i++) {
        statistics->cosine[i] /= ranks->count;
    }
    return status;
}

/* Rank 0 needs all ranks' row maxima for percentiles. Where they are too many, each rank sends as many as there is
 * room for, spread evenly over its sorted ones. */
static int merge_maxima(struct maxima *maxima, const struct ranks *ranks) {
    const size_t room = MOST_ROW_MAXIMA / (size_t)ranks->count;
    const size_t kept = maxima->count < room ? maxima->count : room;
    double *all = malloc((size_t)ranks->count * kept * sizeof *all);
    if (!all) {
        return error_set("out of memory for H statistics");
    }
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
    if (ranks->count > 1 &&
        (merge_tallies(statistics, ranks) || merge_cosines(statistics, ranks) || merge_maxima(maxima, ranks))) {
        return -1;
    }
    statistics->row_maximum_p10 = percentile(maxima->values, maxima->count, 0.1);
    statistics->row_maximum_median = percentile(maxima->values, maxima->count, 0.5);
    statistics->row_maximum_p90 = percentile(maxima->values, maxima->count, 0.9);
    return 0;
}

int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics) {
    struct h_batch batch;
    int status = h_batch_read(&batch, gpt, false);
    struct maxima maxima = {.values = calloc(batch.sublayers * batch.tokens * batch.n, sizeof(double))};
    *statistics = (struct h_statistics){.each = h_tally_empty,
                                        .product = h_tally_empty,
                                        .cosine = calloc(batch.sublayers, sizeof(double)),
                                        .sublayers = batch.sublayers};
    if (status == 0) {
        status = statistics->cosine && maxima.values ? gather(ranks, &batch, statistics, &maxima)
                                                     : error_set("out of memory for H statistics");
    }
    free(maxima.values);
    h_batch_release(&batch);
    if (status) {
        h_statistics_release(statistics);
    }
    return status;
}

void h_statistics_release(struct h_statistics *statistics) {
    free(statistics->cosine);
    statistics->cosine = NULL;
}

json_t *h_statistics_json(const struct h_statistics *statistics, int64_t iteration) {
    const struct h_tally *each = &statistics->each, *product = &statistics->product;
    json_t *cosine = json_array();
    for (size_t i = 0; i < statistics->sublayers; i++) {
        json_array_append_new(cosine, json_real(statistics->cosine[i]));
    }
    return json_pack(
        "{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:f, s:f, s:f, s:f, s:[f, f], s:[f, f], s:o}",
        "iter", (json_int_t)iteration, "row_max_p10", statistics->row_maximum_p10, "row_max_median",
        statistics->row_maximum_median, "row_max_p90", statistics->row_maximum_p90, "diagonal_fraction",
        each->diagonal / each->matrices, "smallest_entry", each->entry.minimum, "negative_fraction",
        each->negative / each->entries, "row_sum", each->row_sum.minimum, each->row_sum.maximum, "column_sum",
        each->column_sum.minimum, each->column_sum.maximum, "norm_mean", each->norm_sum / each->matrices,
        "norm_max", each->norm_maximum, "composite_norm_mean", product->norm_sum / product->matrices,
        "composite_norm_max", product->norm_maximum, "composite_row_sum", product->row_sum.minimum,
        product->row_sum.maximum, "composite_column_sum", product->column_sum.minimum, product->column_sum.maximum,
        "stream_cosine", cosine);
}
