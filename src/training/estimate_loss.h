/* The mean loss of a model over random batches of a token file, as nanoGPT estimates it. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"
#include "src/training/batch_sampler.h"

/* The sampler's purpose for estimates on "train" or "val", and its seed: with these every run and hc_eval estimate on
 * the same batches of a token file. A run with eval_batches = by_seed gives the sampler the run's seed instead. */
#define ESTIMATE_PURPOSE(split) "evaluate " split
enum { ESTIMATE_SEED = 0 };

/* Mean over `batches` of the sampler's, always the same ones, without dropout. The ranks share
 * the batches; the mean does not depend on their number. progress shows where it is; NULL: nothing does.
 * Collective. Stops early, with the error "interrupted" on all ranks, when one of them is interrupted. */
int estimate_loss(struct gpt *gpt, const struct ranks *ranks, const struct batch_sampler *sampler, int64_t batches,
                  struct progress *progress, double *loss);
