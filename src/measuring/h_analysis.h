/* The paper's measurements of the residual matrices H_res over any number of samples: what they are sublayer by
 * sublayer, and what their products up to each depth are. Memory depends on the model and the size of a batch, not
 * on the number of samples. */
#ifndef HC_SRC_H_ANALYSIS_H
#define HC_SRC_H_ANALYSIS_H

#include "runtime/system/distribution.h"
#include "src/model/gpt.h"
#include <jansson.h>

#define H_ANALYSIS_MOST (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* The histogram of entries: bins of a hundredth from -1.5 to 1.5, and beside it what is below and above. */
enum { H_ANALYSIS_BINS = 300 };

struct entry_histogram {
    uint64_t counts[H_ANALYSIS_BINS], below, above, negative;
    double smallest, largest;
};

/* Of one sublayer's matrices, one for each token. */
struct sublayer_analysis {
    struct distribution row_maximum, row_sum, column_sum;
    struct entry_histogram entries;
    uint64_t diagonal; /* matrices whose row maxima are all on the diagonal */
    double norm_sum, norm_maximum;
    double cosine_sum;                                /* mean pairwise cosine of the mixed streams */
    double sum[H_ANALYSIS_MOST];                      /* of the matrices */
    double first_sequence[H_ANALYSIS_MOST];           /* of those of the first sequence alone */
    double product_norm_sum, product_norm_square_sum; /* spectral norms of the product up to here */
};

struct h_analysis {
    int64_t streams, sublayer_count;
    struct sublayer_analysis *sublayers; /* [sublayer_count], owned */
    /* of the product of all sublayers' matrices */
    struct distribution product_row_sum, product_column_sum, product_norm;
    double product_first_sequence[H_ANALYSIS_MOST];
    uint64_t tokens, first_tokens; /* seen, and of the first sequence */
};

/* For a model with hyper-connections. 0, or -1 with an error; also below. */
int h_analysis_begin(struct h_analysis *analysis, const struct model_config *config);
void h_analysis_end(struct h_analysis *analysis);

/* Adds the tokens of the last forward pass, mode GPT_ANALYSIS. Waits. The result does not depend on the number of
 * cores. */
int h_analysis_add(struct h_analysis *analysis, struct gpt *gpt);

/* All of it as an object: docs/analysis.md says what its keys mean. NULL with an error when memory runs out. */
json_t *h_analysis_json(const struct h_analysis *analysis);

#endif
