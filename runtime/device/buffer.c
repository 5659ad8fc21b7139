#include "runtime/device/compute.h"
#include "runtime/device/profiler.h"
#include "runtime/device/recorder.h"
#include "runtime/system/error.h"
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

/* Length of the mapping behind a buffer of this size: whole pages, at least one. 0 when it does not fit a size_t.
 */
static size_t mapping_length(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t pages = bytes ? (bytes - 1) / page + 1 : 1;
    size_t length;
    return __builtin_mul_overflow(pages, page, &length) ? 0 : length;
}

/* Zeroed pages; large mappings start at a huge page, so that the kernel can back them with such. */
static void *mapping_create(size_t length) {
    size_t slack = length >= 2 * HUGE_PAGE ? HUGE_PAGE : 0;
    size_t total;
    if (!length || __builtin_add_overflow(length, slack, &total)) {
        return NULL;
    }
    char *start = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) {
        return NULL;
    }
    if (!slack) {
        return start;
    }
    size_t head = (HUGE_PAGE - (size_t)((uintptr_t)start % HUGE_PAGE)) % HUGE_PAGE;
    if (head) {
        munmap(start, head);
    }
    if (slack - head) {
        munmap(start + head + length, slack - head);
    }
    madvise(start + head, length, MADV_HUGEPAGE); /* advice: failure changes nothing */
    return start + head;
}

/* Devices that work on our memory: PoCL neither copies it nor counts it against its own limit on the total. */
static cl_int create_on_host(struct compute *compute, struct buffer *buffer, size_t bytes) {
    cl_int code;
    size_t length = mapping_length(bytes);
    void *host = mapping_create(length);
    if (!host) {
        return CL_OUT_OF_HOST_MEMORY;
    }
    buffer->memory =
        clCreateBuffer(compute->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes ? bytes : 1, host, &code);
    if (code != CL_SUCCESS) {
        munmap(host, length);
        return code;
    }
    buffer->host = host;
    return CL_SUCCESS;
}

static cl_int create_on_device(struct compute *compute, struct buffer *buffer, size_t bytes) {
    cl_int code;
    cl_mem_flags flags = CL_MEM_READ_WRITE | (compute->device.shares_host_memory ? CL_MEM_ALLOC_HOST_PTR : 0);
    size_t real = bytes ? bytes : 4;
    cl_uchar zero = 0;
    buffer->memory = clCreateBuffer(compute->context, flags, real, NULL, &code);
    if (code != CL_SUCCESS) {
        return code;
    }
    code = clEnqueueFillBuffer(compute->queue, buffer->memory, &zero, sizeof(zero), 0, real, 0, NULL, NULL);
    if (code != CL_SUCCESS) {
        clReleaseMemObject(buffer->memory);
    }
    return code;
}

int buffer_create(struct compute *compute, struct buffer *buffer, size_t bytes) {
    *buffer = (struct buffer){0};
    if (bytes > compute->device.max_buffer_bytes) {
        return error_set("device %s: cannot create a buffer of %zu bytes: the device's largest is %zu",
                         compute->device.name, bytes, compute->device.max_buffer_bytes);
    }
    cl_int code = compute->dry                     ? CL_SUCCESS
                  : compute->device.native_kernels ? create_on_host(compute, buffer, bytes)
                                                   : create_on_device(compute, buffer, bytes);
    if (code != CL_SUCCESS) {
        *buffer = (struct buffer){0};
        return error_set("device %s: cannot create a buffer of %zu bytes: %s", compute->device.name, bytes,
                         device_error_text(code));
    }
    buffer->bytes = bytes;
    compute->allocated_bytes += bytes;
    return 0;
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
    if (buffer->host) {
        munmap(buffer->host, mapping_length(buffer->bytes));
    }
    compute->allocated_bytes -= buffer->bytes;
    *buffer = (struct buffer){0};
}

/* Whether there is anything to launch: not after a failure, such as a range that is not inside of the buffer. */
static bool range_is_inside(struct compute *compute, const struct buffer *buffer, size_t offset, size_t bytes,
                            const char *doing) {
    const bool missing = !buffer->memory && !compute->dry;
    if (!compute->failure && (missing || offset > buffer->bytes || bytes > buffer->bytes - offset)) {
        compute_fail(compute, "cannot %s %zu bytes at %zu: the buffer has %zu bytes", doing, bytes, offset,
                     buffer->bytes);
    }
    return !compute->failure;
}

/* A copy or a fill, recorded where that is wanted; whether it is to be done, too. */
static bool begin_launch(struct compute *compute, const char *name, size_t read, size_t written, bool waits) {
    struct record record = {.read = (double)read,
                            .written = (double)written,
                            .launches = read || written,
                            .waits = waits};
    snprintf(record.name, sizeof record.name, "%s", name);
    compute_record(compute, &record);
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
