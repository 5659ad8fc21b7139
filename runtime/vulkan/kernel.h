/* Kernels: their arguments, and a pipeline for each size of work-groups. */
#pragma once

#include "runtime/vulkan/objects.h"

/* The kernel's pipeline for such work-groups, made when it is new. */
cl_int vulkan_pipeline(cl_kernel kernel, const uint32_t local[3], VkPipeline *pipeline);

/* Where the value of an argument that is pushed or plain stands until the launch. */
unsigned char *vulkan_argument(cl_kernel kernel, const struct argument *argument);
