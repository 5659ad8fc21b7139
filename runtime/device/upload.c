#include "runtime/device/upload.h"
#include "runtime/device/compute.h"
#include "runtime/system/error.h"
#include <stdlib.h>

/* Host memory alone where nothing runs. */
static int allocate(struct upload *upload, struct pinned *pinned, size_t bytes) {
    if (!upload->transfer.compute->dry) {
        return transfer_allocate(&upload->transfer, pinned, bytes);
    }
    pinned->host = malloc(bytes);
    return pinned->host ? 0 : error_set("out of memory");
}

int upload_create(struct compute *compute, struct upload *upload, size_t bytes) {
    *upload = (struct upload){.transfer = {compute, compute->queue}};
    return allocate(upload, &upload->staging[0], bytes) || allocate(upload, &upload->staging[1], bytes) ? -1 : 0;
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
    upload->turn = 1 - upload->turn;
    cl_event *sent = &upload->sent[upload->turn];
    if (*sent) {
        transfer_wait(&upload->transfer, *sent);
        clReleaseEvent(*sent);
        *sent = NULL;
    }
    return upload->staging[upload->turn].host;
}

void upload_send(struct upload *upload, size_t offset, const struct buffer *buffer, size_t bytes) {
    struct compute *compute = upload->transfer.compute;
    cl_event *sent = &upload->sent[upload->turn];
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
    const char *data = upload->staging[upload->turn].host;
    *sent = transfer_write(&upload->transfer, buffer, 0, bytes, data + offset);
}
