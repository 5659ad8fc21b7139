/* The options of a training run, for the programs that train: hc_train and hc_bench. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/training/train_settings.h"

/* Appends the options whose targets are in *settings. */
void train_options(struct train_settings *settings, struct option_table *table);

/* After parsing: what follows from the words, and the table itself, which must stay as long as the settings. */
void train_options_apply(struct train_settings *settings, const struct option_table *table);

/* The other way: where a checkpoint has brought its model, the options' words follow, so that the settings that are
 * saved name the model that is trained. */
void train_options_follow_model(struct train_settings *settings);

/* What --list-residuals asks for, on stdout. */
int train_options_list_residuals(void);
