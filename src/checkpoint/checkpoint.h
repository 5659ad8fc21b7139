/* Checkpoints: folders with config.json and model.safetensors, and for resuming optimizer.safetensors and
 * state.json. They are written aside and renamed, so that a folder with a checkpoint's name is always whole. */
#ifndef HC_SRC_CHECKPOINT_H
#define HC_SRC_CHECKPOINT_H

#include "runtime/files/checksum.h"
#include "src/model/gpt.h"

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

/* The folder beside the numbered ones that keeps the weights with the lowest validation loss. */
#define CHECKPOINT_BEST "ckpt-best"

struct checkpoint_content {
    const struct training_state *state;
    const struct option_spec *settings; /* written to state.json, so that a run can be repeated; may be NULL */
    size_t setting_count;
    bool optimizer; /* write the moments */
};

/* Writes the folder `path`. On failure (disk full, ...) an older folder of this name stays as it was. */
int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content);

/* Writes into an existing checkpoint of the same iteration what an evaluation has changed since: best loss, its
 * iteration, evaluated_at and seconds. */
int checkpoint_update(const char *path, const struct training_state *state);

/* Where ranks share the moments, rank 0 saves them with the others' help: they call this while it saves a
 * checkpoint with moments. Else it does nothing. */
int checkpoint_hand_over(struct gpt *gpt);

/* Loads the weights of a checkpoint, or of a folder of Hugging Face's, which the model's config knows: see
 * src/checkpoint/weights.h. Every parameter of the model must be there with its shape, and nothing else. */
int checkpoint_load_weights(const char *path, struct gpt *gpt);

/* Verifies the checksums of state.json and loads weights, moments, state and the loss's scale. */
int checkpoint_resume(const char *path, struct gpt *gpt, struct training_state *state);

/* Where the run stood of which a checkpoint was saved, with the settings of state.json (see options_apply_text) as
 * heap memory; settings may be NULL. Nothing is verified. */
int checkpoint_read_state(const char *path, struct training_state *state, char **settings);

/* The iteration of a name as checkpoints have it, "ckpt-<iteration>" without leading zeros; -1 for other names. */
int64_t checkpoint_iteration_of(const char *name);

/* The newest "ckpt-<iteration>" in a run directory, heap memory; NULL with an error if there is none. */
char *checkpoint_newest(const char *out_dir);

/* The iterations of all "ckpt-<iteration>" in a run directory, newest first; heap memory, NULL for none. */
int checkpoint_list(const char *out_dir, int64_t **iterations, size_t *count);

/* Removes all but the newest `keep` of "ckpt-<iteration>". Symbolic links to folders stay, and do not count. */
int checkpoint_prune(const char *out_dir, int64_t keep);

/* Writes the weights alone as a safetensors file. */
int checkpoint_write_weights(const char *path, struct gpt *gpt);

#endif
