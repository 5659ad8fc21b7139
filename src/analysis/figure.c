#include "src/analysis/figure.h"
#include "src/text/utf8.h"
#include "src/variants/residual.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct figure_kind figure_kinds[] = {
    {"loss", "Loss", figure_losses},
    {"gradient_norm", "Gradient norm", figure_gradient_norms},
    {"dynamics", "H<sub>res</sub> over training", figure_dynamics},
    {"similarity", "Similarity of the streams after mixing", figure_similarity},
    {"column_sums", "Column sums of H<sub>res</sub>", figure_column_sums},
    {"product_norm", "Spectral norm of the product up to each depth", figure_product_norms},
    {"entries", "Entries of H<sub>res</sub>", figure_entries},
    {"heat_maps", "H<sub>res</sub>, averaged over a sequence", figure_heat_maps},
    {"throughput", "Throughput against streams", figure_throughput},
    {"auxiliary", "Auxiliary parameters against streams", figure_auxiliary},
};
const size_t figure_kind_count = sizeof figure_kinds / sizeof *figure_kinds;

/* ---- writing */

#define PRINT_TO(buffer)                                                                                           \
    va_list arguments;                                                                                             \
    va_start(arguments, format);                                                                                   \
    figure->failed |= text_vprint(&figure->buffer, format, arguments) != 0;                                        \
    va_end(arguments)

void figure_say(struct figure *figure, const char *format, ...) {
    PRINT_TO(says);
}

void figure_plot(struct figure *figure, const char *format, ...) {
    PRINT_TO(script);
}

void figure_row(struct figure *figure, const char *format, ...) {
    PRINT_TO(csv);
}

void figure_free(struct figure *figure) {
    text_free(&figure->says);
    text_free(&figure->script);
    text_free(&figure->csv);
}

/* ---- reading */

const char *figure_variant(const json_t *run) {
    const char *variant = json_string_value(json_object_get(json_object_get(run, "config"), "residual"));
    return variant ? variant : "";
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
    const bool control = character < 0xA0 || (character >= 0x200B && character <= 0x200F) ||
                         (character >= 0x2028 && character <= 0x202E) ||
                         (character >= 0x2060 && character <= 0x206F) || character == 0xFEFF;
    return !control;
}

const char *figure_name(const json_t *run) {
    size_t size, length = 0, bytes;
    uint32_t character;
    char *name = name_buffer(&size);
    const char *given = json_string_value(json_object_get(run, "name"));
    for (const char *at = given ? given : ""; *at; at += bytes) {
        bytes = utf8_decode(at, strlen(at), &character);
        const bool plain = bytes > 0 && is_plain(character);
        bytes = bytes > 0 ? bytes : 1;
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

const json_t *figure_h(const json_t *run) {
    const json_t *checkpoints = json_object_get(run, "checkpoints");
    const size_t count = json_array_size(checkpoints);
    return count > 0 ? json_object_get(json_array_get(checkpoints, count - 1), "h") : NULL;
}

/* ---- drawing */

void figure_begin_panels(struct figure *figure, size_t panels) {
    const size_t columns = panels < 3 ? panels : 3, rows = (panels + columns - 1) / columns;
    figure->width = (unsigned)(60 + 330 * columns);
    figure->height = (unsigned)(60 + 270 * rows);
    figure_begin_plot(figure);
    figure_plot(figure, "set multiplot layout %zu,%zu\n", rows, columns);
}

void figure_begin_plot(struct figure *figure) {
    figure_plot(figure, "set border 3 lc rgb '#888888'\nset tics nomirror textcolor rgb '#777777'\n"
                        "set grid lc rgb '#88888840'\nset key textcolor rgb '#777777' samplen 2\n"
                        "set xlabel textcolor rgb '#777777'\nset ylabel textcolor rgb '#777777'\nset title "
                        "textcolor rgb '#777777'\n"
                        "set style fill transparent solid 0.25 noborder\n");
}

size_t figure_series(struct figure *figure, const json_t *run, const char *table, const char *x, const char *y,
                     double most, const char *block) {
    const json_t *rows = json_object_get(json_object_get(run, "record"), table);
    const json_t *xs = json_object_get(rows, x), *ys = json_object_get(rows, y);
    const size_t count = json_array_size(ys), each = (count + 599) / 600;
    size_t points = 0;
    figure_plot(figure, "$%s << END_OF_DATA\n", block);
    for (size_t first = 0; first < count; first += each) {
        double sum_x = 0.0, sum_y = 0.0;
        size_t used = 0;
        for (size_t i = first; i < count && i < first + each; i++) {
            if (json_is_number(json_array_get(ys, i))) {
                sum_x += json_number_value(json_array_get(xs, i));
                sum_y += fmin(json_number_value(json_array_get(ys, i)), most);
                used++;
            }
        }
        if (used > 0) {
            figure_plot(figure, "%.9g %.9g\n", sum_x / (double)used, sum_y / (double)used);
            points++;
        }
    }
    figure_plot(figure, "END_OF_DATA\n");
    return points;
}
