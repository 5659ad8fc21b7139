/* Copies between a buffer and the host that do not wait: they run on a queue of their own, beside the launches, so
 * that the host sends what the device has finished while the device goes on. */
#pragma once

#include "runtime/device/compute.h"

struct transfer {
    struct compute *compute;
    cl_command_queue queue;
};

/* Host memory that the device copies from and to directly, if the driver has such memory. */
struct pinned {
    cl_mem memory;
    void *host;
};

int transfer_create(struct compute *compute, struct transfer *transfer);
bool transfer_settle(struct transfer *transfer);  /* waits for both queues, see compute_settle */
void transfer_release(struct transfer *transfer); /* waits for copies under way */

int transfer_allocate(struct transfer *transfer, struct pinned *pinned, size_t bytes);

/* Pins memory that exists and stays until transfer_free; false: the driver cannot. */
bool transfer_pin(struct transfer *transfer, struct pinned *pinned, void *host, size_t bytes);
void transfer_free(struct transfer *transfer, struct pinned *pinned);

/* Functions that return an event return NULL on failure, which is kept in the compute. The caller releases the
 * event with clReleaseEvent. */

/* A mark in the compute's queue behind all launches so far, which are submitted. */
cl_event transfer_mark(struct transfer *transfer);

/* The same event with one more reference, for another one who waits for it and releases it. */
cl_event transfer_share(struct transfer *transfer, cl_event event);

/* Whether work up to the mark, or a copy, is done. A failure counts as done and is kept in the compute. */
bool transfer_done(struct transfer *transfer, cl_event event);

/* Converts a range on the device as convert_elements, behind the copies so far. */
void transfer_convert(struct transfer *transfer, struct span from, struct span to, size_t count);

/* An event for all copies and conversions so far. */
cl_event transfer_last(struct transfer *transfer);

/* Waits for an event, without taking a core's time from a device that is a CPU. */
void transfer_wait(struct transfer *transfer, cl_event event);

/* Starts a copy of a range (bytes) at once. The range and `data` must be left alone until its event. */
cl_event transfer_read(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                       void *data);
cl_event transfer_write(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                        const void *data);

/* What the host sends for each piece of work, through two staging areas in turn, so that neither the host nor the
 * device waits: the host is at most two pieces ahead. Copies run in the order of the compute's queue. */
struct upload {
    struct transfer transfer; /* on the compute's own queue */
    struct pinned staging[2];
    cl_event sent[2]; /* the last copy out of each area; NULL: none is under way */
    unsigned slot;    /* the area in use */
};

/* Makes staging areas of so many bytes. upload_release also frees what a failure leaves. */
int upload_create(struct compute *compute, struct upload *upload, size_t bytes);
void upload_release(struct upload *upload);

/* The next staging area, which the caller fills until the next call. Waits until the device has copied what was
 * sent from it. */
void *upload_begin(struct upload *upload);

/* Launches a copy of bytes at `offset` of that area to the beginning of a buffer. */
void upload_send(struct upload *upload, size_t offset, const struct buffer *buffer, size_t bytes);
