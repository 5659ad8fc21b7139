#include "src/analysis/report.h"
#include "src/analysis/runs.h"
#include <math.h>
#include <string.h>

enum { MOST_EVALUATIONS = 32 };

static const double most_fixed = 1e6; /* above it numbers have an exponent: perplexities of byte models */

/* ---- pieces */

static void begin_table(FILE *page, const char *title, const char *says) {
    fprintf(page, "<h2>%s</h2>\n<p>%s</p>\n<div class=\"table\"><table><thead><tr>", title, says);
}

static void add_head(FILE *page, const char *before, const char *head) {
    fprintf(page, "<th><button type=\"button\">%s%s</button></th>", before, head);
}

static void begin_rows(FILE *page) {
    fputs("</tr></thead><tbody>\n", page);
}

static void end_table(FILE *page) {
    fputs("</tbody></table></div>\n", page);
}

enum { SIGNIFICANT = -1 }; /* instead of a number of decimals: as few digits as tell the value, of learning rates */

/* A cell; empty where there is no number. */
static void add_number(FILE *page, int decimals, double value) {
    fputs("<td>", page);
    if (isfinite(value)) {
        const bool fixed = decimals >= 0 && fabs(value) < most_fixed;
        fprintf(page, fixed ? "%.*f" : "%.*g", fixed ? decimals : decimals < 0 ? 6 : 3, value);
    }
    fputs("</td>", page);
}

/* ---- a row for each run */

enum source { OF_RUN, TEXT_OF_RUN, OF_H, OF_DOCUMENT };

/* A column: its head, where its number or text is, how it is printed and scaled. */
struct column {
    const char *head; /* NULL: the last column was the one before */
    const char *path; /* in the source: the run, the h of its last checkpoint, or its evaluation of `document` */
    int decimals;
    enum source source;
    double scale;
    const char *document;
};

static const char data_path[] = "record.settings.data_dir";

static const struct column run_columns[] = {
    {"streams", "config.n_streams", 0, OF_RUN, 1, NULL},
    {"parameters, millions", "parameters.total", 2, OF_RUN, 1e-6, NULL},
    {"data", data_path, 0, TEXT_OF_RUN, 1, NULL},
    {"learning rate", "record.settings.learning_rate", SIGNIFICANT, OF_RUN, 1, NULL},
    {"iterations", "record.final.iter", 0, OF_RUN, 1, NULL},
    {"training loss", "record.final.train_loss", 4, OF_RUN, 1, NULL},
    {"validation loss", "record.final.val_loss", 4, OF_RUN, 1, NULL},
    {"best", "record.final.best_val_loss", 4, OF_RUN, 1, NULL},
    {"tokens/s", "record.final.tokens_per_sec", 0, OF_RUN, 1, NULL},
    {"dtype", "record.settings.dtype", 0, TEXT_OF_RUN, 1, NULL},
    {"device", "record.device", 0, TEXT_OF_RUN, 1, NULL},
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
    const json_t *documents = run_member(run, "record.documents");
    const json_t *object = column->source == OF_H          ? run_h(run)
                           : column->source == OF_DOCUMENT ? json_object_get(documents, column->document)
                                                           : run;
    return column->scale * run_number(object, column->path);
}

/* A cell with a text of a run; of its data, the folder's own name. */
static void add_text(FILE *page, const json_t *run, const char *path) {
    const char *text = run_text(run, path), *slash = path == data_path ? strrchr(text, '/') : NULL;
    fprintf(page, "<td class=\"text\">%s</td>", slash ? slash + 1 : text);
}

/* Of all runs; those of matrices of runs that have some. Nothing where there are no columns, or no runs for them. */
static void add_table(const json_t *analysis, FILE *page, const char *title, const char *says,
                      const struct column *columns) {
    const json_t *run;
    size_t i, shown = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        if (columns->source == OF_H && !run_h(run)) {
            continue;
        }
        if (shown++ == 0) {
            begin_table(page, title, says);
            add_head(page, "", "run");
            add_head(page, "", "variant");
            for (const struct column *column = columns; column->head; column++) {
                add_head(page, "", column->head);
            }
            begin_rows(page);
        }
        fprintf(page, "<tr><td>%s</td><td>%s</td>", run_name(run), run_variant(run));
        for (const struct column *column = columns; column->head; column++) {
            if (column->source == TEXT_OF_RUN) {
                add_text(page, run, column->path);
            } else {
                add_number(page, column->decimals, number_of(run, column));
            }
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
        json_object_update_missing(names, (json_t *)run_member(run, "record.documents"));
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

enum { FEW_PAIRS = 3 }; /* up to so many, intervals are several times as wide as of many */

/* A mean with its interval, "0.0123 &plusmn; 0.0045"; a difference has its sign. */
static void add_estimate(FILE *page, const json_t *estimate, bool difference) {
    const double mean = run_number(estimate, "mean"), half_width = run_number(estimate, "half_width");
    fputs("<td>", page);
    if (isfinite(mean)) {
        fprintf(page, difference ? "%+.4f" : "%.4f", mean);
    }
    if (isfinite(half_width)) {
        fprintf(page, " &plusmn; %.4f", half_width);
    } else if (isfinite(mean) && difference) {
        fputs(" (one pair)", page);
    }
    fputs("</td>", page);
}

static void add_variant(FILE *page, const json_t *runs, const json_t *variant, const json_t *baselines) {
    const char *name;
    json_t *unused;
    fprintf(page, "<tr><td>%s</td>", run_kind_label(runs, (size_t)run_number(variant, "kind")));
    add_number(page, 0, run_number(variant, "n_streams"));
    add_number(page, SIGNIFICANT, run_number(variant, "learning_rate"));
    add_number(page, 0, (double)json_array_size(json_object_get(variant, "runs")));
    add_estimate(page, json_object_get(variant, "final"), false);
    add_number(page, 4, run_number(variant, "best.mean"));
    json_object_foreach((json_t *)baselines, name, unused) {
        const json_t *difference = json_object_get(json_object_get(variant, "differences"), name);
        add_estimate(page, json_object_get(difference, "final"), true);
    }
    fputs("</tr>\n", page);
}

/* What a reader of the table has to know of one variant. */
static void add_notes_of(FILE *page, const json_t *runs, const json_t *variant, size_t *fewest_pairs) {
    const size_t kind = (size_t)run_number(variant, "kind");
    const char *name;
    json_t *difference;
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(variant, "left_out"), i, one) {
        fprintf(page, " %s is left out: %s.", run_name(json_array_get(runs, (size_t)run_number(one, "run"))),
                json_string_value(json_object_get(one, "why")));
    }
    json_object_foreach(json_object_get(variant, "differences"), name, difference) {
        const char *why = json_string_value(json_object_get(difference, "why")),
                   *settings = json_string_value(json_object_get(difference, "settings"));
        if (why) {
            fprintf(page, " %s has no difference to %s: %s.", run_kind_label(runs, kind), name, why);
            continue;
        }
        const size_t pairs = (size_t)json_integer_value(json_object_get(difference, "pairs"));
        *fewest_pairs = pairs < *fewest_pairs ? pairs : *fewest_pairs;
        if (settings) {
            fprintf(page, " %s is compared with %s although %s.", run_kind_label(runs, kind), name, settings);
        }
    }
}

static void add_notes(FILE *page, const json_t *analysis, const json_t *comparison) {
    const json_t *variant, *runs = json_object_get(analysis, "runs");
    size_t i, fewest_pairs = SIZE_MAX;
    fputs("<p class=\"quiet\">", page);
    json_array_foreach(json_object_get(comparison, "variants"), i, variant) {
        add_notes_of(page, runs, variant, &fewest_pairs);
    }
    if (fewest_pairs == 1) {
        fputs(" Too few pairs: one alone has no interval. Train more seeds.", page);
    } else if (fewest_pairs <= FEW_PAIRS) {
        fputs(" Few pairs: of two or three an interval is wide (Student's t is 12.7 and 4.3). More seeds make it "
              "narrower.",
              page);
    }
    if (json_is_true(json_object_get(comparison, "batches_by_seed"))) {
        fputs(" Evaluation batches of these runs depend on the seed (eval_batches is by_seed, or absent as in runs "
              "of older versions), so means and their intervals contain the differences between batches; paired "
              "differences do not, since both runs of a pair have the same batches.",
              page);
    }
    fputs("</p>\n", page);
}

/* The union of the variants' baselines, an object with their names; a new reference. */
static json_t *name_baselines(const json_t *variants) {
    json_t *names = json_object();
    const json_t *variant;
    size_t i;
    json_array_foreach(variants, i, variant) {
        json_object_update_missing(names, json_object_get(variant, "differences"));
    }
    return names;
}

/* A row for each variant; nothing where there are not two runs to compare. */
static void add_variants(const json_t *analysis, FILE *page) {
    static const char *const heads[] = {"variant", "streams", "learning rate", "seeds", "validation loss", "best"};
    const json_t *comparison = json_object_get(analysis, "comparison"),
                 *variants = json_object_get(comparison, "variants"), *variant;
    const char *name;
    json_t *baselines = name_baselines(variants), *unused;
    size_t runs = 0, i;
    json_array_foreach(variants, i, variant) {
        runs += json_array_size(json_object_get(variant, "runs"));
    }
    if (runs > 1) {
        begin_table(
            page, "Variants",
            "Means of the last validation losses, and of the lowest ones (best), over runs that differ in the "
            "seed alone. Differences to other variants are means over pairs of runs of the same seed; &plusmn; are "
            "95 % intervals by Student's t.");
        for (i = 0; i < sizeof heads / sizeof *heads; i++) {
            add_head(page, "", heads[i]);
        }
        json_object_foreach(baselines, name, unused) {
            add_head(page, "to ", name);
        }
        begin_rows(page);
        json_array_foreach(variants, i, variant) {
            add_variant(page, json_object_get(analysis, "runs"), variant, baselines);
        }
        end_table(page);
        add_notes(page, analysis, comparison);
    }
    json_decref(baselines);
}

void report_tables(const json_t *analysis, FILE *page) {
    add_variants(analysis, page);
    add_table(
        analysis, page, "Runs",
        "Training loss is the mean of the last 200 iterations, and tokens/s is their median; losses are in nats a "
        "token. Click a head to sort.",
        run_columns);
    add_perplexities(analysis, page);
    add_table(analysis, page, "H<sub>res</sub>",
              "Of each run's last checkpoint, over all tokens of the samples and all sublayers.", matrix_columns);
}
