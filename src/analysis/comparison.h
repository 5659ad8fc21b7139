/* Residual variants over seeds: mean validation losses, and differences to baselines between runs of the same
 * seed. */
#pragma once

#include <jansson.h>

/* From runs with their "kind" (see analyze.h), whose names of baselines are separated by commas, such as
 * "rc,identity":
 *
 * {"batches_by_seed": some run's evaluations are on batches that depend on its seed,
 *  "variants": [{"residual", "n_streams", "learning_rate", "iter": of the last evaluation, "runs": [index, ...],
 *                "final": ESTIMATE of the last validation loss, "best": ESTIMATE of the lowest one,
 *                "left_out": [{"run": index, "why"}],
 *                "differences": {<baseline>: {"kind": of its runs, "pairs", "final": ESTIMATE, "best": ESTIMATE,
 *                                             "settings": how its learning rate, dtype or the like differ, if so}
 *                                            or {"kind", "why": there are none}}}]}
 *
 * A variant is one kind of runs. ESTIMATE is {"mean", "deviation", "half_width"} (see distribution.h) without what
 * too few runs do not give. A baseline is the kind of that residual variant whose settings differ least. Only
 * settings of the residual connection, the learning rate, and what changes losses by rounding or not at all may
 * differ; otherwise there is no number. NULL with an error: a name is no residual variant. */
json_t *comparison_make(const json_t *runs, const char *baselines);
