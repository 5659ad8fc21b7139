/* What each plot draws. */
#include "src/analysis/plot.h"
#include "src/analysis/runs.h"
#include "src/variants/residual.h"
#include <math.h>
#include <string.h>

static const json_t *sublayers_of(const json_t *run) {
    return json_object_get(run_h(run), "sublayers");
}

/* ---- losses and gradient norms */

enum { MOST_POINTS = 600 };

static const double gradient_norm_clamp = 5.0; /* as in the paper's figure */

/* A curve of each run. */
struct curve {
    const char *table, *key;   /* of the run's record, beside "iter" */
    const char *split, *style; /* in the CSV; of the line */
    double most;               /* where values are cut */
};

static const struct curve training_loss = {"steps", "loss", "train", "with lines lw 0.5", HUGE_VAL},
                          validation_loss = {"evaluations", "val_loss", "val", "with linespoints pt 7 ps 0.5 lw 2",
                                             HUGE_VAL},
                          smooth_loss = {"steps", "loss", "train", "with lines lw 1", HUGE_VAL},
                          gradient_norm = {"steps", "grad_norm", "", "with lines lw 1", gradient_norm_clamp};

/* A column of a run's record. */
static const json_t *column_of(const json_t *run, const char *table, const char *key) {
    return json_object_get(json_object_get(json_object_get(run, "record"), table), key);
}

/* At most MOST_POINTS points, means of neighbours where there are more. The number of points. */
static size_t write_points(struct plot *plot, const json_t *xs, const json_t *ys, double most) {
    const size_t count = json_array_size(ys), each = (count + MOST_POINTS - 1) / MOST_POINTS;
    size_t points = 0;
    for (size_t first = 0; first < count; first += each) {
        double sum_x = 0.0, sum_y = 0.0;
        size_t used = 0;
        for (size_t i = first; i < count && i < first + each; i++) {
            if (json_is_number(json_array_get(ys, i))) {
                sum_x += run_element(xs, i);
                sum_y += fmin(run_element(ys, i), most);
                used++;
            }
        }
        if (used > 0) {
            plot_data(plot, (double[]){sum_x / (double)used, sum_y / (double)used}, 2);
            plot_include(plot, 0, sum_y / (double)used);
            points++;
        }
    }
    return points;
}

/* Draws a curve and writes its numbers; false: the run has none. */
static bool add_curve(struct plot *plot, const json_t *run, size_t index, const struct curve *curve,
                      const char *title) {
    const json_t *xs = column_of(run, curve->table, "iter"), *ys = column_of(run, curve->table, curve->key), *y;
    size_t i;
    plot_begin_block(plot, curve->table, index);
    const size_t points = write_points(plot, xs, ys, curve->most);
    plot_end_block(plot);
    if (points > 0) {
        plot_curve(plot, 0, curve->style, title);
    }
    json_array_foreach(ys, i, y) {
        if (json_is_number(y)) {
            fprintf(plot_csv_line(plot), "%s,%lld,%.9g\n", curve->split,
                    (long long)json_integer_value(json_array_get(xs, i)), json_number_value(y));
        }
    }
    return points > 0;
}

static void draw_losses(struct plot *plot, const json_t *run, size_t index) {
    add_curve(plot, run, index, &training_loss, "");
    add_curve(plot, run, index, &validation_loss, run_legend(plot->runs, index));
}

/* The largest training loss after a run's first twentieth, which would flatten all that follows. */
static double highest_later_loss(const json_t *run) {
    const json_t *losses = column_of(run, "steps", "loss");
    double highest = 0.0;
    for (size_t count = json_array_size(losses), i = count / 20; i < count; i++) {
        highest = fmax(highest, run_element(losses, i));
    }
    return highest;
}

/* The later two thirds, where runs are closer to each other than a line of noise is wide, are drawn in bins. */
enum { BINS = 120, NEIGHBOURS = 4 /* bins to either side that a mean is over */ };

struct bin {
    double iterations, losses, count; /* sums */
};

/* Adds a column of all runs of a kind. */
static void fill_bins(const struct plot *plot, size_t kind, const struct curve *curve, double last,
                      struct bin bins[BINS]) {
    const json_t *run, *y;
    size_t i, point;
    json_array_foreach(plot->runs, i, run) {
        const json_t *xs = column_of(run, curve->table, "iter");
        json_array_foreach(column_of(run, curve->table, curve->key), point, y) {
            const double x = run_element(xs, point), place = (x - last / 3.0) / (last * 2.0 / 3.0);
            if (run_repeats(plot->runs, i, kind) && json_is_number(y) && place >= 0.0 && x <= last) {
                struct bin *bin = &bins[(size_t)fmin(place * BINS, BINS - 1)];
                bin->iterations += x;
                bin->losses += json_number_value(y);
                bin->count++;
            }
        }
    }
}

/* Means over the seeds of a kind, and over so many neighbours to either side. */
static void add_means(struct plot *plot, size_t kind, const struct curve *curve, double last, size_t neighbours) {
    struct bin bins[BINS] = {{0.0, 0.0, 0.0}};
    char name[32];
    size_t points = 0;
    fill_bins(plot, kind, curve, last, bins);
    snprintf(name, sizeof name, "later_%s", curve->table);
    plot_begin_block(plot, name, kind);
    for (size_t i = neighbours; i + neighbours < BINS; i++) {
        double sum = 0.0, count = 0.0;
        for (size_t k = i - neighbours; k <= i + neighbours; k++) {
            sum += bins[k].losses;
            count += bins[k].count;
        }
        if (bins[i].count > 0.0) {
            plot_data(plot, (double[]){bins[i].iterations / bins[i].count, sum / count}, 2);
            plot_include(plot, 1, sum / count);
            points++;
        }
    }
    plot_end_block(plot);
    if (points > 0) {
        plot_choose_colour(plot, json_array_get(plot->runs, kind));
        plot_curve(plot, 1, curve->style, "");
    }
}

static void draw_later_losses(struct plot *plot) {
    const json_t *run;
    double last = 0.0;
    size_t i;
    json_array_foreach(plot->runs, i, run) {
        last = fmax(last, run_number(run, "record.final.iter"));
    }
    fprintf(plot->to[PLOT_SCRIPT], "later = %.9g\n", last / 3.0);
    for (i = 0; last > 0.0 && i < json_array_size(plot->runs); i++) {
        if (run_is_first(plot->runs, i)) {
            add_means(plot, i, &smooth_loss, last, NEIGHBOURS);
            add_means(plot, i, &validation_loss, last, 0);
        }
    }
}

static void finish_losses(struct plot *plot) {
    const json_t *best = NULL, *run;
    double lowest = HUGE_VAL, highest = 0.0;
    size_t i;
    json_array_foreach(plot->runs, i, run) {
        const double loss = run_number(run, "record.final.val_loss");
        highest = fmax(highest, highest_later_loss(run));
        best = loss < lowest ? run : best;
        lowest = fmin(lowest, loss);
    }
    draw_later_losses(plot);
    if (highest > 0.0) {
        fprintf(plot->to[PLOT_SCRIPT], "set yrange [*:%.9g]\n", highest);
        plot->high[0] = fmin(plot->high[0], highest);
    }
    if (best) {
        fprintf(plot->to[PLOT_TEXT], ". The lowest at the end is that of %s, %.4f nats a token", run_name(best),
                lowest);
    }
}

/* Adds how much of a run and its repeats is above the clamp. */
static void draw_gradient_norms(struct plot *plot, const json_t *run, size_t index) {
    const char *legend = run_legend(plot->runs, index);
    double largest = 0.0;
    size_t above = 0, i, k;
    if (!add_curve(plot, run, index, &gradient_norm, legend) || !run_is_first(plot->runs, index)) {
        return;
    }
    const json_t *repeat, *norm;
    json_array_foreach(plot->runs, i, repeat) {
        json_array_foreach(run_repeats(plot->runs, i, index) ? column_of(repeat, "steps", "grad_norm") : NULL, k,
                           norm) {
            largest = fmax(largest, json_number_value(norm));
            above += json_number_value(norm) > gradient_norm_clamp;
        }
    }
    fprintf(plot_item(plot), "%s: largest %.3g, above %g in %zu steps", legend, largest, gradient_norm_clamp,
            above);
}

/* ---- over depth: did H_res leave the identity, do the streams collapse, what does the product of H_res keep? */

/* Where a run's answers change: docs/analysis.md has them, too. */
static const double still_identity = 0.01, near_identity = 0.1; /* distance of a sublayer from the identity, mean */
static const double one_direction = 0.95, one_stream = 0.9;     /* cosine of the streams, share of the largest */
static const double flat = 0.1; /* second singular value of the product, of the first */

static bool has_h(const json_t *run) {
    return run_h(run) != NULL;
}

static bool has_depth(const json_t *run) {
    return isfinite(run_number(json_array_get(sublayers_of(run), 0), "identity_distance"));
}

/* Number `key` of the last sublayer. */
static double at_the_end(const json_t *run, const char *key) {
    return run_number(run_last(sublayers_of(run)), key);
}

/* A curve over the sublayers of a number in each panel, the second one NULL if there is one panel; depths are
 * counted from `first`. */
static void draw_depth(struct plot *plot, const json_t *run, size_t index, size_t first,
                       const char *const keys[2]) {
    const size_t columns = keys[1] ? 3 : 2;
    const json_t *sublayer;
    size_t depth;
    plot_begin_block(plot, "depth", index);
    json_array_foreach(sublayers_of(run), depth, sublayer) {
        const double row[] = {(double)(depth + first), run_number(sublayer, keys[0]),
                              run_number(sublayer, keys[1] ? keys[1] : keys[0])};
        plot_row(plot, row, columns);
        plot_include(plot, 0, row[1]);
        plot_include(plot, 1, row[2]);
    }
    plot_end_block(plot);
    plot_depth_curve(plot, 0, 2, first, plot->name);
    if (keys[1]) {
        plot_depth_curve(plot, 1, 3, first, "");
    }
}

static void draw_distance(struct plot *plot, const json_t *run, size_t index) {
    const double mean = run_number(run_h(run), "identity_distance");
    draw_depth(plot, run, index, 0, (const char *const[]){"identity_distance", NULL});
    fprintf(plot_item(plot), "%s %s (%.3g on average, the product of all sublayers %.3g)", plot->name,
            mean < still_identity  ? "is the identity still"
            : mean < near_identity ? "is near the identity"
                                   : "has left the identity",
            mean, run_number(run_h(run), "product.identity_distance"));
}

static void draw_collapse(struct plot *plot, const json_t *run, size_t index) {
    const double cosine = at_the_end(run, "stream_cosine"), share = at_the_end(run, "largest_share");
    draw_depth(plot, run, index, 0, (const char *const[]){"stream_cosine", "largest_share"});
    fprintf(plot_item(plot), "%s %s (cosine %.3f, largest stream %.0f %%)", plot->name,
            share > one_stream       ? "keep nearly all in one stream"
            : cosine > one_direction ? "point in nearly one direction"
                                     : "differ",
            cosine, 100.0 * share);
}

static bool has_ranks(const json_t *run) {
    return isfinite(run_number(json_array_get(sublayers_of(run), 0), "effective_rank"));
}

static void draw_ranks(struct plot *plot, const json_t *run, size_t index) {
    const json_t *sublayer;
    double most = -HUGE_VAL;
    size_t depth, where = 0;
    draw_depth(plot, run, index, 0, (const char *const[]){"effective_rank", NULL});
    json_array_foreach(sublayers_of(run), depth, sublayer) {
        const double rank = run_number(sublayer, "effective_rank");
        where = rank > most ? depth : where;
        most = fmax(most, rank);
    }
    fprintf(plot_item(plot), "%s uses %.2f of %g (at most %.2f, in sublayer %zu)", plot->name,
            run_number(run_h(run), "effective_rank"), run_number(run_h(run), "n_streams"), most, where);
}

static void draw_singular_values(struct plot *plot, const json_t *run, size_t index) {
    const double first = at_the_end(run, "product_norm_mean"), second = at_the_end(run, "product_second_mean");
    draw_depth(plot, run, index, 1, (const char *const[]){"product_second_mean", "product_smallest_mean"});
    fprintf(plot_item(plot), "%s %s (first %.3g, second %.3g, smallest %.3g)", plot->name,
            second < flat * first ? "keeps one combination of the streams and little else"
                                  : "keeps differences between streams",
            first, second, at_the_end(run, "product_smallest_mean"));
}

static void draw_product_norms(struct plot *plot, const json_t *run, size_t index) {
    const json_t *sublayer;
    size_t depth;
    plot_begin_block(plot, "norm", index);
    json_array_foreach(sublayers_of(run), depth, sublayer) {
        const double at = (double)depth + 1, mean = run_number(sublayer, "product_norm_mean"),
                     deviation = run_number(sublayer, "product_norm_deviation");
        plot_data(plot, (double[]){at, mean, mean - deviation, mean + deviation}, 4);
        plot_csv(plot, (double[]){at, mean, deviation}, 3);
        plot_include(plot, 0, mean - deviation);
        plot_include(plot, 0, mean + deviation);
    }
    plot_end_block(plot);
    plot_curve(plot, 0, "using 1:3:4 with filledcurves", "");
    plot_depth_curve(plot, 0, 2, 1, plot->name);
    fprintf(plot_item(plot), "%s %.6f (largest %.6f)", plot->name, run_number(run_h(run), "product.norm.mean"),
            run_number(run_h(run), "product.norm.max"));
}

/* ---- over training: row maxima, the diagonal, similarity of the streams */

/* The statistics in a run's own log. */
static size_t statistics_count(const json_t *run) {
    return json_array_size(column_of(run, "statistics", "iter"));
}

enum { ITERATION, P10, MEDIAN, P90, DIAGONAL, POINT };

/* From the run's log, or else measured of its checkpoints. */
static void get_point(const json_t *run, size_t index, double point[POINT]) {
    static const char *const keys[POINT][2] = {{"iter", "iter"},
                                               {"row_max_p10", "h.row_max.p10"},
                                               {"row_max_median", "h.row_max.median"},
                                               {"row_max_p90", "h.row_max.p90"},
                                               {"diagonal_fraction", "h.diagonal_fraction"}};
    const json_t *checkpoint = json_array_get(json_object_get(run, "checkpoints"), index);
    for (size_t i = 0; i < POINT; i++) {
        point[i] = statistics_count(run) > 0 ? run_element(column_of(run, "statistics", keys[i][0]), index)
                                             : run_number(checkpoint, keys[i][1]);
    }
}

static size_t point_count(const json_t *run) {
    const size_t logged = statistics_count(run);
    return logged > 0 ? logged : json_array_size(json_object_get(run, "checkpoints"));
}

static bool has_points(const json_t *run) {
    return point_count(run) > 1;
}

static void draw_dynamics(struct plot *plot, const json_t *run, size_t index) {
    double point[POINT];
    plot_begin_block(plot, "run", index);
    for (size_t i = 0; i < point_count(run); i++) {
        get_point(run, i, point);
        plot_row(plot, point, POINT);
        plot_include(plot, 0, point[P10]);
        plot_include(plot, 0, point[P90]);
        plot_include(plot, 1, point[DIAGONAL]);
    }
    plot_end_block(plot);
    plot_curve(plot, 0, "using 1:2:4 with filledcurves", "");
    plot_curve(plot, 0, "using 1:3 with lines lw 2", plot->name);
    plot_curve(plot, 1, "using 1:5 with lines lw 2", plot->name);
    fprintf(plot_item(plot), "%s: median %.3f (%.3f to %.3f), %.1f %% on the diagonal", plot->name, point[MEDIAN],
            point[P10], point[P90], 100.0 * point[DIAGONAL]);
}

static bool has_cosines(const json_t *run) {
    return statistics_count(run) > 1;
}

static double mean_of(const json_t *array) {
    const size_t count = json_array_size(array);
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += run_element(array, i);
    }
    return sum / (double)count;
}

/* A line for each sublayer. */
static void draw_similarity(struct plot *plot, const json_t *run, size_t index) {
    const json_t *iterations = column_of(run, "statistics", "iter"),
                 *cosines = column_of(run, "statistics", "stream_cosine"), *row;
    const size_t sublayers = json_array_size(json_array_get(cosines, 0));
    size_t i;
    plot_begin_block(plot, "cosine", index);
    json_array_foreach(cosines, i, row) {
        const long long iteration = (long long)run_element(iterations, i);
        fprintf(plot->to[PLOT_SCRIPT], "%lld", iteration);
        for (size_t layer = 0; layer < sublayers; layer++) {
            fprintf(plot->to[PLOT_SCRIPT], " %.6g", run_element(row, layer));
            fprintf(plot_csv_line(plot), "%lld,%zu,%.9g\n", iteration, layer, run_element(row, layer));
            plot_include(plot, 0, run_element(row, layer));
        }
        fputs("\n", plot->to[PLOT_SCRIPT]);
    }
    plot_end_block(plot);
    fprintf(plot->to[PLOT_COMMANDS],
            "set title '%s'\nset xtics %g\nset cbrange [0:%zu]\nplot for [layer=0:%zu] $%s using 1:layer+2 with "
            "lines lw 1.5 dt 1+layer%%2 lc palette cb layer notitle\n",
            plot->name, plot_tic_distance(fmax(json_number_value(run_last(iterations)), 1.0)),
            sublayers > 1 ? sublayers - 1 : 1, sublayers - 1, plot->block);
    fprintf(plot_item(plot), "%s %.3f", plot->name, mean_of(run_last(cosines)));
}

/* ---- H_res of checkpoints: column sums, entries, heat maps */

/* For each sublayer, and behind them the product of all, from p10 to p90 a box, from the smallest to the largest a
 * line. The last column is 0 for attention, 1 for MLP and 2 for the product, which have boxes of their own. */
static void draw_column_sums(struct plot *plot, const json_t *run, size_t index) {
    static const char *const fills[] = {"solid 0.7 noborder", "empty border lc rgb", "pattern 4 border lc rgb"};
    static const char *const keys[] = {"min", "p10", "median", "p90", "max"};
    const json_t *h = run_h(run), *sublayers = sublayers_of(run);
    const size_t count = json_array_size(sublayers);
    FILE *commands = plot->to[PLOT_COMMANDS];
    plot_begin_block(plot, "sums", index);
    for (size_t i = 0; i <= count; i++) {
        const json_t *sums =
            json_object_get(i < count ? json_array_get(sublayers, i) : json_object_get(h, "product"), "column_sum");
        double row[7] = {(double)(i < count ? i : count + 1), [6] = i < count ? (double)(i % 2) : 2.0};
        for (size_t key = 0; key < 5; key++) {
            row[1 + key] = run_number(sums, keys[key]);
        }
        plot_data(plot, row, 7);
        plot_include(plot, 0, row[1]);
        plot_include(plot, 0, row[5]);
        row[0] = (double)i;
        plot_csv(plot, row, 6);
    }
    plot_end_block(plot);
    plot_include(plot, 0, 1.0);
    fprintf(commands, "set title '%s'\nset xrange [-1:%zu]\nset xtics 0,%zu,%zu\nset xtics add ('all' %zu)\nplot ",
            plot->name, count + 2, count / 8 + 1, count - 1, count + 1);
    for (size_t kind = 0; kind < 3; kind++) {
        fprintf(commands, "$%s using ($7==%zu?$1:NaN):3:2:6:5 with candlesticks lw 1.2 lc rgb '%s' fs ",
                plot->block, kind, plot->colour);
        fprintf(commands, kind > 0 ? "%s '%s'" : "%s", fills[kind], plot->colour);
        fputs(" notitle whiskerbars 0.5, ", commands);
    }
    fprintf(commands, "$%s using 1:4:(0.3) with points pt 7 ps 0.4 lc rgb '%s' notitle\n", plot->block,
            plot->colour);
    fprintf(plot_item(plot), "%s: %.4f to %.4f, of the product %.4f to %.4f", plot->name,
            run_number(h, "column_sum.min"), run_number(h, "column_sum.max"),
            run_number(h, "product.column_sum.min"), run_number(h, "product.column_sum.max"));
}

/* The histogram as shares of all entries. */
static void draw_entries(struct plot *plot, const json_t *run, size_t index) {
    const json_t *h = run_h(run), *entries = json_object_get(h, "entries"),
                 *counts = json_object_get(entries, "counts"), *count;
    const double low = run_number(entries, "low"), width = run_number(entries, "width");
    double total = run_number(entries, "below") + run_number(entries, "above");
    size_t bin;
    json_array_foreach(counts, bin, count) {
        total += json_number_value(count);
    }
    plot_begin_block(plot, "entries", index);
    json_array_foreach(counts, bin, count) {
        const double from = low + width * (double)bin;
        if (json_number_value(count) > 0.0) {
            plot_data(plot, (double[]){from + 0.5 * width, json_number_value(count) / total}, 2);
            fprintf(plot_csv_line(plot), "%.9g,%.9g,%.15g\n", from, from + width, json_number_value(count));
        }
    }
    plot_end_block(plot);
    fprintf(plot->to[PLOT_COMMANDS], "set title '%s'\nplot $%s with boxes lc rgb '%s' notitle\n", plot->name,
            plot->block, plot->colour);
    fprintf(plot_item(plot), "%s %.2f %% (smallest %.3f)", plot->name, 100.0 * run_number(h, "negative_fraction"),
            run_number(h, "smallest_entry"));
}

static double entry_of(const json_t *matrix, size_t i, size_t j) {
    return run_element(json_array_get(matrix, i), j);
}

/* An axis with the sums of rows, or of columns, as its labels. */
static void label_sums(struct plot *plot, char axis, const json_t *matrix) {
    const size_t n = json_array_size(matrix);
    fprintf(plot->to[PLOT_COMMANDS], "set %ctics (", axis);
    for (size_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (size_t j = 0; j < n; j++) {
            sum += axis == 'y' ? entry_of(matrix, i, j) : entry_of(matrix, j, i);
        }
        fprintf(plot->to[PLOT_COMMANDS], "%s'%.2f' %zu", i ? ", " : "", sum, i);
    }
    fputs(")\n", plot->to[PLOT_COMMANDS]);
}

/* A matrix with its entries, row sums at the left and column sums below. */
static void draw_matrix(struct plot *plot, size_t index, const json_t *matrix, const char *where) {
    const size_t n = json_array_size(matrix);
    plot_begin_block(plot, "matrix", index);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            fprintf(plot->to[PLOT_SCRIPT], "%zu %zu %.6g\n", j, i, entry_of(matrix, i, j));
            fprintf(plot_csv_line(plot), "%s,%zu,%zu,%.9g\n", where, i, j, entry_of(matrix, i, j));
        }
    }
    plot_end_block(plot);
    fprintf(plot->to[PLOT_COMMANDS], "set title \"%s\\n%s\"\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\n",
            plot->name, where, n - 1, n - 1);
    label_sums(plot, 'x', matrix);
    label_sums(plot, 'y', matrix);
    fprintf(plot->to[PLOT_COMMANDS],
            "plot $%s with image pixels notitle, $%s using 1:2:(sprintf('%%.2f', $3)) with labels font ',%d' tc "
            "rgb '#222222' notitle\n",
            plot->block, plot->block, n > 5 ? 6 : 9);
}

static void draw_heat_maps(struct plot *plot, const json_t *run, size_t index) {
    const json_t *sublayers = sublayers_of(run);
    const size_t count = json_array_size(sublayers), depths[] = {count > 1, count / 2, count - 1};
    for (size_t i = 0; i < 3; i++) {
        char where[48];
        snprintf(where, sizeof where, "sublayer %zu (%s)", depths[i], depths[i] % 2 ? "MLP" : "attention");
        draw_matrix(plot, 4 * index + i, json_object_get(json_array_get(sublayers, depths[i]), "first_sequence"),
                    where);
    }
    draw_matrix(plot, 4 * index + 3, run_member(run_h(run), "product.first_sequence"), "product of all sublayers");
}

/* ---- what hc_bench --compare measured, against the number of streams */

/* The cases of a variant, by their streams; the number of points. */
static size_t write_cases(struct plot *plot, const json_t *cases, const char *key) {
    size_t points = 0, i;
    const json_t *one;
    for (int streams = 1; streams <= RESIDUAL_MAX_STREAMS; streams++) {
        json_array_foreach(cases, i, one) {
            const char *variant = json_string_value(json_object_get(one, "residual"));
            const double point[] = {streams, run_number(one, key)};
            if (variant && strcmp(variant, plot->name) == 0 && run_number(one, "n_streams") == streams &&
                isfinite(point[1])) {
                plot_row(plot, point, 2);
                points++;
            }
        }
    }
    return points;
}

/* Lines of all variants, of the number that the plot's words name. */
static void draw_cases(struct plot *plot) {
    const json_t *cases = run_member(plot->analysis, "bench.cases");
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        plot->name = variant->name;
        snprintf(plot->colour, sizeof plot->colour, "%s", variant->colour);
        plot_begin_block(plot, "variant", i);
        const size_t points = write_cases(plot, cases, plot_words(plot, "key"));
        plot_end_block(plot);
        if (points > 0) {
            plot_curve(plot, 0, "with linespoints pt 7 ps 0.7 lw 2", variant->name);
        }
    }
}

/* ---- */

const struct plot_kind plot_kinds[PLOT_KINDS] = {
    {"loss", PLOT_CURVES, NULL, draw_losses, finish_losses},
    {"gradient_norm", PLOT_CURVES, NULL, draw_gradient_norms, NULL},
    {"identity_distance", PLOT_CURVES, has_depth, draw_distance, plot_mark_branches},
    {"collapse", PLOT_CURVES, has_depth, draw_collapse, plot_mark_branches},
    {"effective_rank", PLOT_CURVES, has_ranks, draw_ranks, plot_mark_branches},
    {"dynamics", PLOT_CURVES, has_points, draw_dynamics, NULL},
    {"similarity", PLOT_PANELS, has_cosines, draw_similarity, NULL},
    {"singular_values", PLOT_CURVES, has_depth, draw_singular_values, plot_mark_branches},
    {"product_norm", PLOT_CURVES, has_h, draw_product_norms, plot_mark_branches},
    {"column_sums", PLOT_PANELS, has_h, draw_column_sums, NULL},
    {"entries", PLOT_PANELS, has_h, draw_entries, NULL},
    {"heat_maps", PLOT_ROWS, has_h, draw_heat_maps, NULL},
    {"value_maps", PLOT_ROWS, plot_values_want, plot_values_draw, NULL},
    {"throughput", PLOT_CURVES, NULL, NULL, draw_cases},
    {"auxiliary", PLOT_CURVES, NULL, NULL, draw_cases},
};
