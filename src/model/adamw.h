/* The optimizer AdamW, for the table in optimizer.c and for optimizers that leave parameters to it. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/gpt.h"
#include "src/model/optimizer_settings.h"

void adamw_options(struct optimizer_settings *settings, struct option_table *table);

/* The key of a step's random bits, which round what is kept in bf16: of the seed of the last pass. */
uint64_t rounding_key(const struct gpt *gpt, int64_t iteration);

/* The steps of a parameter that is trained, by the end of `iteration` iterations: bias correction counts them. */
int64_t adamw_steps(const struct gpt *gpt, const struct parameter *parameter, int64_t iteration);

/* Updates all parameters of a range. Launches. */
void adamw(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
           struct optimizer_range range);

/* The same, without parameters that are made of matrices (parameter.matrices). */
void adamw_others(struct gpt *gpt, const struct optimizer_settings *settings, int64_t iteration,
                  struct optimizer_range range);
