/* Curves of runs: losses and gradient norms. */
#include "src/analysis/figure.h"
#include <math.h>

enum { MOST_POINTS = 600 };

static const double gradient_norm_clamp = 5.0; /* as in the paper's figure */

/* What a curve of a run shows. */
struct curve {
    const char *table, *key;   /* of the record */
    const char *split, *style; /* in the CSV; of the line */
    double most;               /* where values are cut */
};

static const struct curve training_loss = {"steps", "loss", "train", "with lines lw 0.5", HUGE_VAL};
static const struct curve validation_loss = {"evaluations", "val_loss", "val", "with linespoints pt 7 ps 0.5 lw 2",
                                             HUGE_VAL};
static const struct curve smooth_loss = {"steps", "loss", "train", "with lines lw 1", HUGE_VAL};
static const struct curve gradient_norm = {"steps", "grad_norm", "", "with lines lw 1", gradient_norm_clamp};

/* A block of at most MOST_POINTS points, means of neighbours where there are more. The number of points. */
static size_t write_points(struct figure *figure, const json_t *xs, const json_t *ys, double most) {
    const size_t count = json_array_size(ys), each = (count + MOST_POINTS - 1) / MOST_POINTS;
    size_t points = 0;
    for (size_t first = 0; first < count; first += each) {
        double sum_x = 0.0, sum_y = 0.0;
        size_t used = 0;
        for (size_t i = first; i < count && i < first + each; i++) {
            if (json_is_number(json_array_get(ys, i))) {
                sum_x += figure_at(xs, i);
                sum_y += fmin(figure_at(ys, i), most);
                used++;
            }
        }
        if (used > 0) {
            figure_numbers(figure->to[FIGURE_SCRIPT], ' ', (double[]){sum_x / (double)used, sum_y / (double)used},
                           2);
            figure_see(figure, 0, sum_y / (double)used);
            points++;
        }
    }
    return points;
}

/* Draws a curve and writes its numbers; false: the run has none. */
static bool add_curve(struct figure *figure, const json_t *run, size_t index, const struct curve *curve,
                      const char *title) {
    const json_t *xs = figure_column(run, curve->table, "iter"), *ys = figure_column(run, curve->table, curve->key),
                 *y;
    size_t i;
    figure_begin_block(figure, "%s%zu", curve->table, index);
    const size_t points = write_points(figure, xs, ys, curve->most);
    figure_end_block(figure);
    if (points > 0) {
        figure_curve(figure, 0, curve->style, title);
    }
    json_array_foreach(ys, i, y) {
        if (json_is_number(y)) {
            fprintf(figure->to[FIGURE_CSV], "%s,%s,%lld,%.9g\n", figure->name, curve->split,
                    (long long)json_integer_value(json_array_get(xs, i)), json_number_value(y));
        }
    }
    return points > 0;
}

/* ---- losses */

static void draw_losses(struct figure *figure, const json_t *run, size_t index) {
    add_curve(figure, run, index, &training_loss, "");
    add_curve(figure, run, index, &validation_loss, figure_legend(figure->runs, index));
}

/* The largest training loss after a run's first twentieth, which would flatten all that follows. */
static double highest_later_loss(const json_t *run) {
    const json_t *losses = figure_column(run, "steps", "loss");
    double highest = 0.0;
    for (size_t count = json_array_size(losses), i = count / 20; i < count; i++) {
        highest = fmax(highest, figure_at(losses, i));
    }
    return highest;
}

/* ---- the later two thirds, where runs are closer to each other than a line of noise is wide */

enum { BINS = 120, NEIGHBOURS = 4 /* bins to either side that a mean is over */ };

/* Of iterations and losses in one of BINS equal parts of the later two thirds. */
struct bin {
    double iterations, losses, count; /* sums */
};

/* Adds a column of all runs of a kind. */
static void fill_bins(const struct figure *figure, size_t kind, const struct curve *curve, double last,
                      struct bin bins[BINS]) {
    const json_t *run, *y;
    size_t i, point;
    json_array_foreach(figure->runs, i, run) {
        const json_t *xs = figure_column(run, curve->table, "iter");
        json_array_foreach(figure_column(run, curve->table, curve->key), point, y) {
            const double x = figure_at(xs, point), place = (x - last / 3.0) / (last * 2.0 / 3.0);
            if (figure_repeats(figure->runs, i, kind) && json_is_number(y) && place >= 0.0 && place <= 1.0) {
                struct bin *bin = &bins[(size_t)fmin(place * BINS, BINS - 1)];
                bin->iterations += x;
                bin->losses += json_number_value(y);
                bin->count++;
            }
        }
    }
}

/* Means over the seeds of a kind, and over so many neighbours to either side. */
static void add_means(struct figure *figure, size_t kind, const struct curve *curve, double last,
                      size_t neighbours) {
    struct bin bins[BINS] = {{0.0, 0.0, 0.0}};
    size_t points = 0;
    fill_bins(figure, kind, curve, last, bins);
    figure_begin_block(figure, "later_%s%zu", curve->table, kind);
    for (size_t i = neighbours; i + neighbours < BINS; i++) {
        double sum = 0.0, count = 0.0;
        for (size_t k = i - neighbours; k <= i + neighbours; k++) {
            sum += bins[k].losses;
            count += bins[k].count;
        }
        if (bins[i].count > 0.0) {
            figure_numbers(figure->to[FIGURE_SCRIPT], ' ',
                           (double[]){bins[i].iterations / bins[i].count, sum / count}, 2);
            figure_see(figure, 1, sum / count);
            points++;
        }
    }
    figure_end_block(figure);
    if (points > 0) {
        figure->colour = figure_colour(figure_variant(json_array_get(figure->runs, kind)));
        figure_curve(figure, 1, curve->style, "");
    }
}

static void draw_later_losses(struct figure *figure) {
    const json_t *run;
    double last = 0.0;
    size_t i;
    json_array_foreach(figure->runs, i, run) {
        last = fmax(last, figure_number(run, "record.final.iter"));
    }
    fprintf(figure->to[FIGURE_SCRIPT], "later = %.9g\n", last / 3.0);
    for (i = 0; last > 0.0 && i < json_array_size(figure->runs); i++) {
        if (figure_is_first(figure->runs, i)) {
            add_means(figure, i, &smooth_loss, last, NEIGHBOURS);
            add_means(figure, i, &validation_loss, last, 0);
        }
    }
}

static void finish_losses(struct figure *figure) {
    const json_t *best = NULL, *run;
    double lowest = HUGE_VAL, highest = 0.0;
    size_t i;
    json_array_foreach(figure->runs, i, run) {
        const double loss = figure_number(run, "record.final.val_loss");
        highest = fmax(highest, highest_later_loss(run));
        best = loss < lowest ? run : best;
        lowest = fmin(lowest, loss);
    }
    draw_later_losses(figure);
    if (highest > 0.0) {
        fprintf(figure->to[FIGURE_SCRIPT], "set yrange [*:%.9g]\n", highest);
        figure->high[0] = fmin(figure->high[0], highest);
    }
    if (best) {
        fprintf(figure->to[FIGURE_SAYS], ". The lowest at the end is that of %s, %.4f nats a token",
                figure_name(best), lowest);
    }
}

const struct figure_kind figure_losses = {"loss", FIGURE_CURVES, NULL, draw_losses, finish_losses};

/* ---- gradient norms */

/* The largest gradient norm of a run, and in how many steps it was above the clamp. */
static double largest_norm(const json_t *run, size_t *above) {
    const json_t *norms = figure_column(run, "steps", "grad_norm");
    double largest = 0.0;
    for (size_t i = 0; i < json_array_size(norms); i++) {
        largest = fmax(largest, figure_at(norms, i));
        *above += figure_at(norms, i) > gradient_norm_clamp;
    }
    return largest;
}

/* Says what is above the clamp in a run and its repeats. */
static void draw_norms(struct figure *figure, const json_t *run, size_t index) {
    const char *legend = figure_legend(figure->runs, index);
    double largest = 0.0;
    size_t above = 0;
    if (!add_curve(figure, run, index, &gradient_norm, legend) || !figure_is_first(figure->runs, index)) {
        return;
    }
    for (size_t i = index; i < json_array_size(figure->runs); i++) {
        if (figure_repeats(figure->runs, i, index)) {
            largest = fmax(largest, largest_norm(json_array_get(figure->runs, i), &above));
        }
    }
    fprintf(figure_item(figure), "%s: largest %.3g, above %g in %zu steps", legend, largest, gradient_norm_clamp,
            above);
}

const struct figure_kind figure_gradient_norms = {"gradient_norm", FIGURE_CURVES, NULL, draw_norms, NULL};
