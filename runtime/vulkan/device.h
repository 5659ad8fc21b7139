/* The devices that Vulkan offers. */
#pragma once

#include "runtime/vulkan/objects.h"

enum { VULKAN_MOST_DEVICES = 32 };

/* All that can run kernels: Vulkan 1.2 with 64-bit integers. They live as long as the process. Sets their number,
 * which is 0 without Vulkan. Needs no lock. */
struct _cl_device_id *vulkan_devices(unsigned *count);

/* Why there is no device, or which one was left out and why, and what to do; NULL: there is no problem. */
const char *vulkan_problem(void);

/* Opens the device with a queue for the context. context->handle is NULL on failure. Needs no lock. */
cl_int vulkan_open_device(cl_device_id device, cl_context context);
