#include "src/analysis/report_tables.h"
#include "src/analysis/figure.h"
#include <math.h>
#include <string.h>

enum { MOST_EVALUATIONS = 32, MOST_GROUPS = 64, MOST_SEEDS = 64 };

static const double most_fixed = 1e6; /* above it numbers have an exponent: perplexities of byte models */

/* ---- pieces */

static void begin_table(FILE *page, const char *title, const char *says) {
    fprintf(page, "<h2>%s</h2>\n<p>%s</p>\n<div class=\"table\"><table><thead><tr>", title, says);
}

static void add_head(FILE *page, const char *head) {
    fprintf(page, "<th><button type=\"button\">%s</button></th>", head);
}

static void begin_rows(FILE *page) {
    fputs("</tr></thead><tbody>\n", page);
}

static void end_table(FILE *page) {
    fputs("</tbody></table></div>\n", page);
}

/* A cell; empty where there is no number. */
static void add_number(FILE *page, int decimals, double value) {
    fputs("<td>", page);
    if (isfinite(value)) {
        fprintf(page, fabs(value) < most_fixed ? "%.*f" : "%.*g", fabs(value) < most_fixed ? decimals : 3, value);
    }
    fputs("</td>", page);
}

/* ---- a row for each run */

enum source { OF_RUN, OF_H, OF_DOCUMENT };

/* A column: its head, where its number is, how it is printed and scaled. */
struct column {
    const char *head; /* NULL: the last column was the one before */
    const char *path; /* in the run, in the h of its last checkpoint, or in its evaluation of a document */
    int decimals;
    enum source source;
    double scale;
    const char *document;
};

static const struct column run_columns[] = {
    {"streams", "config.n_streams", 0, OF_RUN, 1, NULL},
    {"iterations", "record.final.iter", 0, OF_RUN, 1, NULL},
    {"training loss", "record.final.train_loss", 4, OF_RUN, 1, NULL},
    {"validation loss", "record.final.val_loss", 4, OF_RUN, 1, NULL},
    {"best", "record.final.best_val_loss", 4, OF_RUN, 1, NULL},
    {NULL, NULL, 0, OF_RUN, 0, NULL},
};

static const struct column matrix_columns[] = {
    {"distance from I", "identity_distance", 4, OF_H, 1, NULL},
    {"cosine of streams", "stream_cosine", 4, OF_H, 1, NULL},
    {"largest stream %", "largest_share", 1, OF_H, 100, NULL},
    {"row max, median", "row_max.median", 4, OF_H, 1, NULL},
    {"diagonal %", "diagonal_fraction", 2, OF_H, 100, NULL},
    {"negative %", "negative_fraction", 2, OF_H, 100, NULL},
    {"smallest entry", "smallest_entry", 4, OF_H, 1, NULL},
    {"column sum, min", "column_sum.min", 6, OF_H, 1, NULL},
    {"max", "column_sum.max", 6, OF_H, 1, NULL},
    {"spectral norm, max", "norm_max", 6, OF_H, 1, NULL},
    {"product: column sum, min", "product.column_sum.min", 6, OF_H, 1, NULL},
    {"max", "product.column_sum.max", 6, OF_H, 1, NULL},
    {"norm, mean", "product.norm.mean", 6, OF_H, 1, NULL},
    {NULL, NULL, 0, OF_H, 0, NULL},
};

static double number_of(const json_t *run, const struct column *column) {
    const json_t *documents = json_object_get(json_object_get(run, "record"), "documents");
    const json_t *object = column->source == OF_H          ? figure_h(run)
                           : column->source == OF_DOCUMENT ? json_object_get(documents, column->document)
                                                           : run;
    return column->scale * figure_number(object, column->path);
}

/* Of all runs; those of matrices of runs that have some. Nothing where there are no columns, or no runs for them. */
static void add_table(const json_t *analysis, FILE *page, const char *title, const char *says,
                      const struct column *columns) {
    const json_t *run;
    size_t i, shown = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        if (columns->source == OF_H && !figure_h(run)) {
            continue;
        }
        if (shown++ == 0) {
            begin_table(page, title, says);
            add_head(page, "run");
            add_head(page, "variant");
            for (const struct column *column = columns; column->head; column++) {
                add_head(page, column->head);
            }
            begin_rows(page);
        }
        fprintf(page, "<tr><td>%s</td><td>%s</td>", figure_name(run), figure_variant(run));
        for (const struct column *column = columns; column->head; column++) {
            add_number(page, column->decimals, number_of(run, column));
        }
        fputs("</tr>\n", page);
    }
    if (shown > 0) {
        end_table(page);
    }
}

/* Two columns for each evaluation of documents, in the order that they come. */
static void add_perplexities(const json_t *analysis, FILE *page) {
    struct column columns[2 * MOST_EVALUATIONS + 1] = {{.head = NULL}}, *next = columns;
    json_t *names = json_object(), *value;
    const json_t *run;
    const char *name;
    size_t i;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        json_object_update_missing(names, json_object_get(json_object_get(run, "record"), "documents"));
    }
    json_object_foreach(names, name, value) {
        if (next < columns + 2 * MOST_EVALUATIONS) {
            *next++ = (struct column){name, "word_perplexity", 2, OF_DOCUMENT, 1, name};
            *next++ = (struct column){"bits/byte", "bits_per_byte", 4, OF_DOCUMENT, 1, name};
        }
    }
    if (next > columns) {
        add_table(analysis, page, "Perplexity of documents",
                  "Per word, as hc_eval and lm-evaluation-harness compute it; beside it bits per byte.", columns);
    }
    json_decref(names);
}

/* ---- variants over seeds */

/* The last validation losses of the runs of one variant with so many streams. */
struct group {
    const char *variant;
    double streams, losses[MOST_SEEDS];
    size_t count;
};

static void add_to_group(struct group *groups, size_t *count, const json_t *run) {
    const double loss = figure_number(run, "record.final.val_loss"),
                 streams = figure_number(run, "config.n_streams");
    const char *variant = figure_variant(run);
    size_t i = 0;
    while (i < *count && (strcmp(groups[i].variant, variant) != 0 || groups[i].streams != streams)) {
        i++;
    }
    if (!isfinite(loss) || i == MOST_GROUPS) {
        return;
    }
    if (i == *count) {
        groups[(*count)++] = (struct group){.variant = variant, .streams = streams};
    }
    if (groups[i].count < MOST_SEEDS) {
        groups[i].losses[groups[i].count++] = loss;
    }
}

static void add_group(FILE *page, const struct group *group) {
    double mean = 0.0, least = HUGE_VAL, most = -HUGE_VAL, square = 0.0;
    for (size_t i = 0; i < group->count; i++) {
        mean += group->losses[i] / (double)group->count;
        least = fmin(least, group->losses[i]);
        most = fmax(most, group->losses[i]);
    }
    for (size_t i = 0; i < group->count; i++) {
        square += (group->losses[i] - mean) * (group->losses[i] - mean);
    }
    fprintf(page, "<tr><td>%s</td>", group->variant);
    add_number(page, 0, group->streams);
    add_number(page, 0, (double)group->count);
    add_number(page, 4, mean);
    add_number(page, 4, group->count > 1 ? sqrt(square / (double)(group->count - 1)) : (double)NAN);
    add_number(page, 4, least);
    add_number(page, 4, most);
    fputs("</tr>\n", page);
}

/* A row for each variant; nothing where each has one run only. */
static void add_variants(const json_t *analysis, FILE *page) {
    static const char *const heads[] = {"variant", "streams", "runs", "mean", "deviation", "lowest", "highest"};
    struct group groups[MOST_GROUPS];
    const json_t *run;
    size_t count = 0, i, most = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        add_to_group(groups, &count, run);
    }
    for (i = 0; i < count; i++) {
        most = groups[i].count > most ? groups[i].count : most;
    }
    if (most < 2) {
        return;
    }
    begin_table(page, "Variants",
                "Last validation losses of the runs of each variant; the deviation is that of a sample. Of runs "
                "that differ in the seed alone, pictures of H<sub>res</sub> show the first.");
    for (i = 0; i < sizeof heads / sizeof *heads; i++) {
        add_head(page, heads[i]);
    }
    begin_rows(page);
    for (i = 0; i < count; i++) {
        add_group(page, &groups[i]);
    }
    end_table(page);
}

void report_tables(const json_t *analysis, FILE *page) {
    add_variants(analysis, page);
    add_table(analysis, page, "Runs",
              "Training loss is the mean of the last 200 iterations; losses are in nats a token. Click a head to "
              "sort.",
              run_columns);
    add_perplexities(analysis, page);
    add_table(analysis, page, "H<sub>res</sub>",
              "Of each run's last checkpoint, over all tokens of the samples and all sublayers.", matrix_columns);
}
