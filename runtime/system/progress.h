/* A line of progress on stderr: rewritten in place on a terminal, and cut there to its width, a new line now and
 * then elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    double start; /* seconds, monotonic */
    double shown; /* when the line was last written */
    bool terminal;
    bool silent;       /* another process shows it */
    bool open;         /* a line without its newline is on the screen */
    int64_t first;     /* iteration at the start */
    int64_t counted;   /* iterations done at counted_at */
    double counted_at; /* end of the first one, in which kernels are compiled: start of the estimate; 0: not yet */
    bool of_seconds;   /* what is done and in all are seconds, so that what is left is known */
    const char *task;  /* what stands before the label, "" to begin with */
};

/* Seconds of a monotonic clock. */
double progress_clock(void);

void progress_start(struct progress *progress, int64_t first);

/* Shows "<task><label> <done>/<total> [####....] <details> <time left>", on a terminal at most ten times a second,
 * else every ten seconds. On a narrow terminal the bar is shorter or left out, then details are cut. */
void progress_show(struct progress *progress, const char *label, int64_t done, int64_t total, const char *details);

/* Shows a text instead, for work of unknown size: on a terminal at once, else every ten seconds, from two seconds
 * after the start. */
void progress_text(struct progress *progress, const char *text);

/* Clears or ends the line, so that other text can be printed. */
void progress_end(struct progress *progress);
