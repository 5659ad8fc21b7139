/* H_res and the streams over training. */
#include "src/analysis/figure.h"
#include <math.h>
#include <stdio.h>

/* The statistics of a run over iterations: those that it noted itself, or else those of its checkpoints. */
static size_t statistics_count(const json_t *run) {
    return json_array_size(json_object_get(json_object_get(json_object_get(run, "record"), "statistics"), "iter"));
}

static double statistic(const json_t *run, const char *key, size_t index) {
    const json_t *rows = json_object_get(json_object_get(run, "record"), "statistics");
    return json_number_value(json_array_get(json_object_get(rows, key), index));
}

/* A point of a run: iteration, p10, median, p90 of the row maxima, share of diagonal matrices. */
struct point {
    double iteration, p10, median, p90, diagonal;
};

static struct point point_of(const json_t *run, size_t index) {
    if (statistics_count(run) > 0) {
        return (struct point){statistic(run, "iter", index), statistic(run, "row_max_p10", index),
                              statistic(run, "row_max_median", index), statistic(run, "row_max_p90", index),
                              statistic(run, "diagonal_fraction", index)};
    }
    const json_t *checkpoint = json_array_get(json_object_get(run, "checkpoints"), index);
    return (struct point){figure_number(checkpoint, "iter"), figure_number(checkpoint, "h.row_max.p10"),
                          figure_number(checkpoint, "h.row_max.median"), figure_number(checkpoint, "h.row_max.p90"),
                          figure_number(checkpoint, "h.diagonal_fraction")};
}

static size_t point_count(const json_t *run) {
    const size_t noted = statistics_count(run);
    return noted > 0 ? noted : json_array_size(json_object_get(run, "checkpoints"));
}

static void write_points(struct figure *figure, const json_t *run, size_t block) {
    figure_plot(figure, "$run%zu << END_OF_DATA\n", block);
    for (size_t i = 0; i < point_count(run); i++) {
        const struct point point = point_of(run, i);
        figure_plot(figure, "%.9g %.9g %.9g %.9g %.9g\n", point.iteration, point.p10, point.median, point.p90,
                    point.diagonal);
        figure_row(figure, "%s,%.9g,%.9g,%.9g,%.9g,%.9g\n", figure_name(run), point.iteration, point.p10,
                   point.median, point.p90, point.diagonal);
    }
    figure_plot(figure, "END_OF_DATA\n");
}

void figure_dynamics(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    struct text_buffer bands = {0}, shares = {0};
    size_t i, drawn = 0;
    figure_row(figure, "run,iteration,row_max_p10,row_max_median,row_max_p90,diagonal_fraction\n");
    json_array_foreach(runs, i, run) {
        if (point_count(run) < 2 || !figure_is_first(runs, i)) {
            continue;
        }
        const char *comma = drawn++ ? ", " : "", *colour = figure_colour(figure_variant(run));
        const struct point last = point_of(run, point_count(run) - 1);
        write_points(figure, run, i);
        figure->failed |= text_print(&bands,
                                     "%s$run%zu using 1:2:4 with filledcurves lc rgb '%s' notitle, $run%zu using "
                                     "1:3 with lines lw 2 lc rgb '%s' title '%s'",
                                     comma, i, colour, i, colour, figure_name(run)) != 0;
        figure->failed |= text_print(&shares, "%s$run%zu using 1:5 with lines lw 2 lc rgb '%s' title '%s'", comma,
                                     i, colour, figure_name(run)) != 0;
        figure_say(
            figure, "%s%s: median %.3f (%.3f to %.3f), %.1f %% on the diagonal",
            figure->says.size > 0
                ? "; "
                : "Largest entry of each row at the end, and how many matrices have all of them on the diagonal. ",
            figure_name(run), last.median, last.p10, last.p90, 100.0 * last.diagonal);
    }
    figure_say(figure, ".");
    if (drawn > 0) {
        figure->width = 1000;
        figure_begin_plot(figure);
        figure_plot(
            figure,
            "set multiplot layout 1,2\nset xlabel 'iteration'\nset ylabel 'row maximum'\nset key bottom left\nplot "
            "%.*s\n"
            "set ylabel 'share with row maxima on the diagonal'\nset yrange [0:1.05]\nplot %.*s\nunset multiplot\n",
            (int)bands.size, bands.bytes, (int)shares.size, shares.bytes);
    }
    text_free(&bands);
    text_free(&shares);
}

/* A distance of some five tics in this range: 1, 2 or 5 times a power of ten. */
static double tic_distance(double range) {
    const double least = fmax(range, 1.0) / 5.0, power = pow(10.0, floor(log10(least)));
    return least <= power         ? power
           : least <= 2.0 * power ? 2.0 * power
           : least <= 5.0 * power ? 5.0 * power
                                  : 10.0 * power;
}

/* One panel: a line for each sublayer. */
static void draw_similarity(struct figure *figure, const json_t *run, size_t index) {
    const json_t *rows = json_object_get(json_object_get(run, "record"), "statistics");
    const json_t *iterations = json_object_get(rows, "iter"), *cosines = json_object_get(rows, "stream_cosine"),
                 *row;
    const size_t sublayers = json_array_size(json_array_get(cosines, 0));
    size_t i;
    figure_plot(figure, "$cosine%zu << END_OF_DATA\n", index);
    json_array_foreach(cosines, i, row) {
        figure_plot(figure, "%lld", (long long)json_integer_value(json_array_get(iterations, i)));
        for (size_t layer = 0; layer < sublayers; layer++) {
            const double cosine = json_number_value(json_array_get(row, layer));
            figure_plot(figure, " %.6g", cosine);
            figure_row(figure, "%s,%lld,%zu,%.9g\n", figure_name(run),
                       (long long)json_integer_value(json_array_get(iterations, i)), layer, cosine);
        }
        figure_plot(figure, "\n");
    }
    figure_plot(
        figure,
        "END_OF_DATA\nset title '%s'\nset xtics %g\nset cbrange [0:%zu]\nplot for [layer=0:%zu] $cosine%zu using "
        "1:layer+2 with lines lw 1.5 lc palette cb layer notitle\n",
        figure_name(run),
        tic_distance(json_number_value(json_array_get(iterations, json_array_size(iterations) - 1))),
        sublayers > 1 ? sublayers - 1 : 1, sublayers - 1, index);
}

static double mean_last_cosine(const json_t *run) {
    const json_t *cosines = json_object_get(json_object_get(json_object_get(run, "record"), "statistics"),
                                            "stream_cosine"),
                 *value;
    const json_t *last = json_array_get(cosines, json_array_size(cosines) - 1);
    double sum = 0.0;
    size_t i;
    json_array_foreach(last, i, value) {
        sum += json_number_value(value);
    }
    return sum / (double)json_array_size(last);
}

void figure_similarity(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    size_t i, panels = 0;
    json_array_foreach(runs, i, run) {
        panels += statistics_count(run) > 1 && figure_is_first(runs, i);
    }
    if (panels == 0) {
        return;
    }
    figure_row(figure, "run,iteration,sublayer,cosine\n");
    figure_begin_panels(figure, panels);
    figure_plot(figure, "set palette defined (0 '#440154', 0.5 '#21918c', 1 '#d9c61f')\nunset colorbox\n"
                        "set yrange [-1:1]\nset xlabel 'iteration'\n");
    json_array_foreach(runs, i, run) {
        if (statistics_count(run) > 1 && figure_is_first(runs, i)) {
            draw_similarity(figure, run, i);
            figure_say(figure, "%s%s %.3f",
                       figure->says.size > 0 ? ", "
                                             : "Mean cosine of pairs of streams, a line for each sublayer from "
                                               "dark (first) to light (last). Over all sublayers at the end: ",
                       figure_name(run), mean_last_cosine(run));
        }
    }
    figure_say(figure, ".");
    figure_plot(figure, "unset multiplot\n");
}
