/* Reads what a run left in its directory: losses, gradient norms and statistics over iterations, settings,
 * evaluations. */
#pragma once

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>

/* {"steps": {"iter": [...], "loss": [...], "grad_norm": [...], "tokens_per_sec": [...]},
 *  "evaluations": {"iter": [...], "train_loss": [...], "val_loss": [...]},
 *  "statistics": {"iter": [...], "row_max_p10": [...], ..., "stream_cosine": [[...], ...]},
 *  "final": {"train_loss": mean of the last 200 steps' losses, "val_loss": the last one, "val_iter": its iteration,
 *            "best_val_loss", "tokens_per_sec": median of those steps, "iter"},
 *  "documents": {<name>: what hc_eval --json wrote to eval-<name>.json of the folder},
 *  "tasks": {<name>: the same of hc_eval --task},
 *  "settings": {<name>: value, ...} of settings.conf, "device": its name, from there,
 *  "damaged": [{"path", "lines": how many were skipped since they are no objects, "first": the first's number}]}
 *
 * What the run has nothing of is empty; "final" has only what there is. A last line that is not whole, of a run
 * that goes on, is left out. NULL with an error that names the file. */
json_t *run_read(const char *folder);

/* The <name> of eval-<name>.json, of an evaluation of documents or a task; false: another file. Only names that a
 * page can have as they are. */
bool run_evaluation_name(const char *file, char name[NAME_MAX + 1]);
