#include "runtime/ranks/range_messages.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE 1024 /* elements added at a time, in the nearest cache */

struct message {
    MPI_Request request;
    int peer; /* whom it is with */
};

/* ---- making and releasing */

static uint64_t received_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    const uint64_t part = rank_part((struct element_range){0, largest}, ranks->count, 0).count;
    return (uint64_t)(ranks->count - 1) * part * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    return received_bytes(ranks, largest, bf16) + (bf16 ? largest * sizeof(uint16_t) : 0);
}

int range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest, bool bf16) {
    *messages = (struct range_messages){.ranks = ranks};
    messages->received = malloc(range_messages_bytes(ranks, largest, bf16));
    messages->messages = calloc(2 * (size_t)(ranks->count - 1), sizeof *messages->messages);
    if (!messages->received || !messages->messages) {
        return error_set("out of memory for messages between ranks");
    }
    messages->packed = bf16 ? (uint16_t *)(messages->received + received_bytes(ranks, largest, bf16)) : NULL;
    return 0;
}

void range_messages_release(struct range_messages *messages) {
    free(messages->received);
    free(messages->messages);
    *messages = (struct range_messages){0};
}

/* ---- a range, its parts, and how it travels */

static struct element_range part_of(const struct range_messages *messages, int rank) {
    return rank_part(messages->range, messages->ranks->count, rank);
}

static size_t element_bytes(const struct range_messages *messages) {
    return messages->bf16 ? sizeof *messages->packed : sizeof *messages->data;
}

/* Where a part lies in the range as it travels. */
static char *place_of(const struct range_messages *messages, struct element_range part) {
    char *begin = messages->bf16 ? (char *)messages->packed : (char *)messages->data;
    return begin + (part.offset - messages->range.offset) * element_bytes(messages);
}

/* Where addends of this rank's part lie that came from another rank. */
static char *addends_of(const struct range_messages *messages, int peer) {
    const int place = peer < messages->ranks->index ? peer : peer - 1;
    return messages->received +
           (uint64_t)place * part_of(messages, messages->ranks->index).count * element_bytes(messages);
}

static void pack(const float *values, uint64_t count, uint16_t *packed) {
    for (uint64_t i = 0; i < count; i++) {
        packed[i] = element_to_bf16(values[i]);
    }
}

static void unpack(const uint16_t *packed, uint64_t count, float *values) {
    for (uint64_t i = 0; i < count; i++) {
        values[i] = element_from_bf16(packed[i]);
    }
}

/* ---- messages */

/* Nothing is sent of an empty part. */
static int start_message(struct range_messages *messages, bool sends, int peer, int tag, char *data,
                         struct element_range part) {
    const MPI_Datatype type = messages->bf16 ? MPI_UINT16_T : MPI_FLOAT;
    struct message *message = &messages->messages[messages->pending];
    if (part.count == 0) {
        return 0;
    }
    messages->pending++;
    message->peer = peer;
    return sends ? ranks_check(MPI_Isend(data, (int)part.count, type, peer, tag, MPI_COMM_WORLD, &message->request),
                               "cannot send gradients")
                 : ranks_check(MPI_Irecv(data, (int)part.count, type, peer, tag, MPI_COMM_WORLD, &message->request),
                               "cannot receive gradients");
}

/* Each rank has its peers in another order, so that not all send to the same one first. */
int range_messages_start(struct range_messages *messages, bool gathers, double *bytes) {
    const int count = messages->ranks->count, index = messages->ranks->index, tag = 2 * messages->tag + gathers;
    const struct element_range own = part_of(messages, index);
    int status = 0;
    messages->pending = 0;
    if (messages->bf16) {
        const struct element_range leaving = gathers ? own : messages->range;
        const uint64_t first = leaving.offset - messages->range.offset;
        pack(messages->data + first, leaving.count, messages->packed + first);
    }
    for (int turn = count - 1; turn > 0 && status == 0; turn--) {
        const int peer = (index + turn) % count;
        const struct element_range theirs = part_of(messages, peer);
        status = gathers ? start_message(messages, false, peer, tag, place_of(messages, theirs), theirs)
                         : start_message(messages, false, peer, tag, addends_of(messages, peer), own);
    }
    for (int turn = 1; turn < count && status == 0; turn++) {
        const int peer = (index + turn) % count;
        const struct element_range part = gathers ? own : part_of(messages, peer);
        status = start_message(messages, true, peer, tag, place_of(messages, part), part);
        *bytes += (double)(part.count * element_bytes(messages));
    }
    return status;
}

int range_messages_arrived(struct range_messages *messages, bool *arrived) {
    int done = 1;
    while (done && messages->pending > 0) {
        struct message *last = &messages->messages[messages->pending - 1];
        const int code = MPI_Test(&last->request, &done, MPI_STATUS_IGNORE);
        if (ranks_check(code, "sums of gradients broke off")) {
            return error_prefix("with rank %d", last->peer);
        }
        messages->pending -= done;
    }
    *arrived = messages->pending == 0;
    return 0;
}

static bool owes_message(const struct range_messages *messages, int rank) {
    int done = 1;
    for (int i = 0; i < messages->pending && done; i++) {
        if (messages->messages[i].peer == rank) {
            MPI_Request_get_status(messages->messages[i].request, &done, MPI_STATUS_IGNORE);
        }
    }
    return !done;
}

void range_messages_name_late(const struct range_messages *messages, char names[128]) {
    size_t length = 0;
    strcpy(names, "another rank");
    for (int rank = 0; rank < messages->ranks->count && length < 100; rank++) {
        if (owes_message(messages, rank)) {
            length += (size_t)snprintf(names + length, 128 - length, "%s %d", length ? " or" : "rank", rank);
        }
    }
}

/* ---- sums */

/* A rank's addends for elements [at, at + count) of this rank's part; `wide` is room to unpack them in. */
static const float *addends_line(const struct range_messages *messages, const float *own, int rank, uint64_t at,
                                 uint64_t count, float wide[LINE]) {
    if (rank == messages->ranks->index) {
        return own + at;
    }
    const char *addends = addends_of(messages, rank) + at * element_bytes(messages);
    if (!messages->bf16) {
        return (const float *)addends;
    }
    unpack((const uint16_t *)addends, count, wide);
    return wide;
}

static void add(struct range_messages *messages) {
    const struct element_range part = part_of(messages, messages->ranks->index);
    float *own = messages->data + (part.offset - messages->range.offset), sum[LINE], wide[LINE];
    for (uint64_t at = 0; at < part.count; at += LINE) {
        const uint64_t count = part.count - at < LINE ? part.count - at : LINE;
        memcpy(sum, addends_line(messages, own, 0, at, count, wide), count * sizeof *sum);
        for (int rank = 1; rank < messages->ranks->count; rank++) {
            const float *line = addends_line(messages, own, rank, at, count, wide);
            for (uint64_t i = 0; i < count; i++) {
                sum[i] += line[i];
            }
        }
        memcpy(own + at, sum, count * sizeof *sum);
    }
}

void range_messages_finish(struct range_messages *messages, bool gathers) {
    if (!gathers) {
        add(messages);
    } else if (messages->bf16) { /* the own part too: its owner goes on with what the others get */
        unpack(messages->packed, messages->range.count, messages->data);
    }
}
