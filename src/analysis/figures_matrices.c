/* H_res of checkpoints: sums, norms, entries, heat maps. */
#include "src/analysis/figure.h"
#include <math.h>
#include <stdio.h>

/* Whether a run's H was measured and it repeats no other. */
static bool is_shown(const json_t *runs, size_t index) {
    return figure_h(json_array_get(runs, index)) && figure_is_first(runs, index);
}

static size_t shown_count(const json_t *runs) {
    size_t count = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        count += is_shown(runs, i);
    }
    return count;
}

static const double least_range = 0.01; /* of column sums */

/* A panel: for each sublayer, and behind them the product of all, from p10 to p90 a box, from the smallest to the
 * largest a line. */
static void draw_sums(struct figure *figure, const json_t *run, size_t index) {
    const json_t *h = figure_h(run), *sublayers = json_object_get(h, "sublayers"), *sublayer;
    const size_t count = json_array_size(sublayers);
    static const char *const keys[] = {"min", "p10", "median", "p90", "max"};
    size_t i;
    figure_plot(figure, "$sums%zu << END_OF_DATA\n", index);
    for (i = 0; i <= count; i++) {
        sublayer = i < count ? json_array_get(sublayers, i) : json_object_get(h, "product");
        const json_t *sums = json_object_get(sublayer, "column_sum");
        figure_plot(figure, "%zu", i < count ? i : count + 1);
        figure_row(figure, "%s,%zu", figure_name(run), i);
        for (size_t key = 0; key < sizeof keys / sizeof *keys; key++) {
            figure_plot(figure, " %.9g", figure_number(sums, keys[key]));
            figure_row(figure, ",%.9g", figure_number(sums, keys[key]));
        }
        figure_plot(figure, "\n");
        figure_row(figure, "\n");
    }
    const double low = fmin(figure_number(h, "column_sum.min"), figure_number(h, "product.column_sum.min"));
    const double high = fmax(figure_number(h, "column_sum.max"), figure_number(h, "product.column_sum.max"));
    const double margin = 0.1 * fmax(high - low, least_range);
    /* no deviation looks like one in a range as small as its rounding */
    figure_plot(figure, "END_OF_DATA\nset yrange [%.9g:%.9g]\n", fmin(low, 1 - 0.5 * least_range) - margin,
                fmax(high, 1 + 0.5 * least_range) + margin);
    figure_plot(figure,
                "set title '%s'\nset xrange [-1:%zu]\nset xtics 0,%zu,%zu\nset xtics add ('all' %zu)\n"
                "plot $sums%zu using 1:3:2:6:5 with candlesticks lw 1.2 lc rgb '%s' notitle whiskerbars 0.5, "
                "$sums%zu using 1:4:(0.3) with points pt 7 ps 0.4 lc rgb '%s' notitle\n",
                figure_name(run), count + 2, count / 8 + 1, count - 1, count + 1, index,
                figure_colour(figure_variant(run)), index, figure_colour(figure_variant(run)));
}

void figure_column_sums(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    const size_t panels = shown_count(runs);
    size_t i;
    if (panels == 0) {
        return;
    }
    figure_row(figure, "run,sublayer,min,p10,median,p90,max\n");
    figure_begin_panels(figure, panels);
    figure_plot(figure, "set xlabel 'sublayer'\nset ylabel 'column sum'\nset boxwidth 0.6\n");
    json_array_foreach(runs, i, run) {
        const json_t *h = figure_h(run);
        if (is_shown(runs, i)) {
            draw_sums(figure, run, i);
            figure_say(
                figure, "%s%s: %.4f to %.4f, of the product %.4f to %.4f",
                figure->says.size > 0
                    ? "; "
                    : "Boxes hold 80 % of the sums, lines all of them; 'all' is the product of all sublayers. ",
                figure_name(run), figure_number(h, "column_sum.min"), figure_number(h, "column_sum.max"),
                figure_number(h, "product.column_sum.min"), figure_number(h, "product.column_sum.max"));
        }
    }
    figure_say(figure, ".");
    figure_plot(figure, "unset multiplot\n");
}

static void write_norms(struct figure *figure, const json_t *run, size_t index) {
    const json_t *sublayer;
    size_t depth;
    figure_plot(figure, "$norm%zu << END_OF_DATA\n", index);
    json_array_foreach(json_object_get(figure_h(run), "sublayers"), depth, sublayer) {
        const double mean = figure_number(sublayer, "product_norm_mean"),
                     deviation = figure_number(sublayer, "product_norm_deviation");
        figure_plot(figure, "%zu %.9g %.9g %.9g\n", depth + 1, mean, mean - deviation, mean + deviation);
        figure_row(figure, "%s,%zu,%.9g,%.9g\n", figure_name(run), depth + 1, mean, deviation);
    }
    figure_plot(figure, "END_OF_DATA\n");
}

void figure_product_norms(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    struct text_buffer terms = {0};
    size_t i;
    figure_row(figure, "run,depth,mean,deviation\n");
    json_array_foreach(runs, i, run) {
        const char *colour = figure_colour(figure_variant(run));
        if (!is_shown(runs, i)) {
            continue;
        }
        write_norms(figure, run, i);
        figure->failed |= text_print(&terms,
                                     "%s$norm%zu using 1:3:4 with filledcurves lc rgb '%s' notitle, $norm%zu using "
                                     "1:2 with linespoints pt 7 ps 0.4 lw 2 lc rgb '%s' title '%s'",
                                     terms.size > 0 ? ", " : "", i, colour, i, colour, figure_name(run)) != 0;
        figure_say(figure, "%s%s %.6f (largest %.6f)",
                   figure->says.size > 0
                       ? ", "
                       : "Lines are means over tokens, bands one deviation. Through all sublayers: ",
                   figure_name(run), figure_number(figure_h(run), "product.norm.mean"),
                   figure_number(figure_h(run), "product.norm.max"));
    }
    figure_say(figure, ".");
    if (terms.size > 0) {
        figure_begin_plot(figure);
        figure_plot(figure,
                    "set xlabel 'sublayers multiplied'\nset ylabel 'spectral norm'\nset key top left\nplot %.*s\n",
                    (int)terms.size, terms.bytes);
    }
    text_free(&terms);
}

/* The histogram as shares of all entries. */
static void write_histogram(struct figure *figure, const json_t *run, size_t index) {
    const json_t *entries = json_object_get(figure_h(run), "entries"), *counts = json_object_get(entries, "counts"),
                 *count;
    double total = figure_number(entries, "below") + figure_number(entries, "above");
    size_t bin;
    json_array_foreach(counts, bin, count) {
        total += json_number_value(count);
    }
    figure_plot(figure, "$entries%zu << END_OF_DATA\n", index);
    json_array_foreach(counts, bin, count) {
        const double from = figure_number(entries, "low") + figure_number(entries, "width") * (double)bin;
        if (json_integer_value(count) > 0) {
            figure_plot(figure, "%.9g %.9g\n", from + 0.5 * figure_number(entries, "width"),
                        json_number_value(count) / total);
            figure_row(figure, "%s,%.9g,%.9g,%lld\n", figure_name(run), from,
                       from + figure_number(entries, "width"), (long long)json_integer_value(count));
        }
    }
    figure_plot(figure, "END_OF_DATA\n");
}

void figure_entries(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    const size_t panels = shown_count(runs);
    size_t i;
    if (panels == 0) {
        return;
    }
    figure_row(figure, "run,from,to,count\n");
    figure_begin_panels(figure, panels);
    figure_plot(figure, "set logscale y\nset format y '%%.0e'\nset yrange [1e-6:1]\nset xrange [-1:1.5]\nset xtics "
                        "0.5\nset xlabel 'entry'\nset "
                        "ylabel 'share'\nset boxwidth 0.01\nset style fill solid 0.7\n");
    json_array_foreach(runs, i, run) {
        if (!is_shown(runs, i)) {
            continue;
        }
        write_histogram(figure, run, i);
        figure_plot(figure, "set title '%s'\nplot $entries%zu with boxes lc rgb '%s' notitle\n", figure_name(run),
                    i, figure_colour(figure_variant(run)));
        figure_say(figure, "%s%s %.2f %% (smallest %.3f)",
                   figure->says.size > 0 ? ", " : "Entries of all sublayers; negative are, of ", figure_name(run),
                   100.0 * figure_number(figure_h(run), "negative_fraction"),
                   figure_number(figure_h(run), "smallest_entry"));
    }
    figure_say(figure, ".");
    figure_plot(figure, "unset multiplot\n");
}

/* ---- heat maps */

static double entry_of(const json_t *matrix, size_t i, size_t j) {
    return json_number_value(json_array_get(json_array_get(matrix, i), j));
}

/* A panel: the matrix with its entries, row sums at the left and column sums below. */
static void draw_matrix(struct figure *figure, const json_t *run, const json_t *matrix, const char *where) {
    const size_t n = json_array_size(matrix);
    figure_plot(figure, "$matrix << END_OF_DATA\n");
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n; j++) {
            figure_plot(figure, "%zu %zu %.6g\n", j, i, entry_of(matrix, i, j));
            figure_row(figure, "%s,%s,%zu,%zu,%.9g\n", figure_name(run), where, i, j, entry_of(matrix, i, j));
        }
    }
    figure_plot(figure,
                "END_OF_DATA\nset title '%s, %s'\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\nset xtics (",
                figure_name(run), where, n - 1, n - 1);
    for (size_t j = 0; j < n; j++) {
        double sum = 0.0;
        for (size_t i = 0; i < n; i++) {
            sum += entry_of(matrix, i, j);
        }
        figure_plot(figure, "%s'%.2f' %zu", j ? ", " : "", sum, j);
    }
    figure_plot(figure, ")\nset ytics (");
    for (size_t i = 0; i < n; i++) {
        double sum = 0.0;
        for (size_t j = 0; j < n; j++) {
            sum += entry_of(matrix, i, j);
        }
        figure_plot(figure, "%s'%.2f' %zu", i ? ", " : "", sum, i);
    }
    figure_plot(
        figure,
        ")\nplot $matrix with image pixels notitle, $matrix using 1:2:(sprintf('%%.2f', $3)) with labels font "
        "',%d' tc rgb '#222222' notitle\n",
        n > 5 ? 6 : 9);
}

void figure_heat_maps(const json_t *analysis, struct figure *figure) {
    const json_t *runs = json_object_get(analysis, "runs"), *run;
    const size_t rows = shown_count(runs);
    size_t i;
    if (rows == 0) {
        return;
    }
    figure->width = 1060;
    figure->height = (unsigned)(20 + 250 * rows);
    figure_row(figure, "run,sublayer,row,column,entry\n");
    figure_begin_plot(figure);
    figure_plot(figure,
                "unset grid\nset multiplot layout %zu,4\nset palette defined (-1 '#d6604d', 0 '#f7f7f7', 1 "
                "'#4393c3')\nset cbrange [-1:1]\nunset colorbox\n",
                rows);
    json_array_foreach(runs, i, run) {
        const json_t *h = is_shown(runs, i) ? figure_h(run) : NULL, *sublayers = json_object_get(h, "sublayers");
        const size_t count = json_array_size(sublayers), depths[] = {count > 1, count / 2, count - 1};
        for (size_t depth = 0; h && depth < 3; depth++) {
            char where[32];
            snprintf(where, sizeof where, "sublayer %zu", depths[depth]);
            draw_matrix(figure, run, json_object_get(json_array_get(sublayers, depths[depth]), "first_sequence"),
                        where);
        }
        if (h) {
            draw_matrix(figure, run, json_object_get(json_object_get(h, "product"), "first_sequence"), "all");
        }
    }
    figure_plot(figure, "unset multiplot\n");
    figure_say(figure, "Means over the first sequence at three depths and of the product of all sublayers; row "
                       "sums stand at the left, column sums below.");
}
