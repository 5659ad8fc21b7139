/* The table of cases that tests/operations/test_operations.c runs. */
#pragma once

#include "tests/support/operation_bench.h"

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
