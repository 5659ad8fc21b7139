/* An analysis as pictures, tables and one page of HTML that needs nothing beside it. */
#ifndef HC_SRC_REPORT_H
#define HC_SRC_REPORT_H

#include <jansson.h>

/* Writes, from what analyze_run gave, to the folder: report.html, and in figures/ each picture as SVG, PNG,
 * gnuplot's script and CSV. What the analysis has nothing of is left out. */
int report_write(const json_t *analysis, const char *folder);

#endif
