/* The matrix cores of a device: instructions that multiply small 16-bit matrices and add in fp32.
 * cl/matrix_cores*.cl have them as one set of functions for kernels, cl/mma_gemm.cl is the GEMM on them. */
#pragma once

#include "runtime/device/device.h"

enum matrix_cores_kind {
    MATRIX_CORES_NVIDIA,
    MATRIX_CORES_AMD_WMMA,
    MATRIX_CORES_AMD_MFMA,
    MATRIX_CORES_INTEL,
    MATRIX_CORES_EMULATED, /* NVIDIA's in plain OpenCL C, on any device, for tests */
    MATRIX_CORES_AMD_WMMA_GFX12,
    MATRIX_CORES_AMD_MFMA_GFX908,
};

/* A work-group computes a block of C, block_m x block_n, in steps of block_k; each of its warps a part of warp_m x
 * warp_n. `stages` tiles of A and of B are in local memory at a time. */
struct mma_tiles {
    size_t block_m, block_n, block_k;
    size_t warp_m, warp_n;
    size_t stages;
};

/* Blocks to choose from (mma_choose): medium ones fill the device's last wave of work-groups better than large
 * ones, small ones are for GEMMs that would have too few work-groups, narrow and flat ones for a C of few columns
 * or few rows. */
enum mma_shape { MMA_LARGE, MMA_MEDIUM, MMA_SMALL, MMA_NARROW, MMA_FLAT, MMA_SHAPES };

struct matrix_cores {
    enum matrix_cores_kind kind;
    const char *name;              /* human-readable */
    const char *file;              /* of cl/, for `#include "matrix_cores_*.cl"` */
    const struct mma_tiles *tiles; /* [MMA_SHAPES] */
    unsigned warp;                 /* work-items that hold a matrix together (warp, wave, sub-group) */
    unsigned m, n, k;              /* of one instruction's matrices */
    unsigned scratch_bytes;        /* of local memory per warp */
    bool limits_registers;         /* the compiler takes NVIDIA's option for that */
    bool wide_fragments;           /* fragments of A and B take twice the registers of other cores' */
    bool transposed_load; /* fragments are fast to read along k only: tiles that lie across k are transposed as they
                               are loaded into local memory */
};

/* The matrix cores that the device has, by what its driver says of it: nothing is compiled. -1 with an error that
 * says why there are none that hctrain knows. */
int matrix_cores_find(const struct device *device, struct matrix_cores *cores);

struct matrix_cores matrix_cores_emulated(void);

/* Whether the device has the local memory and the work-items for all tiles of the cores. -1 with an error. */
int matrix_cores_check_tiles(const struct matrix_cores *cores, const struct device *device);

size_t mma_tiles_warps(const struct mma_tiles *tiles);
