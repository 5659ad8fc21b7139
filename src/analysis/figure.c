#include "src/analysis/figure.h"
#include "runtime/files/files.h"
#include "runtime/system/utf8.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_WIDTH = 820, TWO_WIDTH = 1000, USUAL_HEIGHT = 380 }; /* pixels */

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
               (character >= 'a' && character <= 'z') || (character > 0 && strchr("._-+= ", (int)character));
    }
    return !utf8_is_control(character);
}

const char *figure_name(const json_t *run) {
    size_t size, length = 0, bytes;
    uint32_t character;
    char *name = name_buffer(&size);
    const char *given = json_string_value(json_object_get(run, "name"));
    for (const char *at = given ? given : ""; *at; at += bytes) {
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

const char *figure_legend(const json_t *runs, size_t index) {
    const json_t *run = json_array_get(runs, index);
    size_t size, repeats = 0;
    for (size_t i = 0; i < json_array_size(runs); i++) {
        repeats += figure_repeats(runs, i, index);
    }
    if (repeats < 2 || !figure_is_first(runs, index)) {
        return repeats < 2 ? figure_name(run) : "";
    }
    const char *variant = figure_variant(run);
    char *legend = name_buffer(&size);
    snprintf(legend, size, "%s, %zu runs", *variant ? variant : figure_name(run), repeats);
    return legend;
}

double figure_number(const json_t *object, const char *path) {
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
    return json_is_number(object) ? json_number_value(object) : (double)NAN;
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

void figure_curve(struct figure *figure, size_t picture, const char *style, const char *title) {
    fprintf(figure->to[FIGURE_PLOTS + picture], "%s$%s %s lc rgb '%s' %s%s%s",
            figure->curves[picture]++ > 0 ? ", " : "plot ", figure->block, style, figure->colour,
            *title ? "title '" : "notitle", title, *title ? "'" : "");
}

void figure_see(struct figure *figure, double value) {
    figure->low = fmin(figure->low, value);
    figure->high = fmax(figure->high, value);
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
static bool set_labels(struct figure *figure) {
    const double distance = figure->high > figure->low ? figure_tic_distance(figure->high - figure->low) : 1.0;
    const double before = floor(log10(fmax(fmax(fabs(figure->low), fabs(figure->high)), 1.0))) + 1.0,
                 behind = ceil(-log10(distance) - 1e-9);
    const bool close = behind > 4.0 || (behind > 0.0 && before + behind > 6.0);
    if (close) {
        fprintf(figure->to[FIGURE_SCRIPT], "set ytics %.9g\nset format y '%%.%.0ff'\n", distance, behind);
    }
    return close;
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

/* So many small pictures, at least 1. */
static void begin_panels(struct figure *figure, size_t panels) {
    const bool rows_of_runs = figure->kind->layout == FIGURE_ROWS;
    const size_t columns = rows_of_runs ? 4 : panels < 3 ? panels : 3;
    const size_t rows = rows_of_runs ? panels : (panels + columns - 1) / columns;
    figure->width = (unsigned)(rows_of_runs ? 1060 : 60 + 330 * columns);
    figure->height = (unsigned)(rows_of_runs ? 20 + 250 * rows : 60 + 270 * rows);
    fprintf(figure->to[FIGURE_SCRIPT], "%sset multiplot layout %zu,%zu\n", rows_of_runs ? "unset grid\n" : "", rows,
            columns);
    set_axes(figure, 0);
}

/* The curves that all runs have left, behind their data: in one picture, or in two side by side. */
static void plot_curves(struct figure *figure) {
    FILE *script = figure->to[FIGURE_SCRIPT];
    const bool two = figure->curves[1] > 0;
    fflush(figure->to[FIGURE_PLOTS]);
    fflush(figure->to[FIGURE_PLOTS + 1]);
    figure->width = two ? TWO_WIDTH : USUAL_WIDTH;
    fputs(two ? "set multiplot layout 1,2\n" : "", script);
    set_axes(figure, 0);
    const bool labelled = set_labels(figure);
    fprintf(script, "%s\n%s", figure->texts[FIGURE_PLOTS],
            labelled && two ? "set ytics autofreq\nset format y '% h'\n" : "");
    if (two) {
        set_axes(figure, 1);
        fprintf(script, "%s\nunset multiplot\n", figure->texts[FIGURE_PLOTS + 1]);
    }
}

/* Whether the figure has a part for a run. */
static bool is_shown(const struct figure *figure, size_t index) {
    const struct figure_kind *kind = figure->kind;
    return kind->draw && (!kind->wants || (kind->wants(json_array_get(figure->runs, index)) &&
                                           figure_is_first(figure->runs, index)));
}

static void draw_runs(struct figure *figure) {
    const json_t *run;
    size_t i;
    json_array_foreach(figure->runs, i, run) {
        if (is_shown(figure, i)) {
            figure->name = figure_name(run);
            figure->colour = figure_colour(figure_variant(run));
            figure->kind->draw(figure, run, i);
        }
    }
    if (figure->kind->finish) {
        figure->kind->finish(figure);
    }
}

static void draw(struct figure *figure, const json_t *frame) {
    const bool panels = figure->kind->layout != FIGURE_CURVES;
    size_t shown = 0;
    for (size_t i = 0; i < json_array_size(figure->runs); i++) {
        shown += is_shown(figure, i);
    }
    fprintf(figure->to[FIGURE_CSV], "%s\n", figure_words(figure, "csv"));
    fputs(figure_words(figure, "says"), figure->to[FIGURE_SAYS]);
    if (panels && shown > 0) {
        set_lines(figure, frame);
        begin_panels(figure, shown);
    }
    draw_runs(figure);
    fputs(".", figure->to[FIGURE_SAYS]);
    figure->drawn = panels ? shown > 0 : figure->curves[0] > 0;
    if (panels) {
        fputs("unset multiplot\n", figure->to[FIGURE_SCRIPT]);
    } else if (figure->drawn) {
        set_lines(figure, frame);
        plot_curves(figure);
    }
}

int figure_make(const struct figure_kind *kind, const json_t *words, const json_t *analysis,
                struct figure *figure) {
    int result = 0;
    *figure = (struct figure){.kind = kind,
                              .width = USUAL_WIDTH,
                              .height = USUAL_HEIGHT,
                              .words = json_object_get(words, kind->name),
                              .analysis = analysis,
                              .runs = json_object_get(analysis, "runs"),
                              .low = HUGE_VAL,
                              .high = -HUGE_VAL};
    for (size_t i = 0; i < FIGURE_TEXTS; i++) {
        figure->to[i] = open_memstream(&figure->texts[i], &figure->sizes[i]);
        result = figure->to[i] ? result : -1;
    }
    if (result == 0) {
        draw(figure, json_object_get(words, "frame"));
    }
    for (size_t i = 0; i < FIGURE_TEXTS; i++) {
        result = files_close_text(figure->to[i]) ? -1 : result;
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
