/* What OpenCL asks of events. */
#include "runtime/vulkan/event.h"
#include "runtime/vulkan/queue.h"
#include <stdlib.h>

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

/* The event's reference to the queue goes by clReleaseCommandQueue, which may be its last. */
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

cl_int CL_API_CALL clGetEventInfo(cl_event event, cl_event_info what, size_t room, void *value, size_t *got) {
    switch (what) {
    case CL_EVENT_COMMAND_QUEUE:
        return VULKAN_GIVE(cl_command_queue, event->queue);
    case CL_EVENT_COMMAND_TYPE:
        return VULKAN_GIVE(cl_command_type, event->command);
    case CL_EVENT_COMMAND_EXECUTION_STATUS: {
        pthread_mutex_lock(&event->queue->context->lock);
        const cl_int done = vulkan_is_done(event->queue, event->batch);
        pthread_mutex_unlock(&event->queue->context->lock);
        return VULKAN_GIVE(cl_int, done < 0 ? done : done ? CL_COMPLETE : CL_SUBMITTED);
    }
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int CL_API_CALL clGetEventProfilingInfo(cl_event event, cl_profiling_info what, size_t room, void *value,
                                           size_t *got) {
    pthread_mutex_lock(&event->queue->context->lock);
    const cl_int code = vulkan_wait(event->queue, event->batch);
    pthread_mutex_unlock(&event->queue->context->lock);
    if (code != CL_SUCCESS || !event->has_times) {
        return code != CL_SUCCESS ? code : CL_PROFILING_INFO_NOT_AVAILABLE;
    }
    switch (what) {
    case CL_PROFILING_COMMAND_QUEUED:
    case CL_PROFILING_COMMAND_SUBMIT:
    case CL_PROFILING_COMMAND_START:
        return VULKAN_GIVE(cl_ulong, event->start);
    case CL_PROFILING_COMMAND_END:
        return VULKAN_GIVE(cl_ulong, event->end);
    default:
        return CL_INVALID_VALUE;
    }
}
