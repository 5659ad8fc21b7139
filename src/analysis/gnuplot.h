/* Pictures by gnuplot, a program of its own. */
#pragma once

#include <stddef.h>

/* Writes the script to folder/<name>.gp and draws it to folder/<name>.svg and .png, of this size in pixels. The
 * script sets neither terminal nor output. `name` has letters, digits and _ only. Fails with gnuplot's own words,
 * or with what to install. */
int gnuplot_draw(const char *folder, const char *name, const char *script, size_t bytes, unsigned width,
                 unsigned height);
