#include "runtime/system/memory.h"
#include "src/analysis/report.h"
#include "src/analysis/runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double most_fixed = 1e6; /* above it numbers have an exponent: perplexities of byte models */

/* ---- pieces; `words` are a table's in plots.json: "title", "text" and "columns" */

/* Up to the first row: a head for each column, [head, ...] each, and "to NAME" for each name of `others`. */
static void begin_table(FILE *page, const json_t *words, const json_t *others) {
    const json_t *column;
    json_t *value;
    const char *name;
    size_t i;
    fprintf(page, "<h2>%s</h2>\n<p>%s</p>\n<div class=\"table\"><table><thead><tr>",
            json_string_value(json_object_get(words, "title")), json_string_value(json_object_get(words, "text")));
    json_array_foreach(json_object_get(words, "columns"), i, column) {
        fprintf(page, "<th><button type=\"button\">%s</button></th>", json_string_value(json_array_get(column, 0)));
    }
    json_object_foreach((json_t *)others, name, value) {
        fprintf(page, "<th><button type=\"button\">to %s</button></th>", name);
    }
    fputs("</tr></thead><tbody>\n", page);
}

static void end_table(FILE *page) {
    fputs("</tbody></table></div>\n", page);
}

enum { SIGNIFICANT = -1 }; /* instead of a number of decimals: as few digits as a learning rate needs */

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

/* Adds the cell of a column [head, path, decimals, scale] of numbers, [head, path] of texts, or [head, path, null]
 * of names without their folders. */
static void add_cell(FILE *page, const json_t *object, const json_t *column) {
    const char *path = json_string_value(json_array_get(column, 1));
    const json_t *decimals = json_array_get(column, 2), *scale = json_array_get(column, 3);
    if (json_is_integer(decimals)) {
        add_number(page, (int)json_integer_value(decimals),
                   (scale ? json_number_value(scale) : 1.0) * run_number(object, path));
    } else {
        const char *text = run_text(object, path), *slash = decimals ? strrchr(text, '/') : NULL;
        fprintf(page, "<td class=\"text\">%s</td>", slash ? slash + 1 : text);
    }
}

/* Begins the table with the first row. */
static void begin_row(FILE *page, const json_t *words, const json_t *run, size_t *rows) {
    if ((*rows)++ == 0) {
        begin_table(page, words, NULL);
    }
    fprintf(page, "<tr><td>%s</td><td>%s</td>", run_name(run), run_variant(run));
}

/* A row for each run, or with `of_h` for the matrices of each that has some. */
static void add_table(const json_t *analysis, FILE *page, const json_t *words, bool of_h) {
    const json_t *run, *columns = json_object_get(words, "columns");
    size_t i, rows = 0;
    json_array_foreach(json_object_get(analysis, "runs"), i, run) {
        const json_t *object = of_h ? run_h(run) : run;
        if (object) {
            begin_row(page, words, run, &rows);
            for (size_t column = 2; column < json_array_size(columns); column++) {
                add_cell(page, object, json_array_get(columns, column));
            }
            fputs("</tr>\n", page);
        }
    }
    if (rows > 0) {
        end_table(page);
    }
}

/* An object with all names in the objects at a path of the elements; a new reference. */
static json_t *names_at(const json_t *elements, const char *path) {
    json_t *names = json_object();
    const json_t *element;
    size_t i;
    json_array_foreach(elements, i, element) {
        json_object_update_missing(names, (json_t *)run_member(element, path));
    }
    return names;
}

static int by_name(const void *a, const void *b) {
    return strverscmp(*(const char *const *)a, *(const char *const *)b);
}

/* The object with its members in the order of names, numbers in them by value: pages-2 before pages-10. Takes the
 * reference over, and returns a new one. */
static json_t *in_order(json_t *names) {
    const size_t count = json_object_size(names);
    const char **sorted = memory_zeroed(count + 1, sizeof *sorted), *name;
    json_t *ordered = json_object(), *value;
    size_t i = 0;
    json_object_foreach(names, name, value) {
        sorted[i++] = name;
    }
    qsort(sorted, count, sizeof *sorted, by_name);
    for (i = 0; i < count; i++) {
        json_object_set(ordered, sorted[i], json_object_get(names, sorted[i]));
    }
    free(sorted);
    json_decref(names);
    return ordered;
}

/* Whether a run has a number at path `column` [head, path, ...] of the evaluation `name`. */
static bool has_number(const json_t *runs, const char *kind, const char *name, const json_t *column) {
    const char *path = json_string_value(json_array_get(column, 1));
    const json_t *run;
    size_t i;
    json_array_foreach(runs, i, run) {
        if (isfinite(run_number(json_object_get(run_member(run, kind), name), path))) {
            return true;
        }
    }
    return false;
}

/* A table of the evaluations that runs have at `kind`. For each it has those columns of the words' "of_each" that
 * some run has a number for, the first one under the evaluation's name, in the order of names. */
static void add_evaluations(const json_t *analysis, FILE *page, const json_t *words, const char *kind) {
    const json_t *runs = json_object_get(analysis, "runs"), *run, *column;
    json_t *names = in_order(names_at(runs, kind)), *all = json_deep_copy(words),
           *heads = json_object_get(all, "columns"), *value;
    const char *name;
    size_t i, k, rows = 0;
    json_object_foreach(names, name, value) {
        json_array_foreach(json_object_get(words, "of_each"), k, column) {
            if (k == 0) {
                json_array_append_new(heads, json_pack("[s]", name));
            } else if (has_number(runs, kind, name, column)) {
                json_array_append(heads, (json_t *)column);
            }
        }
    }
    json_array_foreach(json_object_size(names) > 0 ? runs : NULL, i, run) {
        begin_row(page, all, run, &rows);
        json_object_foreach(names, name, value) {
            json_array_foreach(json_object_get(words, "of_each"), k, column) {
                if (k == 0 || has_number(runs, kind, name, column)) {
                    add_cell(page, json_object_get(run_member(run, kind), name), column);
                }
            }
        }
        fputs("</tr>\n", page);
    }
    if (rows > 0) {
        end_table(page);
    }
    json_decref(names);
    json_decref(all);
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

/* A row for each variant; nothing where there are not two runs to compare. */
static void add_variants(const json_t *analysis, FILE *page, const json_t *words) {
    const json_t *comparison = json_object_get(analysis, "comparison"),
                 *variants = json_object_get(comparison, "variants"), *variant;
    json_t *baselines = names_at(variants, "differences");
    size_t runs = 0, i;
    json_array_foreach(variants, i, variant) {
        runs += json_array_size(json_object_get(variant, "runs"));
    }
    if (runs > 1) {
        begin_table(page, words, baselines);
        json_array_foreach(variants, i, variant) {
            add_variant(page, json_object_get(analysis, "runs"), variant, baselines);
        }
        end_table(page);
        add_notes(page, analysis, comparison);
    }
    json_decref(baselines);
}

void report_tables(const json_t *analysis, const json_t *words, FILE *page) {
    add_variants(analysis, page, run_member(words, "tables.variants"));
    add_table(analysis, page, run_member(words, "tables.runs"), false);
    add_evaluations(analysis, page, run_member(words, "tables.documents"), "record.documents");
    add_evaluations(analysis, page, run_member(words, "tables.tasks"), "record.tasks");
    add_table(analysis, page, run_member(words, "tables.matrices"), true);
}
