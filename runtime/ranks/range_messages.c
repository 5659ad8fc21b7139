#include "runtime/ranks/range_messages.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct message {
    MPI_Request request;
    int peer; /* the rank of the job that sends or receives it */
};

/* ---- creation and release */

static size_t element_bytes(bool bf16) {
    return bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Bytes of the buffer for received addends: one shard from each other rank. */
static uint64_t received_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    const int count = ranks->cross_node.count;
    const uint64_t shard = range_shard((struct element_range){0, largest}, count, 0).count;
    return (uint64_t)(count - 1) * shard * element_bytes(bf16);
}

uint64_t range_messages_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    return ranks->cross_node.count == 1
               ? 0
               : received_bytes(ranks, largest, bf16) + (bf16 ? largest * sizeof(uint16_t) : 0);
}

void range_messages_create(struct range_messages *messages, const struct ranks *ranks, uint64_t largest,
                           bool bf16) {
    const size_t count = (size_t)ranks->cross_node.count;
    *messages = (struct range_messages){
        .ranks = ranks,
        .received = memory_allocate(range_messages_bytes(ranks, largest, bf16), 1),
        .addends = memory_allocate(count, sizeof *messages->addends),
        .messages = memory_zeroed(2 * count, sizeof *messages->messages),
    };
    messages->packed = bf16 ? (uint16_t *)(messages->received + received_bytes(ranks, largest, bf16)) : NULL;
}

void range_messages_release(struct range_messages *messages) {
    free(messages->received);
    free(messages->addends);
    free(messages->messages);
    *messages = (struct range_messages){0};
}

/* ---- shards of a range */

static struct element_range shard_of(const struct range_messages *messages, int index) {
    return messages->root >= 0 ? range_of_root(messages->range, messages->root, index)
                               : range_shard(messages->range, messages->ranks->cross_node.count, index);
}

static struct element_range own_shard(const struct range_messages *messages) {
    return shard_of(messages, messages->ranks->cross_node.index);
}

static float *data_of(const struct range_messages *messages, struct element_range shard) {
    return messages->data + (shard.offset - messages->range.offset);
}

static uint16_t *packed_of(const struct range_messages *messages, struct element_range shard) {
    return messages->packed + (shard.offset - messages->range.offset);
}

/* The address that a shard is sent from or gathered at. */
static void *place_of(const struct range_messages *messages, struct element_range shard) {
    return messages->bf16 ? (void *)packed_of(messages, shard) : data_of(messages, shard);
}

/* The address at which a peer's addends for this rank's shard are received. */
static void *arrival_of(const struct range_messages *messages, int peer) {
    const int place = peer < messages->ranks->cross_node.index ? peer : peer - 1;
    return messages->received + (uint64_t)place * own_shard(messages).count * element_bytes(messages->bf16);
}

/* ---- an operation */

/* Starts a message to or from rank `peer` of the group. Empty shards are not sent. */
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

int range_messages_start(struct range_messages *messages, bool gathers, double *bytes) {
    const struct rank_group *group = &messages->ranks->cross_node;
    const struct element_range own = own_shard(messages), packed = gathers ? own : messages->range;
    int status = 0;
    messages->gathers = gathers;
    messages->pending = 0;
    if (messages->bf16) {
        elements_to_bf16(data_of(messages, packed), packed.count, packed_of(messages, packed));
    }
    /* Each rank begins with another peer, so that not all send to the same one first. */
    for (int step = group->count - 1; step > 0 && status == 0; step--) {
        const int peer = (group->index + step) % group->count;
        const struct element_range shard = gathers ? shard_of(messages, peer) : own;
        void *into = gathers ? place_of(messages, shard) : arrival_of(messages, peer);
        status = start_message(messages, false, peer, into, shard.count, bytes);
    }
    for (int step = 1; step < group->count && status == 0; step++) {
        const int peer = (group->index + step) % group->count;
        const struct element_range shard = gathers ? own : shard_of(messages, peer);
        status = start_message(messages, true, peer, place_of(messages, shard), shard.count, bytes);
    }
    return status;
}

int range_messages_advance(struct range_messages *messages, bool *done) {
    *done = false;
    while (messages->pending > 0) {
        struct message *last = &messages->messages[messages->pending - 1];
        int arrived = 0;
        if (ranks_check(MPI_Test(&last->request, &arrived, MPI_STATUS_IGNORE), "sums of gradients broke off")) {
            return error_prefix("with rank %d", last->peer);
        }
        if (!arrived) {
            return 0;
        }
        messages->pending--;
    }
    if (!messages->gathers) {
        const struct rank_group *group = &messages->ranks->cross_node;
        const struct element_range own = own_shard(messages);
        float *target = data_of(messages, own);
        for (int i = 0; i < group->count; i++) {
            messages->addends[i] = i == group->index ? (void *)target : arrival_of(messages, i);
        }
        pairwise_sum(&(struct pairwise_sum){messages->addends, group->count, own.count, messages->bf16,
                                            group->index, &target, 1},
                     false);
    } else if (messages->bf16) { /* also its own shard is rounded, so that all ranks have the same values */
        elements_from_bf16(packed_of(messages, messages->range), messages->range.count, messages->data);
    }
    *done = true;
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

/* ---- sums */

enum {
    PIECE = 1 << 16, /* elements that a thread adds at a time */
    LINE = 1024,     /* of these at a time: partial sums stay in the first-level cache */
    DEPTH = 17,      /* most partial sums at a time: log2 of 2^16 addends, and one */
};

/* The largest power of two below `count`. */
static int first_half(int count) {
    int half = 1;
    while (2 * half < count) {
        half *= 2;
    }
    return half;
}

/* Returns the sum of `addends` addends from `first` on, as float: in scratch[0], or in place if it is a single one.
 * */
static const float *subtotal(const struct pairwise_sum *sum, int first, int addends, uint64_t at, uint64_t count,
                             float (*scratch)[LINE]) {
    if (addends == 1 && (!sum->bf16 || first == sum->wide)) {
        return (const float *)sum->addends[first] + at;
    }
    if (addends == 1) {
        elements_from_bf16((const uint16_t *)sum->addends[first] + at, count, scratch[0]);
        return scratch[0];
    }
    const int half = first_half(addends);
    const float *a = subtotal(sum, first, half, at, count, scratch);
    const float *b = subtotal(sum, first + half, addends - half, at, count, scratch + 1);
    float *total = scratch[0];
    for (uint64_t i = 0; i < count; i++) {
        total[i] = a[i] + b[i];
    }
    return total;
}

/* Writes a + b to all targets. Arrays are identical or do not overlap. */
static void store(const float *a, const float *b, uint64_t count, float *const *targets, int target_count,
                  uint64_t at) {
    float *first = targets[0] + at, *second = targets[target_count > 1] + at;
#ifndef __clang__ /* clang checks at run time whether arrays overlap */
#pragma GCC ivdep
#endif
    for (uint64_t i = 0; i < count; i++) {
        const float total = a[i] + b[i];
        first[i] = total;
        second[i] = total;
    }
    for (int i = 2; i < target_count; i++) {
        memcpy(targets[i] + at, first, count * sizeof *first);
    }
}

static int add_piece(void *context, size_t piece) {
    const struct pairwise_sum *sum = context;
    float scratch[DEPTH][LINE];
    const int half = first_half(sum->count);
    const uint64_t first = piece * PIECE, left = sum->elements - first, end = first + (left < PIECE ? left : PIECE);
    for (uint64_t at = first; at < end; at += LINE) {
        const uint64_t line = end - at < LINE ? end - at : LINE;
        const float *a = subtotal(sum, 0, half, at, line, scratch);
        if (sum->count > 1) {
            const float *b = subtotal(sum, half, sum->count - half, at, line, scratch + 1);
            store(a, b, line, sum->targets, sum->target_count, at);
        } else {
            for (int i = 0; i < sum->target_count; i++) {
                memmove(sum->targets[i] + at, a, line * sizeof *a); /* it may be in place */
            }
        }
    }
    return 0;
}

void pairwise_sum(struct pairwise_sum *sum, bool threads) {
    const size_t pieces = (size_t)((sum->elements + PIECE - 1) / PIECE);
    if (threads) {
        parallel_run(pieces, add_piece, sum);
        return;
    }
    for (size_t piece = 0; piece < pieces; piece++) {
        add_piece(sum, piece);
    }
}
