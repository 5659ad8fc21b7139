#include "runtime/device/compute.h"
#include "runtime/device/gpu_model.h"
#include "runtime/device/pocl_cache.h"
#include "runtime/device/profiler.h"
#include "runtime/device/programs.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void compute_fail(struct compute *compute, const char *format, ...) {
    char text[1 << 14];
    va_list arguments;
    if (!compute->failure) {
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        compute->failure = memory_format("device %s: %s", compute->device.name, text);
    }
}

void compute_forget(struct compute *compute) {
    free(compute->failure);
    compute->failure = NULL;
    free(atomic_exchange(&compute->native_failure, NULL));
}

void compute_fail_natively(struct compute *compute, char *text) {
    char *none = NULL;
    if (!atomic_compare_exchange_strong(&compute->native_failure, &none, text)) {
        free(text);
    }
}

int compute_check(struct compute *compute) {
    char *text = atomic_exchange(&compute->native_failure, NULL);
    if (text) {
        compute_fail(compute, "%s", text);
        free(text);
    }
    if (compute->failure) {
        return error_set("%s", compute->failure);
    }
    return 0;
}

void compute_flush(struct compute *compute) {
    if (!compute->dry) {
        clFlush(compute->queue);
    }
}

void compute_finish_kernel(struct compute *compute, const char *name) {
    const cl_int code = compute->finishes_kernels && !compute->failure ? clFinish(compute->queue) : CL_SUCCESS;
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot finish kernel %s: %s", name, device_error_text(code));
    }
}

int compute_finish(struct compute *compute) {
    compute_log(compute, &(struct launch_entry){.name = "finish", .waits = true});
    if (compute->dry) {
        return compute_check(compute);
    }
    cl_int code = clFinish(compute->queue);
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot finish the work launched: %s", device_error_text(code));
    }
    if (compute->profiler && code == CL_SUCCESS) {
        profiler_collect(compute->profiler);
    }
    return compute_check(compute);
}

/* Before the exit handlers of libraries, which were registered earlier, take away what their threads work on. */
static void leave_at_once(int status, void *unused) {
    (void)unused;
    fflush(stdout); /* not all streams: a thread that hangs may hold one */
    fflush(stderr);
    _exit(status);
}

bool compute_settle_queue(struct compute *compute, cl_command_queue queue) {
    if (!compute->lost && queue && clFinish(queue) != CL_SUCCESS) {
        compute->lost = true;
        on_exit(leave_at_once, NULL);
    }
    return !compute->lost;
}

bool compute_settle(struct compute *compute) {
    return compute_settle_queue(compute, compute->queue);
}

/* The largest power of two that is at most `limit` (and at least 1). */
static unsigned power_of_two(size_t limit) {
    unsigned value = 1;
    while (value <= limit / 2 && value < (1U << 30)) {
        value *= 2;
    }
    return value;
}

/* Checks PoCL's cache, since PoCL itself reports neither a folder that cannot be written nor damaged files. */
static int prepare_pocl(void) {
    static bool is_mended;
    const char *problem = pocl_cache_check(false);
    if (problem) {
        return error_set("%s", problem);
    }
    char *folder = is_mended ? NULL : pocl_cache_locate();
    if (folder) {
        pocl_cache_mend(folder);
        pocl_cache_explain_crashes(folder);
        is_mended = true;
    }
    free(folder);
    return 0;
}

int compute_open(struct compute **opened, const struct compute_options *options) {
    struct compute *compute = memory_zeroed(1, sizeof(*compute));
    const cl_command_queue_properties properties = options->profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    const char *word = options->device ? options->device : "auto";
    *opened = NULL;
    compute->dry = options->dry;
    compute->verify = options->verify;
    if (!compute->dry && device_choose(word, options->local_rank, &compute->device)) {
        free(compute);
        return -1;
    }
    if (options->model) {
        gpu_model_apply(options->model, &compute->device);
    }
    if (!compute->dry && device_is_pocl(&compute->device) && prepare_pocl()) {
        free(compute);
        return -1;
    }
    const struct device *device = &compute->device;
    compute->lanes = device->is_cpu && !device->is_gpu ? 1 : power_of_two(size_smaller(device->max_work_group, 64));
    compute->vector = 4; /* 128-bit loads on GPUs; what llvmpipe and simulators do well */
    if (device->is_cpu && device->native_kernels) {
        compute->vector = power_of_two(size_smaller(device->vector_width, 16));
    }
    progress_start(&compute->compiling, 0);
    compute->compiling.silent = options->local_rank > 0;
    if (options->log_launches || options->dry) {
        compute->launch_log = memory_zeroed(1, sizeof *compute->launch_log);
    }
    compute->cache_dir = program_cache_locate(compute->dry ? "" : options->cache_dir);
    if (!compute->dry) {
        cl_int code;
        const char *what = "context";
        /* no properties: OpenCL's loader refuses the platform of our driver for Vulkan, which it does not know */
        compute->context = clCreateContext(NULL, 1, &device->id, device_error_notify, NULL, &code);
        if (code == CL_SUCCESS) {
            what = "command queue";
            compute->queue = clCreateCommandQueue(compute->context, device->id, properties, &code);
        }
        if (code != CL_SUCCESS) {
            error_set("cannot open device %s: cannot create a %s: %s", device->name, what, device_error_text(code));
            compute_close(compute);
            return -1;
        }
        compute->profiler = options->profile ? profiler_create() : NULL;
        const char *finishes = getenv("HCTRAIN_FINISH_KERNELS");
        compute->finishes_kernels = finishes && strcmp(finishes, "1") == 0;
    }
    *opened = compute;
    return 0;
}

void compute_close(struct compute *compute) {
    if (!compute || !compute_settle(compute)) {
        return;
    }
    if (compute->close_attached) {
        compute->close_attached(compute);
    }
    programs_release(compute);
    profiler_destroy(compute->profiler);
    if (compute->launch_log) {
        free(compute->launch_log->entries);
        free(compute->launch_log);
    }
    if (compute->queue) {
        clReleaseCommandQueue(compute->queue);
    }
    if (compute->context) {
        clReleaseContext(compute->context);
    }
    compute_forget(compute);
    free(compute->cache_dir);
    free(compute);
}

/* ---- launches */

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
    compute_finish_kernel(compute, kernel->name);
}
