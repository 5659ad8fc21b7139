/* Curves of runs: losses and gradient norms. */
#include "src/analysis/figure.h"
#include <math.h>
#include <stdio.h>

static const double gradient_norm_clamp = 5.0; /* as in the paper's figure */

/* Rows of CSV: run, label, iteration, value. */
static void write_rows(struct figure *figure, const json_t *run, const char *table, const char *key,
                       const char *label) {
    const json_t *rows = json_object_get(json_object_get(run, "record"), table);
    const json_t *xs = json_object_get(rows, "iter"), *ys = json_object_get(rows, key), *y;
    size_t i;
    json_array_foreach(ys, i, y) {
        if (json_is_number(y)) {
            figure_row(figure, "%s,%s,%lld,%.9g\n", figure_name(run), label,
                       (long long)json_integer_value(json_array_get(xs, i)), json_number_value(y));
        }
    }
}

/* One curve of a run as a term of gnuplot's plot command; false: the run has no such numbers. */
static bool add_curve(struct figure *figure, struct text_buffer *terms, const json_t *run, size_t index,
                      const char *table, const char *key, double most, const char *style, const char *title) {
    char block[40];
    snprintf(block, sizeof block, "%s%zu", table, index);
    if (figure_series(figure, run, table, "iter", key, most, block) == 0) {
        return false;
    }
    figure->failed =
        figure->failed ||
        text_print(terms, "%s$%s with %s lc rgb '%s' %s%s%s", terms->size > 0 ? ", " : "", block, style,
                   figure_colour(figure_variant(run)), *title ? "title '" : "notitle", title, *title ? "'" : "");
    return true;
}

/* Draws the terms, or nothing where there are none. */
static void finish_curves(struct figure *figure, struct text_buffer *terms, const char *ylabel) {
    if (terms->size == 0) {
        figure->script.size = 0;
    } else {
        figure_begin_plot(figure);
        figure_plot(figure, "set xlabel 'iteration'\nset ylabel '%s'\nplot %.*s\n", ylabel, (int)terms->size,
                    terms->bytes);
    }
    text_free(terms);
}

/* The largest training loss after a run's first twentieth, which would flatten all that follows. */
static double highest_later_loss(const json_t *run) {
    const json_t *losses = json_object_get(json_object_get(json_object_get(run, "record"), "steps"), "loss");
    const size_t count = json_array_size(losses);
    double highest = 0.0;
    for (size_t i = count / 20; i < count; i++) {
        highest = fmax(highest, json_number_value(json_array_get(losses, i)));
    }
    return highest;
}

void figure_losses(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *best = NULL, *run;
    struct text_buffer terms = {0};
    double lowest = HUGE_VAL, highest = 0.0;
    size_t i;
    figure_row(figure, "run,split,iteration,loss\n");
    json_array_foreach(runs, i, run) {
        add_curve(figure, &terms, run, i, "steps", "loss", HUGE_VAL, "lines lw 0.5", "");
        add_curve(figure, &terms, run, i, "evaluations", "val_loss", HUGE_VAL, "linespoints pt 7 ps 0.5 lw 2",
                  figure_legend(runs, i));
        write_rows(figure, run, "steps", "loss", "train");
        write_rows(figure, run, "evaluations", "val_loss", "val");
        highest = fmax(highest, highest_later_loss(run));
        const double loss = figure_number(run, "record.final.val_loss");
        if (loss < lowest) {
            lowest = loss;
            best = run;
        }
    }
    if (highest > 0.0) {
        figure_plot(figure, "set yrange [*:%.9g]\n", highest);
    }
    finish_curves(figure, &terms, "loss (nats a token)");
    figure_say(
        figure,
        "Thin lines are training losses, points are validation losses; the first steps are above the picture.");
    if (best) {
        figure_say(figure, " The lowest at the end is that of %s, %.4f nats a token.", figure_name(best), lowest);
    }
}

/* The largest gradient norm of a run, and in how many steps it was above the clamp. */
static double largest_norm(const json_t *run, size_t *above) {
    const json_t *steps = json_object_get(json_object_get(run, "record"), "steps"), *value;
    double largest = 0.0;
    size_t i;
    json_array_foreach(json_object_get(steps, "grad_norm"), i, value) {
        largest = fmax(largest, json_number_value(value));
        *above += json_number_value(value) > gradient_norm_clamp;
    }
    return largest;
}

/* What is above the clamp in a run and its repeats. */
static void say_norms(const json_t *runs, size_t first, struct figure *figure) {
    double largest = 0.0;
    size_t above = 0;
    for (size_t i = first; i < json_array_size(runs); i++) {
        if (figure_repeats(runs, i, first)) {
            largest = fmax(largest, largest_norm(json_array_get(runs, i), &above));
        }
    }
    figure_say(figure, "%s%s: largest %.3g, above %g in %zu steps",
               figure->says.size > 0 ? "; " : "Norms before clipping, cut at 5. ", figure_legend(runs, first),
               largest, gradient_norm_clamp, above);
}

void figure_gradient_norms(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    struct text_buffer terms = {0};
    size_t i;
    figure_row(figure, "run,,iteration,gradient_norm\n");
    json_array_foreach(runs, i, run) {
        if (!add_curve(figure, &terms, run, i, "steps", "grad_norm", gradient_norm_clamp, "lines lw 1",
                       figure_legend(runs, i))) {
            continue;
        }
        write_rows(figure, run, "steps", "grad_norm", "");
        if (figure_is_first(runs, i)) {
            say_norms(runs, i, figure);
        }
    }
    finish_curves(figure, &terms, "gradient norm");
    figure_say(figure, ".");
}
