/* Pictures of an analysis: what gnuplot draws, the numbers behind it as CSV, and a sentence that says what it
 * shows. A picture is a struct figure_kind, which draws, and an object of report/figures.json, which has its words:
 *   "title"    in the report
 *   "csv"      head of its numbers
 *   "axes"     gnuplot's settings, lines; a second list is for a second picture beside the first one
 *   "says"     what it shows, as HTML text without the last full stop, and
 *   "between"  what stands between its items, of runs
 *   "key"      of pictures of hc_bench: the number of its cases that is drawn
 * "frame" beside them has the settings that all pictures begin with. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct figure;

enum { FIGURE_NARROW_WIDTH = 350 }; /* what is left of a phone's 390 pixels */

enum figure_layout {
    FIGURE_CURVES, /* curves of all runs in one picture, or in two side by side */
    FIGURE_PANELS, /* a small picture for each run, three in a row */
    FIGURE_ROWS,   /* a row of four small pictures for each run */
};

struct figure_kind {
    const char *name; /* of its files: "dynamics" */
    enum figure_layout layout;
    bool (*wants)(
        const json_t *run); /* which runs it shows of the means over seeds (seed_means.h); NULL: all runs */
    void (*draw)(struct figure *figure, const json_t *run, size_t index); /* a run's part; NULL: it shows no runs */
    void (*finish)(struct figure *figure); /* what is left when all runs are drawn; or NULL */
};

/* In the order of the report; each stands in the file of its subject. */
enum { FIGURE_KINDS = 13 };
extern const struct figure_kind *const figure_kinds[FIGURE_KINDS];
extern const struct figure_kind figure_losses, figure_gradient_norms, figure_dynamics, figure_similarity,
    figure_identity_distance, figure_collapse, figure_singular_values, figure_column_sums, figure_product_norms,
    figure_entries, figure_heat_maps, figure_throughput, figure_auxiliary;

/* Its texts: HTML, what gnuplot draws after terminal and output are set, numbers, and while it is made the commands
 * that plot the curves of both pictures. */
enum { FIGURE_SAYS, FIGURE_SCRIPT, FIGURE_CSV, FIGURE_PLOTS, FIGURE_TEXTS = FIGURE_PLOTS + 2 };

struct figure {
    const struct figure_kind *kind;
    char *texts[FIGURE_TEXTS]; /* owned */
    size_t sizes[FIGURE_TEXTS];
    unsigned width, height; /* pixels */
    unsigned narrow_height; /* of the same for phones, FIGURE_NARROW_WIDTH wide */
    bool drawn;             /* else there is nothing to show */
    /* while it is made: */
    const json_t *words, *analysis, *runs;
    const char *name, *colour;       /* of the run that is drawn, "#rrggbb" */
    FILE *to[FIGURE_TEXTS];          /* write to the texts */
    size_t curves[2], items;         /* counts */
    size_t titles[2], longest_title; /* in the pictures' legends, and the letters of the longest */
    char block[48];                  /* the last block of data */
    double low[2], high[2];          /* of the values in the curves of a picture */
};

/* Makes a figure of an analysis, see analyze.h, and its seed_means; `words` are those of figures.json. 0, or -1 with an error; either
 * way the caller frees it. */
int figure_make(const struct figure_kind *kind, const json_t *words, const json_t *analysis, const json_t *means,
                struct figure *figure);
void figure_free(struct figure *figure);

/* A string of its words, "" when there is none. */
const char *figure_words(const struct figure *figure, const char *key);

/* ---- drawing: writes fail quietly, figure_make notices */

/* Where to say something of a run, behind what was said of others. */
FILE *figure_item(struct figure *figure);

/* A block of data in the script, of lines of numbers. */
void figure_begin_block(struct figure *figure, const char *format, ...) __attribute__((format(printf, 2, 3)));
void figure_end_block(struct figure *figure);

/* Numbers and what stands between them; the line of text ends with them. */
void figure_numbers(FILE *file, char between, const double *numbers, size_t count);

/* Adds a curve of the last block to a picture, in the colour of the run; title "": not in the legend. */
void figure_curve(struct figure *figure, size_t picture, const char *style, const char *title);

/* The branch that a sublayer has: attention and MLP take turns. */
const char *figure_branch(size_t sublayer);

/* figure_curve of a column over depth (column 1, from `first` on), with marks that tell attention and MLP apart, and what
 * finishes such a figure: the marks in its legend. */
void figure_depth_curve(struct figure *figure, size_t picture, unsigned column, size_t first, const char *title);
void figure_mark_branches(struct figure *figure);

/* Lets a picture's axis know of a value; that of all small pictures is the first. */
void figure_see(struct figure *figure, size_t picture, double value);

/* A distance of some five tics in a range above 0: 1, 2 or 5 times a power of ten. */
double figure_tic_distance(double range);

/* ---- reading */

/* A run's variant as in its config, or else its settings, "" when neither has one that is known; the number of its streams,
 * NaN; and a colour for a variant: "#rrggbb". */
const char *figure_variant(const json_t *run);
double figure_streams(const json_t *run);
const char *figure_colour(const char *variant);

/* A text in UTF-8, with other ASCII than letters, digits, blanks and ._-+=()/ and with invisible marks turned
 * into question marks, so that gnuplot's quotes, HTML and CSV take it as it is. Valid until four more calls. NULL is "". */
const char *figure_plain(const char *text);

/* A run's name like that. */
const char *figure_name(const json_t *run);

/* Whether no run before repeats it, which is one of the same settings but for the seed. */
bool figure_is_first(const json_t *runs, size_t index);

/* Whether run `index` repeats run `first`, or is it. */
bool figure_repeats(const json_t *runs, size_t index, size_t first);

/* The variant of a kind of runs, or the first run's name where other kinds are of that variant or it is not known; and
 * "<label> (3 runs)", or "<label> (seed 1)" of one. Valid as figure_name. */
const char *figure_kind_label(const json_t *runs, size_t kind);
const char *figure_kind_name(const json_t *runs, size_t kind, size_t count);

/* For legends: the name of a run that has no repeats, figure_kind_name of the first of those that are repeats,
 * and "" of the others. Valid as figure_name. */
const char *figure_legend(const json_t *runs, size_t index);

/* A number of an object, by a path like "product.norm.mean"; NaN when there is none. */
double figure_number(const json_t *object, const char *path);

/* A text of an object by such a path, as figure_plain gives it; "" when there is none. */
const char *figure_text(const json_t *object, const char *path);

/* A number of an array; 0 where there is none. */
double figure_at(const json_t *array, size_t index);

/* The array record[table][key] of a run, NULL when there is none. */
const json_t *figure_column(const json_t *run, const char *table, const char *key);

/* The last checkpoint's "h" of a run, NULL when there is none. */
const json_t *figure_h(const json_t *run);
