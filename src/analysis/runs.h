/* The runs of an analysis (see analyze.h) as tables and plots read them. JSON of any form is taken: what it does
 * not have is NaN, "" or NULL. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* The value at a path like "product.norm.mean"; the number there; the text there, as run_plain gives it; and
 * element `index` of an array as a number, 0 where there is none. */
const json_t *run_member(const json_t *object, const char *path);
double run_number(const json_t *object, const char *path);
const char *run_text(const json_t *object, const char *path);
double run_element(const json_t *array, size_t index);

/* An array's last element; NULL where there is none. */
const json_t *run_last(const json_t *array);

/* A text in UTF-8 that gnuplot's quotes, HTML and CSV take as it is: other ASCII than letters, digits, blanks and
 * ._-+=()/ and commas, and invisible marks, are question marks. Valid until four more calls. NULL is "". */
const char *run_plain(const char *text);

/* A run's name like that. */
const char *run_name(const json_t *run);

/* A run's variant by its config, or else by its settings, "" when neither has one that is known; and the number of
 * its streams. */
const char *run_variant(const json_t *run);
double run_streams(const json_t *run);

/* Sets the colour of one of these runs, "#rrggbb": its variant's, in shades from dark to light where runs of the
 * variant differ in more than the seed. */
void run_colour(const json_t *runs, const json_t *run, char colour[8]);

/* The last checkpoint's "h" of a run; and its "value_means". NULL: it has none. */
const json_t *run_h(const json_t *run);
const json_t *run_values(const json_t *run);

/* Whether run `index` repeats run `first`, or is it: they have the same settings but for the seed. Whether it
 * repeats no run before it. */
bool run_repeats(const json_t *runs, size_t index, size_t first);
bool run_is_first(const json_t *runs, size_t index);

/* The variant of a kind of runs, or the first run's name where other kinds have that variant or it is not known;
 * and "<label> (3 runs)", or "<label> (seed 1)" of one. Valid as run_plain. */
const char *run_kind_label(const json_t *runs, size_t kind);
const char *run_kind_name(const json_t *runs, size_t kind, size_t count);

/* For legends: the name of a run that has no repeats, run_kind_name of the first of those that are repeats, and ""
 * of the others. */
const char *run_legend(const json_t *runs, size_t index);

/* Runs that differ in the seed alone as one run, so that plots of H_res show all seeds: a new array with one run
 * for each kind (see analyze.h), in their order. A kind of one run is that run. Of several, "name" is as in
 * legends, and statistics and measured checkpoints are means over the runs, of extremes the extremes. Runs whose
 * statistics or checkpoints are of other iterations than the first one's are left out: the name counts those that
 * are in it. */
json_t *run_seed_means(const json_t *runs);
