/* The parameters of CLBlast's matrix product (its kernel "Xgemm") for one device. */
#pragma once

#include "runtime/gemm/tuned.h"

/* CLBlast's own names, in the order in which it wants them. With GEMMK == 0 its kernel computes a tile of C of
 * MWG x NWG by a work-group of MDIMC x NDIMC, KWG steps at a time, unrolled by KWI; SA and SB keep the tiles of A
 * and B in local memory, read as MDIMA x .. and NDIMB x ..; STRM and STRN make a work-item's elements lie MDIMC and
 * NDIMC apart; VWM and VWN are vector widths. */
enum gemm_parameter {
    GEMM_GEMMK,
    GEMM_KREG,
    GEMM_KWG,
    GEMM_KWI,
    GEMM_MDIMA,
    GEMM_MDIMC,
    GEMM_MWG,
    GEMM_NDIMB,
    GEMM_NDIMC,
    GEMM_NWG,
    GEMM_SA,
    GEMM_SB,
    GEMM_STRM,
    GEMM_STRN,
    GEMM_VWM,
    GEMM_VWN,
    GEMM_PARAMETERS,
    /* not of the kernel: cubes of a smaller edge go through the one that needs no copies of A, B and C */
    GEMM_DIRECT_BELOW = GEMM_PARAMETERS,
};

/* What the values of struct tuned_values are, by enum gemm_parameter. Allowed is what CLBlast's kernel is defined
 * for, where the device has the work-items and the local memory. */
extern const struct tuned_kind gemm_parameters;

/* Makes CLBlast use them on this device, in this process, from now on. */
int gemm_parameters_apply(const union tuned_values *values, const struct device *device);

/* The same for GEMM_DIRECT_BELOW alone. */
int gemm_parameters_apply_bound(size_t bound, const struct device *device);
