/* What a test of one operation works with: named inputs and outputs, each with its values in double, its buffer on
 * the device, and its derivative there; and the table of all cases. test_operations.c drives it; the files
 * cases_<subject>.c have the operations, their references and their cases. */
#pragma once

#include "src/operations/operations.h"
#include "tests/support/reference.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct case_shape {
    int64_t streams, channels, heads, vocabulary; /* 0: see case_shape_complete */
    int64_t kv_heads, head_size;                  /* 0: see operation_shape */
    int64_t batch, sequence;
    const char *residual;
    struct case_setting {
        const char *name; /* NULL: all settings of variants have their defaults */
        double value;
    } setting, second;
    bool is_static, is_unmixed; /* see struct residual_settings */
    bool bias, norm_sum, scaled, gelu_tanh, head_bias, embed_norm;
    int qk_norm;                           /* enum qk_norm */
    int norm, position, mlp, softcap_kind; /* enum norm, enum position, enum mlp, enum softcap_kind */
    int64_t hidden;                        /* channels inside an MLP; 0: 4 C */
    double norm_eps;                       /* 0: the norm's usual one */
    double softcap, hc_eps, attn_scale;
    double rope_fraction; /* 0: 1 */
    bool gainless, collapsed, fixed_top, read_delay;
    bool transposed, normalized; /* h_res_transposed; hc_norm_eps = 0 */
    int frozen_weights;          /* enum frozen_weights */
    int64_t apart;               /* slots from one state to the next */
    float dropout;
    double spread;          /* deviation of the numbers that the case wants to stress */
    int64_t count;          /* elements, for operations on plain vectors */
    int variation;          /* of the operation, as its functions understand it */
    enum element_type type; /* of activations; the driver's choice */
};

enum { FIELDS_MAX = 28, SCRATCH_MAX = 12, FIELD_GUARD = 16 };

enum field_kind {
    FIELD_INPUT,     /* the backward pass writes its gradient [count] */
    FIELD_PARAMETER, /* in the arena of weights; its gradient is added to that of gradients, or replaces it */
    FIELD_OUTPUT,    /* has a cotangent */
    FIELD_BYPRODUCT, /* output that the loss does not see */
};

struct field {
    const char *name;
    enum field_kind kind;
    bool constant;                 /* input or parameter without a gradient; a parameter's must stay as it was */
    bool implied;                  /* OUTPUT that no kernel computes: only its cotangent is used */
    bool activation, d_activation; /* `buffer` is stored in the shape's type; so is `derivative` */
    int roundings;                 /* to that type, at most, between the inputs and this output */
    size_t count;
    size_t offset;  /* PARAMETER: in the arenas */
    size_t written; /* PARAMETER: so many of its gradients are written where there are none yet, not the rest */
    double mean, deviation;   /* of the values of inputs, of the cotangents of outputs */
    double *values;           /* [count] */
    double *cotangents;       /* [count], OUTPUT */
    struct buffer buffer;     /* [count + FIELD_GUARD], not PARAMETER */
    struct buffer derivative; /* INPUT: gradient, OUTPUT: cotangents; [count + FIELD_GUARD] */
};

struct bench {
    struct operations *operations;
    struct case_shape shape;
    struct token_shape tokens;
    size_t token_count, streams, channels, vocabulary;
    struct field fields[FIELDS_MAX];
    size_t field_count;
    size_t arena_count; /* elements of the arenas */
    struct buffer weights, gradients;
    bool accumulate; /* the backward pass adds to gradients of parameters; else it replaces them */
    int32_t *ids;    /* [token_count]: tokens or targets */
    struct buffer ids_buffer;
    struct buffer scratch[SCRATCH_MAX];
    size_t scratch_count;
    bool failed; /* a step could not be done; error_text() says which */
};

struct operation_test {
    const char *name;
    const char *file;                       /* of cl/, or what names begin with; reduce.cl is built, too */
    void (*describe)(struct bench *bench);  /* adds the fields */
    void (*prepare)(struct bench *bench);   /* NULL, or changes the values (and ids) that were drawn */
    void (*reference)(struct bench *bench); /* outputs' values from inputs' values */
    void (*forward)(struct bench *bench);   /* NULL: the operation has a backward pass only */
    void (*backward)(struct bench *bench);  /* NULL: none */
    const char *(*check)(
        const struct bench *bench); /* NULL, or what is wrong with the device's outputs (in values) */
    const char *other_file;         /* NULL, or a second file of cl/ */
};

/* Fills in what a case leaves 0. */
struct case_shape case_shape_complete(struct case_shape shape);
struct operation_shape case_operation_shape(const struct case_shape *shape);

/* Draws all values, and uploads them; outputs and gradients are filled with NaN, the arena of gradients with
 * numbers. */
int bench_create(struct bench *bench, struct operations *operations, const struct case_shape *shape,
                 const struct operation_test *test, uint64_t seed);
void bench_release(struct bench *bench);

/* ---- for describe */
struct field *bench_input(struct bench *bench, const char *name, size_t count, double mean, double deviation);
struct field *bench_parameter(struct bench *bench, const char *name, size_t count, double mean, double deviation);
struct field *bench_output(struct bench *bench, const char *name, size_t count);
struct field *bench_byproduct(struct bench *bench, const char *name, size_t count);
/* The field is an activation: its buffers are of the shape's type, and what is drawn for them are numbers of that
 * type. Returns it. */
struct field *bench_activation(struct field *field);
/* Leaves a gap in the arenas before the next parameter, which begins on a multiple of 64 elements as the model's
 * do. */
void bench_gap(struct bench *bench);

/* ---- by name; a name that does not exist is a bug of the test and ends the program */
const struct field *bench_find(const struct bench *bench, const char *name); /* or NULL */
double *bench_values(const struct bench *bench, const char *name);
double *bench_values_or_null(const struct bench *bench, const char *name);
double *bench_row(const struct bench *bench, const char *name, size_t token); /* NULL: there is no such field */
const struct buffer *bench_buffer(const struct bench *bench, const char *name);
const struct buffer *bench_derivative(const struct bench *bench, const char *name);
size_t bench_offset(const struct bench *bench, const char *name); /* of a parameter; 0 where there is none */

/* A buffer of `count` floats, or activations, NaN, released with the bench. */
const struct buffer *bench_scratch(struct bench *bench, size_t count);
const struct buffer *bench_scratch_activation(struct bench *bench, size_t count);

/* Keeps that a step has failed, with a status that is not 0. */
void bench_try(struct bench *bench, int status);

/* Copies `count` elements between buffers, by way of the host: simulators then know them to be initialised. */
void bench_copy(struct bench *bench, const struct buffer *from, size_t from_at, const struct buffer *to,
                size_t to_at, size_t count);
void bench_copy_all(struct bench *bench, const struct buffer *from, const struct buffer *to, size_t count);

/* What the prefilled arena of gradients holds at an element. */
float bench_prefill(size_t element);

/* ---- elements on the device: floats, or rounded to the type of the buffer */
int bench_upload(struct compute *compute, const struct buffer *buffer, size_t offset, const double *values,
                 size_t count);
int bench_download(struct compute *compute, const struct buffer *buffer, size_t offset, double *values,
                   size_t count);
int bench_fill(struct compute *compute, const struct buffer *buffer, size_t count, float value);

/* ---- the table of cases */

struct operation_case {
    const struct operation_test *test;
    const char *what; /* of this case */
    struct case_shape shape;
    bool tiny;            /* small enough for simulators */
    bool needs_lanes;     /* passed over where a row has a single one */
    double slack;         /* factor on the tolerances; 0 is 1 */
    double rounded_slack; /* the same for what roundings to 16 bits add to gradients; 0: slack */
    unsigned samples;     /* elements per gradient that are differentiated one by one; 0: the driver's number */
};

/* The case of this number, NULL beyond the last. */
const struct operation_case *operation_case_at(size_t number);

/* ---- for the files of cases, cases_<subject>.c: each has its tests and a table of cases, which ends
 * with test NULL */

extern const struct operation_case cases_embedding[], cases_streams[], cases_gates[], cases_depth[], cases_ways[],
    cases_sums[], cases_muon[], cases_attention[], cases_elements[], cases_head[];

/* Cases of every residual variant; NULL beyond the last. */
const struct operation_case *case_of_variant(size_t number);

/* Dropout of all cases that have any, and its factor. */
struct dropout case_dropout(const struct bench *bench);
double case_kept(const struct bench *bench, size_t row, size_t element);

/* Parameters of the case, and their gradients; "gain" and "bias" of a norm. */
struct span case_weights(const struct bench *bench, const char *name);
struct span case_gradients(const struct bench *bench, const char *name);
struct layer_norm case_norm_weights(const struct bench *bench);
struct layer_norm case_norm_gradients(const struct bench *bench);

/* Describes gain and bias, with a gap between them, if the case's norm has one; and the norm for the reference. */
void case_describe_norm(struct bench *bench);
struct reference_norm case_norm(const struct bench *bench);

/* The sum of squares of each row. */
void case_squares(const double *x, size_t rows, size_t channels, double *squares);

/* What is wrong with "squares", which are to be those of the streams as they are stored; NULL: nothing. */
const char *case_check_squares(const struct bench *bench, const char *streams);

#define OPERATION(test, ...) static const struct operation_test test = {__VA_ARGS__}
#define CASE(t, name, ...)                                                                                         \
    {                                                                                                              \
        .test = &t, .what = name, .shape = { __VA_ARGS__ }                                                         \
    }
/* Tolerances times `factor`; `count` elements of each gradient one by one. */
#define LOOSE(t, name, factor, count, ...)                                                                         \
    {.test = &t, .what = name, .shape = {__VA_ARGS__}, .slack = factor, .samples = count}
/* Small enough for simulators; few shapes, since each is compiled on its own. */
#define TINY(t, name, b, s, ...)                                                                                   \
    {.test = &t,                                                                                                   \
     .what = "tiny " name,                                                                                         \
     .shape = {.channels = 12, .heads = 3, .batch = b, .sequence = s, __VA_ARGS__},                                \
     .tiny = true}
#define TINY_MHC  .residual = "mhc", .streams = 3, .norm_sum = true, .bias = true, .setting = {"sinkhorn_iters", 3}
#define TINY_HC   .residual = "hc", .streams = 2
#define TINY_SHC  .residual = "shc", .streams = 4, .setting = {"freeze_gamma", true}
#define TINY_LITE .residual = "mhc_lite", .streams = 3
#define TINY_FRAC .residual = "frac", .streams = 3
#define TINY_RC   .residual = "rc"
