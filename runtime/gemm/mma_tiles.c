#include "runtime/gemm/mma_tiles.h"
#include "runtime/device/gpu_model.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

#define EDGE_LIMIT 256 /* of blocks */
#define CHUNK      8   /* elements that are copied at once */
/* Sums of a work-item. There are 255 registers at most on NVIDIA and 256 on AMD; on Intel 128 of the sub-group's
 * width, and operands are as large as the sums. */
#define MOST_SUMS       128
#define MOST_SUMS_INTEL 64
#define MOST_ITEMS      1024
#define MOST_ITEMS_AMD  256 /* with more, a work-item has but a part of the registers */

/* Extensions' numbers, whose headers need not be there. */
#define DEVICE_COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define DEVICE_COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define DEVICE_SUB_GROUP_SIZES_INTEL       0x4108

/* ---- units */

/* As far as all devices agree: what differs is filled in where the device is asked. */
static const struct mma_unit nvidia = {.kind = MMA_NVIDIA,
                                       .name = "mma.sync",
                                       .warp = 32,
                                       .m = 16,
                                       .n = 16,
                                       .k = 16,
                                       .most_stages = 4,
                                       .most_sums = MOST_SUMS,
                                       .most_items = MOST_ITEMS,
                                       .bounds_registers = true};
static const struct mma_unit wmma = {.kind = MMA_AMD_WMMA,
                                     .name = "WMMA",
                                     .warp = 32,
                                     .m = 16,
                                     .n = 16,
                                     .k = 16,
                                     .most_stages = 2,
                                     .most_sums = MOST_SUMS,
                                     .most_items = MOST_ITEMS_AMD,
                                     .wide_fragments = true,
                                     .turns = true};
static const struct mma_unit mfma = {.kind = MMA_AMD_MFMA,
                                     .name = "MFMA",
                                     .warp = 64,
                                     .m = 16,
                                     .n = 16,
                                     .k = 16,
                                     .most_stages = 2,
                                     .most_sums = MOST_SUMS,
                                     .most_items = MOST_ITEMS_AMD,
                                     .turns = true};
static const struct mma_unit xmx = {.kind = MMA_INTEL,
                                    .name = "XMX",
                                    .warp = 8,
                                    .m = 8,
                                    .n = 8,
                                    .k = 16,
                                    .most_stages = 2,
                                    .most_sums = MOST_SUMS_INTEL,
                                    .most_items = MOST_ITEMS,
                                    .turns = true};
static const struct mma_unit emulation = {.kind = MMA_EMULATION,
                                          .name = "an emulation for tests",
                                          .warp = 32,
                                          .m = 16,
                                          .n = 16,
                                          .k = 16,
                                          .most_stages = 4,
                                          .most_sums = MOST_SUMS,
                                          .most_items = MOST_ITEMS,
                                          .scratch_bytes = 1024};

struct mma_unit mma_unit_emulation(void) {
    return emulation;
}

/* Whether that text of the device has the part. */
static bool has(const struct device *device, cl_device_info what, const char *part) {
    char *text = device_text(device->id, what);
    const bool found = text && strstr(text, part);
    free(text);
    return found;
}

/* bf16, ldmatrix and cp.async are all there from compute capability 8.0 on. */
static size_t find_nvidia(const struct device *device, struct mma_unit *unit) {
    cl_uint major = 0, minor = 0;
    clGetDeviceInfo(device->id, DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, sizeof(major), &major, NULL);
    clGetDeviceInfo(device->id, DEVICE_COMPUTE_CAPABILITY_MINOR_NV, sizeof(minor), &minor, NULL);
    *unit = nvidia;
    unit->bounds_registers = has(device, CL_DEVICE_EXTENSIONS, "cl_nv_compiler_options");
    if (major >= 8) {
        return 1;
    }
    error_set("the device has compute capability %u.%u, and matrix units for bf16 come with 8.0", major, minor);
    return 0;
}

/* Intel's units work in sub-groups of one size, the smallest that the device has. */
static size_t find_intel(const struct device *device, struct mma_unit *unit) {
    size_t sizes[16] = {0}, bytes = 0, smallest = 0;
    if (clGetDeviceInfo(device->id, DEVICE_SUB_GROUP_SIZES_INTEL, sizeof(sizes), sizes, &bytes) == CL_SUCCESS) {
        for (size_t i = 0; i < bytes / sizeof(*sizes); i++) {
            smallest = !smallest || sizes[i] < smallest ? sizes[i] : smallest;
        }
    }
    *unit = xmx;
    unit->warp = unit->n = (unsigned)smallest;
    if (smallest == 8 || smallest == 16) {
        return 1;
    }
    error_set("the device has no sub-groups of 8 or 16, in which Intel's matrix units work");
    return 0;
}

/* Those of a device that is only known by its data. */
static size_t find_by_name(const char *name, struct mma_unit *unit) {
    static const struct mma_unit *const known[] = {&nvidia, &wmma, &mfma, &xmx, &emulation};
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i]->name, name) == 0) {
            *unit = *known[i];
            return 1;
        }
    }
    error_set("the device has no matrix units");
    return 0;
}

size_t mma_units_find(const struct device *device, struct mma_unit units[MMA_MOST_UNITS]) {
    if (!device->is_gpu) {
        error_set("%s is no GPU: it has no matrix units that hctrain knows", device->name);
        return 0;
    }
    if (device->model) {
        return find_by_name(device->model->unit, units);
    }
    if (has(device, CL_DEVICE_VENDOR, "NVIDIA")) {
        return find_nvidia(device, units);
    }
    if (has(device, CL_DEVICE_EXTENSIONS, "cl_intel_subgroup_matrix_multiply_accumulate")) {
        return find_intel(device, units);
    }
    if (has(device, CL_DEVICE_VENDOR, "Advanced Micro Devices") || has(device, CL_DEVICE_VENDOR, "AMD")) {
        units[0] = wmma;
        units[1] = mfma;
        return 2;
    }
    error_set("hctrain knows no matrix units of this device");
    return 0;
}

/* ---- what is allowed */

size_t mma_tiles_warps(const struct mma_tiles *tiles) {
    return tiles->block_m / tiles->warp_m * (tiles->block_n / tiles->warp_n);
}

static bool is_edge(size_t value, size_t multiple) {
    return value >= 16 && value <= EDGE_LIMIT && (value & (value - 1)) == 0 && value % multiple == 0;
}

static bool divides(size_t part, size_t unit, size_t block) {
    return part && part % unit == 0 && block % part == 0;
}

bool mma_tiles_allowed(const struct mma_tiles *tiles, const struct mma_unit *unit, const struct device *device) {
    const struct mma_tiles *x = tiles;
    if (!is_edge(x->block_m, unit->m) || !is_edge(x->block_n, unit->n) || !is_edge(x->block_k, unit->k) ||
        !divides(x->warp_m, unit->m, x->block_m) || !divides(x->warp_n, unit->n, x->block_n) || x->stages < 2 ||
        x->stages > unit->most_stages) {
        return false;
    }
    const size_t warps = mma_tiles_warps(x), items = warps * unit->warp;
    const size_t tiles_bytes = x->stages * (x->block_m + x->block_n) * x->block_k * 2;
    const size_t strips_bytes = warps * unit->m * x->warp_n * sizeof(float); /* sums on their way to C */
    const size_t local = (strips_bytes > tiles_bytes ? strips_bytes : tiles_bytes) + warps * unit->scratch_bytes;
    /* each work-item copies the same number of chunks of either tile */
    return x->block_m * x->block_k / CHUNK % items == 0 && x->block_n * x->block_k / CHUNK % items == 0 &&
           x->warp_m * x->warp_n / unit->warp <= unit->most_sums && items <= device->max_work_group &&
           items <= unit->most_items && local <= device->local_bytes;
}

/* In the order of preference. Those with more warps are for units that have few lanes, or many. */
static const struct mma_tiles preferred[] = {
    /* large */
    {128, 128, 32, 64, 32, 3},
    {128, 128, 32, 64, 32, 2},
    {128, 128, 32, 64, 64, 2},
    {128, 128, 32, 32, 32, 2},
    {128, 128, 32, 32, 16, 2},
    /* medium */
    {128, 64, 32, 32, 32, 3},
    {128, 64, 32, 32, 32, 2},
    {128, 64, 32, 64, 32, 2},
    {128, 64, 32, 32, 16, 2},
    /* small */
    {64, 64, 32, 32, 32, 4},
    {64, 64, 32, 32, 32, 3},
    {64, 64, 32, 32, 32, 2},
    {64, 64, 32, 16, 32, 2},
    {32, 32, 32, 16, 16, 2},
    /* narrow */
    {128, 32, 32, 32, 32, 4},
    {128, 32, 32, 32, 32, 2},
    {128, 32, 32, 64, 32, 2},
    {128, 32, 32, 16, 32, 2},
    /* flat */
    {32, 128, 32, 32, 32, 4},
    {32, 128, 32, 32, 32, 2},
    {32, 128, 32, 32, 64, 2},
    {32, 128, 32, 32, 16, 2},
};
static const struct range {
    size_t first, end;
} ranges[MMA_SHAPES] = {{0, 14}, {5, 14}, {9, 14}, {14, 18}, {18, 22}}; /* for a large one a small one will do */

/* Emulations are slow. Two fragments of A per warp, so that they can be confused. */
static const struct mma_tiles emulated = {32, 32, 16, 32, 16, 2};

int mma_tiles_default(const struct mma_unit *unit, const struct device *device, enum mma_shape shape,
                      struct mma_tiles *tiles) {
    const bool real = unit->kind != MMA_EMULATION;
    const struct mma_tiles *list = real ? preferred : &emulated;
    const struct range range = real ? ranges[shape] : (struct range){0, 1};
    for (size_t i = range.first; i < range.end; i++) {
        if (mma_tiles_allowed(&list[i], unit, device)) {
            *tiles = list[i];
            return 0;
        }
    }
    if (real && (shape == MMA_NARROW || shape == MMA_FLAT)) {
        return mma_tiles_default(unit, device, MMA_SMALL, tiles);
    }
    return error_set("the device has too little local memory (%zu bytes) or too few work-items in a group (%zu)",
                     device->local_bytes, device->max_work_group);
}
