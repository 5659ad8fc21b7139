/* Checkpoints: folders with config.json and model.safetensors, and for resuming optimizer.safetensors and
 * state.json. They are written aside and renamed, so that a folder with a checkpoint's name is always whole. */
#pragma once

#include "src/checkpoint/checkpoint_state.h"
#include "src/checkpoint/checkpoint_tensors.h"

/* The folder beside the numbered ones that keeps the weights with the lowest validation loss. */
#define CHECKPOINT_BEST "ckpt-best"

/* Writes the folder `path`. On failure (disk full, ...) an older folder of this name stays as it was. What else is in that folder stays
 * there. A symbolic link and a folder of somebody else's files with the names of a checkpoint's are refused. */
int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content);

/* Verifies the checksums of state.json and loads weights, moments, state and the loss's scale. */
int checkpoint_resume(const char *path, struct gpt *gpt, struct training_state *state);

/* The iteration of a name as checkpoints have it, "ckpt-<iteration>" without leading zeros; -1 for other names. */
int64_t checkpoint_iteration_of(const char *name);

/* The newest "ckpt-<iteration>" in a run directory, heap memory; NULL with an error if there is none. */
char *checkpoint_newest(const char *out_dir);

/* The iterations of all "ckpt-<iteration>" in a run directory, newest first; heap memory. */
int checkpoint_list(const char *out_dir, int64_t **iterations, size_t *count);

/* Whether `path` is a checkpoint that this program wrote, under the name that it gave it; links to folders count. 1 or 0, -1 with an
 * error. */
int checkpoint_is_own(const char *path);

/* Removes the files of a checkpoint, and its folder if there is nothing else in it. */
int checkpoint_remove(const char *path);

/* Removes all but the newest `keep` of those "ckpt-<iteration>" that are checkpoints. What has such a name and is none, symbolic links
 * among them, stays and does not count. */
int checkpoint_prune(const char *out_dir, int64_t keep);
