#include "runtime/vulkan/objects.h"
#include <string.h>

cl_int vulkan_code(cl_context context, VkResult result) {
    switch (result) {
    case VK_SUCCESS:
        return CL_SUCCESS;
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return CL_OUT_OF_HOST_MEMORY;
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return CL_MEM_OBJECT_ALLOCATION_FAILURE;
    case VK_ERROR_DEVICE_LOST:
        context->lost = true;
        return CL_DEVICE_NOT_AVAILABLE;
    default:
        return CL_OUT_OF_RESOURCES;
    }
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
