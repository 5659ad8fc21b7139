/* What hc_bench --compare measured: speed and size against the number of streams. */
#include "src/analysis/figure.h"
#include "src/variants/residual.h"
#include <math.h>
#include <string.h>

static const char *variant_of(const json_t *one) {
    const char *variant = json_string_value(json_object_get(one, "residual"));
    return variant ? variant : "";
}

/* The cases of a variant as a block of data, points by their streams; the number of them. */
static size_t write_cases(struct figure *figure, const json_t *cases, const char *variant, const char *key) {
    size_t points = 0, i;
    const json_t *one;
    figure_begin_block(figure, "%s", variant);
    for (int streams = 1; streams <= RESIDUAL_MAX_STREAMS; streams++) {
        json_array_foreach(cases, i, one) {
            const double point[] = {streams, figure_number(one, key)};
            if (strcmp(variant_of(one), variant) == 0 && figure_number(one, "n_streams") == streams &&
                isfinite(point[1])) {
                figure_numbers(figure->to[FIGURE_SCRIPT], ' ', point, 2);
                fprintf(figure->to[FIGURE_CSV], "%s,", variant);
                figure_numbers(figure->to[FIGURE_CSV], ',', point, 2);
                points++;
            }
        }
    }
    figure_end_block(figure);
    return points;
}

/* Lines of all variants, of the number that the figure's words name; nothing where the bench has none. */
static void draw_cases(struct figure *figure) {
    const json_t *cases = json_object_get(json_object_get(figure->analysis, "bench"), "cases");
    const struct residual_variant *variant;
    for (size_t i = 0; (variant = residual_at(i)); i++) {
        if (write_cases(figure, cases, variant->name, figure_words(figure, "key")) > 0) {
            figure->colour = variant->colour;
            figure_curve(figure, 0, "with linespoints pt 7 ps 0.7 lw 2", variant->name);
        }
    }
}

const struct figure_kind figure_throughput = {"throughput", FIGURE_CURVES, NULL, NULL, draw_cases};
const struct figure_kind figure_auxiliary = {"auxiliary", FIGURE_CURVES, NULL, NULL, draw_cases};
