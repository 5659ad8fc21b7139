/* The optimizer Muon, for the table in optimizer.c: matrices inside the model (parameter.matrices) are updated
 * by their momentum, which is made orthogonal, and all other parameters by AdamW. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/gpt.h"
#include "src/model/optimizer_settings.h"

void muon_options(struct optimizer_settings *settings, struct option_table *table);
void muon_plan(struct gpt *gpt);
void muon(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
          struct optimizer_range range);

/* The three numbers of muon_coefficients; NULL: the usual ones. An error if there are not three finite ones. */
int muon_read_coefficients(const char *text, float coefficients[3]);

/* The type of the iterations' matrices, by gpt->options. */
enum element_type muon_type(const struct gpt *gpt);
