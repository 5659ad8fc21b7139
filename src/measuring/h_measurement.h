/* The residual matrices H_res, measured in double on the host: each token's matrix in each sublayer, and their
 * product over depth. Training runs log the measurement of a forward pass over all ranks; of checkpoints hc_analyze
 * shows that of any number of samples, in more detail. Memory does not depend on the number of samples. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/distribution.h"
#include "src/model/gpt.h"
#include "src/variants/residual.h"
#include <jansson.h>

/* ---- small matrices that mix streams, n x n, row-major, in double; n <= RESIDUAL_MAX_STREAMS */

#define STREAM_MATRIX_MOST (RESIDUAL_MAX_STREAMS * RESIDUAL_MAX_STREAMS)

/* Singular values [n] of a matrix of finite numbers, the largest first, which is its spectral norm. tests/ compare
 * them with LAPACK's. */
void stream_matrix_singular_values(const double *matrix, int64_t n, double *values);

/* composite <- matrix composite: later sublayers act from the left. */
void stream_matrix_compose(double *composite, const double *matrix, int64_t n);

/* How many directions the streams with these inner products [n, n] use: exp of the entropy of the Gram matrix's
 * eigenvalues, divided by their sum. 1: all streams are multiples of one vector; n: they are orthogonal and equally
 * long; 0: all are zero. */
double stream_matrix_effective_rank(const double *gram, int64_t n);

/* ---- measurements */

/* What is measured of a matrix and averaged over matrices. */
enum h_metric {
    H_NORM,             /* spectral */
    H_DISTANCE,         /* from the identity: the root mean square of the lengths of the rows of H - I */
    H_COSINE,           /* of the streams mixed by it: mean pairwise cosine, and */
    H_LARGEST_SHARE,    /* the largest one's share of the energy; */
    H_EFFECTIVE_RANK,   /* of the streams before it; all three are 0 of the product of all */
    H_PRODUCT_FIRST,    /* singular values of the product up to here: the first, which is its norm, */
    H_PRODUCT_SECOND,   /* the second */
    H_PRODUCT_SMALLEST, /* and the last one */
    H_METRICS
};

/* One matrix and its measurements. */
struct h_measured {
    double matrix[STREAM_MATRIX_MOST];
    double row_maxima[RESIDUAL_MAX_STREAMS], row_sums[RESIDUAL_MAX_STREAMS], column_sums[RESIDUAL_MAX_STREAMS];
    double metrics[H_METRICS];
    double smallest_singular; /* value */
    bool diagonal;            /* all row maxima are on the diagonal */
};

struct range {
    double minimum, maximum;
};

/* Counts, sums and extremes over matrices. Counts are doubles, which hold them exactly up to 2^53. */
struct h_tally {
    double matrices, entries;  /* all of them */
    double diagonal, negative; /* matrices with all row maxima on the diagonal; entries below zero */
    double sums[H_METRICS];
    struct range entry, row_sum, column_sum, norm, singular;
};

/* Of no matrices; begin with it. */
extern const struct h_tally h_tally_empty;

void h_tally_add(struct h_tally *tally, const struct h_measured *measured, size_t n);

/* The mean of a metric; NaN of no matrices. */
double h_tally_mean(const struct h_tally *tally, enum h_metric metric);

/* Distributions; the last is of norms of the products up to a sublayer. */
enum { H_ROW_MAXIMUM, H_ROW_SUM, H_COLUMN_SUM, H_PRODUCT_NORM, H_DISTRIBUTIONS };

/* The histogram of entries: bins of a hundredth from -1.5 to 1.5. */
enum { H_BINS = 300 };

/* What is measured of checkpoints beyond a tally. */
struct h_detail {
    struct distribution distributions[H_DISTRIBUTIONS];
    uint64_t entries[H_BINS + 2];              /* the first and the last: below and above the bins */
    double sum[STREAM_MATRIX_MOST];            /* of the matrices */
    double first_sequence[STREAM_MATRIX_MOST]; /* of those of the first sequence alone */
};

struct h_measurement {
    size_t streams, sublayers;
    unsigned invariants; /* of the matrices that are measured */
    double hc_eps;       /* by which sums of rows, or of a transpose's columns, may be off */
    bool transposed;
    struct h_tally *tallies;       /* [sublayers + 1], owned: of each sublayer, and of the product of all */
    struct h_detail *details;      /* the same of checkpoints; NULL in training */
    uint64_t tokens, first_tokens; /* seen, and of the first sequence */
    /* of a forward pass in training: */
    struct h_tally each;                                         /* of all sublayers */
    double row_maximum_p10, row_maximum_median, row_maximum_p90; /* over all tokens, sublayers and rows */
    double *row_maxima;                                          /* all of this rank's, owned */
    size_t row_maximum_count;
};

/* Of a model with hyper-connections; in_detail: of a checkpoint. The caller ends it. */
void h_measurement_begin(struct h_measurement *measurement, const struct model_config *config, bool in_detail);
void h_measurement_end(struct h_measurement *measurement);

/* Adds the tokens of the last forward pass, mode GPT_ANALYSIS. Waits. The result does not depend on the number of
 * cores. */
int h_measurement_add(struct h_measurement *measurement, struct gpt *gpt);

/* All of it as an object: docs/analysis.md says what its keys mean. */
json_t *h_measurement_json(const struct h_measurement *measurement);

/* ---- in training */

/* Of the last forward pass, mode GPT_TRAINING, over the tokens of all ranks; rank 0 gets the result, the others'
 * percentiles are undefined. The model is not rc. It may be called between steps: it uses scratch of the backward
 * pass. Collective; waits. The caller ends it, unless it fails. */
int h_measurement_of_pass(struct h_measurement *measurement, struct gpt *gpt, const struct ranks *ranks);

/* An invariant of the variant that the matrices of a sublayer violate. */
struct h_violation {
    enum residual_invariant invariant; /* 0: none is violated */
    const char *name;                  /* of the invariant, human-readable */
    size_t sublayer;                   /* where it is violated most */
    double value;                      /* a sum, a norm, an entry or a singular value there */
};

/* The first invariant, in the order of residual_invariant_at, that is in `looked_for` and violated. */
struct h_violation h_measurement_check(const struct h_measurement *measurement, unsigned looked_for);

/* The same of a connection that reads earlier states by weights over depth, after a forward pass of mode
 * GPT_TRAINING or GPT_ANALYSIS: a token's weights in a sublayer are the row that is checked; sublayer 2 n_layer is
 * the top. Waits; -1 with an error. */
int depth_check(struct h_violation *violation, struct gpt *gpt, unsigned looked_for);

/* A line of h_statistics.jsonl, with the iteration. The caller's; NULL where a number is not finite. */
json_t *h_measurement_line(const struct h_measurement *measurement, int64_t iteration);
