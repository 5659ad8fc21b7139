/* Buffers: each has memory of its own, the device's unless the host is to see it. */
#pragma once

#include "runtime/vulkan/objects.h"

/* *created is NULL on failure. With CL_MEM_ALLOC_HOST_PTR the host sees the buffer. It does not keep the
 * context. */
cl_int vulkan_buffer_create(cl_context context, cl_mem_flags flags, size_t bytes, cl_mem *created);

/* Frees a buffer that no command uses any more. NULL is allowed. */
void vulkan_buffer_destroy(cl_mem memory);

/* The buffer that has these bytes of the host, at *offset of it; NULL where they are ordinary memory. */
cl_mem vulkan_buffer_at(cl_context context, const void *host, size_t bytes, size_t *offset);
