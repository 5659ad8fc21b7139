#include "src/report.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include "src/figure.h"
#include "src/gnuplot.h"
#include "src/report_texts.h"
#include <math.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WIDTH = 820, USUAL_HEIGHT = 380, MOST_INLINE_CSV = 1 << 20, MOST_EVALUATIONS = 32 };

static const size_t most_picture_bytes = (size_t)1 << 28;

struct report {
    const json_t *analysis;
    int64_t refresh;                      /* seconds, see report.h */
    char *figures;                        /* folder of the pictures */
    struct text_buffer body, links, page; /* sections, links to them, and all of it */
};

/* ---- pieces of the page */

static int add(struct report *report, const char *text) {
    return text_append(&report->body, text, strlen(text));
}

static const char *embedded(const char *name) {
    const struct report_text *text = report_texts;
    while (text->name && strcmp(text->name, name) != 0) {
        text++;
    }
    return text->name ? text->text : "";
}

static int add_base64(struct report *report, const void *data, size_t bytes) {
    struct text_buffer *body = &report->body;
    if (bytes > INT32_MAX / 2 || text_reserve(body, 4 * (bytes / 3 + 1) + 1)) {
        return bytes > INT32_MAX / 2 ? error_set("a picture is too large for the page") : -1;
    }
    body->size += (size_t)EVP_EncodeBlock((unsigned char *)body->bytes + body->size, data, (int)bytes);
    return 0;
}

/* A file of the pictures' folder, inside of the page. */
static int add_file(struct report *report, const char *name, const char *ending, const char *type) {
    char *path = files_path("%s/%s.%s", report->figures, name, ending), *data = NULL;
    size_t bytes;
    int result = path ? files_read(path, most_picture_bytes, &data, &bytes) : -1;
    result = result || text_print(&report->body, "data:%s;base64,", type) || add_base64(report, data, bytes);
    free(path);
    free(data);
    return result ? -1 : 0;
}

/* Text as HTML; of names only, so a few characters suffice. */
static int add_name(struct report *report, const json_t *run) {
    return text_print(&report->body, "<td>%s</td>", figure_name(run));
}

/* A cell; empty where there is no number. */
static int add_number(struct report *report, int decimals, double value) {
    if (!isfinite(value)) {
        return add(report, "<td></td>");
    }
    char text[40];
    snprintf(text, sizeof text, "%.*f", decimals, value);
    return text_print(&report->body, "<td>%s</td>", text);
}

static int add_heads(struct report *report, const char *const *heads, size_t count) {
    int result = add(report, "<div class=\"table\"><table><thead><tr>");
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = text_print(&report->body, "<th><button type=\"button\">%s</button></th>", heads[i]);
    }
    return result || add(report, "</tr></thead><tbody>\n") ? -1 : 0;
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

static int add_rows(struct report *report, const struct column *columns, size_t count) {
    const json_t *run;
    size_t i;
    int result = 0;
    json_array_foreach(json_object_get(report->analysis, "runs"), i, run) {
        const json_t *h = figure_h(run);
        if (columns[0].from_h && !h) {
            continue;
        }
        result = result || add(report, "<tr>") || add_name(report, run) ||
                 text_print(&report->body, "<td>%s</td>", figure_variant(run));
        for (size_t c = 0; result == 0 && c < count; c++) {
            const double value = figure_number(columns[c].from_h ? h : run, columns[c].path);
            result = add_number(report, columns[c].decimals, columns[c].scale * value);
        }
        result = result || add(report, "</tr>\n");
    }
    return result ? -1 : 0;
}

static int add_table(struct report *report, const char *title, const char *says, const struct column *columns,
                     size_t count) {
    const char *heads[16] = {"run", "variant"};
    for (size_t i = 0; i < count; i++) {
        heads[2 + i] = columns[i].head;
    }
    return text_print(&report->body, "<h2>%s</h2>\n<p>%s</p>\n", title, says) ||
                   add_heads(report, heads, count + 2) || add_rows(report, columns, count) ||
                   add(report, "</tbody></table></div>\n")
               ? -1
               : 0;
}

static bool has_matrices(const struct report *report) {
    const json_t *run;
    size_t i;
    json_array_foreach(json_object_get(report->analysis, "runs"), i, run) {
        if (figure_h(run)) {
            return true;
        }
    }
    return false;
}

/* The names of all evaluations of documents, in the order that they come: [*count] of at most `most`. */
static void collect_names(const struct report *report, const char **names, size_t most, size_t *count) {
    const json_t *run;
    size_t i;
    *count = 0;
    json_array_foreach(json_object_get(report->analysis, "runs"), i, run) {
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

/* A row for each run, a column for each evaluation; nothing where there is none. */
static int add_perplexities(struct report *report) {
    const char *heads[2 + MOST_EVALUATIONS] = {"run", "variant"}, **names = heads + 2;
    const json_t *run;
    size_t count, i;
    collect_names(report, names, MOST_EVALUATIONS, &count);
    if (count == 0) {
        return 0;
    }
    int result = add(report, "<h2>Perplexity of documents</h2>\n<p>Per word, as hc_eval and lm-evaluation-harness "
                             "compute it.</p>\n") ||
                 add_heads(report, heads, 2 + count);
    json_array_foreach(json_object_get(report->analysis, "runs"), i, run) {
        const json_t *documents = json_object_get(json_object_get(run, "record"), "documents");
        result = result || add(report, "<tr>") || add_name(report, run) ||
                 text_print(&report->body, "<td>%s</td>", figure_variant(run));
        for (size_t name = 0; result == 0 && name < count; name++) {
            result =
                add_number(report, 2, figure_number(json_object_get(documents, names[name]), "word_perplexity"));
        }
        result = result || add(report, "</tr>\n");
    }
    return result || add(report, "</tbody></table></div>\n") ? -1 : 0;
}

static int add_tables(struct report *report) {
    if (add_table(report, "Runs",
                  "Training loss is the mean of the last 200 iterations; losses are in nats a token. Click a head "
                  "to sort.",
                  run_columns, sizeof run_columns / sizeof *run_columns)) {
        return -1;
    }
    if (add_perplexities(report)) {
        return -1;
    }
    return has_matrices(report)
               ? add_table(report, "H<sub>res</sub>",
                           "Of each run's last checkpoint, over all tokens of the samples and all sublayers.",
                           matrix_columns, sizeof matrix_columns / sizeof *matrix_columns)
               : 0;
}

/* ---- figures */

static int write_csv(struct report *report, const struct figure *figure) {
    char *path = files_path("%s/%s.csv", report->figures, figure->name);
    const int result = path ? files_write(path, figure->csv.bytes, figure->csv.size) : -1;
    free(path);
    return result;
}

static int add_figure(struct report *report, const struct figure *figure) {
    if (gnuplot_draw(report->figures, figure->name, figure->script.bytes, figure->script.size, figure->width,
                     figure->height) ||
        write_csv(report, figure) ||
        text_print(&report->links, "<a href=\"#%s\">%s</a>\n", figure->name, figure->title) ||
        text_print(&report->body,
                   "<section id=\"%s\">\n<h2>%s</h2>\n<p>%.*s</p>\n<figure><img alt=\"%s\" width=\"%u\" "
                   "height=\"%u\" src=\"",
                   figure->name, figure->title, (int)figure->says.size, figure->says.bytes, figure->name,
                   figure->width, figure->height) ||
        add_file(report, figure->name, "svg", "image/svg+xml") || add(report, "\"></figure>\n")) {
        return -1;
    }
    const bool is_small = figure->csv.size <= MOST_INLINE_CSV;
    if (text_print(&report->body, "<p class=\"quiet\"><a download=\"%s.csv\" href=\"", figure->name) ||
        (is_small ? add_file(report, figure->name, "csv", "text/csv")
                  : text_print(&report->body, "figures/%s.csv", figure->name))) {
        return -1;
    }
    return add(report, "\">the numbers (CSV)</a></p>\n</section>\n");
}

static int add_figures(struct report *report) {
    int result = 0;
    for (size_t i = 0; result == 0 && i < figure_kind_count; i++) {
        struct figure figure = {.name = figure_kinds[i].name,
                                .title = figure_kinds[i].title,
                                .width = USUAL_WIDTH,
                                .height = USUAL_HEIGHT};
        figure_kinds[i].make(report->analysis, &figure);
        result = figure.failed            ? error_set("out of memory")
                 : figure.script.size > 0 ? add_figure(report, &figure)
                                          : 0;
        figure_free(&figure);
    }
    return result;
}

/* ---- the page */

/* Up to the links. */
static int begin_page(struct report *report) {
    struct text_buffer *page = &report->page;
    const double samples = figure_number(report->analysis, "samples");
    const size_t runs = json_array_size(json_object_get(report->analysis, "runs"));
    return text_print(page, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n") ||
                   (report->refresh > 0 && text_print(page, "<meta http-equiv=\"refresh\" content=\"%lld\">\n",
                                                      (long long)report->refresh)) ||
                   text_print(page,
                              "<title>Residual streams: a report</title>\n<link rel=\"icon\" href=\"data:,\">\n"
                              "<style>\n%s</style>\n</head>\n<body>\n<h1>Residual streams</h1>\n",
                              embedded("style.css")) ||
                   text_print(page, "<p class=\"quiet\">hctrain %s. %zu run%s", HC_VERSION, runs,
                              runs == 1 ? "" : "s") ||
                   (samples > 0 && text_print(page, ", H<sub>res</sub> on %.0f sequences", samples)) ||
                   text_print(page, ".</p>\n<nav>\n")
               ? -1
               : 0;
}

static int make_page(struct report *report) {
    struct text_buffer *page = &report->page;
    return add_tables(report) || add_figures(report) || begin_page(report) ||
                   text_append(page, report->links.bytes, report->links.size) || text_print(page, "</nav>\n") ||
                   text_append(page, report->body.bytes, report->body.size) ||
                   text_print(page, "<script>\n%s</script>\n</body>\n</html>\n", embedded("script.js"))
               ? -1
               : 0;
}

int report_write(const json_t *analysis, const char *folder, int64_t refresh) {
    struct report report = {.analysis = analysis, .refresh = refresh, .figures = files_path("%s/figures", folder)};
    char *path = files_path("%s/report.html", folder);
    const int result = !report.figures || !path || files_make_folder(report.figures) || make_page(&report) ||
                       files_write(path, report.page.bytes, report.page.size);
    text_free(&report.page);
    text_free(&report.body);
    text_free(&report.links);
    free(report.figures);
    free(path);
    return result ? -1 : 0;
}
