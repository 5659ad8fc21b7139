#include "runtime/device/transfer.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>

int transfer_create(struct compute *compute, struct transfer *transfer) {
    cl_int code;
    *transfer = (struct transfer){.compute = compute};
    transfer->queue = clCreateCommandQueue(compute->context, compute->device.id, 0, &code);
    if (code != CL_SUCCESS) {
        return error_set("device %s: cannot create a queue for transfers: %s", compute->device.name,
                         device_error_text(code));
    }
    return 0;
}

bool transfer_settle(struct transfer *transfer) {
    return !transfer->compute ||
           (compute_settle_queue(transfer->compute, transfer->queue) && compute_settle(transfer->compute));
}

void transfer_release(struct transfer *transfer) {
    if (transfer->queue && transfer_settle(transfer)) {
        clReleaseCommandQueue(transfer->queue);
    }
    *transfer = (struct transfer){0};
}

/* Creates memory and maps it until it is freed. CL_SUCCESS, or a code, and nothing is left. */
static cl_int map(struct transfer *transfer, struct pinned *pinned, cl_mem_flags flags, void *host, size_t bytes) {
    cl_int code;
    *pinned = (struct pinned){0};
    pinned->memory = clCreateBuffer(transfer->compute->context, CL_MEM_READ_WRITE | flags, bytes, host, &code);
    if (code == CL_SUCCESS) {
        pinned->host = clEnqueueMapBuffer(transfer->queue, pinned->memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                          bytes, 0, NULL, NULL, &code);
    }
    if (code != CL_SUCCESS) {
        transfer_free(transfer, pinned);
    }
    return code;
}

int transfer_allocate(struct transfer *transfer, struct pinned *pinned, size_t bytes) {
    const cl_int code = map(transfer, pinned, CL_MEM_ALLOC_HOST_PTR, NULL, bytes);
    if (code != CL_SUCCESS) {
        return error_set("device %s: cannot allocate %zu bytes for transfers: %s", transfer->compute->device.name,
                         bytes, device_error_text(code));
    }
    return 0;
}

bool transfer_pin(struct transfer *transfer, struct pinned *pinned, void *host, size_t bytes) {
    return map(transfer, pinned, CL_MEM_USE_HOST_PTR, host, bytes) == CL_SUCCESS;
}

void transfer_free(struct transfer *transfer, struct pinned *pinned) {
    if (pinned->host) {
        clEnqueueUnmapMemObject(transfer->queue, pinned->memory, pinned->host, 0, NULL, NULL);
        clFinish(transfer->queue); /* what was pinned may be unmapped next */
    }
    if (pinned->memory) {
        clReleaseMemObject(pinned->memory);
    }
    *pinned = (struct pinned){0};
}

static cl_event started(struct transfer *transfer, const char *doing, cl_event event, cl_int code) {
    if (code == CL_SUCCESS) {
        code = clFlush(transfer->queue);
    }
    if (code != CL_SUCCESS) {
        compute_fail(transfer->compute, "cannot %s: %s", doing, device_error_text(code));
        return NULL;
    }
    return event;
}

static cl_event mark(struct transfer *transfer, cl_command_queue queue, const char *doing) {
    cl_event event = NULL;
    const cl_int code = clEnqueueMarkerWithWaitList(queue, 0, NULL, &event);
    clFlush(queue);
    return started(transfer, doing, event, code);
}

cl_event transfer_mark(struct transfer *transfer) {
    return mark(transfer, transfer->compute->queue, "mark the end of a piece of the backward pass");
}

cl_event transfer_last(struct transfer *transfer) {
    return mark(transfer, transfer->queue, "mark the end of copies");
}

cl_event transfer_share(struct transfer *transfer, cl_event event) {
    return started(transfer, "wait for a piece of the backward pass", event, clRetainEvent(event));
}

bool transfer_done(struct transfer *transfer, cl_event event) {
    cl_int status = CL_COMPLETE;
    const cl_int code = clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL);
    if (code != CL_SUCCESS || status < 0) {
        compute_fail(transfer->compute, "a transfer or what it waited for failed: %s",
                     device_error_text(code != CL_SUCCESS ? code : status));
        return true;
    }
    return status == CL_COMPLETE;
}

void transfer_wait(struct transfer *transfer, cl_event event) {
    const cl_int code = clWaitForEvents(1, &event);
    transfer_done(transfer, event); /* keeps a failure of what was waited for */
    if (code != CL_SUCCESS) {
        compute_fail(transfer->compute, "cannot wait for a transfer: %s", device_error_text(code));
    }
}

cl_event transfer_read(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                       void *data) {
    cl_event event = NULL;
    const cl_int code =
        clEnqueueReadBuffer(transfer->queue, buffer->memory, CL_FALSE, offset, bytes, data, 0, NULL, &event);
    return started(transfer, "copy from the device", event, code);
}

cl_event transfer_write(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                        const void *data) {
    cl_event event = NULL;
    const cl_int code =
        clEnqueueWriteBuffer(transfer->queue, buffer->memory, CL_FALSE, offset, bytes, data, 0, NULL, &event);
    return started(transfer, "copy to the device", event, code);
}

/* The profiler is for the compute's own queue: this one keeps no times. */
void transfer_convert(struct transfer *transfer, struct span from, struct span to, size_t count) {
    struct compute *compute = transfer->compute;
    cl_command_queue queue = compute->queue;
    struct profiler *profiler = compute->profiler;
    compute->queue = transfer->queue;
    compute->profiler = NULL;
    convert_elements(compute, from, to, count);
    compute->queue = queue;
    compute->profiler = profiler;
}

/* ---- uploads */

/* A dry compute has ordinary host memory. */
int upload_create(struct compute *compute, struct upload *upload, size_t bytes) {
    *upload = (struct upload){.transfer = {compute, compute->queue}};
    for (int i = 0; i < 2; i++) {
        if (compute->dry) {
            upload->staging[i].host = memory_allocate(bytes, 1);
        } else if (transfer_allocate(&upload->transfer, &upload->staging[i], bytes)) {
            return -1;
        }
    }
    return 0;
}

void upload_release(struct upload *upload) {
    if (!upload->transfer.compute || !transfer_settle(&upload->transfer)) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (upload->sent[i]) {
            clReleaseEvent(upload->sent[i]);
        }
        if (upload->transfer.compute->dry) {
            free(upload->staging[i].host);
        } else {
            transfer_free(&upload->transfer, &upload->staging[i]);
        }
    }
    *upload = (struct upload){0};
}

void *upload_begin(struct upload *upload) {
    upload->slot = 1 - upload->slot;
    cl_event *sent = &upload->sent[upload->slot];
    if (*sent) {
        transfer_wait(&upload->transfer, *sent);
        clReleaseEvent(*sent);
        *sent = NULL;
    }
    return upload->staging[upload->slot].host;
}

void upload_send(struct upload *upload, size_t offset, const struct buffer *buffer, size_t bytes) {
    struct compute *compute = upload->transfer.compute;
    cl_event *sent = &upload->sent[upload->slot];
    if (compute->failure || !bytes) {
        return;
    }
    compute_log(compute, &(struct launch_entry){.name = "buffer_send", .written = (double)bytes, .launches = true});
    if (compute->dry) {
        return;
    }
    if (*sent) {
        clReleaseEvent(*sent);
    }
    const char *data = upload->staging[upload->slot].host;
    *sent = transfer_write(&upload->transfer, buffer, 0, bytes, data + offset);
}
