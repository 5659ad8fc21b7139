/* What the programs know of this driver besides OpenCL's calls. */
#pragma once

#define VULKAN_PLATFORM "hctrain Vulkan"
