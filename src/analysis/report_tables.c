#include "src/analysis/report_tables.h"
#include "src/analysis/figure.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_EVALUATIONS = 32, MOST_GROUPS = 64, MOST_SEEDS = 64 };

static int add(struct text_buffer *page, const char *text) {
    return text_append(page, text, strlen(text));
}

/* Text as HTML; of names only, so a few characters suffice. */
static int add_name(struct text_buffer *page, const json_t *run) {
    return text_print(page, "<td>%s</td>", figure_name(run));
}

static const double most_fixed = 1e6;

/* A cell; empty where there is no number. */
static int add_number(struct text_buffer *page, int decimals, double value) {
    if (!isfinite(value)) {
        return add(page, "<td></td>");
    }
    char text[40];
    if (fabs(value) < most_fixed) {
        snprintf(text, sizeof text, "%.*f", decimals, value);
    } else {
        snprintf(text, sizeof text, "%.3g", value); /* perplexities of byte models */
    }
    return text_print(page, "<td>%s</td>", text);
}

static int add_head(struct text_buffer *page, const char *head) {
    return text_print(page, "<th><button type=\"button\">%s</button></th>", head);
}

static int add_heads(struct text_buffer *page, const char *const *heads, size_t count) {
    int result = add(page, "<div class=\"table\"><table><thead><tr>");
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = add_head(page, heads[i]);
    }
    return result || add(page, "</tr></thead><tbody>\n") ? -1 : 0;
}

/* ---- tables */

/* A column: its head, the number's path in the run or (from_h) in the last checkpoint's h, how it is printed and
 * scaled. */
struct column {
    const char *head, *path;
    int decimals;
    bool from_h;
    double scale;
};

static const struct column run_columns[] = {
    {"streams", "config.n_streams", 0, false, 1},
    {"iterations", "record.final.iter", 0, false, 1},
    {"training loss", "record.final.train_loss", 4, false, 1},
    {"validation loss", "record.final.val_loss", 4, false, 1},
    {"best", "record.final.best_val_loss", 4, false, 1},
};

static const struct column matrix_columns[] = {
    {"row max, median", "row_max.median", 4, true, 1},
    {"diagonal %", "diagonal_fraction", 2, true, 100},
    {"negative %", "negative_fraction", 2, true, 100},
    {"smallest entry", "smallest_entry", 4, true, 1},
    {"column sum, min", "column_sum.min", 6, true, 1},
    {"max", "column_sum.max", 6, true, 1},
    {"spectral norm, max", "norm_max", 6, true, 1},
    {"product: column sum, min", "product.column_sum.min", 6, true, 1},
    {"max", "product.column_sum.max", 6, true, 1},
    {"norm, mean", "product.norm.mean", 6, true, 1},
};

static int add_rows(const json_t *analysis, struct text_buffer *page, const struct column *columns, size_t count) {
    const json_t *run;
    size_t i;
    int result = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        const json_t *h = figure_h(run);
        if (columns[0].from_h && !h) {
            continue;
        }
        result = result || add(page, "<tr>") || add_name(page, run) ||
                 text_print(page, "<td>%s</td>", figure_variant(run));
        for (size_t c = 0; result == 0 && c < count; c++) {
            const double value = figure_number(columns[c].from_h ? h : run, columns[c].path);
            result = add_number(page, columns[c].decimals, columns[c].scale * value);
        }
        result = result || add(page, "</tr>\n");
    }
    return result ? -1 : 0;
}

static int add_table(const json_t *analysis, struct text_buffer *page, const char *title, const char *says,
                     const struct column *columns, size_t count) {
    const char *heads[16] = {"run", "variant"};
    for (size_t i = 0; i < count; i++) {
        heads[2 + i] = columns[i].head;
    }
    return text_print(page, "<h2>%s</h2>\n<p>%s</p>\n", title, says) || add_heads(page, heads, count + 2) ||
                   add_rows(analysis, page, columns, count) || add(page, "</tbody></table></div>\n")
               ? -1
               : 0;
}

static bool has_matrices(const json_t *analysis) {
    const json_t *run;
    size_t i;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        if (figure_h(run)) {
            return true;
        }
    }
    return false;
}

/* The names of all evaluations of documents, in the order that they come: [*count] of at most `most`. */
static void collect_names(const json_t *analysis, const char **names, size_t most, size_t *count) {
    const json_t *run;
    size_t i;
    *count = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        json_t *documents = json_object_get(json_object_get(run, "record"), "documents"), *value;
        const char *name;
        json_object_foreach(documents, name, value) {
            size_t known = 0;
            while (known < *count && strcmp(names[known], name) != 0) {
                known++;
            }
            if (known == *count && *count < most) {
                names[(*count)++] = name;
            }
        }
    }
}

static int add_perplexity_heads(struct text_buffer *page, const char *const *names, size_t count) {
    int result =
        add(page, "<div class=\"table\"><table><thead><tr>") || add_head(page, "run") || add_head(page, "variant");
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = add_head(page, names[i]) || add_head(page, "bits/byte");
    }
    return result || add(page, "</tr></thead><tbody>\n") ? -1 : 0;
}

/* A row for each run, two columns for each evaluation; nothing where there is none. */
static int add_perplexities(const json_t *analysis, struct text_buffer *page) {
    const char *names[MOST_EVALUATIONS];
    const json_t *run;
    size_t count, i;
    collect_names(analysis, names, MOST_EVALUATIONS, &count);
    if (count == 0) {
        return 0;
    }
    int result = add(page, "<h2>Perplexity of documents</h2>\n<p>Per word, as hc_eval and lm-evaluation-harness "
                           "compute it; beside it bits per byte.</p>\n") ||
                 add_perplexity_heads(page, names, count);
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        const json_t *documents = json_object_get(json_object_get(run, "record"), "documents");
        result = result || add(page, "<tr>") || add_name(page, run) ||
                 text_print(page, "<td>%s</td>", figure_variant(run));
        for (size_t name = 0; result == 0 && name < count; name++) {
            const json_t *found = json_object_get(documents, names[name]);
            result = add_number(page, 2, figure_number(found, "word_perplexity")) ||
                     add_number(page, 4, figure_number(found, "bits_per_byte"));
        }
        result = result || add(page, "</tr>\n");
    }
    return result || add(page, "</tbody></table></div>\n") ? -1 : 0;
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

static int add_group(struct text_buffer *page, const struct group *group) {
    double mean = 0.0, least = HUGE_VAL, most = -HUGE_VAL, square = 0.0;
    for (size_t i = 0; i < group->count; i++) {
        mean += group->losses[i] / (double)group->count;
        least = fmin(least, group->losses[i]);
        most = fmax(most, group->losses[i]);
    }
    for (size_t i = 0; i < group->count; i++) {
        square += (group->losses[i] - mean) * (group->losses[i] - mean);
    }
    const double deviation = group->count > 1 ? sqrt(square / (double)(group->count - 1)) : (double)NAN;
    return text_print(page, "<tr><td>%s</td>", group->variant) || add_number(page, 0, group->streams) ||
                   add_number(page, 0, (double)group->count) || add_number(page, 4, mean) ||
                   add_number(page, 4, deviation) || add_number(page, 4, least) || add_number(page, 4, most) ||
                   add(page, "</tr>\n")
               ? -1
               : 0;
}

/* A row for each variant; nothing where each has one run only. */
static int add_variants(const json_t *analysis, struct text_buffer *page) {
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
        return 0;
    }
    int result =
        add(page,
            "<h2>Variants</h2>\n<p>Last validation losses of the runs of each variant; the deviation is that of a "
            "sample. Of runs that differ in the seed alone, pictures of H<sub>res</sub> show the first.</p>\n") ||
        add_heads(page, heads, sizeof heads / sizeof *heads);
    for (i = 0; result == 0 && i < count; i++) {
        result = add_group(page, &groups[i]);
    }
    return result || add(page, "</tbody></table></div>\n") ? -1 : 0;
}

int report_tables(const json_t *analysis, struct text_buffer *page) {
    if (add_variants(analysis, page) ||
        add_table(analysis, page, "Runs",
                  "Training loss is the mean of the last 200 iterations; losses are in nats a token. Click a head "
                  "to sort.",
                  run_columns, sizeof run_columns / sizeof *run_columns) ||
        add_perplexities(analysis, page)) {
        return -1;
    }
    return has_matrices(analysis)
               ? add_table(analysis, page, "H<sub>res</sub>",
                           "Of each run's last checkpoint, over all tokens of the samples and all sublayers.",
                           matrix_columns, sizeof matrix_columns / sizeof *matrix_columns)
               : 0;
}
