/* GEMMs compared with sums in double on the host. */
#pragma once

#include "runtime/gemm/gemm.h"

/* Compares a layer's three forms of GEMM by the backend that gemm_open chose, in sizes that take each class of its
 * kernels, in fp32 and with operands of this type: a fraction of a second, once per device, driver, backend with
 * its library, and parameters (self_test.h). `symmetric`: the same for products of a matrix with itself, which Muon
 * alone makes. 1 with what is wrong, -1 with an error where nothing came out. */
int gemm_verify(struct compute *compute, enum element_type type, bool symmetric);

/* ---- one GEMM, for self-tests of backends and for tests */

/* What computes it: gemm_run, or a part of a backend that is not open yet. */
typedef void gemm_function(struct compute *compute, const struct gemm_call *call);

/* Arrays are for A, B and C. */
struct gemm_case {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    enum element_type types[3];
    enum gemm_epilogue epilogue;
    const char *activation; /* gelu, gelu_tanh or silu */
    bool bias;
    float beta;
    size_t pads[3]; /* stride less width */
    size_t offsets[3];
    bool symmetric; /* B is A's buffer: one of them is transposed, and C symmetric */
    size_t sample;  /* compare every element of this number; 0: all */
};

/* Runs the GEMM on random matrices and compares every element of every matrix written, and what lies around them.
 * Operands of 16 bits have exact sums, so that rounding is that of C alone. -1 with the element that is wrong. */
int gemm_verify_case(struct compute *compute, gemm_function *run, const struct gemm_case *wanted);

/* The three forms that a layer needs, around the size of a kernel's tiles, m x n in steps of k, with operands of
 * this 16-bit type; and GEMMs of all kinds: transpositions, edges, alignments, types of C, bias and activations. -1
 * with a reason. */
int gemm_verify_layer(struct compute *compute, gemm_function *run, size_t m, size_t n, size_t k,
                      enum element_type type);
int gemm_verify_tiles(struct compute *compute, gemm_function *run, size_t m, size_t n, size_t k,
                      enum element_type type);
