#include "src/analysis/report.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/analysis/figure.h"
#include "src/analysis/gnuplot.h"
#include "src/analysis/report_tables.h"
#include "src/analysis/report_texts.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WIDTH = 820, USUAL_HEIGHT = 380, MOST_INLINE_CSV = 1 << 20 };

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
    return report_tables(report->analysis, &report->body) || add_figures(report) || begin_page(report) ||
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
