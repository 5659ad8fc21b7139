/* What a GEMM backend provides to runtime/gemm/gemm.c. */
#ifndef HC_RUNTIME_GEMM_BACKEND_H
#define HC_RUNTIME_GEMM_BACKEND_H

#include "runtime/gemm/gemm_call.h"

struct gemm_backend {
    const char *name;
    /* 0, or -1 with a reason why this device or host cannot use the backend. *state is the backend's own. */
    int (*open)(struct compute *compute, void **state);
    void (*close)(struct compute *compute, void *state);
    void (*run)(struct compute *compute, void *state, const struct gemm_call *call);
    /* Whether `run` takes the call as it is, with the types of its buffers, its batch and its epilogue. NULL:
     * single products of fp32 only. What it does not take comes in simpler pieces, and of fp32 copies. */
    bool (*takes)(const struct gemm_call *call);
};

extern const struct gemm_backend gemm_backend_cblas;
extern const struct gemm_backend gemm_backend_clblast;
extern const struct gemm_backend gemm_backend_portable;
extern const struct gemm_backend gemm_backend_mma;

/* What compute.gemm_state points to. */
struct gemm_state {
    struct buffer copies[3]; /* of A, B and C in fp32, each as large as was needed so far */
    void *backend;           /* of the backend in use */
    cl_program program;      /* cl/gemm.cl, built at the first need; NULL before */
    struct kernel tile;      /* the portable product */
    struct kernel scale;     /* C = beta C */
    struct {
        cl_program program; /* cl/gemm_epilogue.cl, built at the first need */
        struct kernel kernel;
    } epilogues[2];             /* for the exact GELU, and by tanh */
    char unit[96];              /* set by a backend that runs on one of several, for people */
    char refusal[160];          /* why "auto" did without matrix units, "" when it did not want any */
    char description[384];      /* of gemm_description */
    enum element_type operands; /* what most products read */
    bool automatic;             /* nobody asked for the backend by name: it should be worth its while */
    bool untuned;               /* wanted: no parameters from the cache folder */
    bool tuned;                 /* set by a backend that took some from there */
};

#endif
