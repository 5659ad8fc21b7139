/* The paper's observations of the residual matrices H_res of a forward pass, as runs note them in training. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/measuring/h_batch.h"
#include <jansson.h>

struct h_statistics {
    double row_maximum_p10, row_maximum_median, row_maximum_p90; /* over all tokens, sublayers and rows */
    struct h_tally each, product; /* of H_res, and of its product over all sublayers, per token */
    double *cosine;               /* [sublayers] mean pairwise cosine of the streams after mixing */
    size_t sublayers;
};

/* From the last forward pass, see h_batch_read. The caller frees with h_statistics_release. Collective: over the
 * tokens of all ranks; rank 0 gets the result, the others' percentiles are
 * undefined. */
int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics);
void h_statistics_release(struct h_statistics *statistics);

/* A line of h_statistics.jsonl, with the iteration. The caller's; NULL when memory runs out. */
json_t *h_statistics_json(const struct h_statistics *statistics, int64_t iteration);
