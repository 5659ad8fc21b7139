/* Matrix units that cl/matrix_unit.cl knows, the sizes of tiles that cl/mma_gemm.cl takes for them, and the file
 * that keeps those which a search found for a device. */
#ifndef HC_RUNTIME_MMA_TILES_H
#define HC_RUNTIME_MMA_TILES_H

#include "runtime/device/device.h"

enum mma_unit_kind {
    MMA_NVIDIA = 1,
    MMA_AMD_WMMA,
    MMA_AMD_MFMA,
    MMA_INTEL,
    MMA_EMULATION, /* of NVIDIA's, anywhere, for tests */
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
};

/* A block of C per work-group, block_m x block_n, of parts of warp_m x warp_n per warp, in steps of block_k, with
 * so many tiles of A and B in local memory at a time. */
struct mma_tiles {
    unsigned block_m, block_n, block_k;
    unsigned warp_m, warp_n;
    unsigned stages;
};

#define MMA_MOST_UNITS 2 /* of one device */

/* The units that the device may have, by its vendor and extensions, best first; the count. Whether it has them is
 * seen by compiling. 0 with an error that says why there are none. */
size_t mma_units_find(const struct device *device, struct mma_unit units[MMA_MOST_UNITS]);

struct mma_unit mma_unit_emulation(void);

/* What one has to fit into. */
struct mma_limits {
    size_t local_bytes, work_items;
};

struct mma_limits mma_limits_of(const struct device *device);

/* Whether the kernel is defined for these tiles and they fit. */
bool mma_tiles_allowed(const struct mma_tiles *tiles, const struct mma_unit *unit, struct mma_limits limits);

/* Tiles to begin with. `small`: for products that large ones would not make enough work-groups of. -1 with an error
 * when nothing fits. */
int mma_tiles_default(const struct mma_unit *unit, struct mma_limits limits, bool small, struct mma_tiles *tiles);

unsigned mma_tiles_warps(const struct mma_tiles *tiles);

/* The device's file in the cache folder, named by device, driver and unit. Heap memory, NULL with an error. */
char *mma_tiles_path(const char *folder, const struct device *device, const struct mma_unit *unit);

/* Reads and checks the file. *found is false where there is none; one that cannot be used is an error that says
 * what to do. */
int mma_tiles_read(const char *path, const struct device *device, const struct mma_unit *unit,
                   struct mma_tiles *tiles, bool *found);

/* Writes the file, whole or not at all, and the folder where it is missing. */
int mma_tiles_write(const char *path, const struct device *device, const struct mma_tiles *tiles);

#endif
