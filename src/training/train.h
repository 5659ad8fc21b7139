/* The training loop: sampling, gradient accumulation, optimiser, evaluation, checkpoints, logs. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

/* As exit statuses of programs. */
enum train_result { TRAIN_DONE, TRAIN_FAILED, TRAIN_WRONG /* settings */, TRAIN_INTERRUPTED = 130 };

/* Runs to max_iters, together with the other ranks. On TRAIN_FAILED and TRAIN_WRONG the error text, which all ranks
 * have then, says what happened; a failure of one rank alone ends the job before. On interruption a checkpoint has
 * been saved. */
enum train_result train_run(struct train_settings *settings, struct ranks *ranks);
