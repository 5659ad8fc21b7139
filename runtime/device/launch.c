#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/system/memory.h"
#include <string.h>

void compute_log(struct compute *compute, const struct launch_entry *entry) {
    struct launch_log *log = compute->launch_log;
    if (log) {
        if (log->count == log->capacity) {
            log->capacity = log->capacity ? 2 * log->capacity : 1024;
            log->entries = memory_resize(log->entries, log->capacity, sizeof *log->entries);
        }
        log->entries[log->count] = *entry;
        log->entries[log->count++].module = compute->module ? compute->module : "other";
    }
}

/* Bytes of an argument's elements. 0 with a failure kept if they are not inside of the buffer. */
static double extent_bytes(struct compute *compute, const char *name, size_t place,
                           const struct kernel_argument *argument) {
    const struct buffer *buffer = argument->buffer;
    const size_t size = element_size(buffer->type), elements = buffer->bytes / size;
    if (argument->offset > elements || argument->elements > elements - argument->offset) {
        compute_fail(compute, "kernel %s: argument %zu has %zu elements at %zu, and its buffer has %zu", name,
                     place, argument->elements, argument->offset, elements);
        return 0.0;
    }
    return (double)argument->elements * (double)size;
}

static void log_launch(struct compute *compute, const struct launch *launch,
                       const struct kernel_argument *arguments, size_t count) {
    struct launch_entry entry = {.groups = launch->groups,
                                 .local = launch->local,
                                 .flops = launch->flops,
                                 .padded_flops = launch->padded_flops,
                                 .on_matrix_cores = launch->on_matrix_cores,
                                 .launches = true};
    memcpy(entry.name, launch->kernel->name, sizeof entry.name);
    for (size_t i = 0; i < count; i++) {
        if (arguments[i].buffer) {
            const double bytes = extent_bytes(compute, entry.name, i, &arguments[i]);
            entry.read += bytes * arguments[i].reads;
            entry.written += bytes * arguments[i].writes;
        }
    }
    compute_log(compute, &entry);
}

static bool set_arguments(struct compute *compute, const struct kernel *kernel,
                          const struct kernel_argument *arguments, size_t count) {
    for (size_t i = 0; i < count; i++) {
        cl_int code = clSetKernelArg(kernel->handle, (cl_uint)i, arguments[i].bytes, &arguments[i].value);
        if (code != CL_SUCCESS) {
            compute_fail(compute, "cannot set argument %zu of kernel %s: %s", i, kernel->name,
                         device_error_name(code));
            return false;
        }
    }
    return true;
}

static void enqueue(struct compute *compute, const struct launch *launch, size_t global) {
    const struct kernel *kernel = launch->kernel;
    cl_event event = NULL;
    const cl_int code = clEnqueueNDRangeKernel(compute->queue, kernel->handle, 1, NULL, &global, &launch->local, 0,
                                               NULL, compute->profiler ? &event : NULL);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot run kernel %s as %zu groups of %zu: %s", kernel->name, launch->groups,
                     launch->local, device_error_text(code));
    } else if (compute->profiler) {
        profiler_add(compute->profiler, kernel->name, launch->flops, NULL, event);
    }
}

void kernel_run(struct compute *compute, const struct launch *launch, const struct kernel_argument *arguments,
                size_t count) {
    const struct kernel *kernel = launch->kernel;
    size_t global;
    if (compute->failure || !launch->groups) {
        return;
    }
    if (!(kernel->handle || compute->dry) || !launch->local ||
        __builtin_mul_overflow(launch->groups, launch->local, &global)) {
        compute_fail(compute, "cannot run kernel %s as %zu groups of %zu", kernel->name, launch->groups,
                     launch->local);
        return;
    }
    if (compute->launch_log) {
        log_launch(compute, launch, arguments, count);
    }
    if (!compute->dry && set_arguments(compute, kernel, arguments, count)) {
        enqueue(compute, launch, global);
    }
}
