/* The plots of an analysis: what gnuplot draws, the numbers behind it as CSV, and a sentence that says what it
 * shows. A plot is a struct plot_kind, which draws, and an object of report/plots.json, which has its words:
 *   "title"    in the report
 *   "csv"      head of its numbers
 *   "axes"     gnuplot's settings, lines; a second list is for a second panel beside the first one
 *   "text"     what it shows, as HTML text without the last full stop, and
 *   "between"  what stands between its items, of runs
 *   "key"      of plots of hc_bench: the number of its cases that is drawn
 * "frame" beside them has the settings that all plots begin with, and "tables" the words and columns of
 * report_tables.c. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct plot;

enum { PLOT_NARROW_WIDTH = 350 }; /* what is left of a phone's 390 pixels */

enum plot_layout {
    PLOT_CURVES, /* curves of all runs in one panel, or in two side by side */
    PLOT_PANELS, /* a small panel for each run, three in a row */
    PLOT_ROWS,   /* a row of four small panels for each run */
};

struct plot_kind {
    const char *name; /* of its files: "dynamics" */
    enum plot_layout layout;
    bool (*wants)(const json_t *run); /* of run_seed_means that it shows; NULL: all runs */
    void (*draw)(struct plot *plot, const json_t *run, size_t index); /* a run; NULL: it shows no runs */
    void (*finish)(struct plot *plot);                                /* after all runs; or NULL */
};

/* In the order of the report. */
enum { PLOT_KINDS = 15 };
extern const struct plot_kind plot_kinds[PLOT_KINDS];

/* Its texts: HTML, what gnuplot draws after terminal and output are set, numbers, and while it is made the commands
 * that plot the curves of both panels. */
enum { PLOT_TEXT, PLOT_SCRIPT, PLOT_CSV, PLOT_COMMANDS, PLOT_TEXTS = PLOT_COMMANDS + 2 };

struct plot {
    const struct plot_kind *kind;
    char *texts[PLOT_TEXTS]; /* owned */
    size_t sizes[PLOT_TEXTS];
    unsigned width, height; /* pixels */
    unsigned narrow_height; /* of the same for phones, PLOT_NARROW_WIDTH wide */
    bool drawn;             /* else there is nothing to show */
    /* while it is made: */
    const json_t *words, *analysis, *runs;
    const char *name;                /* of the run that is drawn */
    char colour[8];                  /* of the same, "#rrggbb" */
    FILE *to[PLOT_TEXTS];            /* write to the texts */
    size_t curves[2], items;         /* counts */
    size_t titles[2], longest_title; /* in the panels' legends, and the letters of the longest */
    char block[48];                  /* the last block of data */
    double low[2], high[2];          /* of the values in the curves of a panel */
};

/* Makes a plot of an analysis, see analyze.h, and its run_seed_means; `words` are those of plots.json. */
void plot_make(const struct plot_kind *kind, const json_t *words, const json_t *analysis, const json_t *means,
               struct plot *plot);
void plot_free(struct plot *plot);

/* A string of its words, "" when there is none. */
const char *plot_words(const struct plot *plot, const char *key);

/* ---- for plots.c */

/* Where to write about a run, behind what was written about others. */
FILE *plot_item(struct plot *plot);

/* A block of data in the script, of lines of numbers. */
void plot_begin_block(struct plot *plot, const char *name, size_t index);
void plot_end_block(struct plot *plot);

/* Begins a line of the CSV with the run's name, in quotes where that has a comma. */
FILE *plot_csv_line(struct plot *plot);

/* A line of numbers in the block; one in the CSV, behind the run's name; and both. */
void plot_data(struct plot *plot, const double *numbers, size_t count);
void plot_csv(struct plot *plot, const double *numbers, size_t count);
void plot_row(struct plot *plot, const double *numbers, size_t count);

/* Sets the colour to that of a run. */
void plot_choose_colour(struct plot *plot, const json_t *run);

/* Adds a curve of the last block to a panel, in the colour of the run; title "": not in the legend. */
void plot_curve(struct plot *plot, size_t panel, const char *style, const char *title);

/* plot_curve of a column over depth (column 1, from `first` on), with marks that differ for attention and MLP, and
 * what finishes such a plot: the marks in its legend. */
void plot_depth_curve(struct plot *plot, size_t panel, unsigned column, size_t first, const char *title);
void plot_mark_branches(struct plot *plot);

/* Widens a panel's axis to a value; that of all small panels is the first. */
void plot_include(struct plot *plot, size_t panel, double value);

/* A distance of some five tics in a range above 0: 1, 2 or 5 times a power of ten. */
double plot_tic_distance(double range);

/* ---- for the table of plots */

/* The heat maps of plot_values.c. */
bool plot_values_want(const json_t *run);
void plot_values_draw(struct plot *plot, const json_t *run, size_t index);
