/* GEMM (matrix multiplication) of row-major matrices on a compute's device, by one of these backends:
 *
 *   backend  | runs on                | types it reads                | fuses      | made of
 *   cblas    | CPUs (PoCL)            | fp32                          | no         | the host's BLAS, natively
 *   clblast  | any device             | fp32                          | no         | CLBlast
 *   mma      | GPUs with matrix cores | bf16, fp16; fp32 by CLBlast   | in 16 bits | cl/mma_gemm.cl
 *   onednn   | Intel's GPUs, CPUs     | all; (1)                      | no         | oneDNN
 *   portable | any device             | all on GPUs, else fp32        | no         | gemm_blocks.cl, gemm_panels.cl
 *
 * (1) What oneDNN cannot take goes to CLBlast on GPUs, to cblas on CPUs. "fuses": computes a bias and an epilogue
 * in the GEMM. The types of the three buffers say what is stored in them. If a backend does not read them, gemm_run
 * makes fp32 copies of them, and converts the result back. Sums are fp32 either way. gemm_run.c chooses. On an
 * H100 in bf16 that is mma, with cl/matrix_cores_nvidia.cl; cl/matrix_cores.cl lists the devices. Forward passes of
 * FEW_ROWS rows or fewer do not come here (linear.c). */
#pragma once

#include "runtime/device/compute.h"

/* ---- a GEMM */

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

/* ---- opening and running */

/* Chooses the backend by name (the option --gemm); "auto" by the device and `operands`, the type of most matrices:
 * choose_backend in gemm_run.c has the rule. */
int gemm_open(struct compute *compute, const char *name, enum element_type operands);

/* compute_open, then gemm_open as the options say. */
int gemm_compute_open(struct compute **opened, const struct compute_options *options);

/* Launches the GEMM. Failures are kept in the compute: a matrix that does not fit its buffer, or a bias or an
 * epilogue where gemm_fuses is false. */
void gemm_run(struct compute *compute, const struct gemm_call *call);

/* ---- for memory plans */

/* Whether all GEMMs of operands of this type work on fp32 copies: the backend lacks the type or computes it wrong.
 * Even if false, oneDNN copies a matrix whose offset is not aligned as the device needs. Copies stay allocated: one
 * buffer each for A, B and C, of the largest size so far. */
bool gemm_copies(const struct compute *compute, enum element_type type);

/* Bytes at most for sums that several work-groups share, in GEMMs of operands of this type. */
size_t gemm_parts_bytes(const struct compute *compute, enum element_type type);

/* ---- what the backend does */

/* Whether gemm_run can also add a bias and compute an epilogue: "mma" can, for 16-bit types. Where this is false a
 * call that asks for them fails: the caller launches them itself (linear.c uses bias_forward and the kernels of
 * activations). */
bool gemm_fuses(const struct compute *compute, enum element_type type);

/* The most loop iterations of one work-item for sums of k elements, for operations_check_loops. 0 unless the
 * portable backend runs its kernels without local memory (cl/gemm_panels.cl): others divide the work. */
size_t gemm_iterations(const struct compute *compute, size_t k);

/* The backend and what it runs on. The texts stay until the compute is closed. */
struct gemm_facts {
    const char *name;         /* of the backend */
    const char *description;  /* human-readable: also what it runs on, and why not on matrix cores if it should */
    bool uses_matrix_cores;   /* for GEMMs of 16 bits, if the device has some; attention may use them then, too */
    const char *matrix_cores; /* those on which GEMMs of 16 bits run, "mma.sync"; NULL: none, or an emulation */
    const char *refusal;      /* why "auto" uses none where it wanted some, a line; NULL: it does, or wanted none */
    bool failed; /* the device should have some: they were tried, and did not compile or compute right */
};
struct gemm_facts gemm_facts(const struct compute *compute);

/* ---- how fast they are */

/* Measures the multiply-add rate in FLOP/s of C[m, n] = A[m, k] B[n, k]^T with matrices of this type, in the
 * fastest of a few rounds (about 0.3 s); what metrics call mfu is relative to this. Returns 0 rate with an error on
 * failure. */
int gemm_measure_rate(struct compute *compute, enum element_type type, size_t m, size_t n, size_t k,
                      double *flops_per_second);
