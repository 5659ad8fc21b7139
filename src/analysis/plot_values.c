/* Heat maps of the weights with which sublayers read and write: what value_means.h measured, a panel for each kind
 * of value. */
#include "runtime/system/memory.h"
#include "src/analysis/plot.h"
#include "src/analysis/runs.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PANELS = 4, MOST_SIDE = 512 /* rows and columns of a panel that are drawn */ };

/* A panel: the values whose names begin alike, "h_pre.", or one row of each if they have two dimensions. */
struct panel {
    const char *begins;
    size_t length; /* of what names begin with */
    bool is_row;
    size_t row;
};

/* Whether this value is in the panel. */
static bool is_in(const struct panel *panel, const char *name) {
    return strncmp(name, panel->begins, panel->length) == 0;
}

/* The numbers of a value in the panel, from the first stream or state on; NULL: none. */
static const json_t *column_in(const struct panel *panel, const char *name, const json_t *value) {
    return !is_in(panel, name) ? NULL : panel->is_row ? json_array_get(value, panel->row) : value;
}

/* Finds the first panels; how many there are. H_res has heat maps of its own. */
static size_t find_panels(const json_t *values, struct panel panels[PANELS]) {
    const char *name;
    json_t *value;
    size_t count = 0;
    json_object_foreach((json_t *)values, name, value) {
        const char *point = strchr(name, '.');
        bool known = !point || strncmp(name, "h_res.", 6) == 0;
        for (size_t i = 0; i < count; i++) {
            known |= is_in(&panels[i], name);
        }
        const bool rows = json_is_array(json_array_get(value, 0));
        for (size_t row = 0; !known && row < (rows ? json_array_size(value) : 1) && count < PANELS; row++) {
            panels[count++] = (struct panel){name, (size_t)(point - name) + 1, rows, row};
        }
    }
    return count;
}

/* In a panel's title, and how its values are drawn. */
static const char *title_of(const struct panel *panel) {
    static const char *const ways[] = {"q reads (last: top)", "k reads", "v reads", "residual reads"};
    static const char *const titles[][2] = {{"h_pre.", "reads"},
                                            {"h_gate.", "reads (gates)"},
                                            {"h_post.", "writes"},
                                            {"depth.", "reads"}};
    for (size_t i = 0; !panel->is_row && i < sizeof titles / sizeof *titles; i++) {
        if (is_in(panel, titles[i][0])) {
            return titles[i][1];
        }
    }
    return panel->is_row ? ways[panel->row] : "";
}

/* Columns in a panel, rows of the longest, and the largest magnitude. */
struct extent {
    size_t columns, rows;
    double most;
};

static struct extent extent_of(const struct panel *panel, const json_t *values) {
    struct extent extent = {0, 0, 0.0};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)values, name, value) {
        const json_t *column = column_in(panel, name, value);
        for (size_t i = 0; i < json_array_size(column); i++) {
            extent.most = fmax(extent.most, fabs(run_element(column, i)));
        }
        extent.columns += column && extent.columns < MOST_SIDE;
        extent.rows = json_array_size(column) > extent.rows ? json_array_size(column) : extent.rows;
    }
    extent.rows = extent.rows < MOST_SIDE ? extent.rows : MOST_SIDE;
    return extent;
}

/* Every cell of the grid, as gnuplot's images need it: those of states that do not exist yet are NaN. */
static void write_cells(struct plot *plot, const struct panel *panel, const json_t *values,
                        const struct extent *extent) {
    const char *name;
    json_t *value;
    size_t x = 0;
    json_object_foreach((json_t *)values, name, value) {
        const json_t *column = column_in(panel, name, value);
        for (size_t y = 0; column && x < extent->columns && y < extent->rows; y++) {
            if (json_is_number(json_array_get(column, y))) {
                fprintf(plot->to[PLOT_SCRIPT], "%zu %zu %.6g\n", x, y, run_element(column, y));
                fprintf(plot_csv_line(plot), "%s,%zu,%zu,%.9g\n", run_plain(name), panel->row, y,
                        run_element(column, y));
            } else {
                fprintf(plot->to[PLOT_SCRIPT], "%zu %zu NaN\n", x, y);
            }
        }
        x += column != NULL;
    }
}

static void draw_panel(struct plot *plot, size_t index, const struct panel *panel, const json_t *values) {
    const struct extent extent = extent_of(panel, values);
    const double most = extent.most > 0.0 ? extent.most : 1.0;
    plot_begin_block(plot, "values", index);
    write_cells(plot, panel, values, &extent);
    plot_end_block(plot);
    fprintf(plot->to[PLOT_COMMANDS],
            "set title \"%s\\n%s, up to %.3g\"\nset xrange [-0.5:%zu.5]\nset yrange [%zu.5:-0.5]\n"
            "set xtics 0,%zu\nset ytics 0,%zu\nset cbrange [-%.9g:%.9g]\nplot $%s with image pixels notitle\n",
            plot->name, title_of(panel), extent.most, extent.columns ? extent.columns - 1 : 0,
            extent.rows ? extent.rows - 1 : 0, extent.columns / 8 + 1, extent.rows / 8 + 1, most, most,
            plot->block);
}

bool plot_values_want(const json_t *run) {
    struct panel panels[PANELS];
    return find_panels(run_values(run), panels) > 0;
}

void plot_values_draw(struct plot *plot, const json_t *run, size_t index) {
    const json_t *values = run_values(run);
    struct panel panels[PANELS];
    const size_t count = find_panels(values, panels);
    char *name = memory_string(plot->name); /* which run_plain would replace */
    plot->name = name;
    for (size_t i = 0; i < PANELS; i++) {
        if (i < count) {
            draw_panel(plot, PANELS * index + i, &panels[i], values);
        } else {
            fputs("set multiplot next\n", plot->to[PLOT_COMMANDS]);
        }
    }
    plot->name = run_name(run);
    free(name);
}
