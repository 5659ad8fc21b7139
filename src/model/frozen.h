/* Parameters that training leaves as they are (--freeze): those whose names match a pattern. They are not in the
 * gradient's norm, and optimizers skip them. Embeddings and weights of whole Linear layers have no gradient
 * (parameter.without_gradient); gradients of the others are set to 0. */
#pragma once

#include "src/model/parameters.h"

/* Marks the parameters whose names a regular expression (PCRE2) matches somewhere ("wte|ln_"); NULL or
 * "": none. -1 with an error if the pattern is none, or matches no parameter or all of them. */
int frozen_mark(struct parameters *parameters, const char *pattern);

/* Builds a model's table and marks these; after an error there is no table. The config has been checked. */
int frozen_create(const struct model_config *config, const char *pattern, struct parameters *parameters);

/* How many elements the frozen parameters have. */
uint64_t frozen_elements(const struct parameters *parameters);

enum { FROZEN_ALL = -2 };

/* Sets gradients of frozen parameters of this sublayer (see parameter.sublayer) to zero, or of FROZEN_ALL.
 * Launches. */
void frozen_clear(struct compute *compute, const struct parameters *parameters, int64_t sublayer);
