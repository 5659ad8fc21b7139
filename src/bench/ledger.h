/* A launch log (runtime/device/compute.h), added up: per part of the model, per kernel, and in all. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/device/gpu_model.h"
#include <jansson.h>
#include <stdio.h>

/* What the model's roofline gives a record. */
double ledger_seconds(const struct gpu_model *model, const struct launch_entry *record);

/* Of one or more launches. */
struct ledger_sum {
    size_t launches, waits;
    double read, written, flops, padded_flops; /* bytes and FLOPs */
    double seconds;                            /* by gpu_model_seconds */
};

/* Launches of one kernel with one size, of one part. */
struct ledger_row {
    struct launch_entry record; /* the first of them */
    struct ledger_sum sum;
};

struct ledger {
    const struct gpu_model *model;
    struct ledger_row *rows; /* by seconds, most first */
    size_t count;
    struct ledger_sum all;
    size_t narrow; /* launches of kernels with fewer groups than twice the model's cores */
};

/* Adds up what was recorded; -1 out of memory. The ledger's rows are the caller's to ledger_release. */
int ledger_create(struct ledger *ledger, const struct gpu_model *model, const struct launch_log *log);
void ledger_release(struct ledger *ledger);

/* The sum over one part: its name as in the records. */
struct ledger_sum ledger_part(const struct ledger *ledger, const char *part);

/* Tables: parts, then the kernels that take most. */
void ledger_print(const struct ledger *ledger, const char *title, FILE *file);

/* {launches, waits, bytes, read, written, flops, padded_flops, seconds, narrow}; and [{part, ...}], and [{name, part,
 * groups, group_size, ...}] with `step` in each. NULL when memory runs out. */
json_t *ledger_totals(const struct ledger *ledger);
json_t *ledger_parts(const struct ledger *ledger, const char *step);
json_t *ledger_kernels(const struct ledger *ledger, const char *step);
