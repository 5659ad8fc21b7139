/* What a run leaves beside its checkpoints: metrics.jsonl and h_statistics.jsonl. */
#pragma once

#include "src/checkpoint/checkpoint.h"
#include "src/measuring/h_measurement.h"
#include "src/training/train.h"
#include <stdint.h>
#include <stdio.h>

/* The files' names; settings and traces are the trainer's. */
#define RUN_LOG_METRICS    "metrics.jsonl"
#define RUN_LOG_STATISTICS "h_statistics.jsonl"
#define RUN_SETTINGS       "settings.conf"
#define RUN_TRACE          "trace.json"

/* How the line of settings.conf begins that has the device's name. */
#define RUN_DEVICE_COMMENT "# device: "

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
int run_log_open(struct run_log *log, const char *out_dir, const struct train_settings *settings,
                 const struct training_state *state);
int run_log_close(struct run_log *log);

int run_log_step(struct run_log *log, const struct step_metrics *metrics);
/* The losses of an evaluation. */
struct evaluation_metrics {
    int64_t iteration;
    double train_loss, val_loss, seconds;
    const double *part_losses; /* [parts] validation losses of the folders of a mixture */
    size_t parts;              /* 0: there is no mixture */
};

int run_log_evaluation(struct run_log *log, const struct evaluation_metrics *metrics);
int run_log_statistics(struct run_log *log, const struct h_measurement *statistics, int64_t iteration);
