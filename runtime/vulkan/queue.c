/* Commands in batches, and events: when a command is done, and how long it took. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdio.h>
#include <stdlib.h>

#define DRAIN_NANOSECONDS UINT64_C(10000000000)

/* ---- events */

/* Takes back a reference. With the last one the queue loses a reference, but stays. */
static void release_event(cl_event event) {
    if (--event->references == 0) {
        event->queue->references--;
        free(event);
    }
}

/* ---- batches */

/* How many batches are done. A device that cannot report that is lost: whoever waits for progress would wait for
 * ever. */
static uint64_t progress(cl_command_queue queue) {
    char words[100];
    uint64_t value = 0;
    const VkResult result = vkGetSemaphoreCounterValue(queue->context->handle, queue->done, &value);
    if (result) {
        queue->context->lost = true;
        snprintf(words, sizeof words, "Vulkan does not report what is done: %s", vulkan_result_name(result));
        vulkan_report(queue->context, CL_DEVICE_NOT_AVAILABLE, words);
    }
    return result ? 0 : value;
}

/* Waits until a batch is done, or for so many nanoseconds. */
static VkResult wait_for(cl_command_queue queue, uint64_t batch, uint64_t nanoseconds) {
    const VkSemaphoreWaitInfo wait = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &queue->done,
                                      .pValues = &batch};
    return vkWaitSemaphores(queue->context->handle, &wait, nanoseconds);
}

/* Waits, with the lock, until the device has done all that it was given, or for some seconds. */
static VkResult drain(cl_command_queue queue) {
    return wait_for(queue, queue->submitted, DRAIN_NANOSECONDS);
}

/* Frees what batches that are done held. Events get their times, by the counter of the device before and after the
 * command. */
static void retire_done(cl_command_queue queue) {
    const struct _cl_device_id *device = queue->context->device;
    const uint64_t mask = device->time_bits < 64 ? (UINT64_C(1) << device->time_bits) - 1 : UINT64_MAX;
    const double period = device->properties.limits.timestampPeriod; /* nanoseconds */
    const uint64_t value = progress(queue);
    for (struct batch *batch = queue->batches; batch < queue->batches + BATCHES; batch++) {
        if (!batch->value || batch->value > value) {
            continue;
        }
        for (unsigned i = 0; i < batch->count; i++) {
            uint64_t times[2];
            cl_event event = batch->timed[i];
            batch->timed[i] = NULL;
            if (!event) {
                continue;
            }
            if (!vkGetQueryPoolResults(queue->context->handle, batch->times, 2 * i, 2, sizeof times, times,
                                       sizeof *times, VK_QUERY_RESULT_64_BIT)) {
                event->has_times = true;
                event->start = (cl_ulong)((double)(times[0] & mask) * period);
                event->end = event->start + (cl_ulong)((double)((times[1] - times[0]) & mask) * period);
            }
            release_event(event);
        }
        vkResetDescriptorPool(queue->context->handle, batch->sets, 0);
        batch->value = 0;
        batch->count = 0;
    }
    if (value == queue->submitted && !queue->recording) {
        queue->staged = 0;
    }
}

struct batch *vulkan_recording(cl_command_queue queue) {
    return &queue->batches[(queue->submitted + 1) % BATCHES];
}

/* Writes of the device for whoever comes next: commands after the barrier, or the host. */
static void separate(VkCommandBuffer commands, VkPipelineStageFlags to, VkAccessFlags access) {
    const VkPipelineStageFlags from = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = access};
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &barrier, 0, NULL, 0, NULL);
}

/* Another thread may open it while this one waits. */
cl_int vulkan_open_batch(cl_command_queue queue) {
    struct batch *batch;
    if (queue->context->lost || queue->recording) {
        return queue->context->lost ? CL_DEVICE_NOT_AVAILABLE : CL_SUCCESS;
    }
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    while ((batch = vulkan_recording(queue))->value) {
        const cl_int code = vulkan_wait(queue, batch->value);
        if (code != CL_SUCCESS || queue->recording) {
            return code;
        }
    }
    const VkResult result = vkBeginCommandBuffer(batch->commands, &begin);
    if (result) {
        return vulkan_failed(queue->context, result, "Vulkan");
    }
    if (batch->times) {
        vkCmdResetQueryPool(batch->commands, batch->times, 0, 2 * BATCH_COMMANDS);
    }
    queue->recording = true;
    return CL_SUCCESS;
}

cl_int vulkan_begin(cl_command_queue queue, VkCommandBuffer *commands) {
    const cl_int code = vulkan_open_batch(queue);
    if (code != CL_SUCCESS) {
        return code;
    }
    struct batch *batch = vulkan_recording(queue);
    *commands = batch->commands;
    separate(*commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
             VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_UNIFORM_READ_BIT |
                 VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
    if (batch->times) {
        vkCmdWriteTimestamp(*commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, batch->times, 2 * batch->count);
    }
    return CL_SUCCESS;
}

cl_int vulkan_end(cl_command_queue queue, cl_event *event) {
    struct batch *batch = vulkan_recording(queue);
    const unsigned place = batch->count++;
    if (batch->times) {
        vkCmdWriteTimestamp(batch->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, batch->times, 2 * place + 1);
    }
    if (event) {
        *event = memory_allocate(1, sizeof **event);
        **event = (struct _cl_event){.dispatch = &vulkan_dispatch,
                                     .references = 1,
                                     .queue = queue,
                                     .batch = queue->submitted + 1};
        queue->references++;
        if (batch->times) {
            (*event)->references++;
            batch->timed[place] = *event;
        }
    }
    const bool is_full = batch->count == BATCH_COMMANDS;
    const bool is_idle = !is_full && batch->count >= BATCH_EARLY && progress(queue) == queue->submitted;
    return is_full || is_idle ? vulkan_submit(queue) : CL_SUCCESS;
}

cl_int vulkan_submit(cl_command_queue queue) {
    if (!queue->recording || queue->context->lost) {
        return queue->context->lost ? CL_DEVICE_NOT_AVAILABLE : CL_SUCCESS;
    }
    struct batch *batch = vulkan_recording(queue);
    const uint64_t value = queue->submitted + 1;
    const VkTimelineSemaphoreSubmitInfo counted = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                   .signalSemaphoreValueCount = 1,
                                                   .pSignalSemaphoreValues = &value};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &counted,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &batch->commands,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &queue->done};
    separate(batch->commands, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT | VK_ACCESS_HOST_WRITE_BIT);
    VkQueue device_queue = queue->context->queue;
    VkResult result = vkEndCommandBuffer(batch->commands);
    if (!result) {
        result = vkQueueSubmit(device_queue, 1, &submit, VK_NULL_HANDLE);
        const bool is_short = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
        if (is_short && !drain(queue)) { /* what was under way may have held some memory */
            result = vkQueueSubmit(device_queue, 1, &submit, VK_NULL_HANDLE);
        }
    }
    if (result) {
        queue->context->lost = true; /* what was to be computed is not, and cannot be any more */
        return vulkan_failed(queue->context, result, "Vulkan, given commands");
    }
    queue->recording = false;
    queue->submitted = batch->value = value;
    return CL_SUCCESS;
}

/* ---- waiting */

/* Makes sure that the device has been given a batch, and is not lost. */
static cl_int give(cl_command_queue queue, uint64_t batch) {
    const cl_int code = batch > queue->submitted ? vulkan_submit(queue) : CL_SUCCESS;
    return code == CL_SUCCESS && queue->context->lost ? CL_DEVICE_NOT_AVAILABLE : code;
}

cl_int vulkan_wait(cl_command_queue queue, uint64_t batch) {
    cl_context context = queue->context;
    cl_int code = give(queue, batch);
    if (code != CL_SUCCESS) {
        return code;
    }
    queue->references++; /* whoever has the lock meanwhile may release it */
    pthread_mutex_unlock(&context->lock);
    VkResult result;
    do { /* some drivers know times that are shorter than any */
        result = wait_for(queue, batch, UINT64_MAX);
    } while (result == VK_TIMEOUT);
    pthread_mutex_lock(&context->lock);
    queue->references--;
    code = vulkan_failed(context, result, "Vulkan, waiting for the device");
    if (code == CL_SUCCESS) {
        retire_done(queue);
    }
    return code == CL_SUCCESS && context->lost ? CL_DEVICE_NOT_AVAILABLE : code;
}

cl_int vulkan_wait_all(cl_command_queue queue) {
    return vulkan_wait(queue, queue->submitted + queue->recording);
}

cl_int vulkan_lock_after(cl_command_queue queue, cl_uint count, const cl_event *events) {
    cl_int code = CL_SUCCESS;
    pthread_mutex_lock(&queue->context->lock);
    for (cl_uint i = 0; i < count && code == CL_SUCCESS; i++) {
        cl_command_queue other = events[i]->queue;
        code = other != queue && events[i]->batch > other->submitted ? vulkan_submit(other) : CL_SUCCESS;
    }
    return code;
}

cl_int vulkan_unlock(cl_command_queue queue, cl_int code) {
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

cl_int vulkan_wait_events(cl_uint count, const cl_event *events) {
    cl_int code = CL_SUCCESS;
    for (cl_uint i = 0; i < count && code == CL_SUCCESS; i++) {
        code = vulkan_wait(events[i]->queue, events[i]->batch);
    }
    return code;
}

cl_int vulkan_is_done(cl_command_queue queue, uint64_t batch) {
    const cl_int code = give(queue, batch);
    if (code != CL_SUCCESS) {
        return code;
    }
    const bool done = progress(queue) >= batch;
    if (done) {
        retire_done(queue);
    }
    return queue->context->lost ? CL_DEVICE_NOT_AVAILABLE : done;
}

/* After a wait that failed. A device may still be at work on earlier batches where it is lost to us, as when a
 * later one could not be given to it: what it works on must not be freed. A device that is really lost reports that
 * at once. */
static void settle_failed(cl_context context) {
    for (cl_command_queue queue = context->queues; queue && !context->settled; queue = queue->next) {
        drain(queue);
    }
    context->settled = context->lost; /* nothing more is given to it */
}

cl_int vulkan_settle(cl_context context) {
    cl_int code = CL_SUCCESS;
    for (cl_command_queue queue = context->queues; queue && code == CL_SUCCESS; queue = queue->next) {
        code = vulkan_wait_all(queue);
    }
    if (code != CL_SUCCESS) {
        settle_failed(context);
    }
    return code;
}

/* ---- OpenCL's calls for events */

cl_int CL_API_CALL vulkan_clWaitForEvents(cl_uint count, const cl_event *events) {
    pthread_mutex_t *lock = &events[0]->queue->context->lock;
    pthread_mutex_lock(lock);
    const cl_int code = vulkan_wait_events(count, events);
    pthread_mutex_unlock(lock);
    return code;
}

cl_int CL_API_CALL vulkan_clRetainEvent(cl_event event) {
    pthread_mutex_lock(&event->queue->context->lock);
    event->references++;
    pthread_mutex_unlock(&event->queue->context->lock);
    return CL_SUCCESS;
}

/* vulkan_clReleaseCommandQueue takes back the event's reference to the queue, which may be the last. */
cl_int CL_API_CALL vulkan_clReleaseEvent(cl_event event) {
    cl_command_queue queue = event->queue;
    pthread_mutex_lock(&queue->context->lock);
    const bool last_of_queue = event->references == 1 && queue->references == 1;
    if (last_of_queue) {
        free(event);
    } else {
        release_event(event);
    }
    pthread_mutex_unlock(&queue->context->lock);
    return last_of_queue ? vulkan_clReleaseCommandQueue(queue) : CL_SUCCESS;
}

cl_int CL_API_CALL vulkan_clGetEventInfo(cl_event event, cl_event_info what, size_t capacity, void *value,
                                         size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    if (what != CL_EVENT_COMMAND_EXECUTION_STATUS) {
        return CL_INVALID_VALUE;
    }
    pthread_mutex_lock(&event->queue->context->lock);
    const cl_int done = vulkan_unlock(event->queue, vulkan_is_done(event->queue, event->batch));
    return ANSWER(to, cl_int, done < 0 ? done : done ? CL_COMPLETE : CL_SUBMITTED);
}

cl_int CL_API_CALL vulkan_clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t capacity,
                                                  void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    pthread_mutex_lock(&event->queue->context->lock);
    const cl_int code = vulkan_unlock(event->queue, vulkan_wait(event->queue, event->batch));
    if (code != CL_SUCCESS || !event->has_times) {
        return code != CL_SUCCESS ? code : CL_PROFILING_INFO_NOT_AVAILABLE;
    }
    if (what != CL_PROFILING_COMMAND_START && what != CL_PROFILING_COMMAND_END) {
        return CL_INVALID_VALUE;
    }
    return ANSWER(to, cl_ulong, what == CL_PROFILING_COMMAND_START ? event->start : event->end);
}

/* ---- OpenCL's calls for command queues */

enum { MOST_SETS = BATCH_COMMANDS, MOST_BUFFERS = BATCH_COMMANDS * KERNEL_ARGUMENTS };

static cl_int create_parts(cl_command_queue queue) {
    VkDevice device = queue->context->handle;
    const VkSemaphoreTypeCreateInfo counts = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                              .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &counts};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = queue->context->device->family};
    const VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, MOST_BUFFERS},
                                          {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, MOST_SETS}};
    const VkDescriptorPoolCreateInfo sets = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                             .maxSets = MOST_SETS,
                                             .poolSizeCount = 2,
                                             .pPoolSizes = sizes};
    const VkQueryPoolCreateInfo times = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                         .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                         .queryCount = 2 * BATCH_COMMANDS};
    VkResult result = vkCreateSemaphore(device, &semaphore, NULL, &queue->done);
    if (!VULKAN_MADE(result, queue->done)) {
        result = vkCreateCommandPool(device, &pool, NULL, &queue->pool);
        result = VULKAN_MADE(result, queue->pool);
    }
    for (struct batch *batch = queue->batches; batch < queue->batches + BATCHES && !result; batch++) {
        const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                      .commandPool = queue->pool,
                                                      .commandBufferCount = 1};
        result = vkAllocateCommandBuffers(device, &commands, &batch->commands);
        if (!result) {
            result = vkCreateDescriptorPool(device, &sets, NULL, &batch->sets);
            result = VULKAN_MADE(result, batch->sets);
        }
        if (!result && queue->profiles) {
            result = vkCreateQueryPool(device, &times, NULL, &batch->times);
            result = VULKAN_MADE(result, batch->times);
        }
    }
    cl_int code = vulkan_failed(queue->context, result, "Vulkan");
    if (code == CL_SUCCESS) {
        code = vulkan_buffer_create(queue->context, CL_MEM_ALLOC_HOST_PTR, STAGING_BYTES, &queue->staging);
    }
    if (code == CL_SUCCESS) {
        const size_t bytes = BATCHES * BATCH_COMMANDS * PLAIN_BYTES;
        code = vulkan_buffer_create(queue->context, CL_MEM_ALLOC_HOST_PTR, bytes, &queue->plain);
    }
    return code;
}

static void destroy_parts(cl_command_queue queue) {
    VkDevice device = queue->context->handle;
    for (unsigned i = 0; i < BATCHES; i++) {
        vkDestroyDescriptorPool(device, queue->batches[i].sets, NULL);
        vkDestroyQueryPool(device, queue->batches[i].times, NULL);
    }
    vkDestroyCommandPool(device, queue->pool, NULL);
    vkDestroySemaphore(device, queue->done, NULL);
    vulkan_buffer_destroy(queue->staging);
    vulkan_buffer_destroy(queue->plain);
}

cl_command_queue CL_API_CALL vulkan_clCreateCommandQueue(cl_context context, cl_device_id device,
                                                         cl_command_queue_properties properties, cl_int *code) {
    const bool profiles = properties & CL_QUEUE_PROFILING_ENABLE;
    if (device != context->device || (profiles && !device->time_bits)) {
        *code = device != context->device ? CL_INVALID_DEVICE : CL_INVALID_QUEUE_PROPERTIES;
        return NULL;
    }
    cl_command_queue queue = memory_allocate(1, sizeof *queue);
    *queue = (struct _cl_command_queue){.dispatch = &vulkan_dispatch,
                                        .references = 1,
                                        .context = context,
                                        .profiles = profiles};
    pthread_mutex_lock(&context->lock);
    *code = create_parts(queue);
    if (*code == CL_SUCCESS) {
        context->references++;
        queue->next = context->queues;
        context->queues = queue;
    } else {
        destroy_parts(queue);
        free(queue);
        queue = NULL;
    }
    pthread_mutex_unlock(&context->lock);
    return queue;
}

/* Events keep their queue, and batches keep events: so the batches are emptied first. */
cl_int CL_API_CALL vulkan_clReleaseCommandQueue(cl_command_queue queue) {
    cl_context context = queue->context;
    pthread_mutex_lock(&context->lock);
    if (vulkan_wait_all(queue) != CL_SUCCESS) {
        settle_failed(context);
        for (unsigned i = 0; i < BATCHES * BATCH_COMMANDS; i++) {
            cl_event *timed = &queue->batches[i / BATCH_COMMANDS].timed[i % BATCH_COMMANDS];
            if (*timed) {
                release_event(*timed);
            }
            *timed = NULL;
        }
    }
    const bool last = --queue->references == 0;
    if (last) {
        cl_command_queue *place = &context->queues;
        while (*place != queue) {
            place = &(*place)->next;
        }
        *place = queue->next;
        destroy_parts(queue);
        free(queue);
    }
    pthread_mutex_unlock(&context->lock);
    return last ? vulkan_clReleaseContext(context) : CL_SUCCESS;
}

cl_int CL_API_CALL vulkan_clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info what, size_t capacity,
                                                void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    if (what == CL_QUEUE_CONTEXT) {
        return ANSWER(to, cl_context, queue->context);
    }
    return what == CL_QUEUE_DEVICE ? ANSWER(to, cl_device_id, queue->context->device) : CL_INVALID_VALUE;
}

cl_int CL_API_CALL vulkan_clFlush(cl_command_queue queue) {
    pthread_mutex_lock(&queue->context->lock);
    return vulkan_unlock(queue, vulkan_submit(queue));
}

cl_int CL_API_CALL vulkan_clFinish(cl_command_queue queue) {
    pthread_mutex_lock(&queue->context->lock);
    return vulkan_unlock(queue, vulkan_wait_all(queue));
}
