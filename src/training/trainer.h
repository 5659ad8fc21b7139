/* What a training run works with, shared by its set-up (train_setup.c) and its loop (train_loop.c). */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "src/checkpoint/checkpoint.h"
#include "src/settings/compile_ahead.h"
#include "src/training/batch_sampler.h"
#include "src/training/data_parallel.h"
#include "src/training/fit.h"
#include "src/training/initial_model.h"
#include "src/training/mixture.h"
#include "src/training/run_folder.h"
#include "src/training/run_log.h"
#include "src/training/train.h"
#include <stdio.h>
#include <string.h>

/* How the validation loss of a folder of data is measured. */
struct validation {
    bool whole;                    /* of all of its val.bin, not of the estimate's batches */
    struct batch_sampler estimate; /* unless it is whole */
    double loss;                   /* of the last evaluation */
};

struct trainer {
    struct train_settings *settings;
    struct ranks *ranks;
    struct mixture data;
    struct compute *compute;
    struct gpt gpt;
    struct initial_model initial;
    struct fit fit; /* of settings->fit */
    struct data_parallel parallel;
    struct batch_sampler train, estimate_train;
    struct validation *validations; /* [data.count]; NULL: the run has no evaluations */
    struct training_state state;
    struct run_log log; /* rank 0's */
    struct progress progress;
    FILE *console;            /* stderr on rank 0, nowhere on the others */
    struct run_folder folder; /* rank 0's, of the run */
    int64_t micro_steps;      /* of this rank in an iteration */
    struct compile_ahead ahead;
    char purpose[80];         /* of its kernels */
    double gemm_rate;         /* FLOP/s of all ranks together, what mfu is relative to */
    int64_t saved_at;         /* iteration of the last checkpoint, -1 before */
    int64_t saved_evaluation; /* the last evaluation that it knows of */
    char train_digest[CHECKSUM_SIZE], val_digest[CHECKSUM_SIZE]; /* of the data; val's is "" if it is not needed */
    double seconds_before;                                       /* that earlier processes of this run trained */
    double tokens_per_second;                                    /* smoothed, for the progress line */
    bool wrong_usage;                                            /* the failure is one of the command line */
    bool stopping;                                               /* some rank was asked to stop */
    char failure[2048];                                          /* why this rank cannot go on; "": it can */
    bool some_rank_failed;                                       /* some rank cannot go on; the same on all ranks */
    bool cannot_save;                                            /* the last checkpoint has failed */
    unsigned
        reported_violations; /* invariants of the residual variant that H_res violated, and that were reported */
};

/* What the folders of data have in common: the vocabulary. */
static inline const struct data_set *trainer_vocabulary(const struct trainer *trainer) {
    return &trainer->data.parts->data;
}

/* Tells whether this rank writes files and talks. */
static inline bool trainer_is_first(const struct trainer *trainer) {
    return trainer->ranks->index == 0;
}

/* Whether a digest, or a description of what is scored, is another one now; "" where there is none. */
static inline bool trainer_has_another(const char *before, const char *now) {
    return *before && *now && strcmp(before, now) != 0;
}

#define PRINT(trainer, ...) message_print((trainer)->console, __VA_ARGS__)

/* From settings to a run that is ready for its next iteration; with plan_only only as far as the plan. Collective:
 * on failure all ranks have the error. */
int trainer_set_up(struct trainer *trainer);
void trainer_tear_down(struct trainer *trainer);
