/* What a GEMM backend provides to gemm_run.c, what it keeps, and functions that backends share. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/gemm/gemm.h"
#include "runtime/gemm/matrix_cores.h"

/* Backends get calls that were checked: m, n, k > 0, and all extents are inside of their buffers. */
struct gemm_backend {
    const char *name;
    /* 0, or -1 with a reason why this device or host cannot use the backend; NULL: all can. What it keeps is in
     * struct gemm_state. */
    int (*open)(struct compute *compute);
    void (*run)(struct compute *compute, const struct gemm_call *call);
    void (*close)(struct compute *compute); /* NULL: there is nothing to release */
    /* Whether `run` takes the call as it is, with the types of its buffers and what follows the sums. NULL: only
     * fp32 with nothing behind it. Other calls go to gemm_state.fp32, with fp32 copies. May compile kernels. */
    bool (*takes)(struct compute *compute, const struct gemm_call *call);
    /* Whether `run` takes operands of this 16-bit type as they are, as far as can be said without sizes. NULL:
     * none. */
    bool (*takes_type)(const struct compute *compute, enum element_type type);
    /* Whether `run` takes a whole batch of matrices. NULL: never. Others get them one by one. */
    bool (*takes_batch)(struct compute *compute, const struct gemm_call *call);
    /* For self-tests, where large GEMMs of fp32 run on other code than small ones: how many rows, columns and steps
     * of k make a GEMM large; 0: there is no such code. NULL: likewise. */
    size_t (*large_edge)(struct compute *compute);
    bool fuses;             /* bias, GELU and its derivative may be part of GEMMs of 16 bits */
    bool uses_matrix_cores; /* GEMMs of 16 bits run on the device's matrix cores, if it has some */
};

extern const struct gemm_backend gemm_backend_cblas, gemm_backend_clblast, gemm_backend_portable, gemm_backend_mma,
    gemm_backend_onednn;

#define REASON_SIZE 512 /* bytes of text */

/* What gemm_open attaches to the compute. */
struct gemm_state {
    const struct gemm_backend *backend;
    const struct gemm_backend
        *fp32;                  /* runs the fp32 calls that this one does not take: itself, or set by its open */
    enum element_type operands; /* what most GEMMs read */
    bool automatic;             /* nobody asked for the backend by name: it should be worth its while */

    /* what the backends keep */
    struct buffer copies[3];    /* of A, B and C in fp32, each as large as was needed so far */
    struct buffer scratch;      /* of CLBlast, likewise */
    struct buffer partial;      /* sums that work-groups share, of "mma" and "portable", likewise */
    size_t groups_expected;     /* of a launch of "portable", set by self-tests; 0: by the device */
    struct gemm_onednn *onednn; /* of "onednn", NULL with another */
    struct mma {                /* of "mma" */
        struct matrix_cores cores;
        const struct mma_tiles *only; /* for all GEMMs, divided by `whole` and `parts`; NULL: by mma_choose */
        size_t whole, parts;
    } mma;

    /* how it came to be chosen, and how it is described */
    char identity[CHECKSUM_SIZE];  /* of libraries and parameters, see gemm_identify; "": there are none */
    char runs_on[96];              /* set by a backend that has several kinds of code; human-readable */
    const char *matrix_cores;      /* name of the device's own, if GEMMs run on them */
    bool tried;                    /* the device has matrix cores that hctrain knows: some were tried */
    char refusal[REASON_SIZE];     /* why GEMMs of 16 bits do without matrix cores; "": nobody wanted them */
    char passed_over[REASON_SIZE]; /* why "auto" did without oneDNN, "" where it did not look for it */
    char description[1200];        /* of gemm_facts */
};

static inline struct gemm_state *gemm_state(const struct compute *compute) {
    return compute->attached;
}

/* Adds bytes by which a library's version or CLBlast's parameters are known to what self-tests that passed are kept
 * for. */
void gemm_identify(struct gemm_state *state, const void *data, size_t bytes);

/* Keeps why something could not be opened or used: the first line of the error, without a compiler's log. */
void gemm_keep_reason(char reason[REASON_SIZE]);

/* Makes a buffer of the state at least so large, for `what`; its contents are lost. False on failure, which is kept
 * in the compute. */
bool gemm_reserve(struct compute *compute, struct buffer *buffer, size_t bytes, const char *what);

/* ---- calls */

/* What an epilogue does with matrices beside writing C: whether it reads C, reads `side`, and writes `side`. */
static inline bool epilogue_reads_c(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_GATES;
}
static inline bool epilogue_reads_side(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_DERIVATIVE || epilogue == EPILOGUE_GATES;
}
static inline bool epilogue_writes_side(enum gemm_epilogue epilogue) {
    return epilogue == EPILOGUE_ACTIVATION || epilogue == EPILOGUE_GATES;
}

/* Whether a bias or an epilogue follows the sums. */
static inline bool gemm_call_has_epilogue(const struct gemm_call *call) {
    return call->bias.buffer || call->epilogue != EPILOGUE_NONE;
}

/* Matrices of the call's batch. */
static inline size_t gemm_call_count(const struct gemm_call *call) {
    return call->batch > 1 ? call->batch : 1;
}

/* Multiplications and additions, for profiles and rates, where all of C is computed. */
static inline double gemm_call_flops(const struct gemm_call *call) {
    return 2.0 * (double)call->m * (double)call->n * (double)call->k * (double)gemm_call_count(call);
}

/* The kernel with the call's name instead of its own, for profiles. */
struct kernel gemm_call_named(const struct gemm_call *call, const struct kernel *kernel);

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

/* The first element of a matrix in host memory. */
static inline void *matrix_address(const struct matrix *matrix) {
    return (char *)matrix->buffer->host + matrix->offset * element_size(matrix->buffer->type);
}

/* Puts run(a copy of `work`) into the queue, on the matrices of the call, which lie in host memory; `bytes` is the
 * size of what begins with `work`. */
void gemm_call_run_native(struct compute *compute, const struct gemm_call *call, void(CL_CALLBACK *run)(void *work),
                          struct gemm_places *work, size_t bytes);

/* ---- the portable GEMM: gemm_portable.c */

#define GEMM_PARTS_BYTES ((size_t)16 << 20) /* of sums that several work-groups share, at most */

/* How a GEMM in blocks (cl/gemm_blocks.cl) is divided. */
struct gemm_blocks_choice {
    size_t edge;   /* rows and columns of a block: 128, 64 or 32; 0: none fits the device */
    size_t blocks; /* in C */
    size_t parts;  /* work-groups that share a block */
    size_t depth;  /* of k, for each of them */
};

/* Whether GEMMs run in blocks, by work-items that share local memory. Elsewhere, as on CPUs, a work-item has a row
 * to itself. */
bool gemm_blocks_suit(const struct compute *compute);

/* By a rule that knows sizes only, so that sums are the same in every run on a device: the largest blocks that
 * neither reach far over the edges of C nor leave the device with few work-groups; k is divided where that makes
 * the difference. `expected`: of groups, 0: by the device. */
struct gemm_blocks_choice gemm_blocks_choose(const struct device *device, size_t expected,
                                             const struct gemm_call *call);

/* Runs a call of plain fp32 with m, n > 0 in panels of C (cl/gemm_panels.cl), for the cores of a CPU, and correct
 * on any device. It runs on the threads that run all other kernels: where a GEMM takes less than a millisecond,
 * waking a library's own threads costs as much. With k == 0, C = beta C, and A and B are not looked at. */
void gemm_panels_run(struct compute *compute, const struct gemm_call *call);

/* Whether panels are faster than the host's BLAS: the device is a CPU where a work-item has a row to itself, and
 * the GEMM is small. */
bool gemm_panels_are_faster(struct compute *compute, const struct gemm_call *call);

/* ---- matrix cores: gemm_mma.c. GEMM of 16-bit matrices with sums in fp32 (cl/mma_gemm.cl) */

/* What divided blocks may take: [blocks, parts, block_m, block_n] of fp32. */
#define MMA_PARTS_BYTES ((size_t)32 << 20)

/* How a GEMM is divided. Blocks of C from number `whole` on are computed by `parts` work-groups each, which have
 * `depth` of k (a multiple of block_k), the last one what is left. */
struct mma_division {
    struct mma_tiles tiles;
    size_t blocks, whole;
    size_t parts; /* 1: all blocks are whole */
    size_t depth;
    size_t groups; /* work-groups */
    size_t bytes;  /* of the parts */
    double cost;   /* time, counted in operations that the matrix cores could do in it */
};

/* Blocks of C; SIZE_MAX when they cannot be counted. */
size_t mma_blocks(const struct gemm_call *call, const struct mma_tiles *tiles);

/* With these tiles, and all but `whole` blocks in so many parts, or fewer where k is short. m, n, k > 0. */
struct mma_division mma_divide(const struct matrix_cores *cores, unsigned compute_units,
                               const struct gemm_call *call, const struct mma_tiles *tiles, size_t whole,
                               size_t parts);

/* The cheapest one by an estimate of the time: a rule that counts and never times, so that sums are the same in
 * every run. */
struct mma_division mma_choose(const struct matrix_cores *cores, unsigned compute_units,
                               const struct gemm_call *call);

/* Whether such a call can be run: A and B of one 16-bit type, sizes that the kernel can count, and not both an
 * activation and its derivative. */
bool mma_takes(struct compute *compute, const struct gemm_call *call);

/* Runs a call that mma_takes on gemm_state.cores: one launch, or two where blocks are divided. Kernels are compiled
 * at the first need. */
void mma_run(struct compute *compute, const struct gemm_call *call);

/* Compares GEMMs of operands of this type with sums on the host, with all tiles, and with divided blocks. -1 with a
 * reason, which may be that the device's compiler does not know the instructions; the compute is in order either
 * way. */
int mma_self_test(struct compute *compute, enum element_type type);
