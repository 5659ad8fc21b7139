/* An analysis as pictures, tables and one page of HTML that needs nothing beside it. */
#pragma once

#include <jansson.h>
#include <stdint.h>

/* refresh: seconds after which a browser loads the page again, 0: never.
 *
 * Writes, from what analyze_run gave, to the folder: report.html, and in figures/ each picture as SVG, PNG,
 * gnuplot's script and CSV. What the analysis has nothing of is left out. */
int report_write(const json_t *analysis, const char *folder, int64_t refresh);
