/* Buffers: each with memory of its own, the device's unless the host is to see it. */
#pragma once

#include "runtime/vulkan/objects.h"

/* *created is NULL on failure. With CL_MEM_ALLOC_HOST_PTR the host sees it. It does not keep the context. */
cl_int vulkan_memory_create(cl_context context, cl_mem_flags flags, size_t bytes, cl_mem *created);

/* Frees what no command uses any more; NULL is nothing. */
void vulkan_memory_destroy(cl_mem memory);

/* The buffer that has these bytes of the host, NULL where it is ordinary memory. *offset: where in it. */
cl_mem vulkan_memory_of(cl_context context, const void *host, size_t bytes, size_t *offset);
