/* What the compiler of a device on Vulkan made of kernels, kept on disk beside the compiled programs. */
#pragma once

#include "runtime/device/device.h"
#include "runtime/vulkan/driver.h"

/* Those kept for the device in a folder of program_cache.h, {NULL, 0} where there are none, where the folder is NULL and
 * for devices that are not on Vulkan. The caller frees the data. */
struct vulkan_pipelines vulkan_pipelines_read(const struct device *device, const char *folder);

/* Keeps those of a context, which may be NULL, where they are not as many bytes as were read. A failure means no more
 * than compiling again. */
void vulkan_pipelines_write(const struct device *device, const char *folder, cl_context context, size_t read);
