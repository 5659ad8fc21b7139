#include "src/analysis/figure.h"
#include "runtime/files/files.h"
#include "runtime/system/memory.h"
#include "runtime/system/utf8.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WIDTH = 820, TWO_WIDTH = 1000, USUAL_HEIGHT = 370, NARROW_HEIGHT = 250 }; /* pixels, without legends */
enum { LEGEND_MARGIN = 60, LEGEND_LINE = 14, LEGEND_MARK = 40, LETTER = 6 }; /* of axes, a row, a mark, a letter */

static const double least_range = 0.01; /* no deviation looks like one in a range as small as its rounding */

const struct figure_kind *const figure_kinds[FIGURE_KINDS] = {
    &figure_losses,     &figure_gradient_norms,  &figure_identity_distance, &figure_collapse,    &figure_dynamics,
    &figure_similarity, &figure_singular_values, &figure_product_norms,     &figure_column_sums, &figure_entries,
    &figure_heat_maps,  &figure_throughput,      &figure_auxiliary,
};

/* ---- reading */

/* A value of its newest checkpoint's config, or else, of a run that has none yet, of its settings; NULL: neither has it. */
static const json_t *configured(const json_t *run, const char *key) {
    const json_t *value = json_object_get(json_object_get(run, "config"), key);
    return value ? value : json_object_get(json_object_get(json_object_get(run, "record"), "settings"), key);
}

const char *figure_variant(const json_t *run) {
    const char *name = json_string_value(configured(run, "residual"));
    const struct residual_variant *known = name ? residual_find(name) : NULL;
    return known ? known->name : "";
}

double figure_streams(const json_t *run) {
    const struct residual_variant *known = residual_find(figure_variant(run));
    const json_t *streams = configured(run, "n_streams");
    return known && residual_is_plain(known) ? 1.0
           : json_is_number(streams)         ? json_number_value(streams)
                                             : (double)NAN;
}

const char *figure_colour(const char *variant) {
    const struct residual_variant *known = residual_find(variant);
    return known ? known->colour : "#17becf"; /* a run of a program that has other variants */
}

/* One of four buffers in turn. */
static char *name_buffer(size_t *size) {
    static char names[4][160];
    static unsigned next;
    *size = sizeof names[0];
    return names[next++ % 4];
}

/* Letters of any language, but no marks that direct how text is laid out. */
static bool is_plain(uint32_t character) {
    if (character < 0x80) {
        return (character >= '0' && character <= '9') || (character >= 'A' && character <= 'Z') ||
               (character >= 'a' && character <= 'z') || (character > 0 && strchr("._-+=()/ ", (int)character));
    }
    return !utf8_is_control(character);
}

const char *figure_plain(const char *text) {
    size_t size, length = 0, bytes;
    uint32_t character;
    char *name = name_buffer(&size);
    for (const char *at = text ? text : ""; *at; at += bytes) {
        bytes = utf8_decode(at, strlen(at), &character); /* not 0: jansson's strings are UTF-8 */
        const bool plain = is_plain(character);
        const size_t more = plain ? bytes : 1;
        if (length + more >= size) {
            break;
        }
        memcpy(name + length, plain ? at : "?", more);
        length += more;
    }
    name[length] = '\0';
    return name;
}

const char *figure_name(const json_t *run) {
    return figure_plain(json_string_value(json_object_get(run, "name")));
}

static json_int_t kind_of(const json_t *runs, size_t index) {
    const json_t *kind = json_object_get(json_array_get(runs, index), "kind");
    return json_is_integer(kind) ? json_integer_value(kind) : (json_int_t)index;
}

bool figure_is_first(const json_t *runs, size_t index) {
    return kind_of(runs, index) == (json_int_t)index;
}

bool figure_repeats(const json_t *runs, size_t index, size_t first) {
    return kind_of(runs, index) == kind_of(runs, first);
}

const char *figure_kind_label(const json_t *runs, size_t kind) {
    const char *variant = figure_variant(json_array_get(runs, kind));
    bool alone = *variant != '\0';
    for (size_t i = 0; alone && i < json_array_size(runs); i++) {
        alone = figure_repeats(runs, i, kind) || strcmp(figure_variant(json_array_get(runs, i)), variant) != 0;
    }
    return alone ? variant : figure_name(json_array_get(runs, kind));
}

const char *figure_kind_name(const json_t *runs, size_t kind, size_t count) {
    const json_t *run = json_array_get(runs, kind);
    const double seed = figure_number(run, "record.settings.seed");
    const char *label = figure_kind_label(runs, kind);
    size_t size;
    char *name = name_buffer(&size);
    snprintf(name, size, count > 1 ? "%s (%.0f runs)" : "%s (seed %.0f)", label, count > 1 ? (double)count : seed);
    return name;
}

const char *figure_legend(const json_t *runs, size_t index) {
    size_t repeats = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        repeats += figure_repeats(runs, i, index);
    }
    return repeats < 2                     ? figure_name(json_array_get(runs, index))
           : !figure_is_first(runs, index) ? ""
                                           : figure_kind_name(runs, index, repeats);
}

/* What stands in an object at a path like "product.norm.mean", NULL when there is nothing. */
static const json_t *member_at(const json_t *object, const char *path) {
    char key[64];
    while (object) {
        const size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_object_get(object, key);
        if (path[length] == '\0') {
            break;
        }
        path += length + 1;
    }
    return object;
}

double figure_number(const json_t *object, const char *path) {
    const json_t *member = member_at(object, path);
    return json_is_number(member) ? json_number_value(member) : (double)NAN;
}

const char *figure_text(const json_t *object, const char *path) {
    return figure_plain(json_string_value(member_at(object, path)));
}

double figure_at(const json_t *array, size_t index) {
    return json_number_value(json_array_get(array, index));
}

const json_t *figure_column(const json_t *run, const char *table, const char *key) {
    return json_object_get(json_object_get(json_object_get(run, "record"), table), key);
}

const json_t *figure_h(const json_t *run) {
    const json_t *checkpoints = json_object_get(run, "checkpoints");
    const size_t count = json_array_size(checkpoints);
    return count > 0 ? json_object_get(json_array_get(checkpoints, count - 1), "h") : NULL;
}

/* ---- drawing */

FILE *figure_item(struct figure *figure) {
    fputs(figure->items++ > 0 ? figure_words(figure, "between") : "", figure->to[FIGURE_SAYS]);
    return figure->to[FIGURE_SAYS];
}

void figure_begin_block(struct figure *figure, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(figure->block, sizeof figure->block, format, arguments);
    va_end(arguments);
    fprintf(figure->to[FIGURE_SCRIPT], "$%s << END_OF_DATA\n", figure->block);
}

void figure_end_block(struct figure *figure) {
    fputs("END_OF_DATA\n", figure->to[FIGURE_SCRIPT]);
}

void figure_numbers(FILE *file, char between, const double *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "%.9g%c", numbers[i], i + 1 < count ? between : '\n');
    }
}

/* Of a curve, for the size of the legend. */
static void count_title(struct figure *figure, size_t picture, const char *title) {
    const size_t length = strlen(title);
    figure->titles[picture] += length > 0;
    figure->longest_title = length > figure->longest_title ? length : figure->longest_title;
}

void figure_curve(struct figure *figure, size_t picture, const char *style, const char *title) {
    fprintf(figure->to[FIGURE_PLOTS + picture], "%s$%s %s lc rgb '%s' %s%s%s",
            figure->curves[picture]++ > 0 ? ", " : "plot ", figure->block, style, figure->colour,
            *title ? "title '" : "notitle", title, *title ? "'" : "");
    count_title(figure, picture, title);
}

const char *figure_branch(size_t sublayer) {
    return sublayer % 2 == 0 ? "attention" : "MLP";
}

void figure_depth_curve(struct figure *figure, size_t picture, unsigned column, size_t first, const char *title) {
    char style[96];
    snprintf(style, sizeof style, "using 1:%u:(int($1)%%2==%zu?7:8) with linespoints pt variable ps 0.7 lw 2",
             column, first % 2);
    figure_curve(figure, picture, style, title);
}

void figure_mark_branches(struct figure *figure) {
    if (figure->curves[0] > 0) {
        fputs(", keyentry with points pt 7 ps 0.7 lc rgb '#888888' title 'attention', keyentry with points pt 8 ps "
              "0.7 lw 2 "
              "lc rgb '#888888' title 'MLP'",
              figure->to[FIGURE_PLOTS]);
        count_title(figure, 0, "attention");
        count_title(figure, 0, "MLP");
    }
}

void figure_see(struct figure *figure, size_t picture, double value) {
    figure->low[picture] = fmin(figure->low[picture], value);
    figure->high[picture] = fmax(figure->high[picture], value);
}

double figure_tic_distance(double range) {
    const double least = range / 5.0, power = pow(10.0, floor(log10(least)));
    return least <= power         ? power
           : least <= 2.0 * power ? 2.0 * power
           : least <= 5.0 * power ? 5.0 * power
                                  : 10.0 * power;
}

/* gnuplot's own labels have six digits, or as many as the range of the axis asks for and its tics do not: too few
 * where tics are close together. There it is told their distance and the digits behind the point. */
static void set_labels(struct figure *figure, size_t picture) {
    const double low = figure->low[picture], high = figure->high[picture];
    const double distance = high > low ? figure_tic_distance(high - low) : 1.0;
    const double before = floor(log10(fmax(fmax(fabs(low), fabs(high)), 1.0))) + 1.0,
                 behind = ceil(-log10(distance) - 1e-9);
    if (behind > 4.0 || (behind > 0.0 && before + behind > 6.0)) {
        fprintf(figure->to[FIGURE_SCRIPT], "set ytics %.9g\nset format y '%%.%.0ff'\n", distance, behind);
    } else if (picture > 0) {
        fputs("set ytics autofreq\nset format y '% h'\n", figure->to[FIGURE_SCRIPT]);
    }
}

static void set_lines(struct figure *figure, const json_t *lines) {
    const json_t *line;
    size_t i;
    json_array_foreach(lines, i, line) {
        fprintf(figure->to[FIGURE_SCRIPT], "%s\n", json_string_value(line));
    }
}

/* The settings of one of the two pictures. */
static void set_axes(struct figure *figure, size_t picture) {
    set_lines(figure, json_array_get(json_object_get(figure->words, "axes"), picture));
}

/* So many pictures, in rows, and for screens of phones in fewer columns. */
static void begin_pictures(struct figure *figure, size_t count, size_t columns, size_t narrow_columns) {
    fprintf(figure->to[FIGURE_SCRIPT],
            "if (!exists('narrow')) narrow = 0\nset multiplot layout (narrow ? %zu : %zu),(narrow ? %zu : %zu)\n",
            (count + narrow_columns - 1) / narrow_columns, (count + columns - 1) / columns, narrow_columns,
            columns);
}

/* The rows of a legend above a picture of this width, and its settings' part that has so many columns. */
static unsigned set_legend(struct figure *figure, unsigned width, const char *condition) {
    const unsigned room = width - LEGEND_MARGIN, title = LEGEND_MARK + LETTER * (unsigned)figure->longest_title;
    const unsigned columns = room > title ? room / title : 1;
    const unsigned rows = ((unsigned)figure->titles[0] + columns - 1) / columns;
    fprintf(figure->to[FIGURE_SCRIPT], "%sset key maxcols %u; set tmargin %.1f\n", condition, columns,
            1.2 * rows + 0.8);
    return rows;
}

/* Small pictures of all runs shown, with one vertical axis where their values are known. */
static void plot_panels(struct figure *figure, size_t runs) {
    const bool rows_of_runs = figure->kind->layout == FIGURE_ROWS;
    const size_t pictures = rows_of_runs ? 4 * runs : runs, most = rows_of_runs ? 4 : 3;
    const size_t columns = pictures < most ? pictures : most, rows = (pictures + columns - 1) / columns;
    figure->width = (unsigned)(rows_of_runs ? 1060 : 60 + 330 * columns);
    figure->height = (unsigned)(rows_of_runs ? 20 + 250 * rows : 60 + 270 * rows);
    figure->narrow_height = (unsigned)(rows_of_runs ? 20 + 190 * 2 * rows : 20 + 240 * pictures);
    fputs(rows_of_runs ? "unset grid\n" : "", figure->to[FIGURE_SCRIPT]);
    begin_pictures(figure, pictures, columns, rows_of_runs ? 2 : 1);
    set_axes(figure, 0);
    const double low = figure->low[0], high = figure->high[0], margin = 0.05 * fmax(high - low, least_range);
    if (low <= high) {
        fprintf(figure->to[FIGURE_SCRIPT], "set yrange [%.9g:%.9g]\n", low - margin, high + margin);
        set_labels(figure, 0);
    }
    fprintf(figure->to[FIGURE_SCRIPT], "%sunset multiplot\n", figure->texts[FIGURE_PLOTS]);
}

/* The curves that all runs have left, behind their data: in one picture, or in two side by side. */
static void plot_curves(struct figure *figure) {
    FILE *script = figure->to[FIGURE_SCRIPT];
    const bool two = figure->curves[1] > 0;
    figure->width = two ? TWO_WIDTH : USUAL_WIDTH;
    begin_pictures(figure, two ? 2 : 1, two ? 2 : 1, 1);
    figure->height += LEGEND_LINE * set_legend(figure, figure->width / (two ? 2 : 1), "");
    figure->narrow_height = NARROW_HEIGHT + LEGEND_LINE * set_legend(figure, FIGURE_NARROW_WIDTH, "if (narrow) ");
    figure->narrow_height *= two ? 2 : 1;
    for (size_t picture = 0; picture < (two ? 2 : 1); picture++) {
        fputs(figure->titles[picture] == 0 ? "if (narrow) set tmargin 1\n" : "", script);
        set_axes(figure, picture);
        set_labels(figure, picture);
        fprintf(script, "%s\n", figure->texts[FIGURE_PLOTS + picture]);
    }
    fputs("unset multiplot\n", script);
}

/* Whether the figure has a part for a run. */
static bool is_shown(const struct figure *figure, const json_t *run) {
    return figure->kind->draw && (!figure->kind->wants || figure->kind->wants(run));
}

/* The number of runs shown. */
static size_t draw_runs(struct figure *figure) {
    const json_t *run;
    size_t shown = 0, i;
    json_array_foreach(figure->runs, i, run) {
        if (is_shown(figure, run)) {
            figure->name = figure_name(run);
            figure->colour = figure_colour(figure_variant(run));
            figure->kind->draw(figure, run, i);
            shown++;
        }
    }
    if (figure->kind->finish) {
        figure->kind->finish(figure);
    }
    return shown;
}

static void draw(struct figure *figure, const json_t *frame) {
    const bool panels = figure->kind->layout != FIGURE_CURVES;
    fprintf(figure->to[FIGURE_CSV], "%s\n", figure_words(figure, "csv"));
    fputs(figure_words(figure, "says"), figure->to[FIGURE_SAYS]);
    const size_t shown = draw_runs(figure);
    fputs(".", figure->to[FIGURE_SAYS]);
    fflush(figure->to[FIGURE_PLOTS]);
    fflush(figure->to[FIGURE_PLOTS + 1]);
    figure->drawn = panels ? shown > 0 : figure->curves[0] > 0;
    if (figure->drawn) {
        set_lines(figure, frame);
        panels ? plot_panels(figure, shown) : plot_curves(figure);
    }
}

int figure_make(const struct figure_kind *kind, const json_t *words, const json_t *analysis, const json_t *means,
                struct figure *figure) {
    int result = 0;
    *figure = (struct figure){.kind = kind,
                              .width = USUAL_WIDTH,
                              .height = USUAL_HEIGHT,
                              .words = json_object_get(words, kind->name),
                              .analysis = analysis,
                              .runs = kind->wants ? means : json_object_get(analysis, "runs"),
                              .low = {HUGE_VAL, HUGE_VAL},
                              .high = {-HUGE_VAL, -HUGE_VAL}};
    for (size_t i = 0; i < FIGURE_TEXTS; i++) {
        figure->to[i] = memory_open_stream(&figure->texts[i], &figure->sizes[i]);
    }
    draw(figure, json_object_get(words, "frame"));
    for (size_t i = 0; i < FIGURE_TEXTS; i++) {
        memory_close_stream(figure->to[i]);
    }
    return result;
}

void figure_free(struct figure *figure) {
    for (size_t i = 0; i < FIGURE_TEXTS; i++) {
        free(figure->texts[i]);
    }
}

const char *figure_words(const struct figure *figure, const char *key) {
    const char *words = json_string_value(json_object_get(figure->words, key));
    return words ? words : "";
}
