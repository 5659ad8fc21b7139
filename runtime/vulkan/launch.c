/* Launches of kernels. */
#include "runtime/vulkan/kernel.h"
#include "runtime/vulkan/queue.h"
#include <string.h>

/* Groups in each direction, and their sizes. */
struct shape {
    uint32_t local[3];
    size_t groups[3];
};

/* Offsets and numbers of work-items are 32 bits wide in kernels. */
static cl_int measure(cl_kernel kernel, cl_uint directions, const size_t *global, const size_t *local,
                      struct shape *shape) {
    const VkPhysicalDeviceLimits *limits = &kernel->program->context->device->properties.limits;
    uint64_t items = 1;
    *shape = (struct shape){{1, 1, 1}, {1, 1, 1}};
    for (cl_uint i = 0; i < directions; i++) {
        if (!local[i] || local[i] > limits->maxComputeWorkGroupSize[i] || !global[i] || global[i] % local[i]) {
            return CL_INVALID_WORK_GROUP_SIZE;
        }
        const bool divided = !i && kernel->program->module.has_offset;
        if (global[i] > UINT32_MAX || (!divided && global[i] / local[i] > limits->maxComputeWorkGroupCount[i])) {
            return CL_INVALID_GLOBAL_WORK_SIZE;
        }
        shape->local[i] = (uint32_t)local[i];
        shape->groups[i] = global[i] / local[i];
        items *= local[i];
    }
    const uint32_t *required = kernel->entry->required;
    const bool fits = !required[0] || !memcmp(required, shape->local, sizeof shape->local);
    return fits && items <= limits->maxComputeWorkGroupInvocations ? CL_SUCCESS : CL_INVALID_WORK_GROUP_SIZE;
}

static VkWriteDescriptorSet binding_of(VkDescriptorSet set, uint32_t binding, bool is_uniform,
                                       const VkDescriptorBufferInfo *buffer) {
    return (VkWriteDescriptorSet){.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                  .dstSet = set,
                                  .dstBinding = binding,
                                  .descriptorCount = 1,
                                  .descriptorType = is_uniform ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                                                               : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                  .pBufferInfo = buffer};
}

/* Plain arguments that are not pushed go into a place that the command has until it is done. */
static VkDescriptorBufferInfo place_plain(cl_command_queue queue, cl_kernel kernel) {
    const struct batch *batch = vulkan_recording(queue);
    const size_t command = (size_t)(batch - queue->batches) * BATCH_COMMANDS + batch->count;
    memcpy(queue->plain->host + command * PLAIN_BYTES, kernel->plain, PLAIN_BYTES);
    return (VkDescriptorBufferInfo){queue->plain->buffer, command * PLAIN_BYTES, PLAIN_BYTES};
}

static cl_mem buffer_of(cl_kernel kernel, unsigned index) {
    return kernel->buffers[index] ? kernel->buffers[index] : kernel->program->context->nothing;
}

static void place_addresses(cl_kernel kernel) {
    for (unsigned i = 0; i < kernel->entry->count; i++) {
        const struct argument *argument = &kernel->entry->arguments[i];
        if (argument->is_address) {
            memcpy(vulkan_argument(kernel, argument), &buffer_of(kernel, i)->address, sizeof(uint64_t));
        }
    }
}

static cl_int bind_buffers(cl_command_queue queue, cl_kernel kernel, VkCommandBuffer commands) {
    VkDescriptorBufferInfo buffers[KERNEL_ARGUMENTS + 1];
    VkWriteDescriptorSet writes[KERNEL_ARGUMENTS + 1];
    cl_context context = queue->context;
    const struct entry *entry = kernel->entry;
    const VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                              .descriptorPool = vulkan_recording(queue)->sets,
                                              .descriptorSetCount = 1,
                                              .pSetLayouts = &kernel->set};
    VkDescriptorSet set;
    uint32_t count = 0;
    const VkResult result = vk.AllocateDescriptorSets(context->handle, &info, &set);
    if (result) {
        return vulkan_code(context, result);
    }
    for (unsigned i = 0; i < entry->count; i++) {
        if (entry->arguments[i].kind == ARGUMENT_BUFFER) {
            buffers[count] = (VkDescriptorBufferInfo){buffer_of(kernel, i)->buffer, 0, VK_WHOLE_SIZE};
            writes[count] = binding_of(set, entry->arguments[i].binding, false, &buffers[count]);
            count++;
        }
    }
    if (entry->plain_bytes) {
        buffers[count] = place_plain(queue, kernel);
        writes[count] = binding_of(set, entry->plain_binding, entry->plain_is_uniform, &buffers[count]);
        count++;
    }
    vk.UpdateDescriptorSets(context->handle, count, writes, 0, NULL);
    vk.CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->layout, 0, 1, &set, 0, NULL);
    return CL_SUCCESS;
}

/* As many groups as the device takes at once, from group `first` on. */
static void dispatch(cl_kernel kernel, VkCommandBuffer commands, const struct shape *shape) {
    const struct module *module = &kernel->program->module;
    const size_t most = kernel->program->context->device->properties.limits.maxComputeWorkGroupCount[0];
    for (size_t first = 0; first < shape->groups[0]; first += most) {
        const size_t left = shape->groups[0] - first;
        const uint32_t offset[3] = {(uint32_t)(first * shape->local[0]), 0, 0};
        if (module->has_offset) {
            memcpy(kernel->pushed + module->offset_at, offset, sizeof offset);
        }
        if (module->push_bytes) {
            vk.CmdPushConstants(commands, kernel->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, module->push_bytes,
                                kernel->pushed);
        }
        vk.CmdDispatch(commands, (uint32_t)(left < most ? left : most), (uint32_t)shape->groups[1],
                       (uint32_t)shape->groups[2]);
    }
}

static cl_int launch(cl_command_queue queue, cl_kernel kernel, const struct shape *shape, cl_event *event) {
    VkPipeline pipeline;
    VkCommandBuffer commands;
    cl_int code = vulkan_pipeline(kernel, shape->local, &pipeline);
    code = code == CL_SUCCESS ? vulkan_begin(queue, &commands) : code;
    if (code != CL_SUCCESS) {
        return code;
    }
    place_addresses(kernel);
    code = bind_buffers(queue, kernel, commands);
    if (code == CL_SUCCESS) {
        vk.CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
        dispatch(kernel, commands, shape);
    }
    const cl_int ended = vulkan_end(queue, CL_COMMAND_NDRANGE_KERNEL, code == CL_SUCCESS ? event : NULL);
    return code == CL_SUCCESS ? ended : code;
}

cl_int CL_API_CALL clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint directions,
                                          const size_t *offset, const size_t *global, const size_t *local,
                                          cl_uint count, const cl_event *events, cl_event *event) {
    struct shape shape;
    if (!directions || directions > 3 || !global) {
        return CL_INVALID_WORK_DIMENSION;
    }
    for (cl_uint i = 0; i < directions && offset; i++) {
        if (offset[i]) {
            return CL_INVALID_GLOBAL_OFFSET;
        }
    }
    cl_int code = local ? measure(kernel, directions, global, local, &shape) : CL_INVALID_WORK_GROUP_SIZE;
    if (code != CL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&queue->context->lock);
    code = vulkan_after(queue, count, events);
    code = code == CL_SUCCESS ? launch(queue, kernel, &shape, event) : code;
    pthread_mutex_unlock(&queue->context->lock);
    return code;
}
