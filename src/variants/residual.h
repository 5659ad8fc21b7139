/* The residual variants: what each adds to a sublayer. A variant is a row of the table in residual.c and, unless it
 * is plain, a kernel file cl/hc_<name>.cl; nothing else knows them one by one. */
#ifndef HC_SRC_RESIDUAL_H
#define HC_SRC_RESIDUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RESIDUAL_MIN_STREAMS 2
#define RESIDUAL_MAX_STREAMS 8

/* Projection leaves that a variant may have; test_structure holds every row of the table to it. */
#define RESIDUAL_MAX_PROJECTIONS 8

enum leaf_kind {
    LEAF_NORM,       /* gain of the RMSNorm before the projections: [length of a normalised row] */
    LEAF_PROJECTION, /* columns of the projection matrix: [length of a normalised row, width]; has weight decay */
    LEAF_VECTOR,     /* [width] */
    LEAF_MATRIX,     /* [streams, streams] */
    LEAF_SCALAR,     /* [] */
};

struct residual_leaf {
    const char *name; /* as in files: "w_pre" */
    enum leaf_kind kind;
    int64_t (*width)(int64_t streams); /* PROJECTION and VECTOR; a width of 0: the leaf does not exist */
    float (*initial)(int64_t index, int64_t streams, int64_t sublayer);
};

struct residual_variant {
    const char *name;
    const struct residual_leaf
        *leaves;          /* ends with name NULL; NULL for rc. Projections in the order of z's columns,
                             after the norm; vectors, matrices and scalars form the kernels' theta */
    bool norm_per_stream; /* RMSNorm over each stream (hc) instead of over all together */
};

/* The variant of this name, NULL if there is none. */
const struct residual_variant *residual_find(const char *name);

/* The variant of this number in the list of names, NULL beyond the last. */
const struct residual_variant *residual_at(size_t number);

/* "rc|hc|..." for options and messages. */
const char *residual_names(void);

/* rc: one stream, no mixing. */
bool residual_is_plain(const struct residual_variant *variant);

/* Normalised rows per token: 1, or streams with norm_per_stream. */
int64_t residual_norm_groups(const struct residual_variant *variant, int64_t streams);

/* Projections per normalised row: the widths of all LEAF_PROJECTION. */
int64_t residual_columns(const struct residual_variant *variant, int64_t streams);

/* Elements of the small parameters of one sublayer. */
int64_t residual_theta(const struct residual_variant *variant, int64_t streams);

/* Elements of a leaf (0: does not exist) for normalised rows of this length. */
int64_t residual_leaf_elements(const struct residual_leaf *leaf, int64_t streams, int64_t row_length);

/* Rank and shape of a leaf. Returns the rank. */
unsigned residual_leaf_shape(const struct residual_leaf *leaf, int64_t streams, int64_t row_length,
                             uint64_t shape[2]);

/* True for the leaves that the kernels address through theta. */
bool residual_leaf_is_small(const struct residual_leaf *leaf);

#endif
