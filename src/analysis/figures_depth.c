/* What people ask first, by depth: did H_res leave the identity, and do the streams collapse into one? */
#include "src/analysis/figure.h"
#include <math.h>

/* Where a run's answers change: docs/analysis.md says so, too. */
static const double still_identity = 0.01, near_identity = 0.1; /* distance of a sublayer from the identity, mean */
static const double one_direction = 0.95, one_stream = 0.9;     /* cosine of the streams, share of the largest */
static const double flat = 0.1; /* second singular value of the product, of the first */

static bool has_depth(const json_t *run) {
    const json_t *sublayers = json_object_get(figure_h(run), "sublayers");
    return isfinite(figure_number(json_array_get(sublayers, 0), "identity_distance"));
}

/* Number `key` of the last sublayer. */
static double at_the_end(const json_t *run, const char *key) {
    const json_t *sublayers = json_object_get(figure_h(run), "sublayers");
    return figure_number(json_array_get(sublayers, json_array_size(sublayers) - 1), key);
}

/* A curve over the sublayers of one number in each picture; depths are counted from `first`. */
static void draw_curves(struct figure *figure, const json_t *run, size_t index, size_t first,
                        const char *const keys[2]) {
    const json_t *sublayer;
    size_t depth;
    figure_begin_block(figure, "depth%zu", index);
    json_array_foreach(json_object_get(figure_h(run), "sublayers"), depth, sublayer) {
        const double row[] = {(double)(depth + first), figure_number(sublayer, keys[0]),
                              figure_number(sublayer, keys[1] ? keys[1] : keys[0])};
        figure_numbers(figure->to[FIGURE_SCRIPT], ' ', row, keys[1] ? 3 : 2);
        fprintf(figure->to[FIGURE_CSV], "%s,", figure->name);
        figure_numbers(figure->to[FIGURE_CSV], ',', row, keys[1] ? 3 : 2);
        figure_see(figure, 0, row[1]);
        figure_see(figure, 1, row[2]);
    }
    figure_end_block(figure);
    figure_depth_curve(figure, 0, 2, first, figure->name);
    if (keys[1]) {
        figure_depth_curve(figure, 1, 3, first, "");
    }
}

/* ---- distance from the identity */

static void draw_distance(struct figure *figure, const json_t *run, size_t index) {
    const double mean = figure_number(figure_h(run), "identity_distance");
    draw_curves(figure, run, index, 0, (const char *const[]){"identity_distance", NULL});
    fprintf(figure_item(figure), "%s %s (%.3g on average, the product of all sublayers %.3g)", figure->name,
            mean < still_identity  ? "is the identity still"
            : mean < near_identity ? "is near the identity"
                                   : "has left the identity",
            mean, figure_number(figure_h(run), "product.identity_distance"));
}

const struct figure_kind figure_identity_distance = {"identity_distance", FIGURE_CURVES, has_depth, draw_distance,
                                                     figure_mark_branches};

/* ---- collapse of the streams */

static void draw_collapse(struct figure *figure, const json_t *run, size_t index) {
    const double cosine = at_the_end(run, "stream_cosine"), share = at_the_end(run, "largest_share");
    draw_curves(figure, run, index, 0, (const char *const[]){"stream_cosine", "largest_share"});
    fprintf(figure_item(figure), "%s %s (cosine %.3f, largest stream %.0f %%)", figure->name,
            share > one_stream       ? "keep nearly all in one stream"
            : cosine > one_direction ? "point in nearly one direction"
                                     : "differ",
            cosine, 100.0 * share);
}

const struct figure_kind figure_collapse = {"collapse", FIGURE_CURVES, has_depth, draw_collapse,
                                            figure_mark_branches};

/* ---- singular values of products */

static void draw_singular_values(struct figure *figure, const json_t *run, size_t index) {
    const double first = at_the_end(run, "product_norm_mean"), second = at_the_end(run, "product_second_mean");
    draw_curves(figure, run, index, 1, (const char *const[]){"product_second_mean", "product_smallest_mean"});
    fprintf(figure_item(figure), "%s %s (first %.3g, second %.3g, smallest %.3g)", figure->name,
            second < flat * first ? "keeps one combination of the streams and little else"
                                  : "keeps differences between streams",
            first, second, at_the_end(run, "product_smallest_mean"));
}

const struct figure_kind figure_singular_values = {"singular_values", FIGURE_CURVES, has_depth,
                                                   draw_singular_values, figure_mark_branches};
