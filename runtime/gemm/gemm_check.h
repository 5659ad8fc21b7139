/* Products compared with sums in double: for self-tests, for searches, and in tests. */
#pragma once

#include "runtime/gemm/gemm.h"

/* What computes the products that are checked: gemm_run, or a part of a backend that is not open yet. */
struct gemm_runner {
    struct compute *compute;
    void (*run)(void *context, const struct gemm_call *call);
    void *context;
};

/* gemm_run on this compute. */
struct gemm_runner gemm_runner_of(struct compute *compute);

/* A product to check. Arrays are for A, B and C. */
struct gemm_case {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    enum element_type types[3];
    size_t pads[3]; /* stride less width */
    size_t offsets[3];
    float beta;
    bool bias, activated, gelu_of, gelu_tanh;
    size_t sample; /* compare every element of this number; 0: all */
};

/* Computes random matrices' product and compares every element of every matrix written, and what lies around them.
 * Operands of 16 bits have exact sums, so that rounding is that of C alone. -1 with the element that is wrong. */
int gemm_check(const struct gemm_runner *runner, const struct gemm_case *wanted);

/* Checks the three forms that a layer needs, around the size of a kernel's tiles, m x n in steps of k, with
 * operands of this 16-bit type. -1 with a reason. */
int gemm_check_layer(const struct gemm_runner *runner, size_t m, size_t n, size_t k, enum element_type type);

/* The same for products of all kinds: transpositions, edges, alignments, types of C, bias and activations. */
int gemm_check_tiles(const struct gemm_runner *runner, size_t m, size_t n, size_t k, enum element_type type);
