#include "src/measuring/h_analysis.h"
#include "runtime/system/error.h"
#include "runtime/system/parallel.h"
#include "src/measuring/stream_matrix.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_TOKENS = 256 }; /* that one thread multiplies through all sublayers */

static const double histogram_low = -1.5, histogram_width = 0.01;

/* ---- begin and end */

static int begin_sublayer(struct sublayer_analysis *sublayer) {
    sublayer->entries.smallest = HUGE_VAL;
    sublayer->entries.largest = -HUGE_VAL;
    return distribution_begin(&sublayer->row_maximum) || distribution_begin(&sublayer->row_sum) ||
           distribution_begin(&sublayer->column_sum);
}

int h_analysis_begin(struct h_analysis *analysis, const struct model_config *config) {
    *analysis = (struct h_analysis){.streams = config->n_streams, .sublayer_count = 2 * config->n_layer};
    analysis->sublayers = calloc((size_t)analysis->sublayer_count, sizeof *analysis->sublayers);
    int result = analysis->sublayers ? 0 : error_set("out of memory");
    for (int64_t i = 0; result == 0 && i < analysis->sublayer_count; i++) {
        result = begin_sublayer(&analysis->sublayers[i]);
    }
    result = result || distribution_begin(&analysis->product_row_sum) ||
             distribution_begin(&analysis->product_column_sum) || distribution_begin(&analysis->product_norm);
    if (result) {
        h_analysis_end(analysis);
    }
    return result ? -1 : 0;
}

void h_analysis_end(struct h_analysis *analysis) {
    for (int64_t i = 0; analysis->sublayers && i < analysis->sublayer_count; i++) {
        distribution_end(&analysis->sublayers[i].row_maximum);
        distribution_end(&analysis->sublayers[i].row_sum);
        distribution_end(&analysis->sublayers[i].column_sum);
    }
    distribution_end(&analysis->product_row_sum);
    distribution_end(&analysis->product_column_sum);
    distribution_end(&analysis->product_norm);
    free(analysis->sublayers);
    analysis->sublayers = NULL;
}

/* ---- the matrices of a sublayer */

/* A batch on the host. */
struct batch {
    struct h_analysis *analysis;
    size_t tokens, n;
    size_t first_tokens; /* of them in the first sequence of all */
    float **h;           /* [sublayers] of [tokens, n (n + 2)] */
    float **gram;        /* [sublayers] of [tokens, n, n]: inner products of the streams before mixing */
    double *products;    /* [tokens, n, n] */
    double *norms;       /* [sublayers, tokens] of the products */
};

static void read_matrix(const struct batch *batch, size_t sublayer, size_t token, double *matrix) {
    const size_t n = batch->n;
    const float *h = batch->h[sublayer] + token * n * (n + 2) + 2 * n;
    for (size_t i = 0; i < n * n; i++) {
        matrix[i] = (double)h[i];
    }
}

static void add_entry(struct entry_histogram *entries, double entry) {
    const double place = floor((entry - histogram_low) / histogram_width);
    entries->negative += entry < 0.0;
    entries->smallest = fmin(entries->smallest, entry);
    entries->largest = fmax(entries->largest, entry);
    if (place < 0) {
        entries->below++;
    } else if (place >= H_ANALYSIS_BINS) {
        entries->above++;
    } else {
        entries->counts[(size_t)place]++;
    }
}

static int add_sums(const double *matrix, size_t n, struct distribution *rows, struct distribution *columns) {
    double row_sums[RESIDUAL_MAX_STREAMS], column_sums[RESIDUAL_MAX_STREAMS];
    stream_matrix_sums(matrix, (int64_t)n, row_sums, column_sums);
    for (size_t i = 0; i < n; i++) {
        if (distribution_add(rows, row_sums[i]) || distribution_add(columns, column_sums[i])) {
            return -1;
        }
    }
    return 0;
}

static int add_matrix(struct sublayer_analysis *sublayer, const double *matrix, size_t n, bool first_sequence) {
    double maxima[RESIDUAL_MAX_STREAMS];
    sublayer->diagonal += stream_matrix_row_maxima(matrix, (int64_t)n, maxima);
    for (size_t i = 0; i < n; i++) {
        if (distribution_add(&sublayer->row_maximum, maxima[i])) {
            return -1;
        }
    }
    for (size_t i = 0; i < n * n; i++) {
        add_entry(&sublayer->entries, matrix[i]);
        sublayer->sum[i] += matrix[i];
        sublayer->first_sequence[i] += first_sequence ? matrix[i] : 0.0;
    }
    const double norm = stream_matrix_norm(matrix, (int64_t)n);
    sublayer->norm_sum += norm;
    sublayer->norm_maximum = fmax(sublayer->norm_maximum, norm);
    return add_sums(matrix, n, &sublayer->row_sum, &sublayer->column_sum);
}

/* A piece of work: all tokens of one sublayer. */
static int add_sublayer(void *context, size_t index) {
    const struct batch *batch = context;
    struct sublayer_analysis *sublayer = &batch->analysis->sublayers[index];
    const size_t n = batch->n;
    for (size_t token = 0; token < batch->tokens; token++) {
        double matrix[H_ANALYSIS_MOST];
        read_matrix(batch, index, token, matrix);
        if (add_matrix(sublayer, matrix, n, token < batch->first_tokens)) {
            return error_prefix("H_res of sublayer %zu", index);
        }
        sublayer->cosine_sum += stream_matrix_cosine(matrix, batch->gram[index] + token * n * n, (int64_t)n);
    }
    return 0;
}

/* ---- their products */

/* A piece of work: some tokens through all sublayers. */
static int multiply_block(void *context, size_t block) {
    const struct batch *batch = context;
    const size_t n = batch->n, begin = block * BLOCK_TOKENS;
    const size_t end = begin + BLOCK_TOKENS < batch->tokens ? begin + BLOCK_TOKENS : batch->tokens;
    for (size_t token = begin; token < end; token++) {
        double *product = batch->products + token * n * n;
        read_matrix(batch, 0, token, product);
        for (size_t index = 0; index < (size_t)batch->analysis->sublayer_count; index++) {
            double matrix[H_ANALYSIS_MOST];
            if (index > 0) {
                read_matrix(batch, index, token, matrix);
                stream_matrix_compose(product, matrix, (int64_t)n);
            }
            batch->norms[index * batch->tokens + token] = stream_matrix_norm(product, (int64_t)n);
        }
    }
    return 0;
}

static int add_products(const struct batch *batch) {
    struct h_analysis *analysis = batch->analysis;
    const size_t n = batch->n, last = (size_t)analysis->sublayer_count - 1;
    for (size_t index = 0; index <= last; index++) {
        struct sublayer_analysis *sublayer = &analysis->sublayers[index];
        for (size_t token = 0; token < batch->tokens; token++) {
            const double norm = batch->norms[index * batch->tokens + token];
            sublayer->product_norm_sum += norm;
            sublayer->product_norm_square_sum += norm * norm;
        }
    }
    for (size_t token = 0; token < batch->tokens; token++) {
        const double *product = batch->products + token * n * n;
        if (add_sums(product, n, &analysis->product_row_sum, &analysis->product_column_sum) ||
            distribution_add(&analysis->product_norm, batch->norms[last * batch->tokens + token])) {
            return error_prefix("the product of all H_res");
        }
        for (size_t i = 0; token < batch->first_tokens && i < n * n; i++) {
            analysis->product_first_sequence[i] += product[i];
        }
    }
    return 0;
}

/* ---- a batch */

static void release_batch(struct batch *batch) {
    for (int64_t i = 0; i < batch->analysis->sublayer_count; i++) {
        free(batch->h ? batch->h[i] : NULL);
        free(batch->gram ? batch->gram[i] : NULL);
    }
    free(batch->h);
    free(batch->gram);
    free(batch->products);
    free(batch->norms);
}

static int reserve_batch(struct batch *batch) {
    const size_t count = (size_t)batch->analysis->sublayer_count, n = batch->n;
    batch->h = calloc(count, sizeof *batch->h);
    batch->gram = calloc(count, sizeof *batch->gram);
    batch->products = malloc(batch->tokens * n * n * sizeof *batch->products);
    batch->norms = malloc(count * batch->tokens * sizeof *batch->norms);
    bool complete = batch->h && batch->gram && batch->products && batch->norms;
    for (size_t i = 0; complete && i < count; i++) {
        batch->h[i] = malloc(batch->tokens * n * (n + 2) * sizeof **batch->h);
        batch->gram[i] = malloc(batch->tokens * n * n * sizeof **batch->gram);
        complete = batch->h[i] && batch->gram[i];
    }
    return complete ? 0 : error_set("out of memory");
}

static int fetch_batch(struct batch *batch, struct gpt *gpt) {
    const size_t n = batch->n;
    for (int64_t i = 0; i < batch->analysis->sublayer_count; i++) {
        const struct sublayer *sublayer = &gpt->sublayers[i];
        stream_gram(&gpt->operations, batch->tokens, sublayer->mix.streams, gpt->scratch.d_h);
        if (buffer_read(gpt->compute, sublayer->mix.h, 0, batch->h[i],
                        batch->tokens * n * (n + 2) * sizeof(float)) ||
            buffer_read(gpt->compute, gpt->scratch.d_h, 0, batch->gram[i], batch->tokens * n * n * sizeof(float))) {
            return -1;
        }
    }
    return 0;
}

int h_analysis_add(struct h_analysis *analysis, struct gpt *gpt) {
    const size_t tokens = gpt_tokens(gpt), blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    struct batch batch = {.analysis = analysis, .tokens = tokens, .n = (size_t)analysis->streams};
    batch.first_tokens = analysis->tokens == 0 ? (size_t)gpt->shape.sequence : 0;
    const int result = reserve_batch(&batch) || fetch_batch(&batch, gpt) ||
                       parallel_run((size_t)analysis->sublayer_count, add_sublayer, &batch) ||
                       parallel_run(blocks, multiply_block, &batch) || add_products(&batch);
    analysis->first_tokens += batch.first_tokens;
    analysis->tokens += tokens;
    release_batch(&batch);
    return result ? -1 : 0;
}

/* ---- as JSON */

static json_t *distribution_json(const struct distribution *distribution) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "min", distribution->minimum, "p10",
                     distribution_quantile(distribution, 0.1), "median", distribution_quantile(distribution, 0.5),
                     "p90", distribution_quantile(distribution, 0.9), "max", distribution->maximum, "mean",
                     distribution_mean(distribution), "deviation", distribution_deviation(distribution));
}

/* values / count as rows */
static json_t *matrix_json(const double *values, int64_t n, uint64_t count) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *row = json_array();
        for (int64_t j = 0; j < n; j++) {
            json_array_append_new(row, json_real(values[i * n + j] / (double)count));
        }
        json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *sublayer_json(const struct h_analysis *analysis, const struct sublayer_analysis *sublayer) {
    const double tokens = (double)analysis->tokens, n = (double)analysis->streams;
    const double product_norm = sublayer->product_norm_sum / tokens;
    const double square = sublayer->product_norm_square_sum / tokens - product_norm * product_norm;
    return json_pack("{s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "row_max",
                     distribution_json(&sublayer->row_maximum), "diagonal_fraction",
                     (double)sublayer->diagonal / tokens, "row_sum", distribution_json(&sublayer->row_sum),
                     "column_sum", distribution_json(&sublayer->column_sum), "negative_fraction",
                     (double)sublayer->entries.negative / (tokens * n * n), "smallest_entry",
                     sublayer->entries.smallest, "largest_entry", sublayer->entries.largest, "norm_mean",
                     sublayer->norm_sum / tokens, "norm_max", sublayer->norm_maximum, "stream_cosine",
                     sublayer->cosine_sum / tokens, "product_norm_mean", product_norm, "product_norm_deviation",
                     sqrt(fmax(square, 0.0)), "mean",
                     matrix_json(sublayer->sum, analysis->streams, analysis->tokens), "first_sequence",
                     matrix_json(sublayer->first_sequence, analysis->streams, analysis->first_tokens));
}

/* Over all sublayers: what one sublayer's figures are, and the histogram. */
struct total {
    struct distribution row_maximum, row_sum, column_sum;
    struct entry_histogram entries;
    double diagonal, norm_sum, norm_maximum, matrices;
};

static int add_total(struct total *total, const struct sublayer_analysis *sublayer, uint64_t tokens) {
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        total->entries.counts[bin] += sublayer->entries.counts[bin];
    }
    total->entries.below += sublayer->entries.below;
    total->entries.above += sublayer->entries.above;
    total->entries.negative += sublayer->entries.negative;
    total->entries.smallest = fmin(total->entries.smallest, sublayer->entries.smallest);
    total->entries.largest = fmax(total->entries.largest, sublayer->entries.largest);
    total->diagonal += (double)sublayer->diagonal;
    total->norm_sum += sublayer->norm_sum;
    total->norm_maximum = fmax(total->norm_maximum, sublayer->norm_maximum);
    total->matrices += (double)tokens;
    return distribution_merge(&total->row_maximum, &sublayer->row_maximum) ||
           distribution_merge(&total->row_sum, &sublayer->row_sum) ||
           distribution_merge(&total->column_sum, &sublayer->column_sum);
}

static json_t *histogram_json(const struct entry_histogram *entries) {
    json_t *counts = json_array();
    for (size_t bin = 0; bin < H_ANALYSIS_BINS; bin++) {
        json_array_append_new(counts, json_integer((json_int_t)entries->counts[bin]));
    }
    return json_pack("{s:f, s:f, s:I, s:I, s:o}", "low", histogram_low, "width", histogram_width, "below",
                     (json_int_t)entries->below, "above", (json_int_t)entries->above, "counts", counts);
}

static json_t *total_json(const struct h_analysis *analysis, const struct total *total, json_t *sublayers) {
    const double entries = total->matrices * (double)(analysis->streams * analysis->streams);
    return json_pack("{s:I, s:I, s:o, s:f, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:{s:o, s:o, s:o, s:o}}",
                     "n_streams", (json_int_t)analysis->streams, "tokens", (json_int_t)analysis->tokens, "row_max",
                     distribution_json(&total->row_maximum), "diagonal_fraction", total->diagonal / total->matrices,
                     "row_sum", distribution_json(&total->row_sum), "column_sum",
                     distribution_json(&total->column_sum), "negative_fraction",
                     (double)total->entries.negative / entries, "smallest_entry", total->entries.smallest,
                     "largest_entry", total->entries.largest, "norm_mean", total->norm_sum / total->matrices,
                     "norm_max", total->norm_maximum, "entries", histogram_json(&total->entries), "sublayers",
                     sublayers, "product", "row_sum", distribution_json(&analysis->product_row_sum), "column_sum",
                     distribution_json(&analysis->product_column_sum), "norm",
                     distribution_json(&analysis->product_norm), "first_sequence",
                     matrix_json(analysis->product_first_sequence, analysis->streams, analysis->first_tokens));
}

json_t *h_analysis_json(const struct h_analysis *analysis) {
    struct total total = {.entries = {.smallest = HUGE_VAL, .largest = -HUGE_VAL}};
    json_t *sublayers = json_array(), *json = NULL;
    int result = distribution_begin(&total.row_maximum) || distribution_begin(&total.row_sum) ||
                 distribution_begin(&total.column_sum);
    for (int64_t i = 0; result == 0 && i < analysis->sublayer_count; i++) {
        result = add_total(&total, &analysis->sublayers[i], analysis->tokens);
        json_array_append_new(sublayers, sublayer_json(analysis, &analysis->sublayers[i]));
    }
    if (result == 0) {
        json = total_json(analysis, &total, sublayers);
        if (!json) {
            error_set("out of memory");
        }
    } else {
        json_decref(sublayers);
    }
    distribution_end(&total.row_maximum);
    distribution_end(&total.row_sum);
    distribution_end(&total.column_sum);
    return json;
}
