/* What follows a matrix product (struct gemm_epilogue), for runtime/gemm/gemm.c and backends. */
#ifndef HC_RUNTIME_GEMM_EPILOGUE_H
#define HC_RUNTIME_GEMM_EPILOGUE_H

#include "runtime/gemm/gemm_backend.h"

/* What cl/gemm_epilogue.cl wants: the parts that there are and their types. Buffers that are missing are those of
 * C, since kernels want some. */
struct epilogue_parts {
    uint32_t parts, types;
    struct span bias;
    struct matrix activated, residual;
};

/* EPILOGUE_PARAMETERS of cl/gemm_epilogue.cl. */
#define ARG_EPILOGUE(x)                                                                                            \
    ARG_U32((x).parts), ARG_U32((x).types), ARG_SPAN((x).bias), ARG_SPAN((x).activated),                           \
        ARG_U64((x).activated.stride), ARG_SPAN((x).residual), ARG_U64((x).residual.stride)

struct epilogue_parts gemm_epilogue_parts(const struct gemm_call *call);

/* Applies the call's epilogue to what its C holds. A launch. */
void gemm_epilogue_run(struct compute *compute, const struct gemm_call *call);

void gemm_epilogue_close(struct compute *compute);

#endif
