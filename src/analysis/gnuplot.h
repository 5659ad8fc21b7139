/* Pictures by gnuplot, a program of its own. */
#pragma once

#include <stddef.h>

struct gnuplot_size {
    unsigned width, height; /* pixels */
};

/* Writes the script to folder/<name>.gp and draws it to folder/<name>.svg and .png of the size `wide`, and to
 * <name>-narrow.svg of the size `narrow` with gnuplot's variable `narrow` set to 1. The script sets neither terminal nor
 * output. `name` has letters, digits and _ only. Fails with gnuplot's own words, or with what to install. */
int gnuplot_draw(const char *folder, const char *name, const char *script, size_t bytes, struct gnuplot_size wide,
                 struct gnuplot_size narrow);
