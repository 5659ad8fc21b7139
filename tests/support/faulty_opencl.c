/* Preloaded into a program, an OpenCL whose calls begin to fail, as a device's do that is lost:
 *
 *   HC_FAULT="clFinish -36 100"   from the 100th call of that function on it returns this code and does nothing
 */
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts a call; whether it fails, and with what. */
static int fails(const char *function, cl_int *code) {
    static unsigned long calls;
    char wanted[64];
    unsigned long first;
    const char *fault = getenv("HC_FAULT");
    return fault && sscanf(fault, "%63s %d %lu", wanted, code, &first) == 3 && strcmp(wanted, function) == 0 &&
           ++calls >= first;
}

/* The function itself, in the library behind this one. */
#define NEXT(name)                                                                                                 \
    __typeof__(&name) next;                                                                                        \
    void *symbol = dlsym(RTLD_NEXT, #name);                                                                        \
    memcpy(&next, &symbol, sizeof next)

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
    return fails("clEnqueueNDRangeKernel", &code)
               ? code
               : next(queue, kernel, dimensions, offset, global, local, count, events, event);
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
