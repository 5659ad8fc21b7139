/* The paper's measurements of the residual matrices H_res of a checkpoint over any number of samples: of each sublayer, and of the
 * products up to each depth. Memory depends on the model and the size of a batch, not on the number of samples. */
#pragma once

#include "runtime/system/distribution.h"
#include "src/measuring/h_batch.h"
#include <jansson.h>

/* The histogram of entries: bins of a hundredth from -1.5 to 1.5, and beside it what is below and above. */
enum { H_ANALYSIS_BINS = 300 };

/* Four distributions; the last is of norms of the products up to a sublayer. */
enum { H_ROW_MAXIMUM, H_ROW_SUM, H_COLUMN_SUM, H_PRODUCT_NORM, H_DISTRIBUTIONS };

/* Many matrices: those of a sublayer, or the products of all. */
struct h_sample {
    struct h_tally tally;
    struct distribution distributions[H_DISTRIBUTIONS];
    uint64_t entries[H_ANALYSIS_BINS], below, above;
    double sum[STREAM_MATRIX_MOST];            /* of the matrices */
    double first_sequence[STREAM_MATRIX_MOST]; /* of those of the first sequence alone */
};

struct h_analysis {
    size_t streams, sublayers;
    struct h_sample *samples;      /* [sublayers + 1], owned: the last one is of the products of all sublayers */
    uint64_t tokens, first_tokens; /* seen, and of the first sequence */
};

/* For a model with hyper-connections. The caller ends it. */
void h_analysis_begin(struct h_analysis *analysis, const struct model_config *config);
void h_analysis_end(struct h_analysis *analysis);

/* Adds the tokens of the last forward pass, mode GPT_ANALYSIS. Waits. The result does not depend on the number of
 * cores. */
int h_analysis_add(struct h_analysis *analysis, struct gpt *gpt);

/* All of it as an object: docs/analysis.md says what its keys mean. */
json_t *h_analysis_json(const struct h_analysis *analysis);
