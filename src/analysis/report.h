/* An analysis as plots, tables and one page of HTML that needs nothing beside it. */
#pragma once

#include "runtime/system/embedded_text.h"
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* The page's style and script, and the words of its plots. */
extern const struct embedded_text report_texts[];

/* refresh: seconds after which a browser loads the page again, 0: never.
 *
 * Writes, from the result of analyze_run, to the folder: report.html, and in figures/ each plot as SVG, PNG,
 * gnuplot's script and CSV. What the analysis has nothing of is left out. Plots are drawn by gnuplot, a program of
 * its own; where it fails, the error has what it printed, or what to install. */
int report_write(const json_t *analysis, const char *folder, int64_t refresh);

/* A new reference to report/plots.json: the words of plots and tables. */
json_t *report_words(void);

/* Writes the tables as HTML: variants over seeds, runs, perplexities, matrices, as far as the analysis has them. */
void report_tables(const json_t *analysis, const json_t *words, FILE *page);
