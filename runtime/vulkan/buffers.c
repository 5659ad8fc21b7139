/* Buffers, and what is copied between them and the host. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdlib.h>
#include <string.h>

/* The type of memory that is among `allowed`; UINT32_MAX where there is none. Vulkan lists better types first.
 * Memory that the host sees is cached if possible, since reading other memory is many times slower, and then also
 * the device's own. Where host and device share their memory, the host sees all buffers this way, and they need no
 * copies. */
static uint32_t choose_type(cl_device_id device, uint32_t allowed, bool is_for_host) {
    const VkMemoryPropertyFlags seen = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags needed = is_for_host ? seen : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    uint32_t best = UINT32_MAX;
    int best_worth = -1;
    for (uint32_t i = 0; i < device->memories.memoryTypeCount; i++) {
        const VkMemoryPropertyFlags has = device->memories.memoryTypes[i].propertyFlags;
        const int is_cached = (has & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
        const int worth = is_for_host ? 2 * is_cached + ((has & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) != 0) : 0;
        if ((allowed >> i & 1) && (has & needed) == needed && worth > best_worth) {
            best = i;
            best_worth = worth;
        }
    }
    return best;
}

/* Gives the buffer memory, an address and a place that the host sees, as far as they are wanted. */
static VkResult allocate(cl_context context, cl_mem memory, bool is_for_host) {
    const bool uses_addresses = context->device->uses_addresses;
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(context->handle, memory->buffer, &needed);
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = uses_addresses ? &flags : NULL,
                                       .allocationSize = needed.size,
                                       .memoryTypeIndex =
                                           choose_type(context->device, needed.memoryTypeBits, is_for_host)};
    const VkBufferDeviceAddressInfo addressed = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                                 .buffer = memory->buffer};
    if (info.memoryTypeIndex == UINT32_MAX) {
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    VkResult result = vkAllocateMemory(context->handle, &info, NULL, &memory->memory);
    if (VULKAN_MADE(result, memory->memory)) {
        return result;
    }
    result = vkBindBufferMemory(context->handle, memory->buffer, memory->memory, 0);
    if (!result && uses_addresses) {
        memory->address = vkGetBufferDeviceAddress(context->handle, &addressed);
    }
    if (!result && is_for_host) {
        void *host = NULL;
        result = vkMapMemory(context->handle, memory->memory, 0, VK_WHOLE_SIZE, 0, &host);
        memory->host = host;
    }
    return result;
}

cl_int vulkan_buffer_create(cl_context context, cl_mem_flags flags, size_t bytes, cl_mem *created) {
    /* whole words: kernels read elements of 16 bits by pairs, and fills write words */
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .size = (bytes + 15) / 16 * 16,
                               .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
                                        VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    info.usage |= context->device->uses_addresses ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0;
    cl_mem memory = memory_allocate(1, sizeof *memory);
    *created = NULL;
    *memory = (struct _cl_mem){.dispatch = &vulkan_dispatch, .context = context, .bytes = bytes};
    VkResult result = vkCreateBuffer(context->handle, &info, NULL, &memory->buffer);
    if (!VULKAN_MADE(result, memory->buffer)) {
        result = allocate(context, memory, flags & CL_MEM_ALLOC_HOST_PTR);
    }
    if (result) {
        vulkan_buffer_destroy(memory);
        return vulkan_failed(context, result, "Vulkan");
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

/* ---- OpenCL's calls */

cl_mem CL_API_CALL vulkan_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host,
                                         cl_int *code) {
    cl_mem memory = NULL;
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
cl_int CL_API_CALL vulkan_clReleaseMemObject(cl_mem memory) {
    cl_context context = memory->context;
    pthread_mutex_lock(&context->lock);
    vulkan_settle(context);
    vulkan_buffer_destroy(memory);
    pthread_mutex_unlock(&context->lock);
    return vulkan_clReleaseContext(context);
}

cl_int CL_API_CALL vulkan_clGetMemObjectInfo(cl_mem memory, cl_mem_info what, size_t capacity, void *value,
                                             size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_MEM_SIZE ? ANSWER(to, size_t, memory->bytes) : CL_INVALID_VALUE;
}

/* ---- reads, writes and copies. The host's ordinary memory is not the device's to read, so it goes through a
 * staging buffer, unless it is a buffer that the host sees. */

/* The buffer that has these bytes of the host, at *offset of it; NULL where they are ordinary memory. */
static cl_mem buffer_at(cl_context context, const void *host, size_t bytes, size_t *offset) {
    for (cl_mem memory = context->visible; memory; memory = memory->next) {
        const uintptr_t at = (uintptr_t)host, begin = (uintptr_t)memory->host;
        if (at >= begin && at - begin <= memory->bytes && bytes <= memory->bytes - (at - begin)) {
            *offset = at - begin;
            return memory;
        }
    }
    return NULL;
}

static bool is_inside(const struct _cl_mem *memory, size_t offset, size_t bytes) {
    return offset <= memory->bytes && bytes <= memory->bytes - offset;
}

static cl_int copy(cl_command_queue queue, const VkBuffer buffers[2], const VkBufferCopy *range, cl_event *event) {
    VkCommandBuffer commands;
    const cl_int code = vulkan_begin(queue, &commands);
    if (code != CL_SUCCESS) {
        return code;
    }
    vkCmdCopyBuffer(commands, buffers[0], buffers[1], 1, range);
    return vulkan_end(queue, event);
}

/* Copies between a buffer and ordinary memory of the host: data that are written are taken, and those that are read
 * are there, when it returns. As many bytes at a time go through the staging buffer as fit, after waiting where it
 * is full. The batch is opened first: that may wait, and after a wait for everything the whole buffer is free
 * again. */
static cl_int copy_staged(cl_command_queue queue, cl_mem memory, size_t offset, char *data, size_t bytes,
                          bool reads, cl_event *event) {
    const VkBuffer buffers[3] = {queue->staging->buffer, memory->buffer, queue->staging->buffer};
    for (size_t done = 0, taken; done < bytes; done += taken) {
        cl_int code = vulkan_open_batch(queue);
        while (code == CL_SUCCESS && queue->staged == STAGING_BYTES) {
            code = vulkan_wait_all(queue);
            code = code == CL_SUCCESS ? vulkan_open_batch(queue) : code;
        }
        if (code != CL_SUCCESS) {
            return code;
        }
        const size_t place = queue->staged, left = STAGING_BYTES - place;
        char *staged = queue->staging->host + place;
        taken = bytes - done < left ? bytes - done : left;
        queue->staged += taken;
        const VkBufferCopy range = {reads ? offset + done : place, reads ? place : offset + done, taken};
        if (!reads) {
            memcpy(staged, data + done, taken);
        }
        code = copy(queue, buffers + reads, &range, done + taken == bytes ? event : NULL);
        if (code == CL_SUCCESS && reads) {
            code = vulkan_wait_all(queue);
        }
        if (code != CL_SUCCESS) {
            return code;
        }
        if (reads) {
            memcpy(data + done, staged, taken);
        }
    }
    return CL_SUCCESS;
}

/* A command with nothing to do, for the sake of its event. */
static cl_int copy_nothing(cl_command_queue queue, cl_event *event) {
    VkCommandBuffer commands;
    const cl_int code = event ? vulkan_begin(queue, &commands) : CL_SUCCESS;
    return code == CL_SUCCESS && event ? vulkan_end(queue, event) : code;
}

static cl_int write(cl_command_queue queue, cl_mem to, size_t offset, const void *data, size_t bytes,
                    cl_event *event) {
    size_t place;
    cl_mem from = buffer_at(queue->context, data, bytes, &place);
    if (from && from != to) {
        const VkBuffer buffers[2] = {from->buffer, to->buffer};
        return copy(queue, buffers, &(VkBufferCopy){place, offset, bytes}, event);
    }
    if (to->host && !queue->recording && vulkan_is_done(queue, queue->submitted) == 1) {
        memcpy(to->host + offset, data, bytes);
        return copy_nothing(queue, event);
    }
    return copy_staged(queue, to, offset, (char *)data, bytes, false, event); /* which is only read */
}

static cl_int read(cl_command_queue queue, cl_mem from, size_t offset, void *data, size_t bytes, cl_event *event) {
    size_t place;
    cl_mem to = buffer_at(queue->context, data, bytes, &place);
    if (to && to != from) {
        const VkBuffer buffers[2] = {from->buffer, to->buffer};
        return copy(queue, buffers, &(VkBufferCopy){offset, place, bytes}, event);
    }
    if (!from->host) {
        return copy_staged(queue, from, offset, data, bytes, true, event);
    }
    cl_int code = copy_nothing(queue, event);
    code = code == CL_SUCCESS ? vulkan_wait_all(queue) : code;
    if (code == CL_SUCCESS) {
        memcpy(data, from->host + offset, bytes);
    }
    return code;
}

cl_int CL_API_CALL vulkan_clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                              size_t offset, size_t bytes, void *data, cl_uint count,
                                              const cl_event *events, cl_event *event) {
    if (!data || !bytes || !is_inside(memory, offset, bytes)) {
        return CL_INVALID_VALUE;
    }
    cl_int code = vulkan_lock_after(queue, memory->host ? 0 : count, events);
    code = code == CL_SUCCESS && memory->host ? vulkan_wait_events(count, events) : code;
    code = code == CL_SUCCESS ? read(queue, memory, offset, data, bytes, event) : code;
    if (code == CL_SUCCESS && blocking) {
        code = vulkan_wait_all(queue);
    }
    return vulkan_unlock(queue, code);
}

/* A blocking write has to take the data, which the device does itself only where they are in a buffer. */
cl_int CL_API_CALL vulkan_clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                               size_t offset, size_t bytes, const void *data, cl_uint count,
                                               const cl_event *events, cl_event *event) {
    size_t place;
    if (!data || !bytes || !is_inside(memory, offset, bytes)) {
        return CL_INVALID_VALUE;
    }
    cl_int code = vulkan_lock_after(queue, memory->host ? 0 : count, events);
    code = code == CL_SUCCESS && memory->host ? vulkan_wait_events(count, events) : code;
    code = code == CL_SUCCESS ? write(queue, memory, offset, data, bytes, event) : code;
    if (code == CL_SUCCESS && blocking && buffer_at(queue->context, data, bytes, &place)) {
        code = vulkan_wait_all(queue);
    }
    return vulkan_unlock(queue, code);
}

cl_int CL_API_CALL vulkan_clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset,
                                              size_t to_offset, size_t bytes, cl_uint count, const cl_event *events,
                                              cl_event *event) {
    if (!bytes || !is_inside(from, from_offset, bytes) || !is_inside(to, to_offset, bytes)) {
        return CL_INVALID_VALUE;
    }
    if (from == to && from_offset < to_offset + bytes && to_offset < from_offset + bytes) {
        return CL_MEM_COPY_OVERLAP;
    }
    const VkBuffer buffers[2] = {from->buffer, to->buffer};
    const VkBufferCopy range = {from_offset, to_offset, bytes};
    cl_int code = vulkan_lock_after(queue, count, events);
    code = code == CL_SUCCESS ? copy(queue, buffers, &range, event) : code;
    return vulkan_unlock(queue, code);
}

/* ---- fills */

/* Vulkan fills whole words; bytes before the first and behind the last are written. */
static cl_int fill(cl_command_queue queue, cl_mem memory, const char word[4], size_t offset, size_t bytes,
                   cl_event *event) {
    VkCommandBuffer commands;
    uint32_t number;
    char pattern[8]; /* from any byte of a word on */
    memcpy(&number, word, sizeof number);
    memcpy(pattern, word, 4);
    memcpy(pattern + 4, word, 4);
    size_t head = (4 - offset % 4) % 4;
    head = head < bytes ? head : bytes;
    const size_t tail = (bytes - head) % 4, whole = bytes - head - tail;
    cl_int code = CL_SUCCESS;
    if (head) {
        code = copy_staged(queue, memory, offset, pattern + offset % 4, head, false, whole || tail ? NULL : event);
    }
    if (tail && code == CL_SUCCESS) {
        code = copy_staged(queue, memory, offset + bytes - tail, pattern, tail, false, whole ? NULL : event);
    }
    if (whole && code == CL_SUCCESS && (code = vulkan_begin(queue, &commands)) == CL_SUCCESS) {
        vkCmdFillBuffer(commands, memory->buffer, offset + head, whole, number);
        code = vulkan_end(queue, event);
    }
    return code;
}

cl_int CL_API_CALL vulkan_clEnqueueFillBuffer(cl_command_queue queue, cl_mem memory, const void *pattern,
                                              size_t pattern_bytes, size_t offset, size_t bytes, cl_uint count,
                                              const cl_event *events, cl_event *event) {
    char word[4];
    if (!pattern || !is_inside(memory, offset, bytes) || !bytes ||
        (pattern_bytes != 1 && pattern_bytes != 2 && pattern_bytes != 4) || offset % pattern_bytes ||
        bytes % pattern_bytes) {
        return CL_INVALID_VALUE;
    }
    for (size_t i = 0; i < sizeof word; i++) {
        word[i] = ((const char *)pattern)[i % pattern_bytes];
    }
    cl_int code = vulkan_lock_after(queue, count, events);
    code = code == CL_SUCCESS ? fill(queue, memory, word, offset, bytes, event) : code;
    return vulkan_unlock(queue, code);
}

/* ---- mapping, and marks */

/* Only what was made with CL_MEM_ALLOC_HOST_PTR: the host always sees it. */
void *CL_API_CALL vulkan_clEnqueueMapBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking,
                                            cl_map_flags flags, size_t offset, size_t bytes, cl_uint count,
                                            const cl_event *events, cl_event *event, cl_int *code) {
    (void)blocking, (void)flags;
    if (!is_inside(memory, offset, bytes) || !memory->host) {
        *code = memory->host ? CL_INVALID_VALUE : CL_MAP_FAILURE;
        return NULL;
    }
    pthread_mutex_lock(&queue->context->lock);
    *code = vulkan_wait_events(count, events);
    *code = *code == CL_SUCCESS ? copy_nothing(queue, event) : *code;
    *code = *code == CL_SUCCESS ? vulkan_wait_all(queue) : *code;
    pthread_mutex_unlock(&queue->context->lock);
    return *code == CL_SUCCESS ? memory->host + offset : NULL;
}

cl_int CL_API_CALL vulkan_clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint count, const cl_event *events,
                                                      cl_event *event) {
    cl_int code = vulkan_lock_after(queue, count, events);
    code = code == CL_SUCCESS ? copy_nothing(queue, event) : code;
    return vulkan_unlock(queue, code);
}

cl_int CL_API_CALL vulkan_clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem memory, void *host, cl_uint count,
                                                  const cl_event *events, cl_event *event) {
    return memory->host && host ? vulkan_clEnqueueMarkerWithWaitList(queue, count, events, event)
                                : CL_INVALID_VALUE;
}
