/* The table of cases that tests/operations/test_operations.c runs. */
#pragma once

#include "tests/support/operation_bench.h"
#include "tests/support/reference.h"

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

/* ---- for the files of cases, operation_cases_<subject>.c: each has its tests and a table of cases, which ends
 * with test NULL */

extern const struct operation_case cases_embedding[], cases_streams[], cases_gates[], cases_depth[], cases_ways[],
    cases_muon[], cases_attention[], cases_elements[], cases_head[];

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
#define TINY_RC   .residual = "rc"
