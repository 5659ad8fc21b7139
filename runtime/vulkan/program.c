/* Programs: SPIR-V, compiled from a source or given as it was compiled before. */
#include "runtime/system/memory.h"
#include "runtime/vulkan/objects.h"
#include <stdlib.h>
#include <string.h>

static cl_program create(cl_context context) {
    cl_program program = memory_allocate(1, sizeof *program);
    *program = (struct _cl_program){.dispatch = &vulkan_dispatch, .references = 1, .context = context};
    pthread_mutex_lock(&context->lock);
    context->references++;
    pthread_mutex_unlock(&context->lock);
    return program;
}

cl_program CL_API_CALL vulkan_clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                                        const size_t *lengths, cl_int *code) {
    (void)count; /* hctrain and CLBlast pass one text */
    cl_program program = create(context);
    program->text = lengths && lengths[0] ? memory_string_part(texts[0], lengths[0]) : memory_string(texts[0]);
    *code = CL_SUCCESS;
    return program;
}

cl_program CL_API_CALL vulkan_clCreateProgramWithBinary(cl_context context, cl_uint count,
                                                        const cl_device_id *devices, const size_t *lengths,
                                                        const unsigned char **binaries, cl_int *status,
                                                        cl_int *code) {
    (void)count, (void)devices;
    cl_program program = create(context);
    program->bytes = lengths[0];
    program->words = memory_allocate(program->bytes, 1);
    memcpy(program->words, binaries[0], program->bytes);
    if (status) {
        *status = CL_SUCCESS;
    }
    *code = CL_SUCCESS;
    return program;
}

cl_int CL_API_CALL vulkan_clRetainProgram(cl_program program) {
    pthread_mutex_lock(&program->context->lock);
    program->references++;
    pthread_mutex_unlock(&program->context->lock);
    return CL_SUCCESS;
}

cl_int CL_API_CALL vulkan_clReleaseProgram(cl_program program) {
    cl_context context = program->context;
    pthread_mutex_lock(&context->lock);
    const bool last = --program->references == 0;
    if (last) {
        if (program->shader) {
            vkDestroyShaderModule(context->handle, program->shader, NULL);
        }
        vulkan_module_release(&program->module);
        free(program->text);
        free(program->log);
        free(program->words);
        free(program);
    }
    pthread_mutex_unlock(&context->lock);
    return last ? vulkan_clReleaseContext(context) : CL_SUCCESS;
}

/* ---- building */

static cl_int fail(cl_program program, cl_int code, const char *what, const char *why) {
    free(program->log);
    program->log = memory_format("%s%s", what, why);
    return code;
}

/* Makes a shader module of the words. Errors of the device's compiler show when a pipeline is made. */
static cl_int use_words(cl_program program, cl_int wrong) {
    const char *problem;
    cl_context context = program->context;
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = program->bytes,
                                           .pCode = program->words};
    vulkan_module_release(&program->module); /* of a build that failed */
    if (vulkan_reflect(program->words, program->bytes, &program->module, &problem)) {
        return fail(program, wrong, "the compiled program cannot be used: ", problem);
    }
    problem = vulkan_missing(program->words, program->bytes, &context->device->features);
    if (problem) {
        return fail(program, CL_BUILD_PROGRAM_FAILURE, "the device does not offer ", problem);
    }
    if (program->module.push_bytes > context->device->properties.limits.maxPushConstantsSize) {
        return fail(program, wrong, "it has more push constants than the device takes", "");
    }
    const VkResult result = vkCreateShaderModule(context->handle, &info, NULL, &program->shader);
    const cl_int code = vulkan_failed(context, VULKAN_MADE(result, program->shader), "vkCreateShaderModule");
    return code == CL_SUCCESS ? code : fail(program, code, "vkCreateShaderModule: ", vulkan_result_name(result));
}

cl_int CL_API_CALL vulkan_clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                                         const char *options, void(CL_CALLBACK *notify)(cl_program, void *),
                                         void *data) {
    (void)count, (void)devices, (void)notify, (void)data;
    const bool is_binary = program->words != NULL;
    cl_int code = program->shader ? CL_INVALID_OPERATION : CL_SUCCESS;
    if (!is_binary) {
        free(program->log);
        code = vulkan_compile(program->context->device, program->text, options, &program->words, &program->bytes,
                              &program->log);
    }
    pthread_mutex_lock(&program->context->lock);
    code = code == CL_SUCCESS ? use_words(program, is_binary ? CL_INVALID_BINARY : CL_BUILD_PROGRAM_FAILURE) : code;
    pthread_mutex_unlock(&program->context->lock);
    return code;
}

cl_int CL_API_CALL vulkan_clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info what,
                                                size_t capacity, void *value, size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    (void)device;
    return what == CL_PROGRAM_BUILD_LOG ? answer_text(to, program->log ? program->log : "") : CL_INVALID_VALUE;
}

cl_int CL_API_CALL vulkan_clGetProgramInfo(cl_program program, cl_program_info what, size_t capacity, void *value,
                                           size_t *bytes) {
    const struct answer to = {capacity, value, bytes};
    if (what == CL_PROGRAM_NUM_DEVICES) {
        return ANSWER(to, cl_uint, 1);
    }
    if (what == CL_PROGRAM_BINARY_SIZES) {
        return ANSWER(to, size_t, program->shader ? program->bytes : 0);
    }
    if (what != CL_PROGRAM_BINARIES) {
        return CL_INVALID_VALUE;
    }
    /* the value is an array of one pointer, to where the binary is put */
    unsigned char *place = value && capacity >= sizeof place ? *(unsigned char **)value : NULL;
    if (place && program->shader) {
        memcpy(place, program->words, program->bytes);
    }
    return answer_bytes(to, &place, sizeof place);
}
