/* Commands in order: recorded in batches, submitted without waiting, counted by a semaphore. */
#pragma once

#include "runtime/vulkan/objects.h"

/* Opens a batch unless one is open. Waits only where all batches are under way; then staging memory begins anew. */
cl_int vulkan_open_batch(cl_command_queue queue);

/* Begins a command: what is recorded into *commands afterwards sees all that commands before it wrote. Waits only
 * where all batches are under way. */
cl_int vulkan_begin(cl_command_queue queue, VkCommandBuffer *commands);

/* Ends the command that vulkan_begin began, and submits it with others when there are enough. *event becomes its
 * event, unless event is NULL. */
cl_int vulkan_end(cl_command_queue queue, cl_event *event);

/* The batch that commands are recorded into; only between the two. */
struct batch *vulkan_recording(cl_command_queue queue);

/* Gives the device what is recorded. */
cl_int vulkan_submit(cl_command_queue queue);

/* Waits until a batch is done, without the lock meanwhile, which is held again afterwards. */
cl_int vulkan_wait(cl_command_queue queue, uint64_t batch);

/* Lets what is put into the queue from here on come after commands of this context's queues, without waiting: all
 * are given to one queue of the device, on which the barrier before a command keeps it behind whatever was given
 * earlier. */
cl_int vulkan_after(cl_command_queue queue, cl_uint count, const cl_event *events);

/* Waits for commands of this context's queues, one after the other. */
cl_int vulkan_wait_events(cl_uint count, const cl_event *events);

/* Whether a batch is done: 1 or 0, or a negative code. */
cl_int vulkan_is_done(cl_command_queue queue, uint64_t batch);

/* Waits for all commands of all queues of the context. Afterwards the device uses nothing that was given to it,
 * even where it is lost. */
cl_int vulkan_settle(cl_context context);

/* Waits for all commands of a queue; no batch has an event afterwards, even where the device is lost. */
void vulkan_empty(cl_command_queue queue);
