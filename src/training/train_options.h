/* The options of a training run, for the programs that train: hc_train and hc_bench. */
#ifndef HC_SRC_TRAIN_OPTIONS_H
#define HC_SRC_TRAIN_OPTIONS_H

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

#define TRAIN_OPTIONS_MOST 96

/* Writes the table of options whose targets are in *settings to specs [room]. Returns its length; more than room is
 * cut off. */
size_t train_options(struct train_settings *settings, struct option_spec *specs, size_t room);

/* After parsing: what follows from the words, and the table itself, which must stay as long as the settings. */
void train_options_apply(struct train_settings *settings, const struct option_spec *specs, size_t count);

/* For mains of programs that run under mpirun: joins the job; only rank 0 has a stdout, so that --help comes once.
 * 0, or the exit status when that failed (said on stderr). */
int train_start_ranks(const char *program, struct ranks *ranks);

#endif
