/* What a GEMM backend provides to runtime/gemm/gemm.c. */
#pragma once

#include "runtime/files/checksum.h"
#include "runtime/gemm/gemm_blocks.h"
#include "runtime/gemm/gemm_call.h"
#include "runtime/gemm/gemm_panels.h"

/* Backends get calls that were checked: m, n, k > 0, and all extents are inside of their buffers. */
struct gemm_backend {
    const char *name;
    /* 0, or -1 with a reason why this device or host cannot use the backend. What it keeps is in struct
     * gemm_state. */
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
     * of k a GEMM needs to be one of them, 0 where there is no such code. `forced` may lower that bound, until a
     * call without it. */
    size_t (*take_large)(struct compute *compute, bool forced);
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
    size_t direct_below;        /* CLBlast's bound of small GEMMs while self-tests have lowered it */
    struct mma *mma;            /* of "mma", NULL with another */
    struct gemm_onednn *onednn; /* of "onednn", likewise */
    struct gemm_blocks blocks;  /* of "portable" on GPUs */

    /* how it came to be chosen, and how it is described */
    char identity[CHECKSUM_SIZE];  /* of libraries and parameters, see gemm_identify; "": there are none */
    char runs_on[96];              /* set by a backend that has several kinds of code; human-readable */
    const char *matrix_cores;      /* name of the device's own, if GEMMs run on them */
    bool tried;                    /* the device has matrix cores that hctrain knows: some were tried */
    char refusal[REASON_SIZE];     /* why GEMMs of 16 bits do without matrix cores; "": nobody wanted them */
    char passed_over[REASON_SIZE]; /* why "auto" did without oneDNN, "" where it did not look for it */
    char description[1200];        /* of gemm_description */
};

static inline struct gemm_state *gemm_state(const struct compute *compute) {
    return compute->attached;
}

/* Adds bytes by which a library's version or CLBlast's parameters are known to what self-tests that passed are kept
 * for. -1 with an error. */
int gemm_identify(struct gemm_state *state, const void *data, size_t bytes);

/* Keeps why something could not be opened or used: the first line of the error, without a compiler's log. */
void gemm_keep_reason(char reason[REASON_SIZE]);
