/* Ranks that do not train the same model on the same data would silently train nonsense. All functions here are
 * collective. A difference is an error on all ranks, which names a rank and its host. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

/* Checks that all ranks run the same program (the file's SHA-256). Comes before all other communication, since
 * another build may send other messages. */
int same_job_program(struct ranks *ranks);

/* Checks that all have the same digest of `what`. status: of making it; advice: what to do about a difference. */
int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice);

/* Checks that all have the same settings except paths, devices and what is of one process only. */
int same_job_settings(struct ranks *ranks, const struct train_settings *settings);
