/* Preloaded into a program, an OpenCL whose calls begin to fail, as a device's do that is lost, or whose devices
 * report that they are what they are not:
 *
 *   HC_FAULT="clFinish -36 100"   from the 100th call of that function on it returns this code and does nothing
 *   HC_FAULT="adamw -36 8"        the same for launches of this kernel; with the code 0 they compute nothing
 *   HC_DRIVER="7.1"               the driver's version
 *   HC_GPU="matrix-cores"                devices are GPUs with matrix cores, of which there is an emulation
 *   HC_GPU="no-matrix-cores"             GPUs of AMD's whose matrix cores do not compile
 *   HC_NAME="any text"            what devices call themselves
 *   HC_LOG="any text"             no program compiles, and this is the compiler's log */
#include "tests/support/preloaded_opencl.h"

/* Counts a call; whether it fails, and with what. */
static int fails(const char *function, cl_int *code) {
    static unsigned long calls;
    char wanted[64];
    unsigned long first;
    const char *fault = getenv("HC_FAULT");
    return fault && sscanf(fault, "%63s %d %lu", wanted, code, &first) == 3 && strcmp(wanted, function) == 0 &&
           ++calls >= first;
}

/* What HC_GPU is, "" where it is not there. */
static const char *gpu(void) {
    const char *word = getenv("HC_GPU");
    return word ? word : "";
}

cl_int clFinish(cl_command_queue queue) {
    NEXT(clFinish);
    cl_int code;
    return fails("clFinish", &code) ? code : next(queue);
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint count, const cl_event *events,
                              cl_event *event) {
    NEXT(clEnqueueNDRangeKernel);
    cl_int code;
    char name[64] = "";
    clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL);
    if (!fails("clEnqueueNDRangeKernel", &code) && !fails(name, &code)) {
        return next(queue, kernel, dimensions, offset, global, local, count, events, event);
    }
    return code || !event ? code : clEnqueueMarkerWithWaitList(queue, count, events, event);
}

cl_mem clCreateBuffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *result) {
    NEXT(clCreateBuffer);
    cl_int code;
    if (fails("clCreateBuffer", &code)) {
        *result = code;
        return NULL;
    }
    return next(context, flags, bytes, host, result);
}

/* ---- devices that are something else */

#define COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define PCI_BUS_INFO_KHR            0x410F

cl_int clGetPlatformInfo(cl_platform_id id, cl_platform_info what, size_t capacity, void *value, size_t *bytes) {
    NEXT(clGetPlatformInfo);
    static const char name[] = "AMD Accelerated Parallel Processing";
    return what == CL_PLATFORM_NAME && strcmp(gpu(), "no-matrix-cores") == 0
               ? answer(name, sizeof name, capacity, value, bytes)
               : next(id, what, capacity, value, bytes);
}

cl_int clGetDeviceInfo(cl_device_id id, cl_device_info what, size_t capacity, void *value, size_t *bytes) {
    NEXT(clGetDeviceInfo);
    static const char architecture[] = "gfx1100";
    const cl_device_type type = CL_DEVICE_TYPE_GPU;
    const cl_ulong local = 48 << 10; /* as NVIDIA's driver reports, for the table of tiles */
    const cl_uint capability[2] = {8, 0}, address[4] = {0, 0x41, 0, 0};
    const int has_matrix_cores = strcmp(gpu(), "matrix-cores") == 0;
    const char *name = getenv("HC_NAME"), *driver = getenv("HC_DRIVER");
    if (name && (what == CL_DEVICE_NAME || what == CL_DRIVER_VERSION)) {
        return answer(name, strlen(name) + 1, capacity, value, bytes);
    }
    if (driver && what == CL_DRIVER_VERSION) {
        return answer(driver, strlen(driver) + 1, capacity, value, bytes);
    }
    if (!*gpu()) {
        return next(id, what, capacity, value, bytes);
    }
    switch (what) {
    case CL_DEVICE_TYPE:
        return answer(&type, sizeof type, capacity, value, bytes);
    case CL_DEVICE_LOCAL_MEM_SIZE:
        return has_matrix_cores ? answer(&local, sizeof local, capacity, value, bytes)
                                : next(id, what, capacity, value, bytes);
    case CL_DEVICE_NAME:
        return has_matrix_cores ? next(id, what, capacity, value, bytes)
                                : answer(architecture, sizeof architecture, capacity, value, bytes);
    case PCI_BUS_INFO_KHR:
        return answer(address, sizeof address, capacity, value, bytes);
    case COMPUTE_CAPABILITY_MAJOR_NV:
    case COMPUTE_CAPABILITY_MINOR_NV:
        return has_matrix_cores ? answer(&capability[what - COMPUTE_CAPABILITY_MAJOR_NV], sizeof *capability,
                                         capacity, value, bytes)
                                : CL_INVALID_VALUE;
    default:
        return next(id, what, capacity, value, bytes);
    }
}

/* Adds a file of cl/ to a text, without what it includes. */
static void add_file(FILE *text, const char *name) {
    char line[256];
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) {
        fputs(strncmp(line, "#include", 8) ? line : "\n", text);
    }
    if (file) {
        fclose(file);
    }
}

/* With the emulation in place of NVIDIA's matrix cores. */
cl_program clCreateProgramWithSource(cl_context context, cl_uint count, const char **strings, const size_t *lengths,
                                     cl_int *code) {
    NEXT(clCreateProgramWithSource);
    static const char nvidia[] = "#line 1 \"matrix_cores_nvidia.cl\"";
    const char *found = count == 1 && strcmp(gpu(), "matrix-cores") == 0 ? strstr(strings[0], nvidia) : NULL;
    const char *rest = found ? strstr(found + sizeof nvidia, "#line 1 ") : NULL;
    char *changed = NULL;
    size_t bytes;
    if (!rest) {
        return next(context, count, strings, lengths, code);
    }
    FILE *text = open_memstream(&changed, &bytes);
    fprintf(text, "%.*s", (int)(found - strings[0]), strings[0]);
    add_file(text, HC_KERNELS "/matrix_cores_emulated.cl");
    add_file(text, HC_KERNELS "/matrix_cores_plain.cl");
    fprintf(text, "%s", rest);
    fclose(text);
    cl_program program = next(context, 1, (const char **)&changed, NULL, code);
    free(changed);
    return program;
}

cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void (*notify)(cl_program, void *), void *context) {
    NEXT(clBuildProgram);
    if (getenv("HC_LOG")) {
        return CL_BUILD_PROGRAM_FAILURE;
    }
    return next(program, count, devices, options, notify, context);
}

cl_int clGetProgramBuildInfo(cl_program program, cl_device_id id, cl_program_build_info what, size_t capacity,
                             void *value, size_t *bytes) {
    NEXT(clGetProgramBuildInfo);
    const char *log = getenv("HC_LOG");
    return log && what == CL_PROGRAM_BUILD_LOG ? answer(log, strlen(log) + 1, capacity, value, bytes)
                                               : next(program, id, what, capacity, value, bytes);
}
