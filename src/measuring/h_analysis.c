#include "src/measuring/h_analysis.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <math.h>
#include <stdlib.h>

static const double histogram_low = -1.5, histogram_width = 0.01;

/* ---- many matrices */

static void sample_begin(struct h_sample *sample) {
    *sample = (struct h_sample){.tally = h_tally_empty};
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_begin(&sample->distributions[i]);
    }
}

static void sample_end(struct h_sample *sample) {
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_end(&sample->distributions[i]);
    }
}

static void count_entry(struct h_sample *sample, double entry) {
    const double place = floor((entry - histogram_low) / histogram_width);
    if (place < 0) {
        sample->below++;
    } else if (place >= H_ANALYSIS_BINS) {
        sample->above++;
    } else {
        sample->entries[(size_t)place]++;
    }
}

static int sample_add(struct h_sample *sample, const struct h_measured *measured, size_t n, bool first_sequence) {
    h_tally_add(&sample->tally, measured, n);
    for (size_t i = 0; i < n * n; i++) {
        count_entry(sample, measured->matrix[i]);
        sample->sum[i] += measured->matrix[i];
        sample->first_sequence[i] += first_sequence ? measured->matrix[i] : 0.0;
    }
    for (size_t i = 0; i < n; i++) {
        if (distribution_add(&sample->distributions[H_ROW_MAXIMUM], measured->row_maxima[i]) ||
            distribution_add(&sample->distributions[H_ROW_SUM], measured->row_sums[i]) ||
            distribution_add(&sample->distributions[H_COLUMN_SUM], measured->column_sums[i])) {
            return -1;
        }
    }
    return distribution_add(&sample->distributions[H_PRODUCT_NORM], measured->metrics[H_PRODUCT_FIRST]);
}

/* But for the means of matrices, which each sublayer has for itself. */
static void sample_merge(struct h_sample *sample, const struct h_sample *other) {
    h_tally_merge(&sample->tally, &other->tally);
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        sample->entries[bin] += other->entries[bin];
    }
    sample->below += other->below;
    sample->above += other->above;
    for (size_t i = 0; i < H_DISTRIBUTIONS; i++) {
        distribution_merge(&sample->distributions[i], &other->distributions[i]);
    }
}

/* ---- of all sublayers */

void h_analysis_begin(struct h_analysis *analysis, const struct model_config *config) {
    *analysis =
        (struct h_analysis){.streams = (size_t)config->n_streams, .sublayers = (size_t)(2 * config->n_layer)};
    analysis->samples = memory_allocate(analysis->sublayers + 1, sizeof *analysis->samples);
    for (size_t i = 0; i <= analysis->sublayers; i++) {
        sample_begin(&analysis->samples[i]);
    }
}

void h_analysis_end(struct h_analysis *analysis) {
    for (size_t i = 0; analysis->samples && i <= analysis->sublayers; i++) {
        sample_end(&analysis->samples[i]);
    }
    free(analysis->samples);
    analysis->samples = NULL;
}

/* What pieces of work share. */
struct addition {
    struct h_analysis *analysis;
    struct h_batch batch;
    size_t first_tokens; /* of the batch, in the first sequence of all */
};

/* A piece of work: all tokens of one sublayer, or of the product. */
static int add_sample(void *context, size_t index) {
    const struct addition *addition = context;
    const struct h_batch *batch = &addition->batch;
    for (size_t token = 0; token < batch->tokens; token++) {
        struct h_measured measured;
        h_batch_measure(batch, index, token, &measured);
        if (sample_add(&addition->analysis->samples[index], &measured, batch->n, token < addition->first_tokens)) {
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
        h_batch_read(&addition.batch, gpt) || parallel_run(analysis->sublayers + 1, add_sample, &addition);
    analysis->first_tokens += addition.first_tokens;
    analysis->tokens += addition.batch.tokens;
    h_batch_release(&addition.batch);
    return result ? -1 : 0;
}

/* ---- as JSON */

static json_t *distribution_json(const struct h_sample *sample, size_t which) {
    const struct distribution *distribution = &sample->distributions[which];
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

/* What one sublayer and all of them have in common, between what both begin and end with. Takes both references. */
static json_t *sample_json(const struct h_sample *sample, json_t *json, json_t *rest) {
    const struct h_tally *tally = &sample->tally;
    json_t *own =
        json_pack("{s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "row_max",
                  distribution_json(sample, H_ROW_MAXIMUM), "diagonal_fraction", tally->diagonal / tally->matrices,
                  "row_sum", distribution_json(sample, H_ROW_SUM), "column_sum",
                  distribution_json(sample, H_COLUMN_SUM), "negative_fraction", tally->negative / tally->entries,
                  "smallest_entry", tally->entry.minimum, "largest_entry", tally->entry.maximum, "norm_mean",
                  h_tally_mean(tally, H_NORM), "norm_max", tally->norm.maximum, "identity_distance",
                  h_tally_mean(tally, H_DISTANCE), "stream_cosine", h_tally_mean(tally, H_COSINE), "largest_share",
                  h_tally_mean(tally, H_LARGEST_SHARE));
    json_object_update_new(json, own);
    json_object_update_new(json, rest);
    return json;
}

static json_t *sublayer_json(const struct h_analysis *analysis, const struct h_sample *sample) {
    const struct distribution *norm = &sample->distributions[H_PRODUCT_NORM];
    return sample_json(sample, json_object(),
                       json_pack("{s:f, s:f, s:f, s:f, s:o, s:o}", "product_norm_mean", distribution_mean(norm),
                                 "product_norm_deviation", distribution_deviation(norm), "product_second_mean",
                                 h_tally_mean(&sample->tally, H_PRODUCT_SECOND), "product_smallest_mean",
                                 h_tally_mean(&sample->tally, H_PRODUCT_SMALLEST), "mean",
                                 matrix_json(sample->sum, analysis->streams, analysis->tokens), "first_sequence",
                                 matrix_json(sample->first_sequence, analysis->streams, analysis->first_tokens)));
}

static json_t *histogram_json(const struct h_sample *sample) {
    json_t *counts = json_array();
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        json_array_append_new(counts, json_integer((json_int_t)sample->entries[bin]));
    }
    return json_pack("{s:f, s:f, s:I, s:I, s:o}", "low", histogram_low, "width", histogram_width, "below",
                     (json_int_t)sample->below, "above", (json_int_t)sample->above, "counts", counts);
}

json_t *h_analysis_json(const struct h_analysis *analysis) {
    const struct h_sample *product = &analysis->samples[analysis->sublayers];
    struct h_sample total;
    json_t *sublayers = json_array();
    sample_begin(&total);
    for (size_t i = 0; i < analysis->sublayers; i++) {
        sample_merge(&total, &analysis->samples[i]);
        json_array_append_new(sublayers, sublayer_json(analysis, &analysis->samples[i]));
    }
    json_t *json = sample_json(
        &total,
        json_pack("{s:I, s:I}", "n_streams", (json_int_t)analysis->streams, "tokens", (json_int_t)analysis->tokens),
        json_pack("{s:o, s:O, s:{s:o, s:o, s:o, s:f, s:o}}", "entries", histogram_json(&total), "sublayers",
                  sublayers, "product", "row_sum", distribution_json(product, H_ROW_SUM), "column_sum",
                  distribution_json(product, H_COLUMN_SUM), "norm", distribution_json(product, H_PRODUCT_NORM),
                  "identity_distance", h_tally_mean(&product->tally, H_DISTANCE), "first_sequence",
                  matrix_json(product->first_sequence, analysis->streams, analysis->first_tokens)));
    json_decref(sublayers);
    sample_end(&total);
    return json;
}
