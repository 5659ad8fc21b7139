#include "runtime/vulkan/event.h"
#include <stdlib.h>

cl_event vulkan_event_create(cl_command_queue queue, uint64_t batch, cl_command_type command) {
    cl_event event = malloc(sizeof *event);
    if (event) {
        *event = (struct _cl_event){
            .dispatch = &vulkan_dispatch, .references = 1, .queue = queue, .batch = batch, .command = command};
        queue->references++;
    }
    return event;
}

void vulkan_event_timed(cl_event event, const uint64_t counters[2]) {
    const struct _cl_device_id *device = event->queue->context->device;
    const uint64_t mask = device->time_bits < 64 ? (UINT64_C(1) << device->time_bits) - 1 : UINT64_MAX;
    const double period = device->properties.limits.timestampPeriod; /* nanoseconds */
    if (counters) {
        const uint64_t start = counters[0] & mask, taken = (counters[1] - counters[0]) & mask;
        event->has_times = true;
        event->start = (cl_ulong)((double)start * period);
        event->end = event->start + (cl_ulong)((double)taken * period);
    }
}

void vulkan_event_release(cl_event event) {
    if (--event->references == 0) {
        event->queue->references--;
        free(event);
    }
}
