/* What hc_bench --compare measured: speed and size against the number of streams. */
#include "src/analysis/figure.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *variant_of(const json_t *one) {
    const char *variant = json_string_value(json_object_get(one, "residual"));
    return variant ? variant : "";
}

/* The cases of a variant as a data block, points by their streams; the number of them. */
static size_t write_cases(struct figure *figure, const json_t *cases, const char *variant, const char *key) {
    size_t points = 0, i;
    const json_t *one;
    figure_plot(figure, "$%s << END_OF_DATA\n", variant);
    for (int streams = 1; streams <= RESIDUAL_MAX_STREAMS; streams++) {
        json_array_foreach(cases, i, one) {
            const double value = figure_number(one, key);
            if (strcmp(variant_of(one), variant) == 0 && figure_number(one, "n_streams") == streams &&
                isfinite(value)) {
                figure_plot(figure, "%d %.9g\n", streams, value);
                figure_row(figure, "%s,%d,%.9g\n", variant, streams, value);
                points++;
            }
        }
    }
    figure_plot(figure, "END_OF_DATA\n");
    return points;
}

/* Lines of all variants; nothing where the bench has none. */
static void draw_cases(const json_t *analysis, struct figure *figure, const char *key, const char *settings) {
    const json_t *cases = json_object_get(json_object_get(analysis, "bench"), "cases");
    struct text_buffer terms = {0};
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (write_cases(figure, cases, variant->name, key) > 0) {
            figure->failed |=
                text_print(&terms, "%s$%s with linespoints pt 7 ps 0.7 lw 2 lc rgb '%s' title '%s'",
                           terms.size > 0 ? ", " : "", variant->name, variant->colour, variant->name) != 0;
        }
    }
    if (terms.size > 0) {
        figure_begin_plot(figure);
        figure_plot(figure, "set xlabel 'streams'\nset xtics 1\nset xrange [0.5:8.5]\n%splot %.*s\n", settings,
                    (int)terms.size, terms.bytes);
    } else {
        figure->script.size = 0;
    }
    text_free(&terms);
}

void figure_throughput(const json_t *analysis, struct figure *figure) {
    figure_row(figure, "residual,n_streams,tokens_per_second\n");
    draw_cases(analysis, figure, "tokens_per_second",
               "set ylabel 'tokens/s'\nset yrange [0:*]\nset key bottom left\n");
    figure_say(figure, "Training steps of the same model, variants measured in turn in one run of hc_bench.");
}

void figure_auxiliary(const json_t *analysis, struct figure *figure) {
    figure_row(figure, "residual,n_streams,auxiliary_parameters\n");
    draw_cases(analysis, figure, "auxiliary",
               "set ylabel 'auxiliary parameters'\nset logscale y\nset format y '%.0e'\nset key top left\n");
    figure_say(figure,
               "Parameters of the hyper-connections, without those of the model itself; the scale is logarithmic.");
}
