/* clspv, the compiler of OpenCL C to SPIR-V for Vulkan: a program of its own on PATH, or the one of Python's pyclspv. */
#pragma once

#include "runtime/vulkan/objects.h"

/* Compiles text with OpenCL's build options for the device. *words [*bytes / 4] is NULL where that fails; *log says why, or
 * is what the compiler said, or NULL. The caller frees both. Needs no lock. CL_SUCCESS, CL_COMPILER_NOT_AVAILABLE where
 * there is no compiler, or CL_BUILD_PROGRAM_FAILURE. */
cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log);
