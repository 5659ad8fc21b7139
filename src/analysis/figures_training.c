/* H_res and the streams over training. */
#include "src/analysis/figure.h"
#include <math.h>

/* The statistics that a run noted itself. */
static size_t statistics_count(const json_t *run) {
    return json_array_size(figure_column(run, "statistics", "iter"));
}

/* ---- row maxima and the diagonal */

enum { ITERATION, P10, MEDIAN, P90, DIAGONAL, POINT };

/* Noted by the run, or else measured of its checkpoints. */
static void get_point(const json_t *run, size_t index, double point[POINT]) {
    static const char *const noted[POINT] = {"iter", "row_max_p10", "row_max_median", "row_max_p90",
                                             "diagonal_fraction"};
    static const char *const measured[POINT] = {"iter", "h.row_max.p10", "h.row_max.median", "h.row_max.p90",
                                                "h.diagonal_fraction"};
    const json_t *checkpoint = json_array_get(json_object_get(run, "checkpoints"), index);
    for (size_t i = 0; i < POINT; i++) {
        point[i] = statistics_count(run) > 0 ? figure_at(figure_column(run, "statistics", noted[i]), index)
                                             : figure_number(checkpoint, measured[i]);
    }
}

static size_t point_count(const json_t *run) {
    const size_t noted = statistics_count(run);
    return noted > 0 ? noted : json_array_size(json_object_get(run, "checkpoints"));
}

static bool has_points(const json_t *run) {
    return point_count(run) > 1;
}

static void draw_dynamics(struct figure *figure, const json_t *run, size_t index) {
    double point[POINT];
    figure_begin_block(figure, "run%zu", index);
    for (size_t i = 0; i < point_count(run); i++) {
        get_point(run, i, point);
        figure_numbers(figure->to[FIGURE_SCRIPT], ' ', point, POINT);
        fprintf(figure->to[FIGURE_CSV], "%s,", figure->name);
        figure_numbers(figure->to[FIGURE_CSV], ',', point, POINT);
        figure_see(figure, 0, point[P10]);
        figure_see(figure, 0, point[P90]);
        figure_see(figure, 1, point[DIAGONAL]);
    }
    figure_end_block(figure);
    figure_curve(figure, 0, "using 1:2:4 with filledcurves", "");
    figure_curve(figure, 0, "using 1:3 with lines lw 2", figure->name);
    figure_curve(figure, 1, "using 1:5 with lines lw 2", figure->name);
    fprintf(figure_item(figure), "%s: median %.3f (%.3f to %.3f), %.1f %% on the diagonal", figure->name,
            point[MEDIAN], point[P10], point[P90], 100.0 * point[DIAGONAL]);
}

const struct figure_kind figure_dynamics = {"dynamics", FIGURE_CURVES, has_points, draw_dynamics, NULL};

/* ---- similarity of the streams */

static bool has_cosines(const json_t *run) {
    return statistics_count(run) > 1;
}

static double mean_of(const json_t *array) {
    const size_t count = json_array_size(array);
    double sum = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += figure_at(array, i);
    }
    return sum / (double)count;
}

/* A line for each sublayer. */
static void draw_similarity(struct figure *figure, const json_t *run, size_t index) {
    const json_t *iterations = figure_column(run, "statistics", "iter"),
                 *cosines = figure_column(run, "statistics", "stream_cosine"), *row;
    const size_t sublayers = json_array_size(json_array_get(cosines, 0)), last = json_array_size(cosines) - 1;
    size_t i;
    figure_begin_block(figure, "cosine%zu", index);
    json_array_foreach(cosines, i, row) {
        const long long iteration = (long long)figure_at(iterations, i);
        fprintf(figure->to[FIGURE_SCRIPT], "%lld", iteration);
        for (size_t layer = 0; layer < sublayers; layer++) {
            fprintf(figure->to[FIGURE_SCRIPT], " %.6g", figure_at(row, layer));
            fprintf(figure->to[FIGURE_CSV], "%s,%lld,%zu,%.9g\n", figure->name, iteration, layer,
                    figure_at(row, layer));
            figure_see(figure, 0, figure_at(row, layer));
        }
        fputs("\n", figure->to[FIGURE_SCRIPT]);
    }
    figure_end_block(figure);
    fprintf(figure->to[FIGURE_PLOTS],
            "set title '%s'\nset xtics %g\nset cbrange [0:%zu]\nplot for [layer=0:%zu] $%s using 1:layer+2 with "
            "lines lw 1.5 dt 1+layer%%2 lc palette cb layer notitle\n",
            figure->name, figure_tic_distance(fmax(figure_at(iterations, json_array_size(iterations) - 1), 1.0)),
            sublayers > 1 ? sublayers - 1 : 1, sublayers - 1, figure->block);
    fprintf(figure_item(figure), "%s %.3f", figure->name, mean_of(json_array_get(cosines, last)));
}

const struct figure_kind figure_similarity = {"similarity", FIGURE_PANELS, has_cosines, draw_similarity, NULL};
