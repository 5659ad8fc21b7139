/* Options that were given and have no effect beside the others. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/optimizer.h"

/* Prints a line for each such option whose value is not its default: settings.conf lists all options. With
 * `is_resumed` it also lists min_lr and lr_decay_iters, which other settings may have determined: these are left
 * out. `specs` is the table that filled the settings; console may be NULL. */
void unused_options_print(const struct option_spec *specs, size_t count, const struct model_config *model,
                          const struct optimizer_settings *optimizer, bool is_resumed, FILE *console);
