/* What hc_bench --compare measured: speed and size against the number of streams. */
#include "src/analysis/figure.h"
#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const variants[] = {"rc", "identity", "hc", "mhc", "mhc_lite", "shc"};

static const char *variant_of(const json_t *one) {
    const char *variant = json_string_value(json_object_get(one, "residual"));
    return variant ? variant : "";
}

/* The cases of a variant as a block of data, points by their streams; the number of them. */
static size_t write_cases(struct figure *figure, const json_t *cases, const char *variant, const char *key) {
    size_t points = 0, i;
    const json_t *one;
    figure_begin_block(figure, "%s", variant);
    for (int streams = 1; streams <= 8; streams++) {
        json_array_foreach(cases, i, one) {
            const double point[] = {streams, figure_number(one, key)};
            if (strcmp(variant_of(one), variant) == 0 && figure_number(one, "n_streams") == streams &&
                isfinite(point[1])) {
                figure_numbers(figure->plot, ' ', point, 2);
                fprintf(figure->row, "%s,", variant);
                figure_numbers(figure->row, ',', point, 2);
                points++;
            }
        }
    }
    figure_end_block(figure);
    return points;
}

/* Lines of all variants; nothing where the bench has none. */
static void draw_cases(struct figure *figure, const char *key) {
    const json_t *cases = json_object_get(json_object_get(figure->analysis, "bench"), "cases");
    for (size_t i = 0; i < COUNT(variants); i++) {
        if (write_cases(figure, cases, variants[i], key) > 0) {
            figure->colour = figure_colour(variants[i]);
            figure_curve(figure, 0, "with linespoints pt 7 ps 0.7 lw 2", variants[i]);
        }
    }
}

static void draw_throughput(struct figure *figure) {
    draw_cases(figure, "tokens_per_second");
}

static void draw_auxiliary(struct figure *figure) {
    draw_cases(figure, "auxiliary");
}

const struct figure_kind figure_throughput = {
    .name = "throughput",
    .title = "Throughput against streams",
    .head = "residual,n_streams,tokens_per_second\n",
    .axes = {"set xlabel 'streams'\nset xtics 1\nset xrange [0.5:8.5]\nset ylabel 'tokens/s'\nset yrange [0:*]\n"
             "set key bottom left\n"},
    .says = "Training steps of the same model, variants measured in turn in one run of hc_bench",
    .finish = draw_throughput,
};

const struct figure_kind figure_auxiliary = {
    .name = "auxiliary",
    .title = "Auxiliary parameters against streams",
    .head = "residual,n_streams,auxiliary_parameters\n",
    .axes = {"set xlabel 'streams'\nset xtics 1\nset xrange [0.5:8.5]\nset ylabel 'auxiliary parameters'\n"
             "set logscale y\nset format y '%.0e'\nset key top left\n"},
    .says = "Parameters of the hyper-connections, without those of the model itself; the scale is logarithmic",
    .finish = draw_auxiliary,
};
