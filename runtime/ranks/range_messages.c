#include "runtime/ranks/range_messages.h"
#include "runtime/ranks/pairwise_sum.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <mpi.h>
#include <stdlib.h>

#define SMALL_PART 65536 /* bytes: smaller parts are sent by recursive halving */

struct message {
    MPI_Request request;
    int peer; /* the rank of the group that sends or receives it */
};

/* ---- creation and release */

static size_t element_bytes(bool bf16) {
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Elements of the buffer for received addends: one part from each other rank, or half of the range if that is
 * more. */
static uint64_t received_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    const int count = ranks->cross_node.count;
    const uint64_t part = range_part((struct element_range){0, largest}, count, 0).count;
    return (uint64_t)(count - 1) * part * element_bytes(bf16);
}

uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    return ranks->cross_node.count == 1
               ? 0
               : received_bytes(ranks, largest, bf16) + (bf16 ? largest * sizeof(uint16_t) : 0);
}

void range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest,
                           bool bf16) {
    const size_t count = (size_t)ranks->cross_node.count;
    *messages = (struct range_messages){.ranks = ranks};
    messages->received = memory_allocate(range_messages_bytes(ranks, largest, bf16), 1);
    messages->addends = memory_allocate(count, sizeof *messages->addends);
    messages->messages = memory_zeroed(2 * count, sizeof *messages->messages);
    messages->packed = bf16 ? (uint16_t *)(messages->received + received_bytes(ranks, largest, bf16)) : NULL;
}

void range_messages_release(struct range_messages *messages) {
    free(messages->received);
    free(messages->addends);
    free(messages->messages);
    *messages = (struct range_messages){0};
}

/* ---- parts of a range */

static int group_size(const struct range_messages *messages) {
    return messages->ranks->cross_node.count;
}

static int own_index(const struct range_messages *messages) {
    return messages->ranks->cross_node.index;
}

/* The range of the parts at places [first, first + count), which are adjacent; count is a power of two. */
static struct element_range parts_at(const struct range_messages *messages, int first, int count) {
    const int size = group_size(messages);
    const struct element_range low = range_part(messages->range, size, first);
    const struct element_range high = range_part(messages->range, size, first + count - 1);
    return (struct element_range){low.offset, high.offset + high.count - low.offset};
}

static struct element_range part_of(const struct range_messages *messages, int index) {
    return parts_at(messages, range_place(group_size(messages), index), 1);
}

static float *data_of(const struct range_messages *messages, struct element_range part) {
    return messages->data + (part.offset - messages->range.offset);
}

static uint16_t *packed_of(const struct range_messages *messages, struct element_range part) {
    return messages->packed + (part.offset - messages->range.offset);
}

/* The address that a part is sent from or received at. */
static void *place_of(const struct range_messages *messages, struct element_range part) {
    return messages->bf16 ? (void *)packed_of(messages, part) : data_of(messages, part);
}

/* The address at which addends are received; without halving, those of one rank for this rank's part. */
static void *arrival_of(const struct range_messages *messages, int peer) {
    const int place = peer < own_index(messages) ? peer : peer - 1;
    return messages->received +
           (uint64_t)place * part_of(messages, own_index(messages)).count * element_bytes(messages->bf16);
}

static void pack(const struct range_messages *messages, struct element_range part) {
    if (messages->bf16) {
        elements_to_bf16(data_of(messages, part), part.count, packed_of(messages, part));
    }
}

static void unpack(const struct range_messages *messages, struct element_range part) {
    if (messages->bf16) {
        elements_from_bf16(packed_of(messages, part), part.count, data_of(messages, part));
    }
}

/* ---- messages */

/* Starts a message to or from rank `peer` of the group. Empty parts are not sent. */
static int start_message(struct range_messages *messages, bool sends, int peer, void *data, uint64_t count,
                         double *bytes) {
    const MPI_Datatype type = messages->bf16 ? MPI_UINT16_T : MPI_FLOAT;
    struct message *message = &messages->messages[messages->pending];
    const int tag = 2 * messages->tag + messages->gathers, rank = messages->ranks->cross_node.members[peer];
    if (count == 0) {
        return 0;
    }
    messages->pending++;
    message->peer = rank;
    *bytes += sends ? (double)(count * element_bytes(messages->bf16)) : 0.0;
    return sends ? ranks_check(MPI_Isend(data, (int)count, type, rank, tag, MPI_COMM_WORLD, &message->request),
                               "cannot send gradients")
                 : ranks_check(MPI_Irecv(data, (int)count, type, rank, tag, MPI_COMM_WORLD, &message->request),
                               "cannot receive gradients");
}

static int have_arrived(struct range_messages *messages, bool *arrived) {
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

void range_messages_name_late(const struct range_messages *messages, char names[128]) {
    const struct rank_group *group = &messages->ranks->cross_node;
    for (int peer = 0; peer < group->count; peer++) {
        int done = 1;
        for (int i = 0; i < messages->pending && done; i++) {
            if (messages->messages[i].peer == group->members[peer]) {
                MPI_Request_get_status(messages->messages[i].request, &done, MPI_STATUS_IGNORE);
            }
        }
        if (!done) {
            ranks_add_name(names, group->members[peer]);
        }
    }
}

/* ---- direct messages. Each rank begins with another peer, so that not all send to the same one first */

static int start_direct(struct range_messages *messages, double *bytes) {
    const int count = group_size(messages), index = own_index(messages);
    const struct element_range own = part_of(messages, index);
    int status = 0;
    pack(messages, messages->gathers ? own : messages->range);
    for (int turn = count - 1; turn > 0 && status == 0; turn--) {
        const int peer = (index + turn) % count;
        const struct element_range part = messages->gathers ? part_of(messages, peer) : own;
        void *into = messages->gathers ? place_of(messages, part) : arrival_of(messages, peer);
        status = start_message(messages, false, peer, into, part.count, bytes);
    }
    for (int turn = 1; turn < count && status == 0; turn++) {
        const int peer = (index + turn) % count;
        const struct element_range part = messages->gathers ? own : part_of(messages, peer);
        status = start_message(messages, true, peer, place_of(messages, part), part.count, bytes);
    }
    return status;
}

static void finish_direct(struct range_messages *messages) {
    const struct element_range own = part_of(messages, own_index(messages));
    float *target = data_of(messages, own);
    for (int i = 0; !messages->gathers && i < group_size(messages); i++) {
        messages->addends[i] = i == own_index(messages) ? (void *)target : arrival_of(messages, i);
    }
    if (!messages->gathers) {
        pairwise_sum(&(struct pairwise_sum){messages->addends, group_size(messages), messages->bf16,
                                            own_index(messages), &target, 1},
                     0, own.count);
    }
}

/* ---- recursive halving and doubling: step s is with the rank that differs in bit s; an all-gather begins with the
 * highest bit */

/* The parts that this rank has in reduce-scatter's step, before it, or in all-gather's after it: those of ranks
 * with the same last bits. */
static struct element_range span_of(const struct range_messages *messages, int bit, int index) {
    const int count = group_size(messages) >> bit;
    return parts_at(messages, range_place(group_size(messages), index) & ~(count - 1), count);
}

static int bit_of(const struct range_messages *messages) {
    return messages->gathers ? messages->steps - 1 - messages->step : messages->step;
}

static int start_half(struct range_messages *messages, double *bytes) {
    const int bit = bit_of(messages), index = own_index(messages), peer = index ^ 1 << bit;
    const struct element_range mine = span_of(messages, bit + 1, index), theirs = span_of(messages, bit + 1, peer);
    const struct element_range in = messages->gathers ? theirs : mine, out = messages->gathers ? mine : theirs;
    void *into = messages->gathers ? place_of(messages, in) : messages->received;
    if (!messages->gathers || messages->step == 0) { /* parts that are passed on are packed already */
        pack(messages, out);
    }
    return start_message(messages, false, peer, into, in.count, bytes) ||
                   start_message(messages, true, peer, place_of(messages, out), out.count, bytes)
               ? -1
               : 0;
}

static void finish_half(struct range_messages *messages) {
    const int bit = bit_of(messages), index = own_index(messages);
    const struct element_range mine = span_of(messages, bit + 1, index);
    float *target = data_of(messages, mine);
    const void *addends[] = {target, messages->received};
    if (!messages->gathers) { /* addition of two is commutative, so the order does not matter */
        pairwise_sum(&(struct pairwise_sum){addends, 2, messages->bf16, 0, &target, 1}, 0, mine.count);
    }
}

/* ---- an operation */

static int start_step(struct range_messages *messages, double *bytes) {
    messages->pending = 0;
    return messages->halves ? start_half(messages, bytes) : start_direct(messages, bytes);
}

static bool goes_by_halves(const struct range_messages *messages) {
    const uint64_t part = range_part(messages->range, group_size(messages), 0).count;
    const int count = group_size(messages);
    return count > 2 && (count & (count - 1)) == 0 && part * element_bytes(messages->bf16) < SMALL_PART;
}

int range_messages_start(struct range_messages *messages, bool gathers, double *bytes) {
    messages->gathers = gathers;
    messages->halves = goes_by_halves(messages);
    messages->step = 0;
    messages->steps = messages->halves ? __builtin_ctz((unsigned)group_size(messages)) : 1;
    return start_step(messages, bytes);
}

int range_messages_advance(struct range_messages *messages, bool *done, double *bytes) {
    bool arrived = true;
    *done = false;
    while (arrived && messages->step < messages->steps) {
        if (have_arrived(messages, &arrived)) {
            return -1;
        }
        if (!arrived) {
            return 0;
        }
        messages->halves ? finish_half(messages) : finish_direct(messages);
        if (++messages->step < messages->steps && start_step(messages, bytes)) {
            return -1;
        }
    }
    if (messages->gathers) { /* its own part is rounded as well, so that all ranks have the same values */
        unpack(messages, messages->range);
    }
    *done = true;
    return 0;
}
