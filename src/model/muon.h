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

/* An error if muon_coefficients are not three numbers, or if matrices would grow by as many iterations. */
int muon_check(const struct optimizer_settings *settings);

/* FLOPs of a matrix's iterations; muon_dtype is no longer auto. */
double muon_cost(const struct optimizer_settings *settings, uint64_t rows, uint64_t columns);

/* Whether `auto` of muon_dtype stands for bf16 with activations of this type. */
bool muon_prefers_bf16(const struct compute *compute, enum element_type type);

/* The type of the iterations' matrices, by gpt->options. */
enum element_type muon_type(const struct gpt *gpt);
