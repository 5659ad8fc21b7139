#include "runtime/device/vulkan_pipelines.h"
#include "runtime/device/program_cache.h"
#include <stdlib.h>
#include <string.h>

/* One entry for a device and its driver. */
static bool name_entry(const struct device *device, const char *folder, char key[CHECKSUM_SIZE]) {
    const char *const parts[] = {"pipelines", device->name, device->version, device->driver};
    return folder && !strcmp(device->platform_name, VULKAN_PLATFORM) &&
           checksum_strings(parts, sizeof parts / sizeof *parts, key) == 0;
}

struct vulkan_pipelines vulkan_pipelines_read(const struct device *device, const char *folder) {
    char key[CHECKSUM_SIZE];
    unsigned char *data = NULL;
    size_t bytes = 0;
    if (!name_entry(device, folder, key) || !program_cache_read(folder, key, &data, &bytes)) {
        return (struct vulkan_pipelines){NULL, 0};
    }
    return (struct vulkan_pipelines){data, bytes};
}

void vulkan_pipelines_write(const struct device *device, const char *folder, cl_context context, size_t read) {
    char key[CHECKSUM_SIZE];
    size_t bytes = 0;
    if (!context || !name_entry(device, folder, key) ||
        clGetContextInfo(context, VULKAN_PIPELINES, 0, NULL, &bytes) != CL_SUCCESS || bytes == read) {
        return;
    }
    void *data = malloc(bytes);
    if (data && clGetContextInfo(context, VULKAN_PIPELINES, bytes, data, NULL) == CL_SUCCESS) {
        program_cache_write(folder, key, data, bytes);
    }
    free(data);
}
