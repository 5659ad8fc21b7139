#include "runtime/vulkan/kernel.h"
#include "runtime/vulkan/queue.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const struct entry *find_entry(const struct module *module, const char *name) {
    for (unsigned i = 0; i < module->count; i++) {
        if (!strcmp(module->entries[i].name, name)) {
            return &module->entries[i];
        }
    }
    return NULL;
}

static VkDescriptorSetLayoutBinding binding_of(uint32_t binding, bool is_uniform) {
    return (VkDescriptorSetLayoutBinding){.binding = binding,
                                          .descriptorType = is_uniform ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                                                                       : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                          .descriptorCount = 1,
                                          .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
}

/* The bindings that the kernel uses; their number. */
static uint32_t list_bindings(const struct entry *entry, VkDescriptorSetLayoutBinding *bindings) {
    uint32_t count = 0;
    for (unsigned i = 0; i < entry->count; i++) {
        if (entry->arguments[i].kind == ARGUMENT_BUFFER) {
            bindings[count++] = binding_of(entry->arguments[i].binding, false);
        }
    }
    if (entry->plain_bytes) {
        bindings[count++] = binding_of(entry->plain_binding, entry->plain_is_uniform);
    }
    return count;
}

static cl_int create_layouts(cl_kernel kernel) {
    VkDescriptorSetLayoutBinding bindings[KERNEL_ARGUMENTS + 1];
    cl_context context = kernel->program->context;
    const VkDescriptorSetLayoutCreateInfo set = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                 .bindingCount = list_bindings(kernel->entry, bindings),
                                                 .pBindings = bindings};
    const VkPushConstantRange pushed = {VK_SHADER_STAGE_COMPUTE_BIT, 0, kernel->program->module.push_bytes};
    const VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                               .setLayoutCount = 1,
                                               .pSetLayouts = &kernel->set,
                                               .pushConstantRangeCount = pushed.size ? 1 : 0,
                                               .pPushConstantRanges = &pushed};
    if (set.bindingCount > context->device->properties.limits.maxPerStageDescriptorStorageBuffers) {
        return vulkan_tell(context, CL_INVALID_KERNEL_DEFINITION, "the device takes fewer buffers of a kernel");
    }
    VkResult result = vk.CreateDescriptorSetLayout(context->handle, &set, NULL, &kernel->set);
    if (!VULKAN_MADE(result, kernel->set)) {
        result = vk.CreatePipelineLayout(context->handle, &layout, NULL, &kernel->layout);
        result = VULKAN_MADE(result, kernel->layout);
    }
    return vulkan_failed(context, result, "Vulkan, for kernel %s", kernel->entry->name);
}

static void destroy(cl_kernel kernel) {
    VkDevice device = kernel->program->context->handle;
    for (struct pipeline *pipeline = kernel->pipelines, *next; pipeline; pipeline = next) {
        next = pipeline->next;
        vk.DestroyPipeline(device, pipeline->handle, NULL);
        free(pipeline);
    }
    vk.DestroyPipelineLayout(device, kernel->layout, NULL);
    vk.DestroyDescriptorSetLayout(device, kernel->set, NULL);
    free(kernel);
}

cl_kernel CL_API_CALL clCreateKernel(cl_program program, const char *name, cl_int *code) {
    cl_int unused;
    code = code ? code : &unused;
    const struct entry *entry = program->shader ? find_entry(&program->module, name) : NULL;
    cl_kernel kernel = entry ? calloc(1, sizeof *kernel) : NULL;
    if (!kernel) {
        *code = !program->shader ? CL_INVALID_PROGRAM_EXECUTABLE
                : entry          ? CL_OUT_OF_HOST_MEMORY
                                 : CL_INVALID_KERNEL_NAME;
        return NULL;
    }
    *kernel =
        (struct _cl_kernel){.dispatch = &vulkan_dispatch, .references = 1, .program = program, .entry = entry};
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

cl_int CL_API_CALL clRetainKernel(cl_kernel kernel) {
    pthread_mutex_lock(&kernel->program->context->lock);
    kernel->references++;
    pthread_mutex_unlock(&kernel->program->context->lock);
    return CL_SUCCESS;
}

/* Commands may still use it, so the last release waits for them. */
cl_int CL_API_CALL clReleaseKernel(cl_kernel kernel) {
    cl_program program = kernel->program;
    pthread_mutex_lock(&program->context->lock);
    const bool last = --kernel->references == 0;
    if (last) {
        vulkan_settle(program->context);
        destroy(kernel);
    }
    pthread_mutex_unlock(&program->context->lock);
    return last ? clReleaseProgram(program) : CL_SUCCESS;
}

unsigned char *vulkan_argument(cl_kernel kernel, const struct argument *argument) {
    return (argument->kind == ARGUMENT_PUSHED ? kernel->pushed : kernel->plain) + argument->offset;
}

/* Only the thread that launches a kernel sets its arguments, so there is no lock to take. What a kernel does not use it
 * is not asked for. */
cl_int CL_API_CALL clSetKernelArg(cl_kernel kernel, cl_uint index, size_t bytes, const void *value) {
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
        memcpy(vulkan_argument(kernel, argument), value, bytes);
    }
    return CL_SUCCESS;
}

cl_int CL_API_CALL clGetKernelInfo(cl_kernel kernel, cl_kernel_info what, size_t room, void *value, size_t *got) {
    switch (what) {
    case CL_KERNEL_FUNCTION_NAME:
        return vulkan_give_text(kernel->entry->name, room, value, got);
    case CL_KERNEL_NUM_ARGS:
        return VULKAN_GIVE(cl_uint, kernel->entry->count);
    case CL_KERNEL_PROGRAM:
        return VULKAN_GIVE(cl_program, kernel->program);
    case CL_KERNEL_CONTEXT:
        return VULKAN_GIVE(cl_context, kernel->program->context);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int CL_API_CALL clGetKernelWorkGroupInfo(cl_kernel kernel, cl_device_id device, cl_kernel_work_group_info what,
                                            size_t room, void *value, size_t *got) {
    (void)device;
    const VkPhysicalDeviceLimits *limits = &kernel->program->context->device->properties.limits;
    const uint32_t *required = kernel->entry->required;
    switch (what) {
    case CL_KERNEL_WORK_GROUP_SIZE:
        return VULKAN_GIVE(size_t, limits->maxComputeWorkGroupInvocations);
    case CL_KERNEL_COMPILE_WORK_GROUP_SIZE: {
        const size_t sizes[3] = {required[0], required[1], required[2]};
        return vulkan_give(sizes, sizeof sizes, room, value, got);
    }
    case CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE:
        return VULKAN_GIVE(size_t, 1);
    case CL_KERNEL_LOCAL_MEM_SIZE: /* not told */
    case CL_KERNEL_PRIVATE_MEM_SIZE:
        return VULKAN_GIVE(cl_ulong, 0);
    default:
        return CL_INVALID_VALUE;
    }
}

/* ---- pipelines */

/* All get the size by constants: a module may have kernels with and without a required size, and results are wrong where
 * one of the former goes without. */
static VkResult create_pipeline(cl_kernel kernel, const uint32_t local[3], VkPipeline *handle) {
    cl_context context = kernel->program->context;
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
    return vk.CreateComputePipelines(context->handle, context->pipelines, 1, &info, NULL, handle);
}

cl_int vulkan_pipeline(cl_kernel kernel, const uint32_t local[3], VkPipeline *pipeline) {
    for (struct pipeline *known = kernel->pipelines; known; known = known->next) {
        if (!memcmp(known->local, local, sizeof known->local)) {
            *pipeline = known->handle;
            return CL_SUCCESS;
        }
    }
    struct pipeline *new = malloc(sizeof *new);
    if (!new) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    *new = (struct pipeline){kernel->pipelines, {local[0], local[1], local[2]}, VK_NULL_HANDLE};
    const VkResult result = create_pipeline(kernel, local, &new->handle);
    if (result) {
        free(new);
        return vulkan_failed(kernel->program->context, result,
                             "Vulkan's compiler, for kernel %s in groups of %" PRIu32 " x %" PRIu32 " x %" PRIu32,
                             kernel->entry->name, local[0], local[1], local[2]);
    }
    kernel->pipelines = new;
    *pipeline = new->handle;
    return CL_SUCCESS;
}
