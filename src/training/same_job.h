/* Ranks that do not train the same model on the same data would silently train nonsense. */
#pragma once

#include "src/training/trainer.h"

/* All functions here are collective. A difference is an error on all ranks, which names a rank and its host. */

/* Checks that all ranks run the same program (the file's SHA-256). Comes before all other communication, since
 * another build may send other messages. */
int same_job_program(struct ranks *ranks);

/* Checks that all have the same digest of `what`. status: of making it; advice: what to do about a difference. */
int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice);

/* Checks that all have the same settings except paths, devices and what is of one process only. */
int same_job_settings(struct ranks *ranks, const struct train_settings *settings);

/* Checks that all have the same settings, also after what files have added to them, the same tokens (sizes, and
 * the content of up to 64 MiB of each file), and the same checkpoint or weights to begin with, if any; sets
 * settings->init_checksum. Also checks that the tokens looked at are in the vocabulary. */
int same_job_check(struct trainer *trainer);
