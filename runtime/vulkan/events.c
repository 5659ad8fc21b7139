/* Events: when a command is done, and how long it took. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/queue.h"
#include <stdlib.h>

cl_event vulkan_event_create(cl_command_queue queue, uint64_t batch) {
    cl_event event = memory_allocate(1, sizeof *event);
    *event = (struct _cl_event){.dispatch = &vulkan_dispatch, .references = 1, .queue = queue, .batch = batch};
    queue->references++;
    return event;
}

void vulkan_event_set_times(cl_event event, const uint64_t counters[2]) {
    const struct _cl_device_id *device = event->queue->context->device;
    const uint64_t mask = device->time_bits < 64 ? (UINT64_C(1) << device->time_bits) - 1 : UINT64_MAX;
    const double period = device->properties.limits.timestampPeriod; /* nanoseconds */
    const uint64_t start = counters[0] & mask, taken = (counters[1] - counters[0]) & mask;
    event->has_times = true;
    event->start = (cl_ulong)((double)start * period);
    event->end = event->start + (cl_ulong)((double)taken * period);
}

void vulkan_event_release(cl_event event) {
    if (--event->references == 0) {
        event->queue->references--;
        free(event);
    }
}

/* ---- OpenCL's calls */

cl_int CL_API_CALL clWaitForEvents(cl_uint count, const cl_event *events) {
    if (!count || !events) {
        return CL_INVALID_VALUE;
    }
    pthread_mutex_t *lock = &events[0]->queue->context->lock;
    pthread_mutex_lock(lock);
    const cl_int code = vulkan_wait_events(count, events);
    pthread_mutex_unlock(lock);
    return code;
}

cl_int CL_API_CALL clRetainEvent(cl_event event) {
    pthread_mutex_lock(&event->queue->context->lock);
    event->references++;
    pthread_mutex_unlock(&event->queue->context->lock);
    return CL_SUCCESS;
}

/* clReleaseCommandQueue takes back the event's reference to the queue, which may be the last. */
cl_int CL_API_CALL clReleaseEvent(cl_event event) {
    cl_command_queue queue = event->queue;
    pthread_mutex_lock(&queue->context->lock);
    const bool last_of_queue = event->references == 1 && queue->references == 1;
    if (last_of_queue) {
        free(event);
    } else {
        vulkan_event_release(event);
    }
    pthread_mutex_unlock(&queue->context->lock);
    return last_of_queue ? clReleaseCommandQueue(queue) : CL_SUCCESS;
}

cl_int CL_API_CALL clGetEventInfo(cl_event event, cl_event_info what, size_t capacity, void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    if (what != CL_EVENT_COMMAND_EXECUTION_STATUS) {
        return CL_INVALID_VALUE;
    }
    pthread_mutex_lock(&event->queue->context->lock);
    const cl_int done = vulkan_is_done(event->queue, event->batch);
    pthread_mutex_unlock(&event->queue->context->lock);
    return VULKAN_ANSWER(to, cl_int, done < 0 ? done : done ? CL_COMPLETE : CL_SUBMITTED);
}

cl_int CL_API_CALL clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t capacity, void *value,
                                           size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    pthread_mutex_lock(&event->queue->context->lock);
    const cl_int code = vulkan_wait(event->queue, event->batch);
    pthread_mutex_unlock(&event->queue->context->lock);
    if (code != CL_SUCCESS || !event->has_times) {
        return code != CL_SUCCESS ? code : CL_PROFILING_INFO_NOT_AVAILABLE;
    }
    if (what != CL_PROFILING_COMMAND_START && what != CL_PROFILING_COMMAND_END) {
        return CL_INVALID_VALUE;
    }
    return VULKAN_ANSWER(to, cl_ulong, what == CL_PROFILING_COMMAND_START ? event->start : event->end);
}
