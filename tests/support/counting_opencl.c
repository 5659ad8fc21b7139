/* Preloaded into a program, an OpenCL that writes what is enqueued to the file that HC_COUNT names, in order, a
 * line each:
 *
 *   kernel NAME GROUPS LOCAL SIZES WRITABLE CHANGED
 *   write BYTES (blocking), send BYTES (not), read BYTES, fill BYTES, copy BYTES, finish
 *
 * SIZES is the bytes of all memory objects among a kernel's arguments, each counted once; WRITABLE is of those that
 * the kernel has a pointer to without const; CHANGED is how many bytes of the latter differ after the kernel from
 * before, for which they are read both times. One thread, one-dimensional launches and blocking reads, as the
 * programs under test do it. */
#include "tests/support/preloaded_opencl.h"
#include <stdarg.h>
#include <stdbool.h>

/* A test that cannot be done is to fail. */
static void give_up(const char *why) {
    fprintf(stderr, "counting_opencl: %s\n", why);
    abort();
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
    static FILE *file;
    const char *path = getenv("HC_COUNT");
    if (!file && (!path || !(file = fopen(path, "w")))) {
        give_up("cannot write the file that HC_COUNT names");
    }
    va_list arguments;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fflush(file); /* the program may end by _exit */
}

/* ---- what kernels have for arguments */

enum { MOST_KERNELS = 256, MOST_ARGUMENTS = 32 };

static struct arguments {
    cl_kernel kernel;
    cl_mem memory[MOST_ARGUMENTS]; /* NULL: not a memory object */
} table[MOST_KERNELS];

static struct arguments *arguments_of(cl_kernel kernel) {
    for (size_t i = 0; i < MOST_KERNELS; i++) {
        if (!table[i].kernel) {
            table[i].kernel = kernel;
        }
        if (table[i].kernel == kernel) {
            return &table[i];
        }
    }
    give_up("too many kernels");
    return NULL;
}

static bool is_global(cl_kernel kernel, cl_uint place) {
    cl_kernel_arg_address_qualifier where;
    if (clGetKernelArgInfo(kernel, place, CL_KERNEL_ARG_ADDRESS_QUALIFIER, sizeof where, &where, NULL)) {
        give_up("the compiler keeps no types of arguments");
    }
    return where == CL_KERNEL_ARG_ADDRESS_GLOBAL;
}

static bool is_const(cl_kernel kernel, cl_uint place) {
    cl_kernel_arg_type_qualifier type;
    if (clGetKernelArgInfo(kernel, place, CL_KERNEL_ARG_TYPE_QUALIFIER, sizeof type, &type, NULL)) {
        give_up("the compiler keeps no types of arguments");
    }
    return type & CL_KERNEL_ARG_TYPE_CONST;
}

/* It may be where one was that has been released. */
cl_kernel clCreateKernel(cl_program program, const char *name, cl_int *result) {
    NEXT(clCreateKernel);
    cl_kernel kernel = next(program, name, result);
    if (kernel) {
        *arguments_of(kernel) = (struct arguments){.kernel = kernel};
    }
    return kernel;
}

cl_int clSetKernelArg(cl_kernel kernel, cl_uint place, size_t bytes, const void *value) {
    NEXT(clSetKernelArg);
    const cl_int code = next(kernel, place, bytes, value);
    if (code == CL_SUCCESS && place < MOST_ARGUMENTS) {
        cl_mem *memory = &arguments_of(kernel)->memory[place];
        *memory = NULL;
        if (value && bytes == sizeof *memory && is_global(kernel, place)) {
            memcpy(memory, value, sizeof *memory);
        }
    }
    return code;
}

/* So that arguments have their types: from the source, with what this needs among the options. */
cl_int clBuildProgram(cl_program program, cl_uint count, const cl_device_id *devices, const char *options,
                      void (*notify)(cl_program, void *), void *data) {
    NEXT(clBuildProgram);
    char *all = keep_argument_types(options);
    const cl_int code = next(program, count, devices, all, notify, data);
    free(all);
    return code;
}

cl_program clCreateProgramWithBinary(cl_context context, cl_uint count, const cl_device_id *devices,
                                     const size_t *bytes, const unsigned char **binaries, cl_int *statuses,
                                     cl_int *result) {
    (void)context, (void)count, (void)devices, (void)bytes, (void)binaries, (void)statuses;
    *result = CL_INVALID_BINARY;
    return NULL;
}

/* ---- kernels, with what they change */

struct object {
    cl_mem memory;
    size_t bytes;
    bool writable;
    unsigned char *before;
};

static size_t list_objects(cl_kernel kernel, struct object objects[MOST_ARGUMENTS]) {
    const struct arguments *arguments = arguments_of(kernel);
    size_t count = 0;
    for (cl_uint place = 0; place < MOST_ARGUMENTS; place++) {
        size_t at = 0;
        if (!arguments->memory[place]) {
            continue;
        }
        while (at < count && objects[at].memory != arguments->memory[place]) {
            at++;
        }
        if (at == count) {
            objects[count++] = (struct object){.memory = arguments->memory[place]};
            clGetMemObjectInfo(objects[at].memory, CL_MEM_SIZE, sizeof(size_t), &objects[at].bytes, NULL);
        }
        objects[at].writable |= !is_const(kernel, place);
    }
    return count;
}

static unsigned char *contents(cl_command_queue queue, const struct object *object) {
    NEXT(clEnqueueReadBuffer);
    unsigned char *data = malloc(object->bytes);
    if (!data || next(queue, object->memory, CL_TRUE, 0, object->bytes, data, 0, NULL, NULL)) {
        give_up("cannot read what a kernel works on");
    }
    return data;
}

static size_t count_changed(cl_command_queue queue, struct object *object) {
    unsigned char *after = contents(queue, object);
    size_t changed = 0;
    for (size_t i = 0; i < object->bytes; i++) {
        changed += after[i] != object->before[i];
    }
    free(after);
    free(object->before);
    return changed;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions, const size_t *offset,
                              const size_t *global, const size_t *local, cl_uint count, const cl_event *events,
                              cl_event *event) {
    NEXT(clEnqueueNDRangeKernel);
    struct object objects[MOST_ARGUMENTS];
    const size_t objects_count = list_objects(kernel, objects);
    size_t sizes = 0, writable = 0, changed = 0;
    char name[128];
    for (size_t i = 0; i < objects_count; i++) {
        sizes += objects[i].bytes;
        if (objects[i].writable) {
            writable += objects[i].bytes;
            objects[i].before = contents(queue, &objects[i]);
        }
    }
    const cl_int code = next(queue, kernel, dimensions, offset, global, local, count, events, event);
    for (size_t i = 0; i < objects_count; i++) {
        changed += objects[i].writable ? count_changed(queue, &objects[i]) : 0;
    }
    if (clGetKernelInfo(kernel, CL_KERNEL_FUNCTION_NAME, sizeof name, name, NULL)) {
        give_up("a kernel has no name");
    }
    note("kernel %s %zu %zu %zu %zu %zu\n", name, *global / (local ? *local : 1), local ? *local : 1, sizes,
         writable, changed);
    return code;
}

/* ---- the other commands */

cl_int clEnqueueWriteBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t bytes,
                            const void *data, cl_uint count, const cl_event *events, cl_event *event) {
    NEXT(clEnqueueWriteBuffer);
    note("%s %zu\n", blocking ? "write" : "send", bytes);
    return next(queue, memory, blocking, offset, bytes, data, count, events, event);
}

cl_int clEnqueueReadBuffer(cl_command_queue queue, cl_mem memory, cl_bool blocking, size_t offset, size_t bytes,
                           void *data, cl_uint count, const cl_event *events, cl_event *event) {
    NEXT(clEnqueueReadBuffer);
    note("read %zu\n", bytes);
    return next(queue, memory, blocking, offset, bytes, data, count, events, event);
}

cl_int clEnqueueFillBuffer(cl_command_queue queue, cl_mem memory, const void *pattern, size_t pattern_bytes,
                           size_t offset, size_t bytes, cl_uint count, const cl_event *events, cl_event *event) {
    NEXT(clEnqueueFillBuffer);
    note("fill %zu\n", bytes);
    return next(queue, memory, pattern, pattern_bytes, offset, bytes, count, events, event);
}

cl_int clEnqueueCopyBuffer(cl_command_queue queue, cl_mem from, cl_mem to, size_t from_offset, size_t to_offset,
                           size_t bytes, cl_uint count, const cl_event *events, cl_event *event) {
    NEXT(clEnqueueCopyBuffer);
    note("copy %zu\n", bytes);
    return next(queue, from, to, from_offset, to_offset, bytes, count, events, event);
}

cl_int clFinish(cl_command_queue queue) {
    NEXT(clFinish);
    note("finish\n");
    return next(queue);
}
