/* The tables of a report. */
#ifndef HC_SRC_REPORT_TABLES_H
#define HC_SRC_REPORT_TABLES_H

#include "src/text/text_buffer.h"
#include <jansson.h>

/* Appends them as HTML: variants over seeds, runs, perplexities, matrices, as far as the analysis has them. */
int report_tables(const json_t *analysis, struct text_buffer *page);

#endif
