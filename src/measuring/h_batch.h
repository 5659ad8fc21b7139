/* H_res of a forward pass, measured in double on the host: each token's matrix in each sublayer, and their product
 * over depth. What runs note of them in training and what is shown of checkpoints both begin here. */
#pragma once

#include "src/measuring/stream_matrix.h"
#include "src/model/gpt.h"

/* The matrices of a forward pass with their spectral norms. */
struct h_batch {
    size_t sublayers, tokens, n;
    float *h;              /* [sublayers, tokens, n (n + 2)] */
    float *gram;           /* [sublayers, tokens, n, n]: inner products of the streams before mixing */
    double *norms;         /* [sublayers, tokens] */
    double *products;      /* [tokens, n, n], over all sublayers */
    double *product_norms; /* [sublayers, tokens], of the products up to each sublayer; 0 before the last one
                              without every_depth */
    bool every_depth;
};

/* Fetches the last forward pass, mode GPT_ANALYSIS or GPT_TRAINING, not of rc, and computes products and norms on
 * all cores; norms of the products at every depth, or of the last one only. Waits. In training it may be called
 * between steps: it uses scratch of the backward pass. 0, or -1 with an error; either way the caller releases it. */
int h_batch_read(struct h_batch *batch, struct gpt *gpt, bool every_depth);
void h_batch_release(struct h_batch *batch);

/* One matrix and what is seen in it. */
struct h_figures {
    double matrix[STREAM_MATRIX_MOST];
    double row_maxima[RESIDUAL_MAX_STREAMS], row_sums[RESIDUAL_MAX_STREAMS], column_sums[RESIDUAL_MAX_STREAMS];
    double norm, product_norm; /* spectral: its own, and that of the product up to here */
    double cosine;             /* mean pairwise cosine of the streams mixed by it; 0 of the product of all */
    bool diagonal;             /* all row maxima are on the diagonal */
};

/* A token's matrix in a sublayer, or, where `sublayer` is the number of sublayers, the product of all. */
void h_batch_measure(const struct h_batch *batch, size_t sublayer, size_t token, struct h_figures *figures);

struct range {
    double minimum, maximum;
};

/* Counts, sums and extremes over matrices. Counts are doubles, which hold them exactly up to 2^53. */
struct h_tally {
    double matrices, entries;  /* all of them */
    double diagonal, negative; /* matrices with all row maxima on the diagonal; entries below zero */
    double norm_sum, norm_maximum;
    struct range entry, row_sum, column_sum;
};

/* Of no matrices; begin with it. */
extern const struct h_tally h_tally_empty;

void h_tally_add(struct h_tally *tally, const struct h_figures *figures, size_t n);
void h_tally_merge(struct h_tally *tally, const struct h_tally *other);
