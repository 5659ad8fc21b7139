/* The paper's observations of the residual matrices H_res of a forward pass, as training runs log them. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "src/measuring/h_batch.h"
#include <jansson.h>

struct h_statistics {
    double row_maximum_p10, row_maximum_median, row_maximum_p90; /* over all tokens, sublayers and rows */
    struct h_tally each;                                         /* of H_res in all sublayers */
    struct h_tally *tallies; /* [sublayers + 1]: in each sublayer, and of the product of all, per token */
    size_t sublayers;
};

/* From the last forward pass, see h_batch_read. The caller frees with h_statistics_release. Collective: over the tokens of all
 * ranks; rank 0 gets the result, the others' percentiles are undefined. */
int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics);
void h_statistics_release(struct h_statistics *statistics);

/* What the variant promises of its matrices and a sublayer's have not kept. */
struct h_breach {
    enum residual_promise promise; /* 0: all is kept */
    const char *name;              /* of the promise, human-readable */
    size_t sublayer;               /* where it is broken most */
    double value;                  /* a sum, a norm or an entry there */
};

/* The first promise, in the order of residual_promise_at, that is in `looked_for` and broken. */
struct h_breach h_statistics_check(const struct h_statistics *statistics, const struct residual_variant *residual,
                                   unsigned looked_for);

/* A line of h_statistics.jsonl, with the iteration. The caller's; NULL where a number is not finite. */
json_t *h_statistics_json(const struct h_statistics *statistics, int64_t iteration);
