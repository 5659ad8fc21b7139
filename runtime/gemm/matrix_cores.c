#include "runtime/gemm/matrix_cores.h"
#include "runtime/device/gpu_model.h"
#include "runtime/system/error.h"
#include <stdio.h>
#include <string.h>

/* ---- what there is */

/* Blocks as each kind bears them: 128 sums in fp32 for each work-item at most (64 on Intel, whose operands are as
 * large as the sums), 256 work-items of a group on AMD (more have but a part of the registers), two stages where
 * copies do not go on beside the computation. All need at most 48 KiB of local memory. In the order of enum
 * mma_shape. */
static const struct mma_tiles nvidia[] = {{128, 128, 32, 64, 32, 3},
                                          {128, 64, 32, 32, 32, 3},
                                          {64, 64, 32, 32, 32, 4},
                                          {128, 32, 32, 32, 32, 4},
                                          {32, 128, 32, 32, 32, 4}};
static const struct mma_tiles wmma[] = {{128, 128, 32, 64, 32, 2},
                                        {128, 64, 32, 32, 32, 2},
                                        {64, 64, 32, 32, 32, 2},
                                        {128, 32, 32, 32, 32, 2},
                                        {32, 128, 32, 32, 32, 2}};
static const struct mma_tiles mfma[] = {{128, 128, 32, 64, 64, 2},
                                        {128, 64, 32, 64, 32, 2},
                                        {64, 64, 32, 32, 32, 2},
                                        {128, 32, 32, 64, 32, 2},
                                        {32, 128, 32, 32, 64, 2}};
static const struct mma_tiles intel_8[] = {{128, 128, 32, 32, 16, 2},
                                           {128, 64, 32, 32, 16, 2},
                                           {64, 64, 32, 16, 16, 2},
                                           {128, 32, 32, 16, 16, 2},
                                           {32, 128, 32, 16, 16, 2}};
static const struct mma_tiles intel_16[] = {{128, 128, 32, 32, 32, 2},
                                            {128, 64, 32, 32, 32, 2},
                                            {64, 64, 32, 32, 32, 2},
                                            {128, 32, 32, 16, 32, 2},
                                            {32, 128, 32, 16, 32, 2}};
/* The emulation is slow. Two fragments of A per warp, so that tests see it when they are confused. */
#define EMULATED {32, 32, 16, 32, 16, 2}
static const struct mma_tiles emulated[] = {EMULATED, EMULATED, EMULATED, EMULATED, EMULATED};

#define FILE_OF(name) "matrix_cores_" name ".cl"
#define AMD(kind, name, file, tiles, warp, wide)                                                                   \
    {MATRIX_CORES_AMD_##kind, name, FILE_OF(file), tiles, warp, 16, 16, 16, .wide_fragments = (wide),              \
     .transposed_load = true}
#define INTEL(tiles, warp)                                                                                         \
    {MATRIX_CORES_INTEL, "XMX", FILE_OF("intel"), tiles, warp, warp, 8, 16, .transposed_load = true}

static const struct matrix_cores all[] = {
    {MATRIX_CORES_NVIDIA, "mma.sync", FILE_OF("nvidia"), nvidia, 32, 16, 16, 16, .limits_registers = true},
    AMD(WMMA, "WMMA", "amd_wmma", wmma, 32, true),
    AMD(WMMA_GFX12, "WMMA", "amd_wmma_gfx12", wmma, 32, false), /* a lane has half of an operand */
    AMD(MFMA, "MFMA", "amd_mfma_16", mfma, 64, false),
    AMD(MFMA_GFX908, "MFMA", "amd_mfma_8", mfma, 64, false),
    INTEL(intel_8, 8),
    INTEL(intel_16, 16),
    {MATRIX_CORES_EMULATED, "an emulation for tests", FILE_OF("emulated"), emulated, 32, 16, 16, 16,
     .scratch_bytes = 1024},
};

struct matrix_cores matrix_cores_emulated(void) {
    return all[COUNT(all) - 1];
}

/* Those of a kind, with this size of warps; 0: any. */
static struct matrix_cores take(enum matrix_cores_kind kind, unsigned warp) {
    size_t i = 0;
    while (all[i].kind != kind || (warp && all[i].warp != warp)) {
        i++;
    }
    return all[i];
}

/* ---- what a device has */

/* AMD's own driver calls a device by its architecture, with features behind a colon. Its compiler works inside of
 * this process and ends it over an instruction that the architecture lacks, so nothing may be tried: what is not in
 * this table has no matrix cores. */
static int find_amd(const struct device *device, struct matrix_cores *cores) {
    static const struct {
        const char *architectures;
        enum matrix_cores_kind kind;
    } known[] = {
        {" gfx908 ", MATRIX_CORES_AMD_MFMA_GFX908},
        {" gfx90a gfx942 gfx950 ", MATRIX_CORES_AMD_MFMA},
        {" gfx1100 gfx1101 gfx1102 gfx1103 gfx1150 gfx1151 gfx1152 gfx1153 ", MATRIX_CORES_AMD_WMMA},
        {" gfx1200 gfx1201 ", MATRIX_CORES_AMD_WMMA_GFX12},
    };
    char architecture[16];
    const int length = (int)strcspn(device->name, ":");
    if (snprintf(architecture, sizeof architecture, " %.*s ", length, device->name) < (int)sizeof architecture) {
        for (size_t i = 0; length && i < COUNT(known); i++) {
            if (strstr(known[i].architectures, architecture)) {
                *cores = take(known[i].kind, 0);
                return 0;
            }
        }
    }
    return error_set("hctrain knows no matrix cores of AMD's %s", device->name);
}

/* Other drivers for the same GPUs (Mesa's rusticl, those on Vulkan) name the same vendors, but their compilers lack
 * the instructions. They answer none of the vendors' questions. */
int matrix_cores_find(const struct device *device, struct matrix_cores *cores) {
    const unsigned capability = device->compute_capability, sub_group = device->sub_group;
    if (!device->is_gpu) {
        return error_set("%s is no GPU: it has no matrix cores that hctrain knows", device->name);
    }
    if (device->model) { /* it is only known by its data sheet */
        for (size_t i = 0; device->model->matrix_cores && i < COUNT(all); i++) {
            if (strcmp(all[i].name, device->model->matrix_cores) == 0) {
                *cores = all[i];
                return 0;
            }
        }
        return error_set("the device has no matrix cores");
    }
    if (capability) {
        *cores = take(MATRIX_CORES_NVIDIA, 0);
        cores->limits_registers = device->has_nvidia_options;
        if (capability >= 80) { /* which has bf16, ldmatrix and cp.async */
            return 0;
        }
        return error_set("the device has compute capability %u.%u, and matrix cores for bf16 come with 8.0",
                         capability / 10, capability % 10);
    }
    if (device->has_intel_matrix) { /* they work in sub-groups of one size, the smallest that the device has */
        if (sub_group != 8 && sub_group != 16) {
            return error_set("the device has no sub-groups of 8 or 16, in which Intel's matrix cores work");
        }
        *cores = take(MATRIX_CORES_INTEL, sub_group);
        return 0;
    }
    if (strcmp(device->platform_name, "AMD Accelerated Parallel Processing") == 0) {
        return find_amd(device, cores);
    }
    return error_set("hctrain knows no matrix cores of %s by the driver '%s': it uses them by NVIDIA's, AMD's and "
                     "Intel's own",
                     device->name, device->platform_name);
}

/* ---- tiles */

size_t mma_tiles_warps(const struct mma_tiles *tiles) {
    return tiles->block_m / tiles->warp_m * (tiles->block_n / tiles->warp_n);
}

int matrix_cores_check_tiles(const struct matrix_cores *cores, const struct device *device) {
    for (int shape = 0; shape < MMA_SHAPES; shape++) {
        const struct mma_tiles *x = &cores->tiles[shape];
        const size_t warps = mma_tiles_warps(x);
        const size_t tiles_bytes = x->stages * (x->block_m + x->block_n) * x->block_k * 2;
        const size_t sums_bytes = warps * cores->m * x->warp_n * sizeof(float); /* on their way to C */
        const size_t local = (sums_bytes > tiles_bytes ? sums_bytes : tiles_bytes) + warps * cores->scratch_bytes;
        if (local > device->local_bytes || warps * cores->warp > device->max_work_group) {
            return error_set(
                "the device has too little local memory (%zu bytes) or too few work-items in a group (%zu)",
                device->local_bytes, device->max_work_group);
        }
    }
    return 0;
}
