/* Our own OpenCL driver for devices that have Vulkan (runtime/vulkan), found without OpenCL's loader. */
#pragma once

#include "runtime/vulkan/driver.h"
#include <CL/cl.h>

/* The driver's platform, NULL where there is none; vulkan_driver_problem() then says why. The library is looked for
 * beside this program and where it is installed, is loaded by the first call, and stays loaded. OpenCL's loader passes
 * all calls on its objects on to it, but does not know the platform: so a context is made without naming that. */
cl_platform_id vulkan_driver_platform(void);

/* Why there are no devices on Vulkan, or not all, and what to do; NULL where there is nothing to say. */
const char *vulkan_driver_problem(void);
