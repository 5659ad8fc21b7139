/* Checkpoints: folders with config.json, model.safetensors and state.json, and, to resume from,
 * optimizer.safetensors; and with the tokenizer.json of their tokens if these have one. Those of a model with an
 * adapter have its files (adapter.h), and in model.safetensors only what is trained beside it, if anything is. They
 * are written under a temporary name and renamed, so a folder with a checkpoint's name is always complete. */
#pragma once

#include "src/checkpoint/model_files.h"
#include <jansson.h>

#define OPTIMIZER_FILE "optimizer.safetensors"

/* The files of a checkpoint; ends with NULL. state.json is last: what has it is complete. */
extern const char *const checkpoint_files[];

/* The folder beside the numbered ones that keeps the weights with the lowest validation loss. When it is written,
 * kept and forgotten stands above resume_best in src/training/train_setup.c. */
#define CHECKPOINT_BEST "ckpt-best"

/* The state of a run after `iteration` optimizer steps. */
struct training_state {
    int64_t iteration;
    uint64_t tokens; /* trained on so far */
    uint64_t seed;
    double best_val_loss;   /* HUGE_VAL before the first evaluation */
    int64_t best_iteration; /* -1 before */
    char evaluation[80];    /* which tokens validation losses are of; "": none */
    int64_t evaluated_at;   /* iteration of the last evaluation, -1 before */
    double seconds;         /* trained so far, in all processes of the run */
    char train_digest[CHECKSUM_SIZE], val_digest[CHECKSUM_SIZE]; /* of the data, see token_file.h; "": not known */
};

struct checkpoint_content {
    const struct training_state *state;
    const struct option_spec *settings; /* written to state.json, so that a run can be repeated; may be NULL */
    size_t setting_count;
    bool optimizer;                  /* write the optimizer's states */
    const struct model_files *files; /* where the base model is, of a model with an adapter; else it may be NULL */
    const char *tokenizer_json; /* the file that the tokens are of, which is written beside config.json, or NULL */
    size_t tokenizer_json_bytes;
};

/* Writes the folder `path`. On failure an older folder of this name stays as it was. Other files in that folder
 * stay. Refuses a symbolic link, and a folder of foreign files with the names of a checkpoint's. */
int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content);

/* Moves the files of a checkpoint out of the folder `staging` over those in the folder `path`. whole: those that
 * only `path` has are removed. */
int checkpoint_move(const char *path, const char *staging, bool whole);

/* Verifies the checksums of state.json and loads optimizer states, state and loss scale, and with `weights` the
 * weights, which other ranks get from one. */
int checkpoint_resume(struct model_files *files, bool weights, struct gpt *gpt, struct training_state *state);

/* ---- the checkpoints of a run */

/* The iteration in a checkpoint's name, "ckpt-<iteration>" without leading zeros; -1 for other names. */
int64_t checkpoint_iteration_of(const char *name);

/* The path of the newest "ckpt-<iteration>" in a run directory, heap memory; NULL with an error if there is
 * none. */
char *checkpoint_newest(const char *out_dir);

/* Whether `path` is a checkpoint that this program wrote, under the name that it gave it: config.json, weights and
 * a state.json with checksums of them are regular files. Links to folders count. 1 or 0, -1 with an error. */
int checkpoint_is_own(const char *path);

/* Removes the files of a checkpoint, and its folder if there is nothing else in it. */
int checkpoint_remove(const char *path);

/* Removes all but the newest `keep` checkpoints "ckpt-<iteration>". Anything else of such a name, such as a
 * symbolic link, stays and does not count. */
int checkpoint_prune(const char *out_dir, int64_t keep);

/* ---- tensors */

/* Writes <folder>/model.safetensors. Of a model with an adapter it writes the adapter's files, which say that the
 * base is files->base with files->checksum; then model.safetensors has what is new or was trained beside it, and is
 * not written if nothing is. */
int checkpoint_write_weights(const char *folder, struct gpt *gpt, const struct model_files *files);

/* If ranks divide the optimizer's states, all other ranks call this while rank 0 saves a checkpoint with them, and
 * send theirs. Otherwise it does nothing. */
int checkpoint_hand_over(struct gpt *gpt);

/* ---- state.json */

/* Writes <folder>/state.json, with the checksums of the other files, which must be there. */
int checkpoint_write_state(const char *folder, const struct gpt *gpt, const struct checkpoint_content *content);

/* Updates a checkpoint of the same iteration after an evaluation: best loss, its iteration, evaluated_at and
 * seconds. */
int checkpoint_update(const char *folder, const struct training_state *state);

/* Whether a number in a file is an iteration, or the `least` that stands for none. */
bool checkpoint_is_count(const json_t *number, json_int_t least);

/* Reads the state, and the settings of state.json (see options_apply_text) as heap memory; settings may be NULL.
 * Verifies nothing. */
int checkpoint_read_state(const char *folder, struct training_state *state, char **settings);

/* As checkpoint_read_state, to resume: sets the model's loss scale and its optimizer's steps, too, and verifies the
 * checksums. */
int checkpoint_resume_state(const char *folder, struct gpt *gpt, struct training_state *state);
