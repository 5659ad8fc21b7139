#include "runtime/device/compute.h"
#include "runtime/device/gpu_model.h"
#include "runtime/device/profiler.h"
#include "runtime/device/program_cache.h"
#include "runtime/device/vulkan_pipelines.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static char no_memory_failure[] = "out of memory while reporting a failure";

void compute_fail(struct compute *compute, const char *format, ...) {
    if (compute->failure) {
        return;
    }
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) {
        text = NULL;
    }
    va_end(arguments);
    if (!text || asprintf(&compute->failure, "device %s: %s", compute->device.name, text) < 0) {
        compute->failure = no_memory_failure;
    }
    free(text);
}

void compute_forget(struct compute *compute) {
    if (compute->failure != no_memory_failure) {
        free(compute->failure);
    }
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

static void choose_widths(struct compute *compute) {
    const struct device *device = &compute->device;
    compute->lanes = device->is_cpu && !device->is_gpu
                         ? 1
                         : power_of_two(device->max_work_group < 64 ? device->max_work_group : 64);
    if (device->is_cpu && device->native_kernels) {
        compute->vector = power_of_two(device->vector_width < 16 ? device->vector_width : 16);
    } else {
        compute->vector = 4; /* 128-bit loads on GPUs; what llvmpipe and simulators do well */
    }
}

/* OpenCL's loader refuses a platform that it does not know. */
static cl_context create_context(struct compute *compute, cl_int *code) {
    const struct vulkan_pipelines kept = vulkan_pipelines_read(&compute->device, compute->cache_dir);
    compute->pipelines_read = kept.bytes;
    cl_context_properties properties[5] = {0};
    size_t count = 0;
    if (!compute->device.beside_loader) {
        properties[count++] = CL_CONTEXT_PLATFORM;
        properties[count++] = (cl_context_properties)compute->device.platform;
    }
    if (kept.bytes) {
        properties[count++] = VULKAN_PIPELINES;
        properties[count++] = (cl_context_properties)&kept;
    }
    cl_context context =
        clCreateContext(count ? properties : NULL, 1, &compute->device.id, device_error_notify, NULL, code);
    free((void *)kept.data);
    return context;
}

static int open_queue(struct compute *compute, bool profile) {
    cl_int code;
    compute->context = create_context(compute, &code);
    if (code != CL_SUCCESS) {
        return error_set("cannot create a context: %s", device_error_text(code));
    }
    cl_command_queue_properties flags = profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    compute->queue = clCreateCommandQueue(compute->context, compute->device.id, flags, &code);
    if (code != CL_SUCCESS) {
        return error_set("cannot create a command queue: %s", device_error_text(code));
    }
    if (profile && !(compute->profiler = profiler_create())) {
        return error_set("out of memory");
    }
    return 0;
}

static int choose_device(struct compute *compute, const struct compute_options *options) {
    compute->dry = options->dry;
    compute->verify = options->verify;
    if (!options->dry &&
        device_choose(options->device ? options->device : "auto", options->local_rank, &compute->device)) {
        return -1;
    }
    if (options->model) {
        gpu_model_apply(options->model, &compute->device);
    }
    return 0;
}

int compute_open(struct compute **opened, const struct compute_options *options) {
    struct compute *compute = calloc(1, sizeof(*compute));
    *opened = NULL;
    if (!compute) {
        return error_set("out of memory");
    }
    if (choose_device(compute, options)) {
        free(compute);
        return -1;
    }
    choose_widths(compute);
    progress_start(&compute->compiling, 0);
    compute->compiling.silent = options->local_rank > 0;
    if (options->log_launches || options->dry) {
        compute->launch_log = memory_zeroed(1, sizeof *compute->launch_log);
    }
    if (program_cache_locate(compute->dry ? "" : options->cache_dir, &compute->cache_dir) ||
        (!compute->dry && open_queue(compute, options->profile))) {
        error_prefix("cannot open device %s", compute->device.name);
        compute_close(compute);
        return -1;
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
    for (int type = 0; type <= ELEMENT_FP16; type++) {
        kernel_release(&compute->to_fp32[type]);
        kernel_release(&compute->from_fp32[type]);
    }
    programs_release(compute);
    vulkan_pipelines_write(&compute->device, compute->cache_dir, compute->context, compute->pipelines_read);
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
