/* Matrix units that cl/matrix_unit.cl knows, and the sizes of tiles that cl/mma_gemm.cl takes for them. */
#pragma once

#include "runtime/device/device.h"

enum mma_unit_kind {
    MMA_NVIDIA = 1,
    MMA_AMD_WMMA,
    MMA_AMD_MFMA,
    MMA_INTEL,
    MMA_EMULATION, /* of NVIDIA's, anywhere, for tests */
    MMA_AMD_WMMA_GFX12,
    MMA_AMD_MFMA_GFX908,
};

struct mma_unit {
    enum mma_unit_kind kind;
    unsigned warp;          /* work-items that work together */
    unsigned m, n, k;       /* of its matrices */
    unsigned most_stages;   /* 2: no copies beside the computation */
    unsigned scratch_bytes; /* of local memory per warp */
    const char *name;       /* for people */
    bool bounds_registers;  /* the compiler takes NVIDIA's option for that */
    bool wide_fragments;    /* of A and B, which take twice the registers of other units' */
    unsigned most_sums;     /* of a work-item, so that they leave registers for the operands */
    unsigned most_items;    /* of a work-group, besides what the device says */
    bool turns;             /* fragments are read fast along k only: tiles that lie across it are turned */
};

/* A block of C per work-group, block_m x block_n, of parts of warp_m x warp_n per warp, in steps of block_k, with
 * so many tiles of A and B in local memory at a time. */
struct mma_tiles {
    size_t block_m, block_n, block_k;
    size_t warp_m, warp_n;
    size_t stages;
};

/* Tiles to choose from (mma_choice.h): large ones; medium ones, which fill the device's last wave better; for
 * products that those make too few work-groups of, small ones; for a C of few columns, or few rows, narrow or
 * flat ones. */
enum mma_shape { MMA_LARGE, MMA_MEDIUM, MMA_SMALL, MMA_NARROW, MMA_FLAT, MMA_SHAPES };

/* The unit that the device has, by what its driver says of it: nothing is compiled. -1 with an error that says why there
 * is none that hctrain knows. */
int mma_unit_find(const struct device *device, struct mma_unit *unit);

struct mma_unit mma_unit_emulation(void);

/* Whether the kernel is defined for these tiles and they fit into the device's local memory and work-groups. */
bool mma_tiles_allowed(const struct mma_tiles *tiles, const struct mma_unit *unit, const struct device *device);

/* Tiles to begin with; where those of a shape do not fit, smaller ones. -1 with an error when nothing fits. */
int mma_tiles_default(const struct mma_unit *unit, const struct device *device, enum mma_shape shape,
                      struct mma_tiles *tiles);

size_t mma_tiles_warps(const struct mma_tiles *tiles);
