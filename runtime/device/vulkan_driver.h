/* Our own OpenCL driver for devices that have Vulkan (runtime/vulkan), found without OpenCL's loader. */
#pragma once

#include "runtime/vulkan/driver.h"
#include <CL/cl.h>

/* The driver's platform, NULL where there is none; vulkan_driver_problem() then says why. The first call looks for
 * the library beside this program and where it is installed, and loads it for good. OpenCL's loader passes calls on
 * its objects to it, but does not know the platform: so contexts are created without naming the platform. */
cl_platform_id vulkan_driver_platform(void);

/* Why there are no devices on Vulkan, or not all, and what to do; NULL: there is no problem. */
const char *vulkan_driver_problem(void);
