#include "src/measuring/h_analysis.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <math.h>
#include <stdlib.h>

static const double histogram_low = -1.5, histogram_width = 0.01;

/* ---- records */

static void record_begin(struct h_record *record) {
    *record = (struct h_record){.tally = h_tally_empty};
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_begin(&record->distributions[i]);
    }
}

static void record_end(struct h_record *record) {
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_end(&record->distributions[i]);
    }
}

static void count_entry(struct h_record *record, double entry) {
    const double place = floor((entry - histogram_low) / histogram_width);
    if (place < 0) {
        record->below++;
    } else if (place >= H_ANALYSIS_BINS) {
        record->above++;
    } else {
        record->entries[(size_t)place]++;
    }
}

static int record_add(struct h_record *record, const struct h_measured *measured, size_t n, bool first_sequence) {
    h_tally_add(&record->tally, measured, n);
    for (size_t i = 0; i < n * n; i++) {
        count_entry(record, measured->matrix[i]);
        record->sum[i] += measured->matrix[i];
        record->first_sequence[i] += first_sequence ? measured->matrix[i] : 0.0;
    }
    for (size_t i = 0; i < n; i++) {
        if (distribution_add(&record->distributions[H_ROW_MAXIMUM], measured->row_maxima[i]) ||
            distribution_add(&record->distributions[H_ROW_SUM], measured->row_sums[i]) ||
            distribution_add(&record->distributions[H_COLUMN_SUM], measured->column_sums[i])) {
            return -1;
        }
    }
    return distribution_add(&record->distributions[H_PRODUCT_NORM], measured->figures[H_PRODUCT_FIRST]);
}

/* But for the means of matrices, which are told of each sublayer alone. */
static void record_merge(struct h_record *record, const struct h_record *other) {
    h_tally_merge(&record->tally, &other->tally);
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        record->entries[bin] += other->entries[bin];
    }
    record->below += other->below;
    record->above += other->above;
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_merge(&record->distributions[i], &other->distributions[i]);
    }
}

/* ---- samples */

void h_analysis_begin(struct h_analysis *analysis, const struct model_config *config) {
    *analysis =
        (struct h_analysis){.streams = (size_t)config->n_streams, .sublayers = (size_t)(2 * config->n_layer)};
    analysis->records = memory_allocate(analysis->sublayers + 1, sizeof *analysis->records);
    for (size_t i = 0; i <= analysis->sublayers; i++) {
        record_begin(&analysis->records[i]);
    }
}

void h_analysis_end(struct h_analysis *analysis) {
    for (size_t i = 0; analysis->records && i <= analysis->sublayers; i++) {
        record_end(&analysis->records[i]);
    }
    free(analysis->records);
    analysis->records = NULL;
}

/* What pieces of work share. */
struct addition {
    struct h_analysis *analysis;
    struct h_batch batch;
    size_t first_tokens; /* of the batch, in the first sequence of all */
};

/* A piece of work: all tokens of one record. */
static int add_record(void *context, size_t index) {
    const struct addition *addition = context;
    const struct h_batch *batch = &addition->batch;
    for (size_t token = 0; token < batch->tokens; token++) {
        struct h_measured measured;
        h_batch_measure(batch, index, token, &measured);
        if (record_add(&addition->analysis->records[index], &measured, batch->n, token < addition->first_tokens)) {
            return index < batch->sublayers ? error_prefix("H_res of sublayer %zu", index)
                                            : error_prefix("the product of all H_res");
        }
    }
    return 0;
}

int h_analysis_add(struct h_analysis *analysis, struct gpt *gpt) {
    struct addition addition = {.analysis = analysis};
    addition.first_tokens = analysis->tokens == 0 ? (size_t)gpt->shape.sequence : 0;
    const int result =
        h_batch_read(&addition.batch, gpt) || parallel_run(analysis->sublayers + 1, add_record, &addition);
    analysis->first_tokens += addition.first_tokens;
    analysis->tokens += addition.batch.tokens;
    h_batch_release(&addition.batch);
    return result ? -1 : 0;
}

/* ---- as JSON */

static json_t *distribution_json(const struct h_record *record, size_t which) {
    const struct distribution *distribution = &record->distributions[which];
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

/* What is told of one sublayer and of all, between what both begin and end with. Takes both references. */
static json_t *record_json(const struct h_record *record, json_t *json, json_t *rest) {
    const struct h_tally *tally = &record->tally;
    json_t *own =
        json_pack("{s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "row_max",
                  distribution_json(record, H_ROW_MAXIMUM), "diagonal_fraction", tally->diagonal / tally->matrices,
                  "row_sum", distribution_json(record, H_ROW_SUM), "column_sum",
                  distribution_json(record, H_COLUMN_SUM), "negative_fraction", tally->negative / tally->entries,
                  "smallest_entry", tally->entry.minimum, "largest_entry", tally->entry.maximum, "norm_mean",
                  h_tally_mean(tally, H_NORM), "norm_max", tally->norm.maximum, "identity_distance",
                  h_tally_mean(tally, H_DISTANCE), "stream_cosine", h_tally_mean(tally, H_COSINE), "largest_share",
                  h_tally_mean(tally, H_LARGEST_SHARE));
    if (json_object_update(json, own) || json_object_update(json, rest)) {
        json_decref(json);
        json = NULL;
        error_set("out of memory");
    }
    json_decref(own);
    json_decref(rest);
    return json;
}

static json_t *sublayer_json(const struct h_analysis *analysis, const struct h_record *record) {
    const struct distribution *norm = &record->distributions[H_PRODUCT_NORM];
    return record_json(record, json_object(),
                       json_pack("{s:f, s:f, s:f, s:f, s:o, s:o}", "product_norm_mean", distribution_mean(norm),
                                 "product_norm_deviation", distribution_deviation(norm), "product_second_mean",
                                 h_tally_mean(&record->tally, H_PRODUCT_SECOND), "product_smallest_mean",
                                 h_tally_mean(&record->tally, H_PRODUCT_SMALLEST), "mean",
                                 matrix_json(record->sum, analysis->streams, analysis->tokens), "first_sequence",
                                 matrix_json(record->first_sequence, analysis->streams, analysis->first_tokens)));
}

static json_t *histogram_json(const struct h_record *record) {
    json_t *counts = json_array();
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        json_array_append_new(counts, json_integer((json_int_t)record->entries[bin]));
    }
    return json_pack("{s:f, s:f, s:I, s:I, s:o}", "low", histogram_low, "width", histogram_width, "below",
                     (json_int_t)record->below, "above", (json_int_t)record->above, "counts", counts);
}

json_t *h_analysis_json(const struct h_analysis *analysis) {
    const struct h_record *product = &analysis->records[analysis->sublayers];
    struct h_record total;
    json_t *sublayers = json_array();
    record_begin(&total);
    for (size_t i = 0; i < analysis->sublayers; i++) {
        record_merge(&total, &analysis->records[i]);
        json_array_append_new(sublayers, sublayer_json(analysis, &analysis->records[i]));
    }
    json_t *json = record_json(
        &total,
        json_pack("{s:I, s:I}", "n_streams", (json_int_t)analysis->streams, "tokens", (json_int_t)analysis->tokens),
        json_pack("{s:o, s:O, s:{s:o, s:o, s:o, s:f, s:o}}", "entries", histogram_json(&total), "sublayers",
                  sublayers, "product", "row_sum", distribution_json(product, H_ROW_SUM), "column_sum",
                  distribution_json(product, H_COLUMN_SUM), "norm", distribution_json(product, H_PRODUCT_NORM),
                  "identity_distance", h_tally_mean(&product->tally, H_DISTANCE), "first_sequence",
                  matrix_json(product->first_sequence, analysis->streams, analysis->first_tokens)));
    json_decref(sublayers);
    record_end(&total);
    return json;
}
