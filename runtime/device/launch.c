#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/system/memory.h"
#include <string.h>

void compute_log(struct compute *compute, const struct launch_entry *entry) {
    struct launch_log *log = compute->launch_log;
    if (log) {
        memory_reserve((void **)&log->entries, &log->capacity, log->count + 1, sizeof *log->entries);
        log->entries[log->count] = *entry;
        log->entries[log->count++].module = compute->module ? compute->module : "other";
    }
}

/* Elements that are not inside of their buffer are a failure. */
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
        const struct kernel_argument *argument = &arguments[i];
        if (!argument->buffer) {
            continue;
        }
        const size_t size = element_size(argument->buffer->type), elements = argument->buffer->bytes / size;
        if (argument->offset > elements || argument->elements > elements - argument->offset) {
            compute_fail(compute, "kernel %s: argument %zu has %zu elements at %zu, and its buffer has %zu",
                         entry.name, i, argument->elements, argument->offset, elements);
            continue;
        }
        const double bytes = (double)argument->elements * (double)size;
        entry.read += bytes * argument->reads;
        entry.written += bytes * argument->writes;
    }
    compute_log(compute, &entry);
}

void kernel_run(struct compute *compute, const struct launch *launch, const struct kernel_argument *arguments,
                size_t count) {
    const struct kernel *kernel = launch->kernel;
    size_t global;
    cl_event event = NULL;
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
    if (compute->dry) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const cl_int code = clSetKernelArg(kernel->handle, (cl_uint)i, arguments[i].bytes, &arguments[i].value);
        if (code != CL_SUCCESS) {
            compute_fail(compute, "cannot set argument %zu of kernel %s: %s", i, kernel->name,
                         device_error_name(code));
            return;
        }
    }
    const cl_int code = clEnqueueNDRangeKernel(compute->queue, kernel->handle, 1, NULL, &global, &launch->local, 0,
                                               NULL, compute->profiler ? &event : NULL);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot run kernel %s as %zu groups of %zu: %s", kernel->name, launch->groups,
                     launch->local, device_error_text(code));
    } else if (compute->profiler) {
        profiler_add(compute->profiler, kernel->name, launch->flops, NULL, event);
    }
}
