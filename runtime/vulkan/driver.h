/* What the programs know of this driver besides OpenCL's own calls. */
#pragma once

#include <stddef.h>

#define VULKAN_PLATFORM "hctrain Vulkan"

/* What the device's own compiler made of kernels (VkPipelineCache), for the next process: as a property of
 * clCreateContext the value points to a struct vulkan_pipelines, which is used where it is this device's and this
 * driver's; clGetContextInfo gives the same bytes as they are now. */
#define VULKAN_PIPELINES 0x48435650

struct vulkan_pipelines {
    const void *data;
    size_t bytes;
};
