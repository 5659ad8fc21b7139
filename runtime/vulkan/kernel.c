/* Kernels: their arguments, a pipeline for each size of work-groups, and launches. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* How the kernel gets the buffer of plain arguments. */
static VkDescriptorType plain_type(const struct entry *entry) {
    return entry->plain_is_uniform ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
}

static void destroy(cl_kernel kernel) {
    VkDevice device = kernel->program->context->handle;
    for (struct pipeline *pipeline = kernel->pipelines, *next; pipeline; pipeline = next) {
        next = pipeline->next;
        vkDestroyPipeline(device, pipeline->handle, NULL);
        free(pipeline);
    }
    vkDestroyPipelineLayout(device, kernel->layout, NULL);
    vkDestroyDescriptorSetLayout(device, kernel->set, NULL);
    free(kernel);
}

/* A set of the bindings that the kernel uses, and the push constants of its module. */
static cl_int create_layouts(cl_kernel kernel) {
    cl_context context = kernel->program->context;
    const struct entry *entry = kernel->entry;
    VkDescriptorSetLayoutBinding bindings[KERNEL_ARGUMENTS + 1];
    uint32_t count = 0;
    for (unsigned i = 0; i <= entry->count; i++) {
        const bool is_plain = i == entry->count; /* behind the buffers comes the one of plain arguments */
        if (is_plain ? !entry->plain_bytes : entry->arguments[i].kind != ARGUMENT_BUFFER) {
            continue;
        }
        bindings[count++] =
            (VkDescriptorSetLayoutBinding){.binding = is_plain ? entry->plain_binding : entry->arguments[i].binding,
                                           .descriptorType =
                                               is_plain ? plain_type(entry) : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .descriptorCount = 1,
                                           .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    }
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .bindingCount = count,
                                                 .pBindings = bindings};
    const VkPushConstantRange pushed = {VK_SHADER_STAGE_COMPUTE_BIT, 0, kernel->program->module.push_bytes};
    const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .setLayoutCount = 1,
                                               .pSetLayouts = &kernel->set,
                                               .pushConstantRangeCount = pushed.size ? 1 : 0,
                                               .pPushConstantRanges = &pushed};
    if (count > context->device->properties.limits.maxPerStageDescriptorStorageBuffers) {
        return vulkan_report(context, CL_INVALID_KERNEL_DEFINITION, "the device takes fewer buffers of a kernel");
    }
    VkResult result = vkCreateDescriptorSetLayout(context->handle, &set, NULL, &kernel->set);
    if (!VULKAN_MADE(result, kernel->set)) {
        result = vkCreatePipelineLayout(context->handle, &layout, NULL, &kernel->layout);
        result = VULKAN_MADE(result, kernel->layout);
    }
    return vulkan_failed(context, result, "Vulkan, for kernel %s", entry->name);
}

cl_kernel CL_API_CALL vulkan_clCreateKernel(cl_program program, const char *name, cl_int *code) {
    const struct module *module = &program->module;
    unsigned i = 0;
    while (program->shader && i < module->count && strcmp(module->entries[i].name, name) != 0) {
        i++;
    }
    if (!program->shader || i == module->count) {
        *code = program->shader ? CL_INVALID_KERNEL_NAME : CL_INVALID_PROGRAM_EXECUTABLE;
        return NULL;
    }
    cl_kernel kernel = memory_allocate(1, sizeof *kernel);
    *kernel = (struct _cl_kernel){.dispatch = &vulkan_dispatch, .program = program, .entry = &module->entries[i]};
    pthread_mutex_lock(&program->context->lock);
    *code = create_layouts(kernel);
    if (*code == CL_SUCCESS) {
        program->references++;
    } else {
        destroy(kernel);
        kernel = NULL;
    }
    pthread_mutex_unlock(&program->context->lock);
    return kernel;
}

/* Commands may still use it, so this waits for them. */
cl_int CL_API_CALL vulkan_clReleaseKernel(cl_kernel kernel) {
    cl_program program = kernel->program;
    pthread_mutex_lock(&program->context->lock);
    vulkan_settle(program->context);
    destroy(kernel);
    pthread_mutex_unlock(&program->context->lock);
    return vulkan_clReleaseProgram(program);
}

/* Where the value of an argument that is pushed or plain stands until the launch. */
static unsigned char *value_of(cl_kernel kernel, const struct argument *argument) {
    return (argument->kind == ARGUMENT_PUSHED ? kernel->pushed : kernel->plain) + argument->offset;
}

/* Only the thread that launches a kernel sets its arguments, so there is no lock to take. Values of arguments that
 * the kernel does not use are not looked at. */
cl_int CL_API_CALL vulkan_clSetKernelArg(cl_kernel kernel, cl_uint index, size_t bytes, const void *value) {
    if (index >= kernel->entry->count) {
        return CL_INVALID_ARG_INDEX;
    }
    const struct argument *argument = &kernel->entry->arguments[index];
    if (argument->kind == ARGUMENT_BUFFER || argument->is_address) {
        if (bytes != sizeof(cl_mem)) {
            return CL_INVALID_ARG_SIZE;
        }
        kernel->buffers[index] = value ? *(const cl_mem *)value : NULL;
    } else if (argument->kind != ARGUMENT_UNUSED) {
        if (!value || bytes != argument->size) {
            return value ? CL_INVALID_ARG_SIZE : CL_INVALID_ARG_VALUE;
        }
        memcpy(value_of(kernel, argument), value, bytes);
    }
    return CL_SUCCESS;
}

/* Vulkan does not know how much local memory a kernel takes. */
cl_int CL_API_CALL vulkan_clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device,
                                                   cl_kernel_work_group_info what, size_t capacity, void *value,
                                                   size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    (void)kernel, (void)device;
    return what == CL_KERNEL_LOCAL_MEM_SIZE ? ANSWER(to, cl_ulong, 0) : CL_INVALID_VALUE;
}

/* ---- launches */

/* Groups in each direction, and their sizes. */
struct shape {
    uint32_t local[3];
    size_t groups[3];
};

/* Finds the kernel's pipeline for such work-groups, or makes it. The size is always set by specialisation
 * constants: if a module has kernels with and without a required size, results of the former are wrong without
 * them. */
static cl_int find_pipeline(cl_kernel kernel, const uint32_t local[3], VkPipeline *pipeline) {
    cl_context context = kernel->program->context;
    for (struct pipeline *known = kernel->pipelines; known; known = known->next) {
        if (!memcmp(known->local, local, sizeof known->local)) {
            *pipeline = known->handle;
            return CL_SUCCESS;
        }
    }
    const VkSpecializationMapEntry places[3] = {{0, 0, 4}, {1, 4, 4}, {2, 8, 4}};
    const VkSpecializationInfo constants = {3, places, 3 * sizeof *local, local};
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = kernel->program->shader,
                  .pName = kernel->entry->name,
                  .pSpecializationInfo = &constants},
        .layout = kernel->layout,
    };
    const VkResult result = vkCreateComputePipelines(context->handle, VK_NULL_HANDLE, 1, &info, NULL, pipeline);
    if (result) {
        return vulkan_failed(context, result,
                             "Vulkan's compiler, for kernel %s in groups of %" PRIu32 " x %" PRIu32 " x %" PRIu32,
                             kernel->entry->name, local[0], local[1], local[2]);
    }
    struct pipeline *new = memory_allocate(1, sizeof *new);
    *new = (struct pipeline){kernel->pipelines, {local[0], local[1], local[2]}, *pipeline};
    kernel->pipelines = new;
    return CL_SUCCESS;
}

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

/* Buffers as bindings or addresses. Plain arguments that are not pushed go into a place that the command has until
 * it is done. */
static cl_int bind_buffers(cl_command_queue queue, cl_kernel kernel, VkCommandBuffer commands) {
    VkDescriptorBufferInfo buffers[KERNEL_ARGUMENTS + 1];
    VkWriteDescriptorSet writes[KERNEL_ARGUMENTS + 1];
    cl_context context = queue->context;
    const struct entry *entry = kernel->entry;
    const struct batch *batch = vulkan_recording(queue);
    const VkDescriptorSetAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                              .descriptorPool = batch->sets,
                                              .descriptorSetCount = 1,
                                              .pSetLayouts = &kernel->set};
    VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, .descriptorCount = 1};
    uint32_t count = 0;
    const VkResult result = vkAllocateDescriptorSets(context->handle, &info, &write.dstSet);
    if (result) {
        return vulkan_failed(context, result, "Vulkan");
    }
    for (unsigned i = 0; i < entry->count; i++) {
        const struct argument *argument = &entry->arguments[i];
        const struct _cl_mem *memory = kernel->buffers[i] ? kernel->buffers[i] : context->nothing;
        if (argument->is_address) {
            memcpy(value_of(kernel, argument), &memory->address, sizeof memory->address);
        } else if (argument->kind == ARGUMENT_BUFFER) {
            buffers[count] = (VkDescriptorBufferInfo){memory->buffer, 0, VK_WHOLE_SIZE};
            write.dstBinding = argument->binding;
            write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
            write.pBufferInfo = &buffers[count];
            writes[count++] = write;
        }
    }
    if (entry->plain_bytes) {
        const size_t command = (size_t)(batch - queue->batches) * BATCH_COMMANDS + batch->count;
        memcpy(queue->plain->host + command * PLAIN_BYTES, kernel->plain, PLAIN_BYTES);
        buffers[count] = (VkDescriptorBufferInfo){queue->plain->buffer, command * PLAIN_BYTES, PLAIN_BYTES};
        write.dstBinding = entry->plain_binding;
        write.descriptorType = plain_type(entry);
        write.pBufferInfo = &buffers[count];
        writes[count++] = write;
    }
    vkUpdateDescriptorSets(context->handle, count, writes, 0, NULL);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->layout, 0, 1, &write.dstSet, 0, NULL);
    return CL_SUCCESS;
}

static cl_int launch(cl_command_queue queue, cl_kernel kernel, const struct shape *shape, cl_event *event) {
    const struct module *module = &kernel->program->module;
    const size_t most = queue->context->device->properties.limits.maxComputeWorkGroupCount[0];
    VkPipeline pipeline;
    VkCommandBuffer commands;
    cl_int code = find_pipeline(kernel, shape->local, &pipeline);
    code = code == CL_SUCCESS ? vulkan_begin(queue, &commands) : code;
    if (code != CL_SUCCESS) {
        return code;
    }
    code = bind_buffers(queue, kernel, commands);
    if (code != CL_SUCCESS) {
        vulkan_end(queue, NULL);
        return code;
    }
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    for (size_t first = 0; first < shape->groups[0]; first += most) { /* as many as the device takes at once */
        const size_t left = shape->groups[0] - first;
        const uint32_t offset[3] = {(uint32_t)(first * shape->local[0]), 0, 0};
        if (module->has_offset) {
            memcpy(kernel->pushed + module->offset_at, offset, sizeof offset);
        }
        if (module->push_bytes) {
            vkCmdPushConstants(commands, kernel->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, module->push_bytes,
                               kernel->pushed);
        }
        vkCmdDispatch(commands, (uint32_t)(left < most ? left : most), (uint32_t)shape->groups[1],
                      (uint32_t)shape->groups[2]);
    }
    return vulkan_end(queue, event);
}

cl_int CL_API_CALL vulkan_clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint directions,
                                                 const size_t *offset, const size_t *global, const size_t *local,
                                                 cl_uint count, const cl_event *events, cl_event *event) {
    struct shape shape;
    (void)offset; /* NULL */
    cl_int code = local ? measure(kernel, directions, global, local, &shape) : CL_INVALID_WORK_GROUP_SIZE;
    if (code != CL_SUCCESS) {
        return code;
    }
    code = vulkan_lock_after(queue, count, events);
    code = code == CL_SUCCESS ? launch(queue, kernel, &shape, event) : code;
    return vulkan_unlock(queue, code);
}
