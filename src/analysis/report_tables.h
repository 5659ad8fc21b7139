/* The tables of a report. */
#pragma once

#include <jansson.h>
#include <stdio.h>

/* Writes them as HTML: variants over seeds, runs, perplexities, matrices, as far as the analysis has them. */
void report_tables(const json_t *analysis, FILE *page);
