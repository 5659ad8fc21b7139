/* Programs: SPIR-V, which is compiled of a source or given as what was compiled before. */
#include "runtime/vulkan/compiler.h"
#include "runtime/vulkan/reflection.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cl_program create(cl_context context, cl_int *code) {
    cl_program program = calloc(1, sizeof *program);
    if (program) {
        *program = (struct _cl_program){.dispatch = &vulkan_dispatch, .references = 1, .context = context};
        pthread_mutex_lock(&context->lock);
        context->references++;
        pthread_mutex_unlock(&context->lock);
    }
    *code = program ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    return program;
}

cl_program CL_API_CALL clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts,
                                                 const size_t *lengths, cl_int *code) {
    cl_int unused;
    size_t bytes;
    code = code ? code : &unused;
    cl_program program = create(context, code);
    FILE *all = program ? open_memstream(&program->text, &bytes) : NULL;
    for (cl_uint i = 0; i < count && all; i++) {
        const size_t length = lengths && lengths[i] ? lengths[i] : strlen(texts[i]);
        fwrite(texts[i], 1, length, all);
    }
    if (program && (!all || fclose(all))) {
        clReleaseProgram(program);
        *code = CL_OUT_OF_HOST_MEMORY;
        program = NULL;
    }
    return program;
}

cl_program CL_API_CALL clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                                 const size_t *lengths, const unsigned char **binaries,
                                                 cl_int *status, cl_int *code) {
    cl_int unused;
    code = code ? code : &unused;
    if (count != 1 || !devices || devices[0] != context->device || !lengths || !lengths[0] || !binaries) {
        *code = CL_INVALID_VALUE;
        return NULL;
    }
    cl_program program = create(context, code);
    if (program && !(program->words = malloc(lengths[0]))) {
        clReleaseProgram(program);
        *code = CL_OUT_OF_HOST_MEMORY;
        program = NULL;
    }
    if (program) {
        memcpy(program->words, binaries[0], lengths[0]);
        program->bytes = lengths[0];
    }
    if (status) {
        *status = *code;
    }
    return program;
}

cl_int CL_API_CALL clRetainProgram(cl_program program) {
    pthread_mutex_lock(&program->context->lock);
    program->references++;
    pthread_mutex_unlock(&program->context->lock);
    return CL_SUCCESS;
}

cl_int CL_API_CALL clReleaseProgram(cl_program program) {
    cl_context context = program->context;
    pthread_mutex_lock(&context->lock);
    const bool last = --program->references == 0;
    if (last) {
        if (program->shader) {
            vk.DestroyShaderModule(context->handle, program->shader, NULL);
        }
        vulkan_module_release(&program->module);
        free(program->text);
        free(program->log);
        free(program->words);
        free(program);
    }
    pthread_mutex_unlock(&context->lock);
    return last ? clReleaseContext(context) : CL_SUCCESS;
}

/* ---- building */

static cl_int fail(cl_program program, cl_int code, const char *what, const char *why) {
    free(program->log);
    if (asprintf(&program->log, "%s%s", what, why) < 0) {
        program->log = NULL;
    }
    return code;
}

/* What Vulkan's own compiler says is not known before a pipeline is made. */
static cl_int use_words(cl_program program, cl_int wrong) {
    const char *problem;
    cl_context context = program->context;
    vulkan_module_release(&program->module); /* of a build that failed */
    if (vulkan_reflect(program->words, program->bytes, &program->module, &problem)) {
        return fail(program, wrong, "the compiled program cannot be used: ", problem);
    }
    problem = vulkan_missing(program->words, program->bytes, &context->device->features);
    if (problem) {
        return fail(program, CL_BUILD_PROGRAM_FAILURE, "the device does not offer ", problem);
    }
    if (program->module.push_bytes > context->device->properties.limits.maxPushConstantsSize) {
        return fail(program, wrong, "the device has no room for its push constants", "");
    }
    const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                           .codeSize = program->bytes,
                                           .pCode = program->words};
    const VkResult result = vk.CreateShaderModule(context->handle, &info, NULL, &program->shader);
    const cl_int code = vulkan_failed(context, VULKAN_MADE(result, program->shader), "vkCreateShaderModule");
    return code == CL_SUCCESS ? code : fail(program, code, "vkCreateShaderModule: ", vulkan_result_name(result));
}

cl_int CL_API_CALL clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices,
                                  const char *options, void(CL_CALLBACK *notify)(cl_program, void *), void *data) {
    if (program->shader || notify || (count && devices[0] != program->context->device)) {
        return program->shader || notify ? CL_INVALID_OPERATION : CL_INVALID_DEVICE;
    }
    (void)data;
    cl_int code = CL_SUCCESS;
    const bool is_binary = program->words != NULL;
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

cl_int CL_API_CALL clGetProgramBuildInfo(cl_program program, cl_device_id device, cl_program_build_info what,
                                         size_t room, void *value, size_t *got) {
    (void)device;
    switch (what) {
    case CL_PROGRAM_BUILD_LOG:
        return vulkan_give_text(program->log ? program->log : "", room, value, got);
    case CL_PROGRAM_BUILD_STATUS:
        return VULKAN_GIVE(cl_build_status, program->shader ? CL_BUILD_SUCCESS : CL_BUILD_NONE);
    default:
        return CL_INVALID_VALUE;
    }
}

cl_int CL_API_CALL clGetProgramInfo(cl_program program, cl_program_info what, size_t room, void *value,
                                    size_t *got) {
    switch (what) {
    case CL_PROGRAM_NUM_DEVICES:
        return VULKAN_GIVE(cl_uint, 1);
    case CL_PROGRAM_DEVICES:
        return VULKAN_GIVE(cl_device_id, program->context->device);
    case CL_PROGRAM_CONTEXT:
        return VULKAN_GIVE(cl_context, program->context);
    case CL_PROGRAM_BINARY_SIZES:
        return VULKAN_GIVE(size_t, program->shader ? program->bytes : 0);
    case CL_PROGRAM_BINARIES: /* the value is the place where they are to be put */
        if (got) {
            *got = sizeof(unsigned char *);
        }
        if (value && room < sizeof(unsigned char *)) {
            return CL_INVALID_VALUE;
        }
        if (value && program->shader && *(unsigned char **)value) {
            memcpy(*(unsigned char **)value, program->words, program->bytes);
        }
        return CL_SUCCESS;
    default:
        return CL_INVALID_VALUE;
    }
}
