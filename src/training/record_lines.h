/* The lines of metrics.jsonl and h_statistics.jsonl: objects with an "iter". A file may be of any size, and have
 * lines that are none, after a crash of the machine for example. */
#pragma once

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

/* One line. */
struct record_line {
    uint64_t number; /* from 1 */
    uint64_t end;    /* bytes of the file up to here, with its newline */
    json_t *object;  /* NULL: the line is no object with an "iter" that can be an iteration */
};

/* Reads an open file from where it stands and calls `take` with each line; a last one without a newline, which is
 * still being written or was torn, is left out. 0, or -1 with an error text that has no path. */
int record_lines_read(FILE *file, void (*take)(void *context, const struct record_line *line), void *context);
