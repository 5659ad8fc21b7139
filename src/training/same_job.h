/* Ranks that do not train the same model on the same data would silently train nonsense. */
#pragma once

#include "src/training/trainer.h"

/* All functions here are collective, and fail on all ranks with an error that names a rank and its host. */

/* Fails unless all ranks run the same program (the file's SHA-256). The first thing to ask: other builds may talk
 * otherwise. */
int same_job_program(struct ranks *ranks);

/* Fails unless all have the same digest of `what`. status: of making it; advice: what to do about a difference. */
int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice);

/* Fails unless all have the same settings, but for paths, devices and what is of one process only. */
int same_job_settings(struct ranks *ranks, const struct train_settings *settings);

/* Fails unless all have the same settings, also after what files have added to them, the same tokens (sizes, and
 * the content of up to 64 MiB of each file), and the same checkpoint or weights to begin with, if any; sets
 * settings->init_checksum. Also checks that the tokens looked at are in the vocabulary. */
int same_job_check(struct trainer *trainer);
