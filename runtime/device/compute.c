#include "runtime/device/compute.h"
#include "runtime/device/gpu_model.h"
#include "runtime/device/profiler.h"
#include "runtime/device/programs.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/vulkan/driver.h"
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

/* ---- what the compiler of a device on Vulkan made of kernels (its pipelines), kept in the cache folder */

/* The entry of a device and its driver; false where there is none. */
static bool name_pipelines(const struct compute *compute, char key[CHECKSUM_SIZE]) {
    const struct device *device = &compute->device;
    const char *const parts[] = {"pipelines", device->name, device->version, device->driver};
    return compute->cache_dir && !strcmp(device->platform_name, VULKAN_PLATFORM) &&
           checksum_strings(parts, sizeof parts / sizeof *parts, key) == 0;
}

/* The bytes are the caller's to free; NULL where there are none. */
static unsigned char *read_pipelines(struct compute *compute) {
    char key[CHECKSUM_SIZE];
    unsigned char *data;
    if (name_pipelines(compute, key) &&
        program_cache_read(compute->cache_dir, key, &data, &compute->pipelines_read)) {
        return data;
    }
    compute->pipelines_read = 0;
    return NULL;
}

/* Keeps those of the context, unless there are as many bytes as were read. */
static void write_pipelines(const struct compute *compute) {
    char key[CHECKSUM_SIZE];
    size_t bytes = 0;
    if (!compute->context || !name_pipelines(compute, key) ||
        clGetContextInfo(compute->context, VULKAN_PIPELINES, 0, NULL, &bytes) != CL_SUCCESS ||
        bytes == compute->pipelines_read) {
        return;
    }
    void *data = memory_allocate(bytes, 1);
    if (clGetContextInfo(compute->context, VULKAN_PIPELINES, bytes, data, NULL) == CL_SUCCESS) {
        program_cache_write(compute->cache_dir, key, data, bytes);
    }
    free(data);
}

/* ---- opening and closing */

/* OpenCL's loader refuses a platform that it does not know. */
static cl_context create_context(struct compute *compute, cl_int *code) {
    unsigned char *data = read_pipelines(compute);
    const struct vulkan_pipelines kept = {data, compute->pipelines_read};
    cl_context_properties properties[5] = {0};
    size_t count = 0;
    if (!compute->device.beside_loader) {
        properties[count++] = CL_CONTEXT_PLATFORM;
        properties[count++] = (cl_context_properties)compute->device.platform;
    }
    if (data) {
        properties[count++] = VULKAN_PIPELINES;
        properties[count++] = (cl_context_properties)&kept;
    }
    cl_context context =
        clCreateContext(count ? properties : NULL, 1, &compute->device.id, device_error_notify, NULL, code);
    free(data);
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
    compute->profiler = profile ? profiler_create() : NULL;
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
    struct compute *compute = memory_zeroed(1, sizeof(*compute));
    *opened = NULL;
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
    compute->cache_dir = program_cache_locate(compute->dry ? "" : options->cache_dir);
    if (!compute->dry && open_queue(compute, options->profile)) {
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
    write_pipelines(compute);
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
