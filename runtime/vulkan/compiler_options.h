/* How clspv is called: by the driver, and by ci/portability.py, which tests/programs/list_programs.c tells. */
#pragma once

/* Level 1 of optimisation since kernels in fp16 come out wrong at clspv's default. */
#define VULKAN_COMPILER_OPTIONS     "-O1", "--spv-version=1.5", "--cluster-pod-kernel-args", "-w"
#define VULKAN_PUSH_CONSTANT_OPTION "--max-pushconstant-size=%u" /* bytes */
#define VULKAN_LEAST_PUSH_CONSTANTS 128U                         /* that every device has */

/* Stores of 16 bits round to nearest even where the device can be told so; else as its driver likes. */
#define VULKAN_ROUNDING_OPTION "--rounding-mode-rte=16"

/* Where kernels get buffers as addresses of 64 bits. The last is for cl/common.cl. */
#define VULKAN_ADDRESS_OPTIONS "--arch=spir64", "--physical-storage-buffers", "-DCLSPV_ADDRESSES"

/* To be changed with whatever above or below changes what clspv makes of a program: a part of what cached programs are known
 * by. */
#define VULKAN_OPTIONS_REVISION "1"

/* A launch of more groups than a device takes is several, which begin at offsets. Kernels that ask for the number of
 * their group get that of the whole, by this before the text. A group's size divides the offset. */
#define VULKAN_OFFSET_OPTION "--global-offset-push-constant"
#define VULKAN_OFFSET_PREAMBLE                                                                                     \
    "#define get_group_id(d) (get_group_id(d) + get_global_offset(d) / get_local_size(d))\n"
