/* H_res of checkpoints: sums, norms, entries, heat maps. */
#include "src/analysis/figure.h"
#include <math.h>

static bool has_h(const json_t *run) {
    return figure_h(run) != NULL;
}

/* ---- column sums */

static const double least_range = 0.01; /* no deviation looks like one in a range as small as its rounding */

/* For each sublayer, and behind them the product of all, from p10 to p90 a box, from the smallest to the largest a
 * line. */
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
        fprintf(figure->plot, "%zu ", i < count ? i : count + 1);
        figure_numbers(figure->plot, ' ', numbers, 5);
        fprintf(figure->row, "%s,%zu,", figure->name, i);
        figure_numbers(figure->row, ',', numbers, 5);
    }
    figure_end_block(figure);
    const double low = figure_number(h, "column_sum.min"), high = figure_number(h, "column_sum.max");
    const double product_low = figure_number(h, "product.column_sum.min"),
                 product_high = figure_number(h, "product.column_sum.max");
    const double least = fmin(low, product_low), most = fmax(high, product_high),
                 margin = 0.1 * fmax(most - least, least_range);
    fprintf(figure->plot,
            "set yrange [%.9g:%.9g]\nset title '%s'\nset xrange [-1:%zu]\nset xtics 0,%zu,%zu\n"
            "set xtics add ('all' %zu)\n",
            fmin(least, 1 - 0.5 * least_range) - margin, fmax(most, 1 + 0.5 * least_range) + margin, figure->name,
            count + 2, count / 8 + 1, count - 1, count + 1);
    fprintf(figure->plot,
            "plot $%s using 1:3:2:6:5 with candlesticks lw 1.2 lc rgb '%s' notitle whiskerbars 0.5, "
            "$%s using 1:4:(0.3) with points pt 7 ps 0.4 lc rgb '%s' notitle\n",
            figure->block, figure->colour, figure->block, figure->colour);
    fprintf(figure_item(figure), "%s: %.4f to %.4f, of the product %.4f to %.4f", figure->name, low, high,
            product_low, product_high);
}

const struct figure_kind figure_column_sums = {
    .name = "column_sums",
    .title = "Column sums of H<sub>res</sub>",
    .head = "run,sublayer,min,p10,median,p90,max\n",
    .axes = {"set xlabel 'sublayer'\nset ylabel 'column sum'\nset boxwidth 0.6\n"},
    .says = "Boxes hold 80 % of the sums, lines all of them; 'all' is the product of all sublayers. ",
    .between = "; ",
    .layout = FIGURE_PANELS,
    .wants = has_h,
    .draw = draw_sums,
};

/* ---- norms of products */

static void draw_norms(struct figure *figure, const json_t *run, size_t index) {
    const json_t *sublayer;
    size_t depth;
    figure_begin_block(figure, "norm%zu", index);
    json_array_foreach(json_object_get(figure_h(run), "sublayers"), depth, sublayer) {
        const double mean = figure_number(sublayer, "product_norm_mean"),
                     deviation = figure_number(sublayer, "product_norm_deviation"), low = mean - deviation,
                     high = mean + deviation;
        figure_numbers(figure->plot, ' ', (double[]){(double)depth + 1, mean, low, high}, 4);
        fprintf(figure->row, "%s,", figure->name);
        figure_numbers(figure->row, ',', (double[]){(double)depth + 1, mean, deviation}, 3);
        figure_see(figure, low);
        figure_see(figure, high);
    }
    figure_end_block(figure);
    figure_curve(figure, 0, "using 1:3:4 with filledcurves", "");
    figure_curve(figure, 0, "using 1:2 with linespoints pt 7 ps 0.4 lw 2", figure->name);
    fprintf(figure_item(figure), "%s %.6f (largest %.6f)", figure->name,
            figure_number(figure_h(run), "product.norm.mean"), figure_number(figure_h(run), "product.norm.max"));
}

const struct figure_kind figure_product_norms = {
    .name = "product_norm",
    .title = "Spectral norm of the product up to each depth",
    .head = "run,depth,mean,deviation\n",
    .axes = {"set xlabel 'sublayers multiplied'\nset ylabel 'spectral norm'\nset key top left\n"},
    .says = "Lines are means over tokens, bands one deviation. Through all sublayers: ",
    .between = ", ",
    .wants = has_h,
    .draw = draw_norms,
};

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
        if (json_integer_value(count) > 0) {
            figure_numbers(figure->plot, ' ', (double[]){from + 0.5 * width, json_number_value(count) / total}, 2);
            fprintf(figure->row, "%s,%.9g,%.9g,%lld\n", figure->name, from, from + width,
                    (long long)json_integer_value(count));
        }
    }
    figure_end_block(figure);
    fprintf(figure->plot, "set title '%s'\nplot $%s with boxes lc rgb '%s' notitle\n", figure->name, figure->block,
            figure->colour);
    fprintf(figure_item(figure), "%s %.2f %% (smallest %.3f)", figure->name,
            100.0 * figure_number(h, "negative_fraction"), figure_number(h, "smallest_entry"));
}

const struct figure_kind figure_entries = {
    .name = "entries",
    .title = "Entries of H<sub>res</sub>",
    .head = "run,from,to,count\n",
    .axes = {"set logscale y\nset format y '%.0e'\nset yrange [1e-6:1]\nset xrange [-1:1.5]\nset xtics 0.5\n"
             "set xlabel 'entry'\nset ylabel 'share'\nset boxwidth 0.01\nset style fill solid 0.7\n"},
    .says = "Entries of all sublayers; negative are, of ",
    .between = ", ",
    .layout = FIGURE_PANELS,
    .wants = has_h,
    .draw = draw_entries,
};

/* ---- heat maps */

static double entry_of(const json_t *matrix, size_t i, size_t j) {
    return figure_at(json_array_get(matrix, i), j);
}

/* An axis with the sums of rows, or of columns, as its labels. */
static void label_sums(struct figure *figure, char axis, const json_t *matrix) {
    const size_t n = json_array_size(matrix);
    fprintf(figure->plot, "set %ctics (", axis);
    for (size_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (size_t j = 0; j < n; j++) {
            sum += axis == 'y' ? entry_of(matrix, i, j) : entry_of(matrix, j, i);
        }
        fprintf(figure->plot, "%s'%.2f' %zu", i ? ", " : "", sum, i);
    }
    fputs(")\n", figure->plot);
}

/* A matrix with its entries, row sums at the left and column sums below. */
static void draw_matrix(struct figure *figure, const json_t *matrix, const char *where) {
    const size_t n = json_array_size(matrix);
    figure_begin_block(figure, "matrix");
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            fprintf(figure->plot, "%zu %zu %.6g\n", j, i, entry_of(matrix, i, j));
            fprintf(figure->row, "%s,%s,%zu,%zu,%.9g\n", figure->name, where, i, j, entry_of(matrix, i, j));
        }
    }
    figure_end_block(figure);
    fprintf(figure->plot, "set title '%s, %s'\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\n", figure->name,
            where, n - 1, n - 1);
    label_sums(figure, 'x', matrix);
    label_sums(figure, 'y', matrix);
    fprintf(figure->plot,
            "plot $matrix with image pixels notitle, $matrix using 1:2:(sprintf('%%.2f', $3)) with labels font "
            "',%d' tc rgb '#222222' notitle\n",
            n > 5 ? 6 : 9);
}

static void draw_heat_maps(struct figure *figure, const json_t *run, size_t index) {
    const json_t *h = figure_h(run), *sublayers = json_object_get(h, "sublayers");
    const size_t count = json_array_size(sublayers), depths[] = {count > 1, count / 2, count - 1};
    (void)index;
    for (size_t depth = 0; depth < 3; depth++) {
        char where[32];
        snprintf(where, sizeof where, "sublayer %zu", depths[depth]);
        draw_matrix(figure, json_object_get(json_array_get(sublayers, depths[depth]), "first_sequence"), where);
    }
    draw_matrix(figure, json_object_get(json_object_get(h, "product"), "first_sequence"), "all");
}

const struct figure_kind figure_heat_maps = {
    .name = "heat_maps",
    .title = "H<sub>res</sub>, averaged over a sequence",
    .head = "run,sublayer,row,column,entry\n",
    .axes = {"set palette defined (-1 '#d6604d', 0 '#f7f7f7', 1 '#4393c3')\nset cbrange [-1:1]\nunset colorbox\n"},
    .says = "Means over the first sequence at three depths and of the product of all sublayers; row sums stand at "
            "the left, column sums below",
    .layout = FIGURE_ROWS,
    .wants = has_h,
    .draw = draw_heat_maps,
};
