/* What a run leaves beside its checkpoints: metrics.jsonl, h_statistics.jsonl, TensorBoard events. */
#ifndef HC_SRC_RUN_LOG_H
#define HC_SRC_RUN_LOG_H

#include "runtime/event_file.h"
#include "src/h_statistics.h"
#include <stdint.h>
#include <stdio.h>

struct run_log {
    FILE *metrics, *statistics; /* statistics: NULL without */
    struct event_file *events;  /* NULL without TensorBoard */
};

struct step_metrics {
    int64_t iteration;
    double loss, rate, gradient_norm;
    uint64_t tokens; /* trained on so far */
    double tokens_per_second, utilisation /* mfu */, seconds;
    double loss_scale; /* of the step; 0 where losses are not scaled, which says nothing of it */
    int64_t skipped;   /* steps left out so far, this one included */
};

struct run_log_options {
    int64_t iteration; /* that the run is at */
    bool tensorboard, statistics;
};

/* Opens the files in out_dir: steps from `iteration` on, which a killed run may have left, are dropped, so that a
 * resumed run's files read like those of one run. A run from scratch (0) starts empty files. */
int run_log_open(struct run_log *log, const char *out_dir, const struct run_log_options *options);
int run_log_close(struct run_log *log);

int run_log_step(struct run_log *log, const struct step_metrics *metrics);
int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double seconds);
int run_log_statistics(struct run_log *log, const struct h_statistics *statistics, int64_t iteration);

#endif
