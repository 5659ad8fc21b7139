/* The arguments of gemm_run, and functions that all backends share. */
#pragma once

#include "runtime/device/compute.h"

struct matrix {
    const struct buffer *buffer;
    size_t offset; /* of the first element */
    size_t rows, columns;
    size_t stride; /* elements from row to row */
};

/* A matrix without gaps between its rows. */
static inline struct matrix matrix_of(const struct buffer *buffer, size_t offset, size_t rows, size_t columns) {
    return (struct matrix){buffer, offset, rows, columns, columns};
}

/* What may follow y = op(A) op(B) + beta C + bias where gemm_fuses says so: something with the activation f and a
 * matrix `side` [m, n]. SIDE in cl/mma_finish.cl has the same values. */
enum gemm_epilogue {
    EPILOGUE_NONE,       /* C = y */
    EPILOGUE_ACTIVATION, /* C = y, side = f(y) of y before it is rounded */
    EPILOGUE_DERIVATIVE, /* C = y f'(side) */
    /* y is the gradient of f(g) u, where g is in C and u in side; beta is 0. Both become their gradients:
     * C = y u f'(g), side = y f(g). */
    EPILOGUE_GATES
};

/* What it does with matrices beside writing C: whether it reads C, reads `side`, and writes `side`. */
static inline bool epilogue_reads_c(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_GATES;
}
static inline bool epilogue_reads_side(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_DERIVATIVE || epilogue == EPILOGUE_GATES;
}
static inline bool epilogue_writes_side(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_ACTIVATION || epilogue == EPILOGUE_GATES;
}

/* A batch: of each of A, B and C as many matrices of one shape, each `rows` times `stride` elements behind the one
 * before it. A bias or an epilogue has no batch.
 *
 * C = op(A) op(B) + beta C with op(A) [m, k], op(B) [k, n], C [m, n], where op transposes or not, and the epilogue.
 * beta == 0 does not read C. m, n or k of 0 is allowed. */
struct gemm_call {
    bool transpose_a, transpose_b;
    struct matrix a, b, c; /* as they are stored */
    float beta;
    size_t batch;   /* 0 or 1: one matrix each */
    bool symmetric; /* C is, but for rounding, and beta is 0: half of it may be computed, and the rest be copied */
    struct span bias; /* [n], for every row of C; buffer NULL: none */
    enum gemm_epilogue epilogue;
    struct matrix side;     /* [m, n]; unused with EPILOGUE_NONE */
    const char *activation; /* f is that of cl/activation_<this>.cl; unused with EPILOGUE_NONE */
    size_t m, n, k;         /* set by gemm_run, as is */
    char name[64];          /* in profiles, e.g. "gemm_nt 1024x3072x768" */
};

/* Whether the matrices are fp32 and nothing follows the sums, which every backend takes. */
bool gemm_call_is_plain_fp32(const struct gemm_call *call);

/* Whether a bias or an epilogue follows the sums. */
bool gemm_call_has_epilogue(const struct gemm_call *call);

/* The kernel with the call's name instead of its own, for profiles. */
struct kernel gemm_call_named(const struct gemm_call *call, const struct kernel *kernel);

/* Matrices of the call's batch. */
size_t gemm_call_count(const struct gemm_call *call);

/* Multiplications and additions, for profiles and rates, where all of C is computed. */
double gemm_call_flops(const struct gemm_call *call);

/* Makes a buffer at least so large, for `what`; its contents are lost. False on failure, which is kept in the
 * compute. */
bool gemm_reserve(struct compute *compute, struct buffer *buffer, size_t bytes, const char *what);

/* Logs a GEMM of a library as one launch, even if it enqueues several kernels. True if the GEMM must be run,
 * too. */
bool gemm_call_begin(struct compute *compute, const struct gemm_call *call);

/* Enqueues a marker while profiling, else returns NULL. A GEMM of several commands is measured between two: both go
 * to gemm_call_profile, which releases them. */
cl_event gemm_call_mark(struct compute *compute);
void gemm_call_profile(struct compute *compute, const struct gemm_call *call, cl_event begin, cl_event end);

/* Begins the argument of a native kernel. OpenCL puts the addresses of memory objects here, which are not used:
 * they are those of our own pages. */
struct gemm_places {
    void *addresses[3];
};

/* Puts run(a copy of `work`) into the queue, on the matrices of the call, which lie in host memory; `bytes` is the
 * size of what begins with `work`. */
void gemm_call_run_native(struct compute *compute, const struct gemm_call *call, void(CL_CALLBACK *run)(void *work),
                          struct gemm_places *work, size_t bytes);
