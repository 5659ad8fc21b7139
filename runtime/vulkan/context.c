/* Contexts, and what is reported to their owners. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors */

static const struct result {
    VkResult result;
    cl_int code;
    const char *name;
} results[] = {
#define RESULT(name, code) {name, code, #name}
    RESULT(VK_ERROR_OUT_OF_HOST_MEMORY, CL_OUT_OF_HOST_MEMORY),
    RESULT(VK_ERROR_OUT_OF_DEVICE_MEMORY, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_OUT_OF_POOL_MEMORY, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_FRAGMENTED_POOL, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_FRAGMENTATION, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_TOO_MANY_OBJECTS, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_MEMORY_MAP_FAILED, CL_OUT_OF_HOST_MEMORY),
    RESULT(VK_ERROR_DEVICE_LOST, CL_DEVICE_NOT_AVAILABLE),
    RESULT(VK_ERROR_INITIALIZATION_FAILED, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_EXTENSION_NOT_PRESENT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_FEATURE_NOT_PRESENT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_INVALID_SHADER_NV, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_UNKNOWN, CL_INVALID_OPERATION),
#undef RESULT
};

static const struct result *find(VkResult result) {
    static const struct result unknown = {VK_ERROR_UNKNOWN, CL_INVALID_OPERATION,
                                          "an error that is not known here"};
    for (size_t i = 0; i < COUNT(results); i++) {
        if (results[i].result == result) {
            return &results[i];
        }
    }
    return &unknown;
}

const char *vulkan_result_name(VkResult result) {
    return find(result)->name;
}

cl_int vulkan_report(cl_context context, cl_int code, const char *words) {
    if (context->notify) {
        context->notify(words, &code, sizeof code, context->notified);
    }
    return code;
}

cl_int vulkan_failed(cl_context context, VkResult result, const char *format, ...) {
    char what[256], words[400];
    if (!result) {
        return CL_SUCCESS;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const cl_int code = find(result)->code;
    context->lost |= result == VK_ERROR_DEVICE_LOST;
    snprintf(words, sizeof words, "%s: %s (%d)%s", what, vulkan_result_name(result), (int)result,
             code == CL_INVALID_OPERATION ? "; another version of the device's driver for Vulkan may do it" : "");
    return vulkan_report(context, code, words);
}

/* ---- contexts */

static void destroy(cl_context context) {
    if (context->handle) {
        vulkan_buffer_destroy(context->nothing);
        vkDestroyDevice(context->handle, NULL);
    }
    pthread_mutex_destroy(&context->lock);
    free(context);
}

cl_context CL_API_CALL vulkan_clCreateContext(const cl_context_properties *properties, cl_uint count,
                                              const cl_device_id *devices,
                                              void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
                                              void *data, cl_int *code) {
    (void)properties, (void)count;
    const cl_device_id device = devices[0];
    const float priority = 1.0f;
    const char *reflection = VK_KHR_SHADER_NON_SEMANTIC_INFO_EXTENSION_NAME;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueFamilyIndex = device->family,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    const VkDeviceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                       .pNext = &device->features,
                                       .queueCreateInfoCount = 1,
                                       .pQueueCreateInfos = &queue,
                                       .enabledExtensionCount = device->enables_reflection,
                                       .ppEnabledExtensionNames = &reflection};
    cl_context context = memory_allocate(1, sizeof *context);
    *context = (struct _cl_context){
        .dispatch = &vulkan_dispatch, .references = 1, .device = device, .notify = notify, .notified = data};
    pthread_mutex_init(&context->lock, NULL);
    const VkResult result = vkCreateDevice(device->physical, &create, NULL, &context->handle);
    *code = vulkan_failed(context, VULKAN_MADE(result, context->handle), "vkCreateDevice");
    if (*code == CL_SUCCESS) {
        vkGetDeviceQueue(context->handle, device->family, 0, &context->queue);
        *code = vulkan_buffer_create(context, 0, 16, &context->nothing);
    }
    if (*code != CL_SUCCESS) {
        destroy(context);
        return NULL;
    }
    return context;
}

cl_int CL_API_CALL vulkan_clReleaseContext(cl_context context) {
    pthread_mutex_lock(&context->lock);
    const bool last = --context->references == 0;
    pthread_mutex_unlock(&context->lock);
    if (last) {
        destroy(context);
    }
    return CL_SUCCESS;
}
