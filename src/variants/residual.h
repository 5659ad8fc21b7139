/* The residual variants: what each adds to a sublayer, and its description for users. A variant is a row of the
 * table in residual.c. One that mixes streams by matrices has leaves in its row and a kernel file cl/hc_<name>.cl,
 * whose functions the top of cl/hc_gates.cl describes; one that works in another way names a frame of its own
 * (src/model/frame.h). src/python/hctrain/model.py has a class for each, and tests/support/reference_residual.c a
 * reference. Options, --help, checks, build constants and scripts (hc_train --list-residuals) follow from
 * the rows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define RESIDUAL_MAX_STREAMS     8
#define RESIDUAL_MAX_PROJECTIONS 8  /* leaves of kind LEAF_PROJECTION in a variant */
#define RESIDUAL_OWN_SETTINGS    2  /* of one variant */
#define RESIDUAL_MAX_SETTINGS    20 /* of all variants together */

#define DEPTH_MAX_HEADS 64 /* attnres_heads */

/* ---- settings that a variant brings with it */

#define MUDD_NORM_WORDS   "none|prepost"
#define LAUREL_FORM_WORDS "rw_lr|rw|lr"
#define DAR_GATE_WORDS    "zero|none"
enum mudd_norm { MUDD_NORM_NONE, MUDD_NORM_PREPOST };
enum laurel_form { LAUREL_RW_LR, LAUREL_RW, LAUREL_LR };
enum dar_gate { DAR_GATE_ZERO, DAR_GATE_NONE };

enum residual_setting_type { RESIDUAL_INT, RESIDUAL_FLOAT, RESIDUAL_BOOL, RESIDUAL_CHOICE };

struct residual_setting {
    const char *name; /* "sinkhorn_iters": of the option, in config files and in config.json */
    enum residual_setting_type type;
    const char *initial;   /* the default, as text: "20", "false" */
    double least, most;    /* INT and FLOAT, both inclusive */
    const char *help;      /* one line */
    const char *constant;  /* macro that the variant's kernel file sees; NULL: only initial values depend on it */
    bool only_in_training; /* what a trained model computes does not depend on it: a resumed run may change it */
    const char *words;     /* CHOICE: "none|prepost" */
};

union residual_value {
    int64_t number; /* INT */
    double real;    /* FLOAT */
    bool flag;      /* BOOL */
    int choice;     /* CHOICE: the place of its word, of which the first is 0 */
};

/* Values of all settings of all variants, in the order of residual_setting_at, and which leaves a sublayer
 * lacks. */
struct residual_settings {
    union residual_value values[RESIDUAL_MAX_SETTINGS];
    bool is_static;  /* hc_dynamic = false: H does not depend on the token; only leaves b_* exist */
    bool is_unmixed; /* hc_until: H_res is the identity; leaves of H_res do not exist */
};

/* ---- parameters from which the matrices of a sublayer are computed. A variant with projections has
 * exactly one LEAF_NORM before them; one without either has matrices that do not depend on the token. */

enum leaf_kind {
    LEAF_NORM,       /* gain of the RMSNorm before the projections: [length of a normalised row] */
    LEAF_PROJECTION, /* columns of the projection matrix: [length of a normalised row, width]; has weight decay */
    LEAF_VECTOR,     /* [width] */
    LEAF_MATRIX,     /* [streams, streams] */
    LEAF_SCALAR,     /* [] */
};

/* What a first value may depend on beside its index in the leaf. */
struct residual_init {
    int64_t streams;
    int64_t sublayer; /* 0 .. 2 layers - 1; 2 layers: the top */
    int64_t stream;   /* that is read and written most at first */
    const struct residual_settings *settings;
    double hc_eps; /* beside the sigmoids of H_pre */
    int64_t channels;
    const float *gain, *bias; /* [channels] of the plain model's norm in this sublayer; for `upcycled` alone */
};

typedef float residual_first_value(int64_t index, const struct residual_init *init);

struct residual_leaf {
    const char *name; /* as in files: "w_pre" */
    enum leaf_kind kind;
    int64_t (*width)(int64_t streams); /* PROJECTION and VECTOR; a width of 0: the leaf does not exist */
    residual_first_value *initial;     /* in a new model */
    residual_first_value *upcycled;    /* in one that goes on as the same function as a plain model (see
                                          src/checkpoint/weights.h); NULL: the initial one */
    bool of_gates;                     /* H_pre or H_post is computed from it, and not H_res alone */
};

/* ---- the rows */

/* What holds of every H_res of a variant, and of every product of them, whatever the parameters are. A new one also
 * needs its name in residual_invariant_at, its measurement in value_of (h_measurement.c) and its check in
 * assert_invariants (tests/model/test_structure.c). */
enum residual_invariant {
    INVARIANT_ROW_SUMS = 1,      /* rows sum to one */
    INVARIANT_COLUMN_SUMS = 2,   /* columns sum to one */
    INVARIANT_SPECTRAL_NORM = 4, /* the largest singular value is one */
    INVARIANT_SIGN = 8,          /* no entry is negative */
    INVARIANT_ORTHOGONAL = 16,   /* H^T H = I: all singular values are one */
    INVARIANT_CONTRACTION = 32,  /* the largest singular value is one or less */
};
#define INVARIANTS_DOUBLY_STOCHASTIC                                                                               \
    (INVARIANT_ROW_SUMS | INVARIANT_COLUMN_SUMS | INVARIANT_SPECTRAL_NORM | INVARIANT_SIGN)

/* How far a matrix in floats may be from its invariants. */
#define RESIDUAL_TOLERANCE 1e-5

struct residual_variant {
    const char *name;
    const char *summary;     /* what it is, for --list-residuals: a line without a full stop */
    const char *source;      /* who described it and where; NULL: nobody else */
    const char *frame;       /* its row in src/model/frame.h; NULL: "mixed", by H_pre, H_post and H_res */
    unsigned streams;        /* bit n is set when it takes n streams; see residual_takes */
    unsigned invariants;     /* of enum residual_invariant */
    bool norm_per_stream;    /* RMSNorm over each stream (hc) instead of over all together */
    bool uses_depth;         /* its kernel file sees SUBLAYERS, those of the model */
    bool eps_in_rows;        /* with hc_eps, rows of H_res sum to 1 - hc_eps */
    bool litgpt_projections; /* its public code makes projections by LitGPT's Linear layers: hc_init = litgpt */
    /* Ends with name NULL; NULL: it has no matrices. Projections in the order of z's columns, after the norm;
     * vectors, matrices and scalars form the kernels' theta */
    const struct residual_leaf *leaves;
    struct residual_setting settings[RESIDUAL_OWN_SETTINGS]; /* as many as have a name */
    /* The leaf that exists only with this BOOL setting; NULL: all exist */
    const char *optional_leaf, *optional_with;
    bool has_fractions; /* its streams are the parts, equally many channels each, of one stream */
    bool fixed_ways;    /* dense, in the frame of mudd: parameters weigh the mixtures, which no token changes */
    bool own_gates;     /* H_pre and H_post are not those of cl/hc_gates.cl, which most variants share */
};

/* The variant of this name, NULL if there is none. */
const struct residual_variant *residual_find(const char *name);

/* The variant of this number in the list of names, NULL beyond the last; and the number of a variant. */
const struct residual_variant *residual_at(size_t number);
size_t residual_number(const struct residual_variant *variant);

/* "rc|hc|..." for options and messages. */
const char *residual_names(void);

/* A line for each variant: its name, its numbers of streams, what it is and whose, its invariants, its settings;
 * columns are two spaces apart, and the first is the name alone, for scripts. -1 when they cannot be written
 * (errno). */
int residual_list(FILE *file);

/* What holds of the matrices by which streams are mixed: the variant's invariants, or those of transposes. */
unsigned residual_invariants(const struct residual_variant *variant, bool transposed);

/* The invariant of this number among all in order, with its human-readable name ("row sums"); 0 beyond the last. */
enum residual_invariant residual_invariant_at(size_t number, const char **name);

/* Whether it reads, writes and mixes streams by matrices H_pre, H_post and H_res, for each token. */
bool residual_has_matrices(const struct residual_variant *variant);

/* Whether it has a frame of its own, and of this name: "plain", "gated", "attnres", "dar", "laurel" or
 * "mudd". */
bool residual_has_frame(const struct residual_variant *variant, const char *name);

/* wide: it has matrices, and they do not depend on the token. */
bool residual_is_fixed(const struct residual_variant *variant);

/* Whether H_pre of a sublayer can be computed before its streams: wide, and with is_static all but frac. */
bool residual_reads_early(const struct residual_variant *variant, bool is_static);

/* Whether it has leaves of H_res, with which streams are mixed; `identity` has none. */
bool residual_mixes(const struct residual_variant *variant, const struct residual_settings *settings);

/* The variant whose kernel file computes H with these settings: where H_res is the identity and the gates are those
 * that most variants share, `identity`. */
const struct residual_variant *residual_map(const struct residual_variant *variant,
                                            const struct residual_settings *settings);

/* Whether branches read earlier states by attention over depth: attnres and dar. */
bool residual_reads_depth(const struct residual_variant *variant);

/* Whether it has one stream, and takes no other number of them. */
bool residual_is_single(const struct residual_variant *variant);

/* Whether the variant can have so many streams, and which numbers it takes in words: "2 to 8", "2, 4 or 8". */
bool residual_takes(const struct residual_variant *variant, int64_t streams);
const char *residual_streams_text(const struct residual_variant *variant, char *text, size_t size);

/* ---- settings of all variants */

/* The setting of this number among those of all rows in order, NULL beyond the last; *owner (may be NULL) is
 * whose. */
const struct residual_setting *residual_setting_at(size_t number, const struct residual_variant **owner);

/* Whether a variant uses the settings in the row of `owner`: its own, and dar those of attnres. */
bool residual_uses_settings(const struct residual_variant *variant, const struct residual_variant *owner);

/* Index of the setting of this name; if there is none, the number of settings. And its value. */
size_t residual_setting_find(const char *name);
union residual_value residual_setting_value(const struct residual_settings *settings, const char *name);

/* All settings at their defaults. */
struct residual_settings residual_settings_default(void);

/* Writes " -D<CONSTANT>=<value>" for each of the variant's settings that has a constant. */
void residual_settings_define(const struct residual_variant *variant, const struct residual_settings *settings,
                              FILE *file);

/* ---- sizes */

struct residual_sizes {
    size_t norm_groups; /* normalised rows per token: 1, or streams with norm_per_stream */
    size_t columns;     /* projections per normalised row: the widths of all LEAF_PROJECTION */
    size_t z_columns;   /* numbers of z per normalised row: as many, and with is_static zeros where they would be */
    size_t matrices;    /* LEAF_PROJECTION that have columns */
    size_t theta;       /* elements of the small parameters of a sublayer */
};

/* Of the leaves that exist with these settings; with NULL, of all. */
struct residual_sizes residual_sizes(const struct residual_variant *variant, int64_t streams,
                                     const struct residual_settings *settings);

/* Whether the variant has this leaf with these settings; with NULL, with any. */
bool residual_leaf_exists(const struct residual_variant *variant, const struct residual_leaf *leaf,
                          const struct residual_settings *settings);

/* Elements of a leaf (0: does not exist) for normalised rows of this length. */
int64_t residual_leaf_elements(const struct residual_leaf *leaf, int64_t streams, int64_t row_length);

/* Rank and shape of a leaf. Returns the rank. */
unsigned residual_leaf_shape(const struct residual_leaf *leaf, int64_t streams, int64_t row_length,
                             uint64_t shape[2]);

/* True for the leaves that the kernels address through theta. */
bool residual_leaf_is_small(const struct residual_leaf *leaf);

/* ---- first values of models that go on as a plain one */

/* Weights with which a sublayer reads equal streams as one: 1/2 of init->stream, 2/3 where there
 * are two, and equal shares of the others. They sum to 1, and differ by sublayer, so that training parts the
 * streams. */
float residual_share(int64_t index, const struct residual_init *init);

/* The x of which sigmoid(x) + hc_eps is the share, or is 1 / streams. */
float residual_share_logit(int64_t index, const struct residual_init *init);
float residual_equal_logit(int64_t index, const struct residual_init *init);

/* 0, and 1. */
float residual_zero(int64_t index, const struct residual_init *init);
float residual_one(int64_t index, const struct residual_init *init);
