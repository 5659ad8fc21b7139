/* H_res of checkpoints: sums, norms, entries, heat maps. */
#include "src/analysis/figure.h"
#include <math.h>

static bool has_h(const json_t *run) {
    return figure_h(run) != NULL;
}

/* ---- column sums */

/* For each sublayer, and behind them the product of all, from p10 to p90 a box, from the smallest to the largest a
 * line. The last column is 0 for attention, 1 for MLP and 2 for the product, which have boxes of their own. */
static void draw_sums(struct figure *figure, const json_t *run, size_t index) {
    static const char *const keys[] = {"min", "p10", "median", "p90", "max"};
    const json_t *h = figure_h(run), *sublayers = json_object_get(h, "sublayers");
    const size_t count = json_array_size(sublayers);
    figure_begin_block(figure, "sums%zu", index);
    for (size_t i = 0; i <= count; i++) {
        const json_t *sums =
            json_object_get(i < count ? json_array_get(sublayers, i) : json_object_get(h, "product"), "column_sum");
        double numbers[5];
        for (size_t key = 0; key < 5; key++) {
            numbers[key] = figure_number(sums, keys[key]);
        }
        fprintf(figure->to[FIGURE_SCRIPT], "%zu ", i < count ? i : count + 1);
        figure_numbers(figure->to[FIGURE_SCRIPT], ' ',
                       (double[]){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
                                  i < count ? (double)(i % 2) : 2.0},
                       6);
        fprintf(figure->to[FIGURE_CSV], "%s,%zu,", figure->name, i);
        figure_numbers(figure->to[FIGURE_CSV], ',', numbers, 5);
        figure_see(figure, 0, numbers[0]);
        figure_see(figure, 0, numbers[4]);
    }
    figure_end_block(figure);
    figure_see(figure, 0, 1.0);
    fprintf(figure->to[FIGURE_PLOTS],
            "set title '%s'\nset xrange [-1:%zu]\nset xtics 0,%zu,%zu\nset xtics add ('all' %zu)\nplot ",
            figure->name, count + 2, count / 8 + 1, count - 1, count + 1);
    for (size_t kind = 0; kind < 3; kind++) {
        static const char *const fills[] = {"solid 0.7 noborder", "empty border lc rgb", "pattern 4 border lc rgb"};
        fprintf(figure->to[FIGURE_PLOTS],
                "$%s using ($7==%zu?$1:NaN):3:2:6:5 with candlesticks lw 1.2 lc rgb '%s' fs %s", figure->block,
                kind, figure->colour, fills[kind]);
        fprintf(figure->to[FIGURE_PLOTS],
                kind > 0 ? " '%s' notitle whiskerbars 0.5, " : " notitle whiskerbars 0.5, ", figure->colour);
    }
    fprintf(figure->to[FIGURE_PLOTS], "$%s using 1:4:(0.3) with points pt 7 ps 0.4 lc rgb '%s' notitle\n",
            figure->block, figure->colour);
    const double low = figure_number(h, "column_sum.min"), high = figure_number(h, "column_sum.max");
    const double product_low = figure_number(h, "product.column_sum.min"),
                 product_high = figure_number(h, "product.column_sum.max");
    fprintf(figure_item(figure), "%s: %.4f to %.4f, of the product %.4f to %.4f", figure->name, low, high,
            product_low, product_high);
}

const struct figure_kind figure_column_sums = {"column_sums", FIGURE_PANELS, has_h, draw_sums, NULL};

/* ---- norms of products */

static void draw_norms(struct figure *figure, const json_t *run, size_t index) {
    const json_t *sublayer;
    size_t depth;
    figure_begin_block(figure, "norm%zu", index);
    json_array_foreach(json_object_get(figure_h(run), "sublayers"), depth, sublayer) {
        const double mean = figure_number(sublayer, "product_norm_mean"),
                     deviation = figure_number(sublayer, "product_norm_deviation"), low = mean - deviation,
                     high = mean + deviation;
        figure_numbers(figure->to[FIGURE_SCRIPT], ' ', (double[]){(double)depth + 1, mean, low, high}, 4);
        fprintf(figure->to[FIGURE_CSV], "%s,", figure->name);
        figure_numbers(figure->to[FIGURE_CSV], ',', (double[]){(double)depth + 1, mean, deviation}, 3);
        figure_see(figure, 0, low);
        figure_see(figure, 0, high);
    }
    figure_end_block(figure);
    figure_curve(figure, 0, "using 1:3:4 with filledcurves", "");
    figure_depth_curve(figure, 0, 2, 1, figure->name);
    fprintf(figure_item(figure), "%s %.6f (largest %.6f)", figure->name,
            figure_number(figure_h(run), "product.norm.mean"), figure_number(figure_h(run), "product.norm.max"));
}

const struct figure_kind figure_product_norms = {"product_norm", FIGURE_CURVES, has_h, draw_norms,
                                                 figure_mark_branches};

/* ---- entries */

/* The histogram as shares of all entries. */
static void draw_entries(struct figure *figure, const json_t *run, size_t index) {
    const json_t *h = figure_h(run), *entries = json_object_get(h, "entries"),
                 *counts = json_object_get(entries, "counts"), *count;
    const double low = figure_number(entries, "low"), width = figure_number(entries, "width");
    double total = figure_number(entries, "below") + figure_number(entries, "above");
    size_t bin;
    json_array_foreach(counts, bin, count) {
        total += json_number_value(count);
    }
    figure_begin_block(figure, "entries%zu", index);
    json_array_foreach(counts, bin, count) {
        const double from = low + width * (double)bin;
        if (json_number_value(count) > 0.0) {
            figure_numbers(figure->to[FIGURE_SCRIPT], ' ',
                           (double[]){from + 0.5 * width, json_number_value(count) / total}, 2);
            fprintf(figure->to[FIGURE_CSV], "%s,%.9g,%.9g,%.15g\n", figure->name, from, from + width,
                    json_number_value(count));
        }
    }
    figure_end_block(figure);
    fprintf(figure->to[FIGURE_PLOTS], "set title '%s'\nplot $%s with boxes lc rgb '%s' notitle\n", figure->name,
            figure->block, figure->colour);
    fprintf(figure_item(figure), "%s %.2f %% (smallest %.3f)", figure->name,
            100.0 * figure_number(h, "negative_fraction"), figure_number(h, "smallest_entry"));
}

const struct figure_kind figure_entries = {"entries", FIGURE_PANELS, has_h, draw_entries, NULL};

/* ---- heat maps */

static double entry_of(const json_t *matrix, size_t i, size_t j) {
    return figure_at(json_array_get(matrix, i), j);
}

/* An axis with the sums of rows, or of columns, as its labels. */
static void label_sums(struct figure *figure, char axis, const json_t *matrix) {
    const size_t n = json_array_size(matrix);
    fprintf(figure->to[FIGURE_PLOTS], "set %ctics (", axis);
    for (size_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (size_t j = 0; j < n; j++) {
            sum += axis == 'y' ? entry_of(matrix, i, j) : entry_of(matrix, j, i);
        }
        fprintf(figure->to[FIGURE_PLOTS], "%s'%.2f' %zu", i ? ", " : "", sum, i);
    }
    fputs(")\n", figure->to[FIGURE_PLOTS]);
}

/* A matrix with its entries, row sums at the left and column sums below. */
static void draw_matrix(struct figure *figure, size_t index, const json_t *matrix, const char *where) {
    const size_t n = json_array_size(matrix);
    figure_begin_block(figure, "matrix%zu", index);
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            fprintf(figure->to[FIGURE_SCRIPT], "%zu %zu %.6g\n", j, i, entry_of(matrix, i, j));
            fprintf(figure->to[FIGURE_CSV], "%s,%s,%zu,%zu,%.9g\n", figure->name, where, i, j,
                    entry_of(matrix, i, j));
        }
    }
    figure_end_block(figure);
    fprintf(figure->to[FIGURE_PLOTS], "set title \"%s\\n%s\"\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\n",
            figure->name, where, n - 1, n - 1);
    label_sums(figure, 'x', matrix);
    label_sums(figure, 'y', matrix);
    fprintf(
        figure->to[FIGURE_PLOTS],
        "plot $%s with image pixels notitle, $%s using 1:2:(sprintf('%%.2f', $3)) with labels font ',%d' tc rgb "
        "'#222222' notitle\n",
        figure->block, figure->block, n > 5 ? 6 : 9);
}

static void draw_heat_maps(struct figure *figure, const json_t *run, size_t index) {
    const json_t *h = figure_h(run), *sublayers = json_object_get(h, "sublayers");
    const size_t count = json_array_size(sublayers), depths[] = {count > 1, count / 2, count - 1};
    for (size_t depth = 0; depth < 3; depth++) {
        char where[48];
        snprintf(where, sizeof where, "sublayer %zu (%s)", depths[depth], figure_branch(depths[depth]));
        draw_matrix(figure, 4 * index + depth,
                    json_object_get(json_array_get(sublayers, depths[depth]), "first_sequence"), where);
    }
    draw_matrix(figure, 4 * index + 3, json_object_get(json_object_get(h, "product"), "first_sequence"),
                "product of all sublayers");
}

const struct figure_kind figure_heat_maps = {"heat_maps", FIGURE_ROWS, has_h, draw_heat_maps, NULL};
