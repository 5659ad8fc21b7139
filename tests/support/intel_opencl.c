/* Preloaded into a program, an OpenCL whose CPU devices report that they are GPUs of Intel's, so that oneDNN's
 * OpenCL runtime works on them: what it compiles for a chip that it does not know are plain loops, which any device
 * can run. With HC_WRONG_BF16 in the environment those of bf16 matrices compute the first column of C and leave out
 * the others. */
#include "tests/support/preloaded_opencl.h"
#include <elf.h>

cl_int clGetPlatformInfo(cl_platform_id id, cl_platform_info what, size_t capacity, void *value, size_t *bytes) {
    NEXT(clGetPlatformInfo);
    static const char name[] = "Intel(R) OpenCL Graphics";
    return what == CL_PLATFORM_NAME ? answer(name, sizeof name, capacity, value, bytes)
                                    : next(id, what, capacity, value, bytes);
}

cl_int clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint capacity, cl_device_id *ids,
                      cl_uint *count) {
    NEXT(clGetDeviceIDs);
    return next(platform, type == CL_DEVICE_TYPE_GPU ? CL_DEVICE_TYPE_CPU : type, capacity, ids, count);
}

cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t capacity, void *value, size_t *bytes) {
    NEXT(clGetDeviceInfo);
    static const char vendor[] = "Intel(R) Corporation";
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_uint vendor_number = 0x8086;
    const cl_device_exec_capabilities kernels = CL_EXEC_KERNEL; /* and none on the host */
    switch (what) {
    case CL_DEVICE_EXECUTION_CAPABILITIES:
        return answer(&kernels, sizeof kernels, capacity, value, bytes);
    case CL_DEVICE_TYPE:
        return answer(&type, sizeof type, capacity, value, bytes);
    case CL_DEVICE_VENDOR:
        return answer(vendor, sizeof vendor, capacity, value, bytes);
    case CL_DEVICE_VENDOR_ID:
        return answer(&vendor_number, sizeof vendor_number, capacity, value, bytes);
    default:
        return next(id, what, capacity, value, bytes);
    }
}

/* ---- the chip, which oneDNN reads out of an empty kernel's binary */

#define SECTION_OF_DEVICE_BINARY 0xff000005u
#define MAGIC_OF_DEVICE_BINARY   0x494e5443u /* "INTC" */

/* As Intel's driver packs a program: a section whose header names the chip's family, here 0, unknown. */
static struct {
    Elf64_Ehdr file;
    Elf64_Shdr section;
    struct {
        cl_uint magic, version, family, pointer_bytes, kernels, stepping, patch_bytes;
    } program;
    char behind[64];
} binary;

static void fill_binary(void) {
    memcpy(binary.file.e_ident, ELFMAG, SELFMAG);
    binary.file.e_shoff = sizeof binary.file;
    binary.file.e_shnum = 1;
    binary.section.sh_type = SECTION_OF_DEVICE_BINARY;
    binary.section.sh_offset = sizeof binary.file + sizeof binary.section;
    binary.section.sh_size = sizeof binary.program;
    binary.program.magic = MAGIC_OF_DEVICE_BINARY;
    binary.program.kernels = 1;
}

static int is_question(cl_program program) {
    NEXT(clGetProgramInfo);
    char source[4096] = "";
    return next(program, CL_PROGRAM_SOURCE, sizeof source, source, NULL) == CL_SUCCESS &&
           strstr(source, "kernel void _(){}");
}

cl_int clGetProgramInfo(cl_program program, cl_program_info what, size_t capacity, void *value, size_t *bytes) {
    NEXT(clGetProgramInfo);
    const size_t size = sizeof binary;
    if ((what != CL_PROGRAM_BINARY_SIZES && what != CL_PROGRAM_BINARIES) || !value || !is_question(program)) {
        return next(program, what, capacity, value, bytes);
    }
    if (what == CL_PROGRAM_BINARY_SIZES) {
        return answer(&size, sizeof size, capacity, value, bytes);
    }
    fill_binary();
    memcpy(*(void **)value, &binary, sizeof binary);
    return CL_SUCCESS;
}

/* ---- what Intel's compiler knows */

/* Its built-in functions that oneDNN's common text mentions, and that the plain loops never call. */
static const char prelude[] = "#define half2 ushort2\n"
                              "#define as_half2 as_ushort2\n"
                              "#define sub_group_broadcast(x, i) (x)\n"
                              "#define get_sub_group_local_id() 0u\n"
                              "#define get_max_sub_group_size() 1u\n"
                              "#define intel_sub_group_block_read(p) 0u\n"
                              "#define intel_sub_group_block_read2(p) (uint2)(0u)\n"
                              "#define intel_sub_group_block_read4(p) (uint4)(0u)\n"
                              "#define intel_sub_group_block_read8(p) (uint8)(0u)\n"
                              "#define intel_sub_group_block_write(p, v)\n"
                              "#define intel_sub_group_block_write2(p, v)\n"
                              "#define intel_sub_group_block_write4(p, v)\n"
                              "#define intel_sub_group_block_write8(p, v)\n"
                              "#line 1\n";

cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **texts, const size_t *lengths,
                                     cl_int *result) {
    NEXT(clCreateProgramWithSource);
    if (count != 1 || !texts[0] || (lengths && lengths[0]) || !strstr(texts[0], "intel_sub_group_block_read")) {
        return next(context, count, texts, lengths, result);
    }
    const char *both[] = {prelude, texts[0]};
    return next(context, 2, both, NULL, result);
}

/* oneDNN asks for its arguments' types, which Intel's compiler always keeps. */
cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void (*notify)(cl_program, void *), void *context) {
    NEXT(clBuildProgram);
    const int is_wrong = getenv("HC_WRONG_BF16") && options && strstr(options, "-DA_DT_BF16");
    char *kept = keep_argument_types(options), *all;
    if (asprintf(&all, "%s %s", kept, is_wrong ? "-Dget_global_id(dimension)=0" : "") < 0) {
        abort();
    }
    const cl_int code = next(program, count, devices, all, notify, context);
    free(kept);
    free(all);
    return code;
}
