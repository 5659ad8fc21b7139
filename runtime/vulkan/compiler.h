/* clspv, the compiler of OpenCL C to SPIR-V for Vulkan: a program on PATH, or the library of PyPI's pyclspv, which
 * Python calls. */
#pragma once

#include "runtime/system/embedded_text.h"
#include "runtime/vulkan/objects.h"

/* The scripts of this folder: clspv.py. */
extern const struct embedded_text vulkan_scripts[];

/* Whether there is a compiler. The first call looks for it. */
bool vulkan_has_compiler(void);

/* Compiles text with OpenCL's build options for the device. *words [*bytes / 4] is NULL where that fails; *log says
 * why, or is what the compiler printed, or NULL. The caller frees both. Needs no lock. CL_SUCCESS,
 * CL_COMPILER_NOT_AVAILABLE where there is no compiler, or CL_BUILD_PROGRAM_FAILURE. */
cl_int vulkan_compile(cl_device_id device, const char *text, const char *options, uint32_t **words, size_t *bytes,
                      char **log);
