/* H_res of a forward pass, measured in double on the host: each token's matrix in each sublayer, and their product over depth.
 * h_statistics.h, for training, and h_analysis.h, for checkpoints, add these measurements up. */
#pragma once

#include "src/measuring/stream_matrix.h"
#include "src/model/gpt.h"

/* What is measured of a matrix and averaged over matrices. */
enum h_metric {
    H_NORM,             /* spectral */
    H_DISTANCE,         /* from the identity, see stream_matrix_distance */
    H_COSINE,           /* of the streams mixed by it: mean pairwise cosine, and */
    H_LARGEST_SHARE,    /* the largest one's share of the energy; both 0 of the product of all */
    H_PRODUCT_FIRST,    /* singular values of the product up to here: the first, which is its norm, */
    H_PRODUCT_SECOND,   /* the second */
    H_PRODUCT_SMALLEST, /* and the last one */
    H_METRICS
};

/* The matrices of a forward pass with their singular values. */
struct h_batch {
    size_t sublayers, tokens, n;
    float *h;         /* [sublayers, tokens, n (n + 2)] */
    float *gram;      /* [sublayers, tokens, n, n]: inner products of the streams before mixing */
    double *norms;    /* [sublayers, tokens] */
    double *products; /* [tokens, n, n], over all sublayers */
    double *values;   /* [sublayers, tokens, n], singular values of the products up to each sublayer */
};

/* Fetches the last forward pass, mode GPT_ANALYSIS or GPT_TRAINING, not of rc, and computes products and singular
 * values on all cores. Waits. In training it may be called between steps: it uses scratch of the backward pass. 0, or
 * -1 with an error; either way the caller releases it. */
int h_batch_read(struct h_batch *batch, struct gpt *gpt);
void h_batch_release(struct h_batch *batch);

/* One matrix and its measurements. */
struct h_measured {
    double matrix[STREAM_MATRIX_MOST];
    double row_maxima[RESIDUAL_MAX_STREAMS], row_sums[RESIDUAL_MAX_STREAMS], column_sums[RESIDUAL_MAX_STREAMS];
    double metrics[H_METRICS];
    bool diagonal; /* all row maxima are on the diagonal */
};

/* A token's matrix in a sublayer, or, where `sublayer` is the number of sublayers, the product of all. */
void h_batch_measure(const struct h_batch *batch, size_t sublayer, size_t token, struct h_measured *measured);

struct range {
    double minimum, maximum;
};

/* Counts, sums and extremes over matrices. Counts are doubles, which hold them exactly up to 2^53. */
struct h_tally {
    double matrices, entries;  /* all of them */
    double diagonal, negative; /* matrices with all row maxima on the diagonal; entries below zero */
    double sums[H_METRICS];
    struct range entry, row_sum, column_sum, norm;
};

/* Of no matrices; begin with it. */
extern const struct h_tally h_tally_empty;

void h_tally_add(struct h_tally *tally, const struct h_measured *measured, size_t n);
void h_tally_merge(struct h_tally *tally, const struct h_tally *other);

/* The mean of a metric; NaN of no matrices. */
double h_tally_mean(const struct h_tally *tally, enum h_metric metric);
