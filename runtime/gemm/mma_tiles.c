#include "runtime/gemm/mma_tiles.h"
#include "runtime/device/gpu_model.h"
#include "runtime/system/error.h"
#include <string.h>

#define EDGE_LIMIT 256 /* of blocks */
#define CHUNK      8   /* elements that are copied at once */
/* Sums of a work-item. There are 255 registers at most on NVIDIA and 256 on AMD; on Intel 256 of the sub-group's
 * width, and operands are as large as the sums. */
#define MOST_SUMS        128
#define MOST_SUMS_INTEL  64
#define MOST_ITEMS       1024
#define MOST_ITEMS_AMD   256 /* with more, a work-item has but a part of the registers */
#define MOST_ITEMS_INTEL 512 /* of a core's threads half run at a time when each has 256 registers */

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
/* The same instructions in name only: half of an operand a lane. */
static const struct mma_unit wmma_gfx12 = {.kind = MMA_AMD_WMMA_GFX12,
                                           .name = "WMMA",
                                           .warp = 32,
                                           .m = 16,
                                           .n = 16,
                                           .k = 16,
                                           .most_stages = 2,
                                           .most_sums = MOST_SUMS,
                                           .most_items = MOST_ITEMS_AMD,
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
/* Its bf16 comes in steps of 8 along k, two of which make one of ours. */
static const struct mma_unit mfma_gfx908 = {.kind = MMA_AMD_MFMA_GFX908,
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
                                    .most_items = MOST_ITEMS_INTEL,
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

/* bf16, ldmatrix and cp.async are all there from compute capability 8.0 on. */
static int find_nvidia(const struct device *device, struct mma_unit *unit) {
    const unsigned capability = device->compute_capability;
    *unit = nvidia;
    unit->bounds_registers = device->has_nvidia_options;
    return capability >= 80
               ? 0
               : error_set("the device has compute capability %u.%u, and matrix units for bf16 come with 8.0",
                           capability / 10, capability % 10);
}

/* Intel's units work in sub-groups of one size, the smallest that the device has. */
static int find_intel(const struct device *device, struct mma_unit *unit) {
    *unit = xmx;
    unit->warp = unit->n = device->sub_group;
    return device->sub_group == 8 || device->sub_group == 16
               ? 0
               : error_set("the device has no sub-groups of 8 or 16, in which Intel's matrix units work");
}

/* AMD's own driver calls a device by its architecture, with features behind a colon. Its compiler works inside of this
 * process and ends it over an instruction that the architecture lacks, so nothing may be tried: what is not in this
 * table has no units. */
static int find_amd(const struct device *device, struct mma_unit *unit) {
    static const struct {
        const char *architecture;
        const struct mma_unit *unit;
    } known[] = {
        {"gfx908", &mfma_gfx908}, {"gfx90a", &mfma},        {"gfx942", &mfma},  {"gfx950", &mfma},
        {"gfx1100", &wmma},       {"gfx1101", &wmma},       {"gfx1102", &wmma}, {"gfx1103", &wmma},
        {"gfx1150", &wmma},       {"gfx1151", &wmma},       {"gfx1152", &wmma}, {"gfx1153", &wmma},
        {"gfx1200", &wmma_gfx12}, {"gfx1201", &wmma_gfx12},
    };
    const size_t length = strcspn(device->name, ":");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].architecture) == length && strncmp(known[i].architecture, device->name, length) == 0) {
            *unit = *known[i].unit;
            return 0;
        }
    }
    return error_set("hctrain knows no matrix units of AMD's %s", device->name);
}

/* Those of a device that is only known by its data. */
static int find_by_name(const char *name, struct mma_unit *unit) {
    static const struct mma_unit *const known[] = {&nvidia, &wmma, &mfma, &xmx, &emulation};
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i]->name, name) == 0) {
            *unit = *known[i];
            return 0;
        }
    }
    return error_set("the device has no matrix units");
}

/* Other drivers for the same GPUs (Mesa's rusticl, those on Vulkan) name the same vendors, but their compilers lack the
 * instructions. They answer none of the vendors' questions. */
int mma_unit_find(const struct device *device, struct mma_unit *unit) {
    if (!device->is_gpu) {
        return error_set("%s is no GPU: it has no matrix units that hctrain knows", device->name);
    }
    if (device->model) {
        return find_by_name(device->model->matrix_cores, unit);
    }
    if (device->compute_capability) {
        return find_nvidia(device, unit);
    }
    if (device->has_intel_matrix) {
        return find_intel(device, unit);
    }
    if (strcmp(device->platform_name, "AMD Accelerated Parallel Processing") == 0) {
        return find_amd(device, unit);
    }
    return error_set("hctrain knows no matrix units of %s by the driver '%s': it uses them by NVIDIA's, AMD's and "
                     "Intel's own",
                     device->name, device->platform_name);
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
