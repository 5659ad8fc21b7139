#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdlib.h>

/* The type of memory that is among `allowed`, has all of `needed` and most of `wanted`, of which the first counts
 * most. Vulkan lists better types first. UINT32_MAX where there is none. */
static uint32_t find_type(cl_device_id device, uint32_t allowed, VkMemoryPropertyFlags needed,
                          const VkMemoryPropertyFlags wanted[2]) {
    uint32_t best = UINT32_MAX;
    int best_worth = -1;
    for (uint32_t i = 0; i < device->memories.memoryTypeCount; i++) {
        const VkMemoryPropertyFlags has = device->memories.memoryTypes[i].propertyFlags;
        const int worth = 2 * ((has & wanted[0]) == wanted[0]) + ((has & wanted[1]) == wanted[1]);
        if ((allowed >> i & 1) && (has & needed) == needed && worth > best_worth) {
            best = i;
            best_worth = worth;
        }
    }
    return best;
}

/* Memory that the host sees is cached if possible, since reading other memory is many times slower, and then also
 * the device's own. Where host and device share their memory, the host sees all buffers this way, and they need no
 * copies. */
static uint32_t choose_type(cl_device_id device, uint32_t allowed, bool is_for_host) {
    const VkMemoryPropertyFlags seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    return is_for_host ? find_type(device, allowed, seen, (VkMemoryPropertyFlags[]){cached, local})
                       : find_type(device, allowed, local, (VkMemoryPropertyFlags[]){0, 0});
}

static VkResult allocate(cl_context context, cl_mem memory, bool is_for_host) {
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(context->handle, memory->buffer, &needed);
    const uint32_t type = choose_type(context->device, needed.memoryTypeBits, is_for_host);
    const bool uses_addresses = context->device->uses_addresses;
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = uses_addresses ? &flags : NULL,
                                       .allocationSize = needed.size,
                                       .memoryTypeIndex = type};
    if (type == UINT32_MAX) {
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    VkResult result = vkAllocateMemory(context->handle, &info, NULL, &memory->memory);
    result = VULKAN_MADE(result, memory->memory)
                 ? result
                 : vkBindBufferMemory(context->handle, memory->buffer, memory->memory, 0);
    if (!result && uses_addresses) {
        memory->address = vkGetBufferDeviceAddress(
            context->handle, &(VkBufferDeviceAddressInfo){.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                                          .buffer = memory->buffer});
    }
    if (!result && is_for_host) {
        void *host = NULL;
        result = vkMapMemory(context->handle, memory->memory, 0, VK_WHOLE_SIZE, 0, &host);
        memory->host = host;
    }
    return result;
}

cl_int vulkan_buffer_create(cl_context context, cl_mem_flags flags, size_t bytes, cl_mem *created) {
    cl_mem memory = memory_allocate(1, sizeof *memory);
    *created = NULL;
    *memory = (struct _cl_mem){.dispatch = &vulkan_dispatch, .context = context, .bytes = bytes};
    const VkBufferUsageFlags addressed =
        context->device->uses_addresses ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0;
    /* whole words: kernels read elements of 16 bits by pairs, and fills write words */
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                     .size = (bytes + 15) / 16 * 16,
                                     .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT |
                                              VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
                                              VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                                              addressed};
    VkResult result = vkCreateBuffer(context->handle, &info, NULL, &memory->buffer);
    result =
        VULKAN_MADE(result, memory->buffer) ? result : allocate(context, memory, flags & CL_MEM_ALLOC_HOST_PTR);
    if (result) {
        vulkan_buffer_destroy(memory);
        return vulkan_code(context, result);
    }
    if (memory->host) {
        memory->next = context->visible;
        context->visible = memory;
    }
    *created = memory;
    return CL_SUCCESS;
}

void vulkan_buffer_destroy(cl_mem memory) {
    if (!memory) {
        return;
    }
    cl_context context = memory->context;
    for (cl_mem *place = &context->visible; *place; place = &(*place)->next) {
        if (*place == memory) {
            *place = memory->next;
            break;
        }
    }
    vkDestroyBuffer(context->handle, memory->buffer, NULL);
    vkFreeMemory(context->handle, memory->memory, NULL); /* and ends the mapping */
    free(memory);
}

cl_mem vulkan_buffer_at(cl_context context, const void *host, size_t bytes, size_t *offset) {
    for (cl_mem memory = context->visible; memory; memory = memory->next) {
        const uintptr_t at = (uintptr_t)host, begin = (uintptr_t)memory->host;
        if (at >= begin && at - begin <= memory->bytes && bytes <= memory->bytes - (at - begin)) {
            *offset = at - begin;
            return memory;
        }
    }
    return NULL;
}

/* ---- OpenCL's calls */

cl_mem CL_API_CALL clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    cl_int unused;
    cl_mem memory = NULL;
    code = code ? code : &unused;
    if (host || (flags & (CL_MEM_USE_HOST_PTR | CL_MEM_COPY_HOST_PTR))) {
        *code = CL_INVALID_HOST_PTR; /* the device cannot work on memory of the host */
        return NULL;
    }
    if (!bytes || bytes > context->device->largest_buffer) {
        *code = CL_INVALID_BUFFER_SIZE;
        return NULL;
    }
    pthread_mutex_lock(&context->lock);
    *code = vulkan_buffer_create(context, flags, bytes, &memory);
    context->references += memory != NULL;
    pthread_mutex_unlock(&context->lock);
    return memory;
}

/* Commands may still use the buffer, and programs release buffers at their ends: so this waits for the commands. */
cl_int CL_API_CALL clReleaseMemObject(cl_mem memory) {
    cl_context context = memory->context;
    pthread_mutex_lock(&context->lock);
    vulkan_settle(context);
    vulkan_buffer_destroy(memory);
    pthread_mutex_unlock(&context->lock);
    return clReleaseContext(context);
}

cl_int CL_API_CALL clGetMemObjectInfo(cl_mem memory, cl_mem_info what, size_t capacity, void *value,
                                      size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_MEM_SIZE ? ANSWER(to, size_t, memory->bytes) : CL_INVALID_VALUE;
}
