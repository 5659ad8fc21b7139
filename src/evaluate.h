/* The mean loss of a model over random batches of a token file, as nanoGPT estimates it. */
#ifndef HC_SRC_EVALUATE_H
#define HC_SRC_EVALUATE_H

#include "src/gpt.h"
#include "src/sampler.h"

/* Mean over `iterations` batches of the sampler (global_rows sequences each), always the same ones, without
 * dropout. Stops early, with an error, when the process is interrupted. */
int evaluate_loss(struct gpt *gpt, const struct sampler *sampler, int64_t iterations, double *loss);

#endif
