#include "runtime/vulkan/objects.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    VkResult result;
    cl_int code;
    const char *name;
} results[] = {
#define RESULT(name, code) {name, code, #name}
    RESULT(VK_SUCCESS, CL_SUCCESS),
    RESULT(VK_NOT_READY, CL_INVALID_OPERATION),
    RESULT(VK_TIMEOUT, CL_INVALID_OPERATION),
    RESULT(VK_INCOMPLETE, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_OUT_OF_HOST_MEMORY, CL_OUT_OF_HOST_MEMORY),
    RESULT(VK_ERROR_OUT_OF_DEVICE_MEMORY, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_OUT_OF_POOL_MEMORY, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_FRAGMENTED_POOL, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_FRAGMENTATION, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_TOO_MANY_OBJECTS, CL_MEM_OBJECT_ALLOCATION_FAILURE),
    RESULT(VK_ERROR_MEMORY_MAP_FAILED, CL_OUT_OF_HOST_MEMORY),
    RESULT(VK_ERROR_DEVICE_LOST, CL_DEVICE_NOT_AVAILABLE),
    RESULT(VK_ERROR_INITIALIZATION_FAILED, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_INCOMPATIBLE_DRIVER, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_LAYER_NOT_PRESENT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_EXTENSION_NOT_PRESENT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_FEATURE_NOT_PRESENT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_INVALID_SHADER_NV, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_NOT_PERMITTED_EXT, CL_INVALID_OPERATION),
    RESULT(VK_ERROR_UNKNOWN, CL_INVALID_OPERATION),
#undef RESULT
};

enum { RESULTS = sizeof results / sizeof *results };

static cl_int code_of(cl_context context, VkResult result) {
    context->lost |= result == VK_ERROR_DEVICE_LOST;
    for (size_t i = 0; i < RESULTS; i++) {
        if (results[i].result == result) {
            return results[i].code;
        }
    }
    return CL_INVALID_OPERATION;
}

const char *vulkan_result_name(VkResult result) {
    for (size_t i = 0; i < RESULTS; i++) {
        if (results[i].result == result) {
            return results[i].name;
        }
    }
    return "an error that is not known here";
}

cl_int vulkan_tell(cl_context context, cl_int code, const char *words) {
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
    const cl_int code = code_of(context, result);
    snprintf(words, sizeof words, "%s: %s (%d)%s", what, vulkan_result_name(result), (int)result,
             code == CL_INVALID_OPERATION ? "; another version of the device's driver for Vulkan may do it" : "");
    return vulkan_tell(context, code, words);
}

cl_int vulkan_code(cl_context context, VkResult result) {
    return vulkan_failed(context, result, "Vulkan");
}

cl_int vulkan_give(const void *from, size_t size, size_t room, void *value, size_t *got) {
    if (got) {
        *got = size;
    }
    if (value && room < size) {
        return CL_INVALID_VALUE;
    }
    if (value) {
        memcpy(value, from, size);
    }
    return CL_SUCCESS;
}

cl_int vulkan_give_text(const char *text, size_t room, void *value, size_t *got) {
    return vulkan_give(text, strlen(text) + 1, room, value, got);
}
