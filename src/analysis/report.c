#include "src/analysis/report.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/analysis/figure.h"
#include "src/analysis/gnuplot.h"
#include "src/analysis/report_tables.h"
#include "src/analysis/report_texts.h"
#include "src/analysis/seed_means.h"
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_INLINE_CSV = 1 << 20, MOST_PICTURE_BYTES = 1 << 28 };

struct report {
    const json_t *analysis;
    int64_t refresh;    /* seconds, see report.h */
    const char *folder; /* of the pictures */
    FILE *page;
};

static const char *embedded(const char *name) {
    const struct report_text *text = report_texts;
    while (text->name && strcmp(text->name, name) != 0) {
        text++;
    }
    return text->name ? text->text : "";
}

/* ---- figures */

static int add_base64(FILE *page, const char *type, const void *data, size_t bytes) {
    unsigned char *text = malloc(4 * (bytes / 3 + 1) + 1);
    if (!text) {
        return error_set("out of memory");
    }
    EVP_EncodeBlock(text, data, (int)bytes);
    fprintf(page, "data:%s;base64,%s", type, (char *)text);
    free(text);
    return 0;
}

static int add_picture(const struct report *report, const char *name, const char *ending) {
    char *data = NULL;
    size_t bytes;
    const int result =
        files_read(path_of("%s/%s%s", report->folder, name, ending).text, MOST_PICTURE_BYTES, &data, &bytes) ||
        add_base64(report->page, "image/svg+xml", data, bytes);
    free(data);
    return result ? -1 : 0;
}

static int draw_figure(const struct report *report, const struct figure *figure) {
    const char *name = figure->kind->name;
    return gnuplot_draw(report->folder, name, figure->texts[FIGURE_SCRIPT], figure->sizes[FIGURE_SCRIPT],
                        (struct gnuplot_size){figure->width, figure->height},
                        (struct gnuplot_size){FIGURE_NARROW_WIDTH, figure->narrow_height}) ||
                   files_write(path_of("%s/%s.csv", report->folder, name).text, figure->texts[FIGURE_CSV],
                               figure->sizes[FIGURE_CSV])
               ? -1
               : 0;
}

/* A picture in two forms, of which a browser takes the one for its width. */
static int add_figure(const struct report *report, const struct figure *figure) {
    const char *name = figure->kind->name, *title = figure_words(figure, "title");
    fprintf(report->page,
            "<section id=\"%s\">\n<h2>%s</h2>\n<p>%s</p>\n<figure><picture><source media=\"(max-width: 40rem)\" "
            "width=\"%d\" height=\"%u\" srcset=\"",
            name, title, figure->texts[FIGURE_SAYS], FIGURE_NARROW_WIDTH, figure->narrow_height);
    if (draw_figure(report, figure) || add_picture(report, name, "-narrow.svg")) {
        return -1;
    }
    fprintf(report->page, "\"><img alt=\"%s\" width=\"%u\" height=\"%u\" src=\"", name, figure->width,
            figure->height);
    if (add_picture(report, name, ".svg")) {
        return -1;
    }
    fprintf(report->page, "\"></picture></figure>\n<p class=\"quiet\"><a download=\"%s.csv\" href=\"", name);
    if (figure->sizes[FIGURE_CSV] > MOST_INLINE_CSV) {
        fprintf(report->page, "figures/%s.csv", name);
    } else if (add_base64(report->page, "text/csv", figure->texts[FIGURE_CSV], figure->sizes[FIGURE_CSV])) {
        return -1;
    }
    fputs("\">the numbers (CSV)</a></p>\n</section>\n", report->page);
    return 0;
}

/* ---- the page */

/* Up to the links. */
static void begin_page(const struct report *report) {
    FILE *page = report->page;
    const double samples = figure_number(report->analysis, "samples");
    const size_t runs = json_array_size(json_object_get(report->analysis, "runs"));
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
          page);
    if (report->refresh > 0) {
        fprintf(page, "<meta http-equiv=\"refresh\" content=\"%lld\">\n", (long long)report->refresh);
    }
    fprintf(page,
            "<title>Residual streams: a report</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n%s</style>\n"
            "</head>\n<body>\n<h1>Residual streams</h1>\n<p class=\"quiet\">hctrain %s. %zu run%s",
            embedded("style.css"), HC_VERSION, runs, runs == 1 ? "" : "s");
    if (samples > 0) {
        fprintf(page, ", H<sub>res</sub> on %.0f sequences", samples);
    }
    fputs(".</p>\n<nav>\n", page);
}

static int add_page(const struct report *report, const struct figure *figures, size_t count) {
    int result = 0;
    begin_page(report);
    for (size_t i = 0; i < count; i++) {
        if (figures[i].drawn) {
            fprintf(report->page, "<a href=\"#%s\">%s</a>\n", figures[i].kind->name,
                    figure_words(&figures[i], "title"));
        }
    }
    fputs("</nav>\n", report->page);
    report_tables(report->analysis, report->page);
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = figures[i].drawn ? add_figure(report, &figures[i]) : 0;
    }
    fprintf(report->page, "<script>\n%s</script>\n</body>\n</html>\n", embedded("script.js"));
    return result;
}

/* Into memory, so that there is a whole page or none. */
static int write_page(struct report *report, const struct figure *figures, size_t count, const char *path) {
    char *text = NULL;
    size_t bytes;
    report->page = memory_open_stream(&text, &bytes);
    const int added = add_page(report, figures, count);
    memory_close_stream(report->page);
    const int result = added ? -1 : files_write(path, text, bytes);
    free(text);
    return result;
}

int report_write(const json_t *analysis, const char *folder, int64_t refresh) {
    const struct path pictures = path_of("%s/figures", folder);
    struct report report = {.analysis = analysis, .refresh = refresh, .folder = pictures.text};
    struct figure figures[FIGURE_KINDS];
    json_t *words = json_loads(embedded("figures.json"), 0, NULL);
    json_t *means = seed_means(json_object_get(analysis, "runs"));
    int result = words ? files_make_folder(report.folder) : error_set("out of memory");
    for (size_t i = 0; i < FIGURE_KINDS; i++) {
        result |= figure_make(figure_kinds[i], words, analysis, means, &figures[i]);
    }
    result = result ? -1 : write_page(&report, figures, FIGURE_KINDS, path_of("%s/report.html", folder).text);
    for (size_t i = 0; i < FIGURE_KINDS; i++) {
        figure_free(&figures[i]);
    }
    json_decref(means);
    json_decref(words);
    return result;
}
