/* What the self-tests of a device share (GEMM: runtime/gemm/gemm_verify.c, attention: src/operations/
 * attention_check.c): matrices of random numbers, comparison with sums on the host, and a record in the cache
 * folder of what passed, so that it does not run again at every start. */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/files/checksum.h"

/* Whether the self-test `what`, a text with all that its kernels depend on besides the device, passed in an earlier
 * run: on this device, with this driver, build of hctrain, and build flags in the environment. Writes the key for
 * self_test_keep. */
bool self_test_passed(const struct compute *compute, const char *what, char key[CHECKSUM_SIZE]);

/* Keeps that the self-test of this key passed, if there is a cache folder. */
void self_test_keep(const struct compute *compute, const char key[CHECKSUM_SIZE]);

/* Replaces the error of a self-test by one that names the device, its driver and `what` failed, and advises the
 * user; `instead` is more advice, such as "another --gemm, ". Returns -1. */
int self_test_refuse(const struct compute *compute, const char *what, const char *instead);

/* ---- numbers */

/* A matrix in a buffer of its own, with SELF_TEST_BEHIND more elements behind it. What does not belong to it in the
 * buffer is NaN, in every type, and must stay so. */
enum { SELF_TEST_BEHIND = 8 };
struct self_test_matrix {
    struct buffer buffer;
    size_t rows, columns;
    size_t stride, offset; /* elements from row to row, and before the first; stride 0: no gaps */
    double *numbers;       /* [rows, columns] before the test: what was drawn, or NaN */
};

/* Creates the buffer, by the sizes that are set. Elements are uniform in +- 2 spread, and so few bits long in
 * 16-bit types that their products are exact in fp32. `key` says which ones; 0: all are NaN. */
int self_test_create(struct compute *compute, struct self_test_matrix *matrix, enum element_type type, uint64_t key,
                     float spread);
void self_test_release(struct compute *compute, struct self_test_matrix *matrix);

/* Reads the elements [rows, columns]; -1 also if something outside of the matrix was written. */
int self_test_read(struct compute *compute, const struct self_test_matrix *matrix, const char *name, double *found);

/* Whether the distance (the root of the sum of squares) of so many numbers from the right ones is within a bound.
 * -1 with an error that says which numbers are wrong. */
int self_test_compare(const double *found, const double *expected, size_t count, double bound, const char *format,
                      ...) __attribute__((format(printf, 5, 6)));
