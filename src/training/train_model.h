/* A model on the devices of all ranks, from its plan to equal weights. */
#pragma once

#include "src/model/optimizer.h"
#include "src/training/data_parallel.h"

/* Plans the model for training with these ranks, exchange of gradients included. Talks to no other rank.
 * data_parallel_release and gpt_release free what a failure leaves. */
int train_model_plan(const struct train_settings *settings, const struct model_config *config, struct ranks *ranks,
                     struct compute *compute, struct gpt *gpt, struct data_parallel *parallel);

/* gpt_create on all ranks. Collective. */
int train_model_create(struct gpt *gpt, struct ranks *ranks);

/* Copies rank 0's weights to all ranks, so that libraries that round differently from host to host do not matter.
 * Collective. */
int train_model_share_weights(struct gpt *gpt, const struct ranks *ranks);

/* Measures FLOP/s of GEMMs of the model's shape, on all ranks at once, added up. Collective. */
int train_model_measure_rate(struct gpt *gpt, const struct ranks *ranks, double *rate);
