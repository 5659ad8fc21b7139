#include "runtime/vulkan/device.h"
#include "runtime/vulkan/memory.h"
#include "runtime/vulkan/queue.h"
#include <stdlib.h>

static void destroy(cl_context context) {
    if (context->handle) {
        vulkan_memory_destroy(context->nothing);
        vk.DestroyPipelineCache(context->handle, context->pipelines, NULL);
        vk.DestroyDevice(context->handle, NULL);
    }
    pthread_mutex_destroy(&context->lock);
    free(context);
}

/* The value of a property, 0 where it is not in the list. */
static cl_context_properties property(const cl_context_properties *list, cl_context_properties name) {
    while (list && *list && *list != name) {
        list += 2;
    }
    return list && *list ? list[1] : 0;
}

cl_context CL_API_CALL clCreateContext(const cl_context_properties *properties, cl_uint count,
                                       const cl_device_id *devices,
                                       void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                                       void *data, cl_int *code) {
    (void)notify, (void)data;
    cl_int unused;
    code = code ? code : &unused;
    cl_context context = count == 1 && devices ? calloc(1, sizeof *context) : NULL;
    if (!context) {
        *code = count == 1 && devices ? CL_OUT_OF_HOST_MEMORY : CL_INVALID_VALUE;
        return NULL;
    }
    *context = (struct _cl_context){.dispatch = &vulkan_dispatch, .references = 1, .device = devices[0]};
    pthread_mutex_init(&context->lock, NULL);
    *code = vulkan_open_device(devices[0], (const struct vulkan_pipelines *)property(properties, VULKAN_PIPELINES),
                               context);
    if (*code == CL_SUCCESS) {
        *code = vulkan_memory_create(context, 0, 16, &context->nothing);
    }
    if (*code != CL_SUCCESS) {
        destroy(context);
        return NULL;
    }
    return context;
}

cl_int CL_API_CALL clRetainContext(cl_context context) {
    pthread_mutex_lock(&context->lock);
    context->references++;
    pthread_mutex_unlock(&context->lock);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clReleaseContext(cl_context context) {
    pthread_mutex_lock(&context->lock);
    const bool last = --context->references == 0;
    pthread_mutex_unlock(&context->lock);
    if (last) {
        destroy(context);
    }
    return CL_SUCCESS;
}

static cl_int give_pipelines(cl_context context, size_t room, void *value, size_t *got) {
    size_t bytes = value ? room : 0;
    pthread_mutex_lock(&context->lock);
    const VkResult result = vk.GetPipelineCacheData(context->handle, context->pipelines, &bytes, value);
    pthread_mutex_unlock(&context->lock);
    if (got) {
        *got = bytes;
    }
    return result == VK_INCOMPLETE ? CL_INVALID_VALUE : vulkan_code(context, result);
}

cl_int CL_API_CALL clGetContextInfo(cl_context context, cl_context_info what, size_t room, void *value,
                                    size_t *got) {
    switch (what) {
    case CL_CONTEXT_NUM_DEVICES:
        return VULKAN_GIVE(cl_uint, 1);
    case CL_CONTEXT_DEVICES:
        return VULKAN_GIVE(cl_device_id, context->device);
    case VULKAN_PIPELINES:
        return give_pipelines(context, room, value, got);
    default:
        return CL_INVALID_VALUE;
    }
}
