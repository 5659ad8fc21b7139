/* With which settings a run goes on. */
#pragma once

#include "src/training/train.h"

/* After the command line has been applied. With init_from = resume what is given now lies over what the run has
 * in out_dir: over its settings.conf, and below that over the settings in state.json of the newest checkpoint, so
 * that a run goes on as it was even without the former. out_dir is the one that is given now, whatever those say.
 *
 * settings->resumed_from becomes the path of that checkpoint, which the caller frees.
 *
 * The learning rate's schedule stays the run's, but for what is given now and does not follow from something given later (schedule.h).
 *
 * settings->max_iters becomes the run's: the larger of what it had and what is given. settings->stop_at is what is
 * given, for this process.
 *
 * TRAIN_DONE; TRAIN_FAILED where the run has no checkpoint that can be read; TRAIN_WRONG for settings that are
 * wrong. */
enum train_result resumed_settings_apply(struct option_table *table, struct train_settings *settings,
                                         const struct options_given *given);
