/* Command queues, as OpenCL knows them: what they are made of, and when it is freed. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/buffers.h"
#include "runtime/vulkan/queue.h"
#include <stdlib.h>

enum { MOST_SETS = BATCH_COMMANDS, MOST_BUFFERS = BATCH_COMMANDS * KERNEL_ARGUMENTS };

static VkResult create_batch(cl_command_queue queue, struct batch *batch) {
    VkDevice device = queue->context->handle;
    const VkCommandBufferAllocateInfo commands = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = queue->pool,
                                                  .commandBufferCount = 1};
    const VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, MOST_BUFFERS},
                                          {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, MOST_SETS}};
    const VkDescriptorPoolCreateInfo sets = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                             .maxSets = MOST_SETS,
                                             .poolSizeCount = 2,
                                             .pPoolSizes = sizes};
    const VkQueryPoolCreateInfo times = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                         .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                         .queryCount = 2 * BATCH_COMMANDS};
    VkResult result = vkAllocateCommandBuffers(device, &commands, &batch->commands);
    if (!result) {
        result = vkCreateDescriptorPool(device, &sets, NULL, &batch->sets);
        result = VULKAN_MADE(result, batch->sets);
    }
    if (!result && queue->profiles) {
        result = vkCreateQueryPool(device, &times, NULL, &batch->times);
        result = VULKAN_MADE(result, batch->times);
    }
    return result;
}

static cl_int create_parts(cl_command_queue queue) {
    VkDevice device = queue->context->handle;
    const VkSemaphoreTypeCreateInfo counts = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                              .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo semaphore = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &counts};
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                          .queueFamilyIndex = queue->context->device->family};
    VkResult result = vkCreateSemaphore(device, &semaphore, NULL, &queue->done);
    if (!VULKAN_MADE(result, queue->done)) {
        result = vkCreateCommandPool(device, &pool, NULL, &queue->pool);
        result = VULKAN_MADE(result, queue->pool);
    }
    for (unsigned i = 0; i < BATCHES && !result; i++) {
        result = create_batch(queue, &queue->batches[i]);
    }
    cl_int code = vulkan_code(queue->context, result);
    if (code == CL_SUCCESS) {
        code = vulkan_buffer_create(queue->context, CL_MEM_ALLOC_HOST_PTR, STAGING_BYTES, &queue->staging);
    }
    return code == CL_SUCCESS ? vulkan_buffer_create(queue->context, CL_MEM_ALLOC_HOST_PTR,
                                                     BATCHES * BATCH_COMMANDS * PLAIN_BYTES, &queue->plain)
                              : code;
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

cl_command_queue CL_API_CALL clCreateCommandQueue(cl_context context, cl_device_id device,
                                                  cl_command_queue_properties properties, cl_int *code) {
    cl_int unused;
    code = code ? code : &unused;
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
cl_int CL_API_CALL clReleaseCommandQueue(cl_command_queue queue) {
    cl_context context = queue->context;
    pthread_mutex_lock(&context->lock);
    vulkan_empty(queue);
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
    return last ? clReleaseContext(context) : CL_SUCCESS;
}

cl_int CL_API_CALL clGetCommandQueueInfo(cl_command_queue queue, cl_command_queue_info what, size_t capacity,
                                         void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    return what == CL_QUEUE_CONTEXT  ? ANSWER(to, cl_context, queue->context)
           : what == CL_QUEUE_DEVICE ? ANSWER(to, cl_device_id, queue->context->device)
                                     : CL_INVALID_VALUE;
}

cl_int CL_API_CALL clFlush(cl_command_queue queue) {
    pthread_mutex_lock(&queue->context->lock);
    const cl_int code = vulkan_submit(queue);
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}

cl_int CL_API_CALL clFinish(cl_command_queue queue) {
    pthread_mutex_lock(&queue->context->lock);
    const cl_int code = vulkan_wait(queue, queue->submitted + queue->recording);
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}
