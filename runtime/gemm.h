/* Matrix products, row-major, through a BLAS.
 *
 * Backends: "clblast" runs on any device; "cblas" calls the host's BLAS from a native kernel, on the buffers
 * themselves and in queue order, on devices that share host memory and run native kernels (PoCL).
 *
 * The types of the three buffers say what is stored in them. A backend that does not take them works on fp32
 * copies, which are made and taken back here; the sums are fp32 either way. */
#ifndef HC_RUNTIME_GEMM_H
#define HC_RUNTIME_GEMM_H

#include "runtime/compute.h"

struct matrix {
    const struct buffer *buffer;
    size_t offset; /* of the first element */
    size_t stride; /* elements from row to row */
};

/* C = alpha op(A) op(B) + beta C with op(A) [m, k], op(B) [k, n], C [m, n]; beta == 0 does not read C.
 * A launch: failures are kept in the compute. Extents are checked against the buffers. m, n or k of 0 is allowed.
 */
void gemm_run(struct compute *compute, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
              float alpha, struct matrix a, struct matrix b, float beta, struct matrix c);

/* Whether products of operands of this type go through fp32 copies. They are kept from product to product, one each
 * for A, B and C, as large as the largest: for memory plans. */
bool gemm_copies(const struct compute *compute, enum element_type type);

/* The name of the backend in use. */
const char *gemm_name(const struct compute *compute);

/* Whether it runs with the parameters that a search on this device found (runtime/gemm_tune.h). */
bool gemm_is_tuned(const struct compute *compute);

/* Measures float32 multiply-add rate in FLOP/s for C[m, n] = A[m, k] B[n, k]^T, best of a few calls (about 0.3 s);
 * what metrics call mfu is relative to this. Returns 0 rate with an error on failure. */
int gemm_measure_rate(struct compute *compute, size_t m, size_t n, size_t k, double *flops_per_second);

#endif
