/* Pictures of an analysis: what gnuplot draws, the numbers behind it as CSV, and a sentence that says what it
 * shows. */
#ifndef HC_SRC_FIGURE_H
#define HC_SRC_FIGURE_H

#include "src/text/text_buffer.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct figure {
    const char *name;          /* of its files: "dynamics" */
    const char *title;         /* in the report */
    struct text_buffer says;   /* what it shows, as HTML text; ends with a NUL in its bytes, not in its size */
    struct text_buffer script; /* for gnuplot, after terminal and output are set; empty: there is nothing to draw */
    struct text_buffer csv;    /* header and rows */
    unsigned width, height;    /* pixels */
    bool failed;               /* memory ran out while it was made */
};

/* Appends to one of the buffers; a failure is kept in `failed`. */
void figure_say(struct figure *figure, const char *format, ...) __attribute__((format(printf, 2, 3)));
void figure_plot(struct figure *figure, const char *format, ...) __attribute__((format(printf, 2, 3)));
void figure_row(struct figure *figure, const char *format, ...) __attribute__((format(printf, 2, 3)));
void figure_free(struct figure *figure);

/* Makes a figure from an analysis (see analyze.h), of which it fills all but what is in the table. */
typedef void (*figure_maker)(const json_t *analysis, struct figure *figure);

struct figure_kind {
    const char *name, *title;
    figure_maker make;
};

/* In the order of the report. */
extern const struct figure_kind figure_kinds[];
extern const size_t figure_kind_count;

/* ---- what makers share */

/* A run's variant as in its config, "" when it has none, and a colour for it: "#rrggbb". */
const char *figure_variant(const json_t *run);
const char *figure_colour(const char *variant);

/* A run's name, in UTF-8, with other ASCII than letters, digits, blanks and ._-+= and with invisible marks turned
 * into question marks, so that gnuplot's quotes, HTML and CSV take it as it is. Valid until four more calls. */
const char *figure_name(const json_t *run);

/* Whether no run before repeats it, which is one of the same settings but for the seed. Pictures with a panel a run
 * show only these. */
bool figure_is_first(const json_t *runs, size_t index);

/* Whether run `index` repeats run `first`, or is it. */
bool figure_repeats(const json_t *runs, size_t index, size_t first);

/* For legends: the name of a run that has no repeats, "<variant>, 3 runs" (or of the name) of the first of those
 * that are repeats, and
 * "" of the others. Valid as figure_name. */
const char *figure_legend(const json_t *runs, size_t index);

/* A number of an object, by a path like "product.norm.mean"; NaN when there is none. */
double figure_number(const json_t *object, const char *path);

/* The last checkpoint's "h" of a run, NULL when there is none. */
const json_t *figure_h(const json_t *run);

/* The arrays record[table][x] and [y] of a run as a data block "$<block>" of gnuplot: at most 600 points, means of
 * neighbours where there are more; y is cut at `most`. The number of points. */
size_t figure_series(struct figure *figure, const json_t *run, const char *table, const char *x, const char *y,
                     double most, const char *block);

/* What all pictures begin with: grid, colours that suit light and dark pages. */
void figure_begin_plot(struct figure *figure);

/* The same for so many small pictures, at least 1, three in a row. */
void figure_begin_panels(struct figure *figure, size_t panels);

/* ---- makers, each in the file of its subject */

/* figures_runs.c */
void figure_losses(const json_t *analysis, struct figure *figure);
void figure_gradient_norms(const json_t *analysis, struct figure *figure);

/* figures_training.c */
void figure_dynamics(const json_t *analysis, struct figure *figure);
void figure_similarity(const json_t *analysis, struct figure *figure);

/* figures_matrices.c */
void figure_column_sums(const json_t *analysis, struct figure *figure);
void figure_product_norms(const json_t *analysis, struct figure *figure);
void figure_entries(const json_t *analysis, struct figure *figure);
void figure_heat_maps(const json_t *analysis, struct figure *figure);

/* figures_bench.c */
void figure_throughput(const json_t *analysis, struct figure *figure);
void figure_auxiliary(const json_t *analysis, struct figure *figure);

#endif
