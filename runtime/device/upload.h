/* What the host sends for each piece of work: written into one of two staging areas in turn and copied in the queue's
 * order, so that the host does not wait and the device does not run dry. The host is at most two pieces ahead. */
#pragma once

#include "runtime/device/transfer.h"

struct upload {
    struct transfer transfer; /* on the compute's own queue */
    struct pinned staging[2];
    cl_event sent[2]; /* when the device has the last of it; NULL: nothing is under way */
    unsigned turn;
};

/* Staging areas of so many bytes. upload_release frees what a failure leaves. */
int upload_create(struct compute *compute, struct upload *upload, size_t bytes);
void upload_release(struct upload *upload);

/* The next staging area, which is the caller's to fill until the next call. Waits until the device has taken what it held
 * two calls ago. */
void *upload_begin(struct upload *upload);

/* Copies bytes at `offset` of that area to the beginning of a buffer. A launch. */
void upload_send(struct upload *upload, size_t offset, const struct buffer *buffer, size_t bytes);
