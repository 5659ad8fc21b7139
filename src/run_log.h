/* What a run leaves beside its checkpoints: metrics.jsonl, h_statistics.jsonl, TensorBoard events. */
#ifndef HC_SRC_RUN_LOG_H
#define HC_SRC_RUN_LOG_H

#include "runtime/event_file.h"
#include "src/h_statistics.h"
#include <stdint.h>
#include <stdio.h>

struct run_log {
    FILE *metrics, *statistics;
    struct event_file *events; /* NULL without TensorBoard */
};

struct step_metrics {
    int64_t iteration;
    double loss, rate, gradient_norm;
    uint64_t tokens; /* trained on so far */
    double tokens_per_second, utilisation /* mfu */, seconds;
};

/* Opens the files in out_dir for a run that is at `iteration`: steps from there on, which a killed run may have
 * left, are dropped, so that a resumed run's files read like those of one run. A run from scratch (0) starts empty
 * files. */
int run_log_open(struct run_log *log, const char *out_dir, int64_t iteration, bool tensorboard);
int run_log_close(struct run_log *log);

int run_log_step(struct run_log *log, const struct step_metrics *metrics);
int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double seconds);
int run_log_statistics(struct run_log *log, const struct h_statistics *statistics, int64_t iteration);

#endif
