/* A matrix product as it is asked for. */
#ifndef HC_RUNTIME_GEMM_CALL_H
#define HC_RUNTIME_GEMM_CALL_H

#include "runtime/device/compute.h"

struct matrix {
    const struct buffer *buffer;
    size_t offset; /* of the first element */
    size_t stride; /* elements from row to row */
};

/* Several products of one shape, whose matrices lie so many elements apart, from the first ones given. Products of
 * a batch must not write what others read or write. */
struct gemm_batch {
    size_t count;
    size_t a, b, c;
};

enum gemm_activation {
    GEMM_NO_ACTIVATION,
    GEMM_GELU,      /* x (1 + erf(x / sqrt 2)) / 2 */
    GEMM_GELU_TANH, /* its approximation by tanh, as in OpenAI's GPT-2 */
};

/* What follows a product; everything may be missing. With y what gemm_run would leave in C and z = y + bias:
 *   C = z + residual                               without an activation f
 *   C = f(z) + residual                            with one
 *   C = z, activated = f(z) + residual             with one and a matrix for its result */
struct gemm_epilogue {
    struct span bias; /* [n]; buffer NULL: none */
    enum gemm_activation activation;
    struct matrix activated; /* [m, n]; buffer NULL: C itself */
    struct matrix residual;  /* [m, n]; buffer NULL: none. May be C */
};

/* One checked product: m, n, k > 0, all extents inside of their buffers, alpha != 0. */
struct gemm_call {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    float alpha;
    struct matrix a, b;
    float beta;
    struct matrix c;
    char name[64];           /* in profiles, e.g. "gemm_nt 1024x3072x768" */
    struct gemm_batch batch; /* count at least 1 */
    struct gemm_epilogue epilogue;
};

/* Whether it is a single product of fp32 matrices with nothing behind it, which every backend takes. */
bool gemm_call_is_plain_fp32(const struct gemm_call *call);

/* Whether there is anything of it. */
bool gemm_epilogue_exists(const struct gemm_epilogue *epilogue);

#endif
