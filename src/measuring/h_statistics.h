/* The paper's observations of the residual matrices H_res of a forward pass, in double on the host. */
#ifndef HC_SRC_H_STATISTICS_H
#define HC_SRC_H_STATISTICS_H

#include "runtime/ranks/ranks.h"
#include "src/model/gpt.h"

struct range {
    double minimum, maximum;
};

struct h_statistics {
    double row_maximum_p10, row_maximum_median, row_maximum_p90; /* over all tokens, sublayers and rows */
    double diagonal_fraction; /* of matrices whose row maxima are all on the diagonal */
    double smallest_entry;
    double negative_fraction; /* of entries */
    struct range row_sum, column_sum;
    double norm_mean, norm_maximum;                     /* spectral norm of H_res */
    double composite_norm_mean, composite_norm_maximum; /* of its product over all sublayers, per token */
    struct range composite_row_sum, composite_column_sum;
    double *cosine; /* [2 n_layer] mean pairwise cosine of the streams after mixing, per sublayer */
    int64_t sublayers;
};

/* From the activations of the last forward pass (mode GPT_ANALYSIS or GPT_TRAINING; not for rc). Waits. The caller
 * frees with h_statistics_release. In training it may be called between steps: it uses scratch of the backward
 * pass. Collective: over the tokens of all ranks; rank 0 gets the result, the others' percentiles are undefined. */
int h_statistics_compute(struct gpt *gpt, const struct ranks *ranks, struct h_statistics *statistics);
void h_statistics_release(struct h_statistics *statistics);

/* One JSON object a line, with the iteration: for h_statistics.jsonl. Heap text without newline, NULL on failure.
 */
char *h_statistics_json(const struct h_statistics *statistics, int64_t iteration);

#endif
