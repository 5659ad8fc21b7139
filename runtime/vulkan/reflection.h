/* Kernels and arguments of a SPIR-V module, as clspv describes them in it by NonSemantic.ClspvReflection
 * instructions. */
#pragma once

#include "runtime/vulkan/objects.h"

/* Reads a module that may be anything, such as a damaged file. -1 with *problem, a constant text, where it is no
 * module, or one that needs what is not known here. Freed with vulkan_module_release. */
int vulkan_reflect(const uint32_t *words, size_t bytes, struct module *module, const char **problem);
void vulkan_module_release(struct module *module);

/* What clspv's modules use, with NULL behind the last name. Nothing else is enabled, since some features cost
 * speed. */
extern const struct module_feature {
    uint32_t capability; /* of a module that needs the feature; 0: every module does */
    size_t offset;       /* in struct device_features */
    const char *name;
} vulkan_features[];

/* NULL where the device has what the module needs, else what it lacks. The module is one that vulkan_reflect has
 * read. */
const char *vulkan_missing(const uint32_t *words, size_t bytes, const struct device_features *features);
