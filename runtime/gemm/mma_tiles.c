#include "runtime/gemm/mma_tiles.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <stdlib.h>
#include <string.h>

#define FILE_LIMIT      65536
#define EDGE_LIMIT      256 /* of blocks */
#define CHUNK           8   /* elements that are copied at once */
#define REGISTERS_LIMIT 128 /* sums of a work-item; there are 255 registers at most */
#define NAME_DIGITS     16  /* of the checksum, in the file's name */

/* Extensions' numbers, whose headers need not be there. */
#define DEVICE_COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define DEVICE_COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define DEVICE_SUB_GROUP_SIZES_INTEL       0x4108

/* ---- units */

struct mma_unit mma_unit_emulation(void) {
    return (struct mma_unit){MMA_EMULATION, 32, 16, 16, 16, 4, 1024, "an emulation for tests", false, false};
}

static bool has_extension(const struct device *device, const char *name) {
    size_t size = 0;
    if (clGetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, 0, NULL, &size) != CL_SUCCESS || !size) {
        return false;
    }
    char *text = calloc(1, size + 1);
    const bool has = text && clGetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, size, text, NULL) == CL_SUCCESS &&
                     strstr(text, name);
    free(text);
    return has;
}

static bool is_made_by(const struct device *device, const char *vendor) {
    char text[256] = "";
    return clGetDeviceInfo(device->id, CL_DEVICE_VENDOR, sizeof(text) - 1, text, NULL) == CL_SUCCESS &&
           strstr(text, vendor);
}

/* bf16, ldmatrix and cp.async are all there from compute capability 8.0 on. */
static size_t find_nvidia(const struct device *device, struct mma_unit *unit) {
    cl_uint major = 0, minor = 0;
    clGetDeviceInfo(device->id, DEVICE_COMPUTE_CAPABILITY_MAJOR_NV, sizeof(major), &major, NULL);
    clGetDeviceInfo(device->id, DEVICE_COMPUTE_CAPABILITY_MINOR_NV, sizeof(minor), &minor, NULL);
    *unit = (struct mma_unit){MMA_NVIDIA, 32,         16,
                              16,         16,         4,
                              0,          "mma.sync", has_extension(device, "cl_nv_compiler_options"),
                              false};
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
    *unit = (struct mma_unit){MMA_INTEL, (unsigned)smallest, 8, (unsigned)smallest, 16, 2, 0, "XMX", false, false};
    if (smallest == 8 || smallest == 16) {
        return 1;
    }
    error_set("the device has no sub-groups of 8 or 16, in which Intel's matrix units work");
    return 0;
}

size_t mma_units_find(const struct device *device, struct mma_unit units[MMA_MOST_UNITS]) {
    if (!device->is_gpu) {
        error_set("%s is no GPU: it has no matrix units that hctrain knows", device->name);
        return 0;
    }
    if (is_made_by(device, "NVIDIA")) {
        return find_nvidia(device, units);
    }
    if (has_extension(device, "cl_intel_subgroup_matrix_multiply_accumulate")) {
        return find_intel(device, units);
    }
    if (is_made_by(device, "Advanced Micro Devices") || is_made_by(device, "AMD")) {
        units[0] = (struct mma_unit){MMA_AMD_WMMA, 32, 16, 16, 16, 2, 0, "WMMA", false, true};
        units[1] = (struct mma_unit){MMA_AMD_MFMA, 64, 16, 16, 16, 2, 0, "MFMA", false, false};
        return 2;
    }
    error_set("hctrain knows no matrix units of this device");
    return 0;
}

/* ---- what is allowed */

struct mma_limits mma_limits_of(const struct device *device) {
    return (struct mma_limits){device->local_bytes, device->max_work_group};
}

unsigned mma_tiles_warps(const struct mma_tiles *tiles) {
    return tiles->block_m / tiles->warp_m * (tiles->block_n / tiles->warp_n);
}

static bool is_edge(unsigned value, unsigned multiple) {
    return value >= 16 && value <= EDGE_LIMIT && (value & (value - 1)) == 0 && value % multiple == 0;
}

static bool divides(unsigned part, unsigned unit, unsigned block) {
    return part && part % unit == 0 && block % part == 0;
}

bool mma_tiles_allowed(const struct mma_tiles *tiles, const struct mma_unit *unit, struct mma_limits limits) {
    const struct mma_tiles *x = tiles;
    if (!is_edge(x->block_m, unit->m) || !is_edge(x->block_n, unit->n) || !is_edge(x->block_k, unit->k) ||
        !divides(x->warp_m, unit->m, x->block_m) || !divides(x->warp_n, unit->n, x->block_n) || x->stages < 2 ||
        x->stages > unit->most_stages) {
        return false;
    }
    const size_t warps = mma_tiles_warps(x), items = warps * unit->warp;
    const size_t local =
        (size_t)x->stages * (x->block_m + x->block_n) * x->block_k * 2 + warps * unit->scratch_bytes;
    /* each work-item copies the same number of chunks of either tile */
    return x->block_m * x->block_k / CHUNK % items == 0 && x->block_n * x->block_k / CHUNK % items == 0 &&
           x->warp_m * x->warp_n / unit->warp <= REGISTERS_LIMIT && items <= limits.work_items &&
           local <= limits.local_bytes;
}

/* In the order of preference. */
static const struct mma_tiles large_tiles[] = {
    {128, 128, 32, 64, 32, 3}, {128, 128, 32, 64, 32, 2}, {128, 128, 32, 64, 64, 2}, {128, 128, 32, 32, 32, 2},
    {64, 64, 32, 32, 32, 2},   {64, 64, 32, 16, 32, 2},   {32, 32, 32, 16, 16, 2},
};
static const struct mma_tiles small_tiles[] = {
    {64, 64, 32, 32, 32, 4}, {64, 64, 32, 32, 32, 3}, {64, 64, 32, 32, 32, 2},
    {64, 64, 32, 16, 32, 2}, {32, 32, 32, 16, 16, 2},
};
/* Emulations are slow. Two fragments of A per warp, so that they can be confused. */
static const struct mma_tiles emulated_tiles[] = {{32, 32, 16, 32, 16, 2}};

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

int mma_tiles_default(const struct mma_unit *unit, struct mma_limits limits, bool small, struct mma_tiles *tiles) {
    const bool emulated = unit->kind == MMA_EMULATION;
    const struct mma_tiles *list = emulated ? emulated_tiles : small ? small_tiles : large_tiles;
    const size_t count = emulated ? COUNT(emulated_tiles) : small ? COUNT(small_tiles) : COUNT(large_tiles);
    for (size_t i = 0; i < count; i++) {
        if (mma_tiles_allowed(&list[i], unit, limits)) {
            *tiles = list[i];
            return 0;
        }
    }
    return error_set("the device has too little local memory (%zu bytes) or too few work-items in a group (%zu)",
                     limits.local_bytes, limits.work_items);
}

/* ---- the file */

char *mma_tiles_path(const char *folder, const struct device *device, const struct mma_unit *unit) {
    const char *const parts[] = {device->name, device->platform_name, device->version, device->driver, unit->name};
    char digest[CHECKSUM_SIZE];
    if (checksum_strings(parts, COUNT(parts), digest)) {
        return NULL;
    }
    return files_path("%s/mma-%.*s.json", folder, NAME_DIGITS, digest);
}

static bool take_size(const json_t *json, const char *name, unsigned *value) {
    const json_t *item = json_object_get(json, name);
    const json_int_t number = json_integer_value(item);
    *value = (unsigned)number;
    return json_is_integer(item) && number >= 0 && number <= EDGE_LIMIT;
}

static bool take_tiles(const json_t *json, struct mma_tiles *tiles) {
    return take_size(json, "block_m", &tiles->block_m) && take_size(json, "block_n", &tiles->block_n) &&
           take_size(json, "block_k", &tiles->block_k) && take_size(json, "warp_m", &tiles->warp_m) &&
           take_size(json, "warp_n", &tiles->warp_n) && take_size(json, "stages", &tiles->stages);
}

int mma_tiles_read(const char *path, const struct device *device, const struct mma_unit *unit,
                   struct mma_tiles *tiles, bool *found) {
    json_t *json = NULL;
    *found = files_exist(path);
    if (!*found) {
        return 0;
    }
    int status = json_file_read(path, FILE_LIMIT, &json);
    if (status == 0 && (!take_tiles(json, tiles) || !mma_tiles_allowed(tiles, unit, mma_limits_of(device)))) {
        status = error_set("%s: these are no tiles for %s of %s", path, unit->name, device->name);
    }
    json_decref(json);
    if (status == 0) {
        return 0;
    }
    return error_set("%s; remove the file, or write a new one by hc_bench --tune --gemm mma", error_text());
}

int mma_tiles_write(const char *path, const struct device *device, const struct mma_tiles *tiles) {
    char *folder = strndup(path, (size_t)(strrchr(path, '/') - path));
    int status = folder ? files_make_folder(folder) : error_set("out of memory");
    free(folder);
    json_t *json =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i}", "device", device->name, "driver", device->driver,
                  "block_m", (int)tiles->block_m, "block_n", (int)tiles->block_n, "block_k", (int)tiles->block_k,
                  "warp_m", (int)tiles->warp_m, "warp_n", (int)tiles->warp_n, "stages", (int)tiles->stages);
    status = status || json_file_write(path, json, JSON_INDENT(1)) ? -1 : 0;
    json_decref(json);
    return status;
}
