/* The parts of the learning rate's schedule that the user has left open; the rate of a step is optimizer_rate in
 * src/model/optimizer_settings.h. Each part follows from another setting:
 *
 *     min_lr          a tenth of learning_rate
 *     lr_decay_iters  the number of iterations (max_iters)
 *     warmup_iters    what it is, but at most a tenth of lr_decay_iters
 *
 * A part is open where it was not given, and where what it follows from was given later: after a config file with
 * max_iters = 2000 and lr_decay_iters = 2000, --max-iters 300 on the command line means a decay over 300
 * iterations. Parts that were given together, or later, stay as they are. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/optimizer.h"

/* Works out the open parts and prints a line for each; console may be NULL. `specs` is the table that filled the
 * settings. 0 iterations: lr_decay_iters stays. */
void schedule_complete(const struct option_spec *specs, size_t count, int64_t iterations,
                       struct optimizer_settings *optimizer, FILE *console);

/* For a resumed run: the open parts keep what the run has. */
void schedule_keep(const struct option_spec *specs, size_t count, const struct optimizer_settings *saved,
                   struct optimizer_settings *optimizer);

/* An error if the learning rate would rise to min_lr, or settings of the optimizer cannot be. */
int schedule_check(const struct optimizer_settings *optimizer);
