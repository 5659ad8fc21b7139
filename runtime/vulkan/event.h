/* When a command is done, and how long it took. */
#pragma once

#include "runtime/vulkan/objects.h"

/* NULL without memory. It keeps the queue. */
cl_event vulkan_event_create(cl_command_queue queue, uint64_t batch, cl_command_type command);

/* The device's counter before and after the command, NULL where they could not be read. */
void vulkan_event_timed(cl_event event, const uint64_t counters[2]);

/* One reference less. The queue loses its reference with the last, but stays. */
void vulkan_event_release(cl_event event);
