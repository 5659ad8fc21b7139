/* What a training run works with. initial_model.c reads the model that it begins with, fit.c is --fit,
 * train_setup.c the set-up, train_loop.c the training loop, run_folder.c the folder of the run with its logs. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "src/checkpoint/checkpoint.h"
#include "src/measuring/batch_sampler.h"
#include "src/settings/background_compile.h"
#include "src/training/data_parallel.h"
#include "src/training/run_folder.h"
#include "src/training/training_data.h"
#include <stdio.h>

/* ---- the model that --init-from names: of a checkpoint, or of a folder as Hugging Face's transformers saves it */

struct initial_model {
    struct model_files files; /* the caller's; files.folder is NULL if the run starts from scratch */
    bool upcycles;            /* the model is a plain one, and goes on with another residual connection */
};

/* Finds the folder, and takes settings->model from its config.json; nothing changes if the run starts from scratch.
 * Settings of the model that are given must agree with the folder's, but Hugging Face's models may get a larger
 * vocabulary, and a shorter context if their positions are not learned, and plain models another residual
 * connection. settings->model.lora becomes that of the adapter that is there, or begins. Fails with an error text;
 * model_files_close is needed then, too. */
int initial_model_read(struct initial_model *initial, struct train_settings *settings);

/* Checks that all ranks begin with the same checkpoint or weights, if any. Rank 0
 * compares the weights with settings->init_checksum, if that was not given before init_from, and it becomes their
 * checksum, or NULL without weights. Collective: an error is one on all ranks. */
int initial_model_compare(struct initial_model *initial, struct train_settings *settings, struct ranks *ranks);

/* ---- --fit: the settings with which a training run fits into so much memory, the fastest first */

/* What --fit names: bytes, and the GPU whose shape the plan is for, by its data sheet (gpu_model.h); NULL: that of
 * the open device. */
struct fit {
    uint64_t bytes;
    const struct gpu_model *model;
};

/* Reads "16GiB", "16GB", "8192MiB" or "8000MB", and behind a colon the name of a GPU. -1 with an error that says
 * what is wrong. */
int fit_read(const char *text, struct fit *fit);

/* Gives the open device the memory of *fit, and of it the share for the largest buffer that it had. Then changes
 * batch_size, gradient_accumulation_steps, recompute, moments and master in *settings to the first of these that
 * fit, with as many sequences in an optimizer step as before:
 *
 *   the largest micro-batch of up to 8192 tokens or the size that is given, and of no fewer than 1024 or that size;
 *   with --recompute layer the largest one of any size up to that: the same results in about a quarter more time;
 *   both once more with --moments bf16, which changes the results a little;
 *   both once more with --master bf16, too, if activations are bf16 and ranks do not divide the states.
 *
 * Prints the choice as options to `console`. -1 with an error if nothing fits. All ranks decide alike. */
int fit_choose(const struct fit *fit, struct train_settings *settings, struct ranks *ranks, struct compute *compute,
               FILE *console);

/* ---- the run */

struct trainer {
    struct train_settings *settings;
    struct ranks *ranks;
    struct training_data data;
    struct compute *compute;
    struct parameters parameters; /* the model's table, built once */
    struct gpt gpt;
    struct initial_model initial;
    struct fit fit; /* of settings->fit */
    struct data_parallel parallel;
    struct batch_sampler train, estimate_train;
    uint16_t *token_bytes;           /* of the data's tokens, see tokenizer_share_bytes */
    struct batch_sampler *estimates; /* [data.count] of validation losses: without a source they are of all of the
                                      * folder's val.bin. NULL: the run has no evaluations */
    struct training_state state;
    struct run_log log; /* rank 0's */
    struct progress progress;
    FILE *console;            /* stderr on rank 0, nowhere on the others */
    struct run_folder folder; /* rank 0's, of the run */
    int64_t micro_steps;      /* of this rank in an iteration */
    struct background_compile background;
    double gemm_rate;         /* FLOP/s of all ranks together, what mfu is relative to */
    int64_t saved_at;         /* iteration of the last checkpoint, -1 before */
    int64_t saved_evaluation; /* the last evaluation that it knows of */
    char train_digest[CHECKSUM_SIZE], val_digest[CHECKSUM_SIZE]; /* of the data; val's is "" if it is not needed */
    double seconds_before;                                       /* that earlier processes of this run trained */
    double seconds;                                              /* and all, at the last step by rank 0's clock */
    double tokens_per_second;                                    /* smoothed, for the progress line */
    bool wrong_usage;                                            /* the failure is one of the command line */
    bool stopping;                                               /* some rank was asked to stop */
    char failure[2048];                                          /* why this rank cannot go on; "": it can */
    bool some_rank_failed;                                       /* some rank cannot go on; the same on all ranks */
    bool cannot_save;                                            /* the last checkpoint has failed */
    unsigned reported_violations; /* invariants of the variant whose violation was reported */
};

/* Tells whether this rank writes files and talks. */
static inline bool trainer_is_first(const struct trainer *trainer) {
    return trainer->ranks->index == 0;
}

#define PRINT(trainer, ...) message_print((trainer)->console, __VA_ARGS__)

/* From settings to a run that is ready for its next iteration; with plan_only only as far as the plan. Collective:
 * on failure all ranks have the error. */
int trainer_set_up(struct trainer *trainer);
void trainer_tear_down(struct trainer *trainer);

/* Runs to max_iters or max_seconds, together with the other ranks. On PROGRAM_FAILED and PROGRAM_WRONG the error
 * text, which all ranks have then, says what happened; a failure of one rank alone ends the job before. On
 * interruption a checkpoint has been saved. */
enum program_status train_run(struct train_settings *settings, struct ranks *ranks);

/* --compile-only: makes a step of a small model, which needs the same kernels as settings->model or the model that
 * init_from names, with weights of zero. Then compares attention and GEMMs of the device with sums on the host.
 * Reads no weights, and of the data the vocabulary alone if it is not given, and writes only compiled kernels. */
enum program_status compile_only_run(struct train_settings *settings, struct ranks *ranks);
