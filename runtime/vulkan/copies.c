/* Reads, writes, fills and copies. The host's ordinary memory is not the device's to read, so it goes through a
 * staging buffer, unless it is a buffer that the host sees. */
#include "runtime/vulkan/objects.h"
#include <string.h>

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
    cl_mem from = vulkan_buffer_at(queue->context, data, bytes, &place);
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
    cl_mem to = vulkan_buffer_at(queue->context, data, bytes, &place);
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

cl_int CL_API_CALL clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset,
                                       size_t bytes, void *data, cl_uint count, const cl_event *events,
                                       cl_event *event) {
    if (!data || !bytes || !is_inside(memory, offset, bytes)) {
        return CL_INVALID_VALUE;
    }
    pthread_mutex_lock(&queue->context->lock);
    cl_int code = memory->host ? vulkan_wait_events(count, events) : vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? read(queue, memory, offset, data, bytes, event) : code;
    if (code == CL_SUCCESS && blocking) {
        code = vulkan_wait_all(queue);
    }
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

/* A blocking write has to take the data, which the device does itself only where they are in a buffer. */
cl_int CL_API_CALL clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset,
                                        size_t bytes, const void *data, cl_uint count, const cl_event *events,
                                        cl_event *event) {
    size_t place;
    if (!data || !bytes || !is_inside(memory, offset, bytes)) {
        return CL_INVALID_VALUE;
    }
    pthread_mutex_lock(&queue->context->lock);
    cl_int code = memory->host ? vulkan_wait_events(count, events) : vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? write(queue, memory, offset, data, bytes, event) : code;
    if (code == CL_SUCCESS && blocking && vulkan_buffer_at(queue->context, data, bytes, &place)) {
        code = vulkan_wait_all(queue);
    }
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

cl_int CL_API_CALL clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset,
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
    pthread_mutex_lock(&queue->context->lock);
    cl_int code = vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? copy(queue, buffers, &range, event) : code;
    pthread_mutex_unlock(&queue->context->lock);
    return code;
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

cl_int CL_API_CALL clEnqueueFillBuffer(cl_command_queue queue, cl_mem memory, const void *pattern,
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
    pthread_mutex_lock(&queue->context->lock);
    cl_int code = vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? fill(queue, memory, word, offset, bytes, event) : code;
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

/* ---- mapping, and marks */

/* Only what was made with CL_MEM_ALLOC_HOST_PTR: the host always sees it. */
void *CL_API_CALL clEnqueueMapBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, cl_map_flags flags,
                                     size_t offset, size_t bytes, cl_uint count, const cl_event *events,
                                     cl_event *event, cl_int *code) {
    (void)blocking, (void)flags;
    cl_int unused;
    code = code ? code : &unused;
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

cl_int CL_API_CALL clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint count, const cl_event *events,
                                               cl_event *event) {
    pthread_mutex_lock(&queue->context->lock);
    cl_int code = vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? copy_nothing(queue, event) : code;
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

cl_int CL_API_CALL clEnqueueUnmapMemObject(cl_command_queue queue, cl_mem memory, void *host, cl_uint count,
                                           const cl_event *events, cl_event *event) {
    return memory->host && host ? clEnqueueMarkerWithWaitList(queue, count, events, event) : CL_INVALID_VALUE;
}
