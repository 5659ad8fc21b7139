/* The mean loss of a model over random batches of a token file, as nanoGPT estimates it. */
#ifndef HC_SRC_EVALUATE_H
#define HC_SRC_EVALUATE_H

#include "src/gpt.h"
#include "src/sampler.h"

/* Mean over `iterations` batches of the sampler (global_rows sequences each), always the same ones, without
 * dropout. Ranks that the model was planned with share the batches; the mean does not depend on their number.
 * Collective. Stops early, with the error "interrupted" on all ranks, when one of them is interrupted. */
int evaluate_loss(struct gpt *gpt, const struct sampler *sampler, int64_t iterations, double *loss);

#endif
