/* A run directory: whose it is, what it holds, where it is, also after it was renamed, and its logs. */
#pragma once

#include "runtime/files/files.h"
#include "src/checkpoint/checkpoint.h"
#include "src/measuring/h_measurement.h"
#include <stdio.h>

/* Files of a run beside its checkpoints. */
#define RUN_LOG_METRICS    "metrics.jsonl"
#define RUN_LOG_STATISTICS "h_statistics.jsonl"
#define RUN_SETTINGS       "settings.conf"
#define RUN_TRACE          "trace.json"

/* How the line of settings.conf begins that has the device's name. */
#define RUN_DEVICE_COMMENT "# device: "

/* Begin with RUN_FOLDER_CLOSED. */
struct run_folder {
    struct path given; /* as the user named it */
    struct path path;  /* to work with: leads to the opened folder, whatever happens to its name */
    int descriptor;    /* of the folder, with its lock; -1: not open */
};

#define RUN_FOLDER_CLOSED {.descriptor = -1}

/* Opens the existing folder and takes it for this process until it is closed. An error if another process has it.
 */
int run_folder_open(struct run_folder *folder, const char *path);
void run_folder_close(struct run_folder *folder);

/* Where the folder is now, human-readable: as the user named it, or as it has been renamed; "" if it is not open.
 * Valid until the next call. */
const char *run_folder_name(const struct run_folder *folder);

/* Puts that name into the error text in place of `path`. */
void run_folder_explain(const struct run_folder *folder);

/* An error if a file or folder that a run writes is a symbolic link; numbered checkpoints may be: they are only
 * read. With is_free also an error if the folder holds what an earlier run left: checkpoints, or records that are
 * not empty. */
int run_folder_check(const char *path, bool is_free);

/* Removes the files of checkpoints, records and event files, and nothing else: where something else is in a
 * checkpoint's folder, that stays. Where what has a checkpoint's name is none, that is an error and nothing is
 * removed. */
int run_folder_clear(const char *path);

/* ---- metrics.jsonl and h_statistics.jsonl */

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

/* The losses of an evaluation; val_bits: per byte, NAN: not known; part_losses [parts]: validation losses of the
 * folders of a mixture, 0 parts without one. */
int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double val_bits,
                       double seconds, const double *part_losses, size_t parts);
int run_log_statistics(struct run_log *log, const struct h_measurement *statistics, int64_t iteration);
