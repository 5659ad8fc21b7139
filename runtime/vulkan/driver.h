/* What the programs know of this driver besides OpenCL's calls, and how clspv is called: by the driver, and by
 * ci/portability.py through tests/programs/list_programs.c. */
#pragma once

#define VULKAN_PLATFORM "hctrain Vulkan"

/* Level 1 of optimisation, since clspv's default compiles kernels in fp16 wrongly. */
#define VULKAN_COMPILER_OPTIONS     "-O1", "--spv-version=1.5", "--cluster-pod-kernel-args", "-w"
#define VULKAN_PUSH_CONSTANT_OPTION "--max-pushconstant-size=%u" /* bytes */
#define VULKAN_LEAST_PUSH_CONSTANTS 128U                         /* that every device has */

/* Stores of 16 bits round to nearest even, on devices with this option. */
#define VULKAN_ROUNDING_OPTION "--rounding-mode-rte=16"

/* Kernels get buffers as addresses of 64 bits. The last option is for cl/workarounds.cl. */
#define VULKAN_ADDRESS_OPTIONS "--arch=spir64", "--physical-storage-buffers", "-DCLSPV_ADDRESSES"

/* A part of the key of cached programs: change it with any other option here. */
#define VULKAN_OPTIONS_REVISION "1"

/* A launch of more groups than a device takes is divided into several with offsets. With this text before the
 * kernels' they get the numbers of groups in the whole launch. A group's size divides the offset. */
#define VULKAN_OFFSET_OPTION "--global-offset-push-constant"
#define VULKAN_OFFSET_PREAMBLE                                                                                     \
    "#define get_group_id(d) (get_group_id(d) + get_global_offset(d) / get_local_size(d))\n"
