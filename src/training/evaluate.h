/* The mean loss of a model over random batches of a token file, as nanoGPT estimates it. */
#ifndef HC_SRC_EVALUATE_H
#define HC_SRC_EVALUATE_H

#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"
#include "src/training/sampler.h"

/* The sampler's purpose for evaluating on "train" or "val": the same seed gives the same batches in training and
 * after it. */
#define EVALUATE_PURPOSE(split) "evaluate " split

/* Mean over `iterations` batches of the sampler (global_rows sequences each), always the same ones, without
 * dropout. The ranks share the batches; the mean does not depend on their number.
 * progress shows where it is; NULL: nothing does. Collective. Stops early, with the error "interrupted" on all
 * ranks, when one of them is interrupted. */
int evaluate_loss(struct gpt *gpt, const struct ranks *ranks, const struct sampler *sampler, int64_t iterations,
                  struct progress *progress, double *loss);

#endif
