/* What OpenCL asks of buffers. */
#include "runtime/vulkan/memory.h"
#include "runtime/vulkan/queue.h"

cl_mem CL_API_CALL clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    cl_int unused;
    cl_mem memory = NULL;
    code = code ? code : &unused;
    if (host || (flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR))) {
        *code = CL_INVALID_HOST_PTR; /* nothing here lends memory */
        return NULL;
    }
    if (!bytes || bytes > context->device->largest_buffer) {
        *code = CL_INVALID_BUFFER_SIZE;
        return NULL;
    }
    pthread_mutex_lock(&context->lock);
    *code = vulkan_memory_create(context, flags, bytes, &memory);
    context->references += memory != NULL;
    pthread_mutex_unlock(&context->lock);
    return memory;
}

cl_int CL_API_CALL clRetainMemObject(cl_mem memory) {
    pthread_mutex_lock(&memory->context->lock);
    memory->references++;
    pthread_mutex_unlock(&memory->context->lock);
    return CL_SUCCESS;
}

/* Commands may still use it, so the last release waits for them: programs release at their ends. A lost device uses
 * nothing any more. */
cl_int CL_API_CALL clReleaseMemObject(cl_mem memory) {
    cl_context context = memory->context;
    pthread_mutex_lock(&context->lock);
    const bool last = --memory->references == 0;
    if (last) {
        vulkan_settle(context);
        vulkan_memory_destroy(memory);
    }
    pthread_mutex_unlock(&context->lock);
    return last ? clReleaseContext(context) : CL_SUCCESS;
}

cl_int CL_API_CALL clGetMemObjectInfo(cl_mem memory, cl_mem_info what, size_t room, void *value, size_t *got) {
    switch (what) {
    case CL_MEM_TYPE:
        return VULKAN_GIVE(cl_mem_object_type, CL_MEM_OBJECT_BUFFER);
    case CL_MEM_FLAGS:
        return VULKAN_GIVE(cl_mem_flags, memory->flags);
    case CL_MEM_SIZE:
        return VULKAN_GIVE(size_t, memory->bytes);
    case CL_MEM_CONTEXT:
        return VULKAN_GIVE(cl_context, memory->context);
    default:
        return CL_INVALID_VALUE;
    }
}
