/* state.json of a checkpoint: where its run stood, and the checksums of the files beside it. */
#pragma once

#include "runtime/files/checksum.h"
#include "src/model/gpt.h"
#include <jansson.h>
#include <stdbool.h>

#define OPTIMIZER_FILE "optimizer.safetensors"

/* Where a run stands after `iteration` optimiser steps. */
struct training_state {
    int64_t iteration;
    uint64_t tokens; /* trained on so far */
    uint64_t seed;
    double best_val_loss;                                        /* HUGE_VAL before the first evaluation */
    int64_t best_iteration;                                      /* -1 before */
    int64_t evaluated_at;                                        /* iteration of the last evaluation, -1 before */
    double seconds;                                              /* trained so far, over all processes of the run */
    char train_digest[CHECKSUM_SIZE], val_digest[CHECKSUM_SIZE]; /* of the data, see token_file.h; "": not known */
};

struct checkpoint_content {
    const struct training_state *state;
    const struct option_spec *settings; /* written to state.json, so that a run can be repeated; may be NULL */
    size_t setting_count;
    bool optimizer; /* write the moments */
};

/* Writes <folder>/state.json beside the other files, which are there already. */
int checkpoint_write_state(const char *folder, const struct gpt *gpt, const struct checkpoint_content *content);

/* Writes into an existing checkpoint of the same iteration what an evaluation has changed since: best loss, its
 * iteration, evaluated_at and seconds. */
int checkpoint_update(const char *folder, const struct training_state *state);

/* Whether a number of a file can be one of iterations, or the `least` that stands for none. */
bool checkpoint_is_count(const json_t *number, json_int_t least);

/* Where the run stood of which a checkpoint was saved, with the settings of state.json (see options_apply_text) as
 * heap memory; settings may be NULL. Nothing is verified. */
int checkpoint_read_state(const char *folder, struct training_state *state, char **settings);

/* Whether the folder is a checkpoint that this program wrote: it has config.json, weights and a state.json with checksums of them, all
 * regular files. *iteration is that of state.json. 1 or 0; -1 with an error where that cannot be told. */
int checkpoint_recognise(const char *folder, int64_t *iteration);

/* The same for going on: the loss's scale too, and the checksums are verified. */
int checkpoint_resume_state(const char *folder, struct training_state *state, struct loss_scale *scale);
