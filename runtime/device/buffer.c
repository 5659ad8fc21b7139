/* Buffers of a device, and conversions between the types of their elements. */
#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>
#include <string.h>

/* Devices that work on host memory get our own: PoCL neither copies it nor counts it against its own limit on the
 * total. */
int buffer_create_shareable(struct compute *compute, struct buffer *buffer, size_t bytes, bool shareable) {
    const struct device *device = &compute->device;
    const size_t real = bytes ? bytes : 4;
    const cl_uchar zero = 0;
    cl_int code = CL_SUCCESS;
    *buffer = (struct buffer){.shareable = shareable};
    if (bytes > device->max_buffer_bytes) {
        return error_set("device %s: cannot create a buffer of %zu bytes: the device's largest is %zu",
                         device->name, bytes, device->max_buffer_bytes);
    }
    if (!compute->dry && device->native_kernels) {
        code = CL_OUT_OF_HOST_MEMORY;
        if (host_memory_create(&buffer->pages, bytes, shareable)) {
            buffer->host = buffer->pages.data;
            buffer->memory = clCreateBuffer(compute->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR,
                                            bytes ? bytes : 1, buffer->host, &code);
        }
    } else if (!compute->dry) {
        const cl_mem_flags flags = device->shares_host_memory ? CL_MEM_ALLOC_HOST_PTR : 0;
        buffer->memory = clCreateBuffer(compute->context, CL_MEM_READ_WRITE | flags, real, NULL, &code);
        if (code == CL_SUCCESS) {
            code = clEnqueueFillBuffer(compute->queue, buffer->memory, &zero, sizeof(zero), 0, real, 0, NULL, NULL);
        }
    }
    if (code != CL_SUCCESS) {
        if (buffer->memory) {
            clReleaseMemObject(buffer->memory);
        }
        host_memory_release(&buffer->pages);
        *buffer = (struct buffer){0};
        return error_set("device %s: cannot create a buffer of %zu bytes: %s", device->name, bytes,
                         device_error_text(code));
    }
    buffer->bytes = bytes;
    compute->allocated_bytes += bytes;
    return 0;
}

int buffer_create(struct compute *compute, struct buffer *buffer, size_t bytes) {
    return buffer_create_shareable(compute, buffer, bytes, false);
}

void buffer_release(struct compute *compute, struct buffer *buffer) {
    if (!buffer->memory) {
        return;
    }
    /* OpenCL keeps a released memory object alive while launches use it, but not the pages that we lent to it. */
    if (buffer->host && !compute_settle(compute)) {
        return;
    }
    clReleaseMemObject(buffer->memory);
    host_memory_release(&buffer->pages);
    compute->allocated_bytes -= buffer->bytes;
    *buffer = (struct buffer){0};
}

/* Whether nothing has failed yet; a range that is not inside of the buffer is a failure. */
static bool range_is_inside(struct compute *compute, const struct buffer *buffer, size_t offset, size_t bytes,
                            const char *doing) {
    const bool missing = !buffer->memory && !compute->dry;
    if (!compute->failure && (missing || offset > buffer->bytes || bytes > buffer->bytes - offset)) {
        compute_fail(compute, "cannot %s %zu bytes at %zu: the buffer has %zu bytes", doing, bytes, offset,
                     buffer->bytes);
    }
    return !compute->failure;
}

/* Logs a copy or a fill; whether it is to be done, which is not so in a dry compute. */
static bool begin_launch(struct compute *compute, const char *name, size_t read, size_t written, bool waits) {
    struct launch_entry entry = {.read = (double)read,
                                 .written = (double)written,
                                 .launches = read || written,
                                 .waits = waits};
    snprintf(entry.name, sizeof entry.name, "%s", name);
    compute_log(compute, &entry);
    return !compute->dry;
}

static void finish_launch(struct compute *compute, const char *name, cl_event event, cl_int code) {
    if (code != CL_SUCCESS) {
        compute_fail(compute, "cannot launch %s: %s", name, device_error_text(code));
    } else if (compute->profiler) {
        profiler_add(compute->profiler, name, 0.0, NULL, event);
    }
}

int buffer_write(struct compute *compute, const struct buffer *buffer, size_t offset, const void *data,
                 size_t bytes) {
    cl_event event = NULL;
    if (range_is_inside(compute, buffer, offset, bytes, "write") && bytes &&
        begin_launch(compute, "buffer_write", 0, bytes, true)) {
        const cl_int code = clEnqueueWriteBuffer(compute->queue, buffer->memory, CL_TRUE, offset, bytes, data, 0,
                                                 NULL, compute->profiler ? &event : NULL);
        finish_launch(compute, "buffer_write", event, code);
    }
    return compute_check(compute);
}

int buffer_read(struct compute *compute, const struct buffer *buffer, size_t offset, void *data, size_t bytes) {
    cl_event event = NULL;
    if (range_is_inside(compute, buffer, offset, bytes, "read")) {
        if (!bytes) {
            return compute_finish(compute);
        }
        if (!begin_launch(compute, "buffer_read", bytes, 0, true)) {
            memset(data, 0, bytes);
            return 0;
        }
        const cl_int code = clEnqueueReadBuffer(compute->queue, buffer->memory, CL_TRUE, offset, bytes, data, 0,
                                                NULL, compute->profiler ? &event : NULL);
        finish_launch(compute, "buffer_read", event, code);
    }
    return compute_check(compute);
}

int buffer_write_floats(struct compute *compute, const struct buffer *buffer, uint64_t first, const float *values,
                        uint64_t count) {
    if (buffer->type == ELEMENT_FP32) {
        return buffer_write(compute, buffer, first * sizeof *values, values, count * sizeof *values);
    }
    uint16_t *bits = memory_allocate(count, sizeof *bits);
    for (uint64_t i = 0; i < count; i++) {
        element_put(bits, i, values[i], buffer->type);
    }
    const int status = buffer_write(compute, buffer, first * sizeof *bits, bits, count * sizeof *bits);
    free(bits);
    return status;
}

int buffer_read_floats(struct compute *compute, const struct buffer *buffer, uint64_t first, float *values,
                       uint64_t count) {
    if (buffer->type == ELEMENT_FP32) {
        return buffer_read(compute, buffer, first * sizeof *values, values, count * sizeof *values);
    }
    uint16_t *bits = memory_zeroed(count, sizeof *bits);
    const int status = buffer_read(compute, buffer, first * sizeof *bits, bits, count * sizeof *bits);
    for (uint64_t i = 0; i < count; i++) {
        values[i] = element_at(bits, i, buffer->type);
    }
    free(bits);
    return status;
}

void buffer_zero(struct compute *compute, const struct buffer *buffer, size_t offset, size_t bytes) {
    cl_event event = NULL;
    cl_uint zero = 0;
    if (!range_is_inside(compute, buffer, offset, bytes, "zero") || !bytes ||
        !begin_launch(compute, "buffer_zero", 0, bytes, false)) {
        return;
    }
    /* The pattern's size must divide offset and length. */
    const size_t pattern = (offset | bytes) % sizeof(zero) ? 1 : sizeof(zero);
    const cl_int code = clEnqueueFillBuffer(compute->queue, buffer->memory, &zero, pattern, offset, bytes, 0, NULL,
                                            compute->profiler ? &event : NULL);
    finish_launch(compute, "buffer_zero", event, code);
}

void buffer_copy(struct compute *compute, const struct buffer *from, size_t from_offset, const struct buffer *to,
                 size_t to_offset, size_t bytes) {
    cl_event event = NULL;
    if (!range_is_inside(compute, from, from_offset, bytes, "copy from") ||
        !range_is_inside(compute, to, to_offset, bytes, "copy to") || !bytes ||
        !begin_launch(compute, "buffer_copy", bytes, bytes, false)) {
        return;
    }
    const cl_int code = clEnqueueCopyBuffer(compute->queue, from->memory, to->memory, from_offset, to_offset, bytes,
                                            0, NULL, compute->profiler ? &event : NULL);
    finish_launch(compute, "buffer_copy", event, code);
}

/* ---- conversions between element types */

enum { CONVERT_GROUP = 64 }; /* work-items of a group, with a vector each */

void convert_elements(struct compute *compute, struct span from, struct span to, size_t count) {
    const enum element_type source = from.buffer->type, target = to.buffer->type;
    const size_t from_size = element_size(source), to_size = element_size(target);
    if (!range_is_inside(compute, from.buffer, from.offset * from_size, count * from_size, "convert from") ||
        !range_is_inside(compute, to.buffer, to.offset * to_size, count * to_size, "convert to") || !count) {
        return;
    }
    if (source == target) {
        buffer_copy(compute, from.buffer, from.offset * from_size, to.buffer, to.offset * to_size, count * to_size);
    } else if (source != ELEMENT_FP32 && target != ELEMENT_FP32) {
        compute_fail(compute, "cannot convert from bf16 to fp16 or back");
    } else {
        const char *const files[] = {"convert.cl", NULL};
        const size_t vectors = (count - 1) / compute->vector + 1;
        char options[64];
        snprintf(options, sizeof(options), "-DACT=%d -DVEC=%u", (int)(target == ELEMENT_FP32 ? source : target),
                 compute->vector);
        KERNEL_RUN(compute,
                   kernel_find(compute, files, options,
                               target == ELEMENT_FP32 ? "convert_to_fp32" : "convert_from_fp32"),
                   (vectors - 1) / CONVERT_GROUP + 1, CONVERT_GROUP, ARG_SPAN_IN(from, count), ARG_U64(count),
                   ARG_SPAN_OUT(to, count));
    }
}
