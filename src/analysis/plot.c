#include "src/analysis/plot.h"
#include "runtime/system/memory.h"
#include "src/analysis/runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WIDTH = 820, TWO_WIDTH = 1000, USUAL_HEIGHT = 370, NARROW_HEIGHT = 250 }; /* pixels, without legends */
enum { LEGEND_MARGIN = 60, LEGEND_LINE = 14, LEGEND_MARK = 40, LETTER = 6 }; /* of axes, a row, a mark, a letter */

static const double least_range = 0.01; /* no deviation looks like one in a range as small as its rounding */

/* Small panels; sizes in pixels. */
static const struct grid {
    size_t per_run, columns, narrow_columns; /* panels of a run; most of them in a row */
    unsigned margin, column_width, row_height, narrow_row_height;
    const char *settings;
} grids[] = {
    [PLOT_PANELS] = {1, 3, 1, 60, 330, 270, 240, ""},
    [PLOT_ROWS] = {4, 4, 2, 20, 260, 250, 190, "unset grid\n"},
};

/* ---- for plots.c */

const char *plot_words(const struct plot *plot, const char *key) {
    const char *words = json_string_value(json_object_get(plot->words, key));
    return words ? words : "";
}

FILE *plot_item(struct plot *plot) {
    fputs(plot->items++ > 0 ? plot_words(plot, "between") : "", plot->to[PLOT_TEXT]);
    return plot->to[PLOT_TEXT];
}

void plot_begin_block(struct plot *plot, const char *name, size_t index) {
    snprintf(plot->block, sizeof plot->block, "%s%zu", name, index);
    fprintf(plot->to[PLOT_SCRIPT], "$%s << END_OF_DATA\n", plot->block);
}

void plot_end_block(struct plot *plot) {
    fputs("END_OF_DATA\n", plot->to[PLOT_SCRIPT]);
}

static void print_numbers(FILE *file, char between, const double *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "%.9g%c", numbers[i], i + 1 < count ? between : '\n');
    }
}

void plot_data(struct plot *plot, const double *numbers, size_t count) {
    print_numbers(plot->to[PLOT_SCRIPT], ' ', numbers, count);
}

FILE *plot_csv_line(struct plot *plot) {
    const char *quote = strchr(plot->name, ',') ? "\"" : "";
    fprintf(plot->to[PLOT_CSV], "%s%s%s,", quote, plot->name, quote);
    return plot->to[PLOT_CSV];
}

void plot_csv(struct plot *plot, const double *numbers, size_t count) {
    print_numbers(plot_csv_line(plot), ',', numbers, count);
}

void plot_row(struct plot *plot, const double *numbers, size_t count) {
    plot_data(plot, numbers, count);
    plot_csv(plot, numbers, count);
}

/* Of a curve, for the size of the legend. */
static void count_title(struct plot *plot, size_t panel, const char *title) {
    const size_t length = strlen(title);
    plot->titles[panel] += length > 0;
    plot->longest_title = length > plot->longest_title ? length : plot->longest_title;
}

void plot_choose_colour(struct plot *plot, const json_t *run) {
    run_colour(json_object_get(plot->analysis, "runs"), run, plot->colour);
}

void plot_curve(struct plot *plot, size_t panel, const char *style, const char *title) {
    fprintf(plot->to[PLOT_COMMANDS + panel], "%s$%s %s lc rgb '%s' %s%s%s",
            plot->curves[panel]++ > 0 ? ", " : "plot ", plot->block, style, plot->colour,
            *title ? "title '" : "notitle", title, *title ? "'" : "");
    count_title(plot, panel, title);
}

void plot_depth_curve(struct plot *plot, size_t panel, unsigned column, size_t first, const char *title) {
    char style[96];
    snprintf(style, sizeof style, "using 1:%u:(int($1)%%2==%zu?7:8) with linespoints pt variable ps 0.7 lw 2",
             column, first % 2);
    plot_curve(plot, panel, style, title);
}

void plot_mark_branches(struct plot *plot) {
    if (plot->curves[0] > 0) {
        fputs(", keyentry with points pt 7 ps 0.7 lc rgb '#888888' title 'attention', keyentry with points pt 8 ps "
              "0.7 lw 2 lc rgb '#888888' title 'MLP'",
              plot->to[PLOT_COMMANDS]);
        count_title(plot, 0, "attention");
        count_title(plot, 0, "MLP");
    }
}

void plot_include(struct plot *plot, size_t panel, double value) {
    plot->low[panel] = fmin(plot->low[panel], value);
    plot->high[panel] = fmax(plot->high[panel], value);
}

double plot_tic_distance(double range) {
    const double least = range / 5.0, power = pow(10.0, floor(log10(least)));
    return least <= power         ? power
           : least <= 2.0 * power ? 2.0 * power
           : least <= 5.0 * power ? 5.0 * power
                                  : 10.0 * power;
}

/* ---- axes and legends */

/* gnuplot's own labels have six digits, or as many as the range of the axis needs and its tics do not: too few
 * where tics are close together. There the script sets their distance and the digits behind the point. */
static void set_labels(struct plot *plot, size_t panel) {
    const double low = plot->low[panel], high = plot->high[panel];
    const double distance = high > low ? plot_tic_distance(high - low) : 1.0;
    const double before = floor(log10(fmax(fmax(fabs(low), fabs(high)), 1.0))) + 1.0,
                 behind = ceil(-log10(distance) - 1e-9);
    if (behind > 4.0 || (behind > 0.0 && before + behind > 6.0)) {
        fprintf(plot->to[PLOT_SCRIPT], "set ytics %.9g\nset format y '%%.%.0ff'\n", distance, behind);
    } else if (panel > 0) {
        fputs("set ytics autofreq\nset format y '% h'\n", plot->to[PLOT_SCRIPT]);
    }
}

static void set_lines(struct plot *plot, const json_t *lines) {
    const json_t *line;
    size_t i;
    json_array_foreach(lines, i, line) {
        fprintf(plot->to[PLOT_SCRIPT], "%s\n", json_string_value(line));
    }
}

/* So many panels, in rows, and for screens of phones in fewer columns. */
static void begin_panels(struct plot *plot, size_t count, size_t columns, size_t narrow_columns) {
    fprintf(plot->to[PLOT_SCRIPT],
            "if (!exists('narrow')) narrow = 0\nset multiplot layout (narrow ? %zu : %zu),(narrow ? %zu : %zu)\n",
            (count + narrow_columns - 1) / narrow_columns, (count + columns - 1) / columns, narrow_columns,
            columns);
}

/* The height of a legend above a panel of this width, whose settings begin with `condition`. */
static unsigned set_legend(struct plot *plot, unsigned width, const char *condition) {
    const unsigned most = width - LEGEND_MARGIN, title = LEGEND_MARK + LETTER * (unsigned)plot->longest_title;
    const unsigned columns = most > title ? most / title : 1;
    const unsigned rows = ((unsigned)plot->titles[0] + columns - 1) / columns;
    fprintf(plot->to[PLOT_SCRIPT], "%sset key maxcols %u; set tmargin %.1f\n", condition, columns,
            1.2 * rows + 0.8);
    return LEGEND_LINE * rows;
}

/* ---- layouts */

/* Small panels of all runs shown, with one vertical axis where their values are known. */
static void lay_out_panels(struct plot *plot, size_t runs) {
    const struct grid *grid = &grids[plot->kind->layout];
    const size_t panels = grid->per_run * runs, columns = panels < grid->columns ? panels : grid->columns;
    const unsigned rows = (unsigned)((panels + columns - 1) / columns),
                   narrow_rows = (unsigned)(panels / grid->narrow_columns);
    plot->width = grid->margin + grid->column_width * (unsigned)columns;
    plot->height = grid->margin + grid->row_height * rows;
    plot->narrow_height = 20 + grid->narrow_row_height * narrow_rows;
    fputs(grid->settings, plot->to[PLOT_SCRIPT]);
    begin_panels(plot, panels, columns, grid->narrow_columns);
    set_lines(plot, json_array_get(json_object_get(plot->words, "axes"), 0));
    const double low = plot->low[0], high = plot->high[0], margin = 0.05 * fmax(high - low, least_range);
    if (low <= high) {
        fprintf(plot->to[PLOT_SCRIPT], "set yrange [%.9g:%.9g]\n", low - margin, high + margin);
        set_labels(plot, 0);
    }
    fprintf(plot->to[PLOT_SCRIPT], "%sunset multiplot\n", plot->texts[PLOT_COMMANDS]);
}

/* The curves of all runs, behind their data: in one panel, or in two side by side. */
static void lay_out_curves(struct plot *plot) {
    FILE *script = plot->to[PLOT_SCRIPT];
    const unsigned panels = plot->curves[1] > 0 ? 2 : 1;
    plot->width = panels == 2 ? TWO_WIDTH : USUAL_WIDTH;
    begin_panels(plot, panels, panels, 1);
    plot->height = USUAL_HEIGHT + set_legend(plot, plot->width / panels, "");
    plot->narrow_height = panels * (NARROW_HEIGHT + set_legend(plot, PLOT_NARROW_WIDTH, "if (narrow) "));
    for (size_t panel = 0; panel < panels; panel++) {
        fputs(plot->titles[panel] == 0 ? "if (narrow) set tmargin 1\n" : "", script);
        set_lines(plot, json_array_get(json_object_get(plot->words, "axes"), panel));
        set_labels(plot, panel);
        fprintf(script, "%s\n", plot->texts[PLOT_COMMANDS + panel]);
    }
    fputs("unset multiplot\n", script);
}

/* The number of runs shown. */
static size_t draw_runs(struct plot *plot) {
    const struct plot_kind *kind = plot->kind;
    const json_t *run;
    size_t shown = 0, i;
    json_array_foreach(plot->runs, i, run) {
        if (kind->draw && (!kind->wants || kind->wants(run))) {
            plot->name = run_name(run);
            plot_choose_colour(plot, run);
            kind->draw(plot, run, i);
            shown++;
        }
    }
    if (kind->finish) {
        kind->finish(plot);
    }
    return shown;
}

void plot_make(const struct plot_kind *kind, const json_t *words, const json_t *analysis, const json_t *means,
               struct plot *plot) {
    const bool curves = kind->layout == PLOT_CURVES;
    *plot = (struct plot){.kind = kind,
                          .words = json_object_get(words, kind->name),
                          .analysis = analysis,
                          .runs = kind->wants ? means : json_object_get(analysis, "runs"),
                          .low = {HUGE_VAL, HUGE_VAL},
                          .high = {-HUGE_VAL, -HUGE_VAL}};
    for (size_t i = 0; i < PLOT_TEXTS; i++) {
        plot->to[i] = memory_open_stream(&plot->texts[i], &plot->sizes[i]);
    }
    fprintf(plot->to[PLOT_CSV], "%s\n", plot_words(plot, "csv"));
    fputs(plot_words(plot, "text"), plot->to[PLOT_TEXT]);
    const size_t shown = draw_runs(plot);
    fputs(".", plot->to[PLOT_TEXT]);
    fflush(plot->to[PLOT_COMMANDS]);
    fflush(plot->to[PLOT_COMMANDS + 1]);
    plot->drawn = curves ? plot->curves[0] > 0 : shown > 0;
    if (plot->drawn) {
        set_lines(plot, json_object_get(words, "frame"));
        curves ? lay_out_curves(plot) : lay_out_panels(plot, shown);
    }
    for (size_t i = 0; i < PLOT_TEXTS; i++) {
        memory_close_stream(plot->to[i]);
    }
}

void plot_free(struct plot *plot) {
    for (size_t i = 0; i < PLOT_TEXTS; i++) {
        free(plot->texts[i]);
    }
}
