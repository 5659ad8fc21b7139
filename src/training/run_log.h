/* What a run leaves beside its checkpoints: metrics.jsonl and h_statistics.jsonl. */
#pragma once

#include "src/checkpoint/checkpoint.h"
#include "src/measuring/h_measurement.h"
#include <stdint.h>
#include <stdio.h>

struct run_log {
    FILE *metrics, *statistics; /* statistics: NULL without */
};

struct step_metrics {
    int64_t iteration;
    double loss; /* not finite: the step diverged, or its batch had no targets */
    double rate, gradient_norm;
    uint64_t tokens; /* trained on so far */
    double tokens_per_second, utilisation /* mfu */, seconds;
    double loss_scale; /* of the step; 0: losses are not scaled */
    int64_t skipped;   /* steps left out so far, this one included */
    bool was_skipped;  /* this one was left out */
};

/* Opens the files in out_dir, which a run that is not resumed must find empty or missing. They are written anew. A
 * file that has no line of a run is refused. Of a resumed one what follows the last line that the run has got to is
 * cut off, whether that file is written on or not: steps from state->iteration on and evaluations after
 * state->evaluated_at, which a killed run, or a branch that was given up, left. So the files read like those of one
 * run. */
int run_log_open(struct run_log *log, const char *out_dir, bool has_statistics, const struct training_state *state);
int run_log_close(struct run_log *log);

int run_log_step(struct run_log *log, const struct step_metrics *metrics);

/* The losses of an evaluation; part_losses [parts]: validation losses of the folders of a mixture, 0 parts without
 * one. */
int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double seconds,
                       const double *part_losses, size_t parts);
int run_log_statistics(struct run_log *log, const struct h_measurement *statistics, int64_t iteration);
