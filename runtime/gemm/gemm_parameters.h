/* The parameters of CLBlast's matrix product (its kernel "Xgemm") for one device, and the file that keeps them. */
#ifndef HC_RUNTIME_GEMM_PARAMETERS_H
#define HC_RUNTIME_GEMM_PARAMETERS_H

#include "runtime/device/device.h"
#include <stdbool.h>
#include <stddef.h>

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
    GEMM_PARAMETERS
};

struct gemm_parameters {
    size_t value[GEMM_PARAMETERS];
    size_t direct_below; /* cubes of a smaller edge go through the kernel that needs no copies of A, B and C */
};

extern const char *const gemm_parameter_names[GEMM_PARAMETERS];

/* Whether CLBlast's kernel is defined for these values and the device has the work-items and the local memory. */
bool gemm_parameters_allowed(const struct gemm_parameters *parameters, const struct device *device);

/* Makes CLBlast use them on this device, in this process, from now on. */
int gemm_parameters_apply(const struct gemm_parameters *parameters, const struct device *device);

/* The device's file in the cache folder (see program_cache_locate), named by device and driver. Heap memory, NULL
 * with an error. */
char *gemm_parameters_path(const char *folder, const struct device *device);

/* Reads and checks the file. *found is false where there is none; one that cannot be used is an error that says
 * what to do. */
int gemm_parameters_read(const char *path, const struct device *device, struct gemm_parameters *parameters,
                         bool *found);

/* Writes the file, whole or not at all, and the folder where it is missing. */
int gemm_parameters_write(const char *path, const struct device *device, const struct gemm_parameters *parameters);

#endif
