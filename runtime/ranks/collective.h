/* Collective operations (all-reduce, reduce-scatter, all-gather, broadcast) on ranges of buffers, which run while
 * the device still computes the ranges that follow.
 *
 * A range is divided into one shard for each rank of a node (ranks that share memory, see ranks.h), and each of
 * these into one shard for each rank of the group across nodes. A range goes through the stages of collective.c:
 *
 *   marked: the device computes the range, or all slots are in use;
 *   reading: it is copied from the device's memory to the host's, if these differ;
 *   filled: once all ranks of the node have it on the host, each sums its shard over them, reading their memory;
 *   adding, gathering: the ranks across nodes send each other these sums by messages (range_messages.h);
 *   summed: a rank has published its sums, or written them into the others' memory, and waits for the others';
 *   writing: the sums are copied to the device, if its memory differs from the host's.
 *
 * A broadcast is an all-gather of which one rank, the root, owns the whole range.
 *
 * Within a node only the addends and the sums are copied. The order of additions depends on the groups alone
 * (pairwise_sum in range_messages.h). */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/ranks/ranks.h"

enum collective_kind {
    COLLECTIVE_ALL_REDUCE,     /* all ranks get the sums */
    COLLECTIVE_REDUCE_SCATTER, /* owners (ranks_own_shard) get the sums; the rest of the range becomes undefined */
    COLLECTIVE_ALL_GATHER,     /* all ranks get every owner's shard */
    COLLECTIVE_BROADCAST,      /* all ranks get the root's range */
};

/* An operation on one range of floats. */
struct collective_item {
    enum collective_kind kind;
    const struct buffer *buffer;
    struct element_range range;
    int root; /* of a broadcast: its place, see ranks_index */
};

struct collective_settings {
    size_t items;     /* most items of a round */
    uint64_t largest; /* most elements of a range, 1 .. 2^28 */
    /* Gradients travel as bfloat16 between nodes, and between device and host; each addend and each sum is rounded,
     * additions are in float. Ranks that read each other's memory read floats. */
    bool bf16;
    const struct buffer *const *buffers; /* [buffer_count] of all items; shareable if they are in host memory */
    size_t buffer_count;
};

struct collective_times {
    double active;  /* seconds during which at least one range was under way */
    double exposed; /* of these, seconds after the device had finished the last range */
    double sent;    /* bytes that this rank sent in messages */
    double moved;   /* bytes that this rank read and wrote in memory to add, and to return sums */
};

static inline void collective_times_add(struct collective_times *to, const struct collective_times *from) {
    to->active += from->active;
    to->exposed += from->exposed;
    to->sent += from->sent;
    to->moved += from->moved;
}

struct collective;

/* Collective: allocates and maps memory for a job of two or more ranks. If one rank fails, all return -1 with its
 * error (ranks->agreed), unless communication itself fails. */
int collective_create(struct compute *compute, struct ranks *ranks, const struct collective_settings *settings,
                      struct collective **created);
void collective_release(struct collective *collective);

/* Bytes that collective_create allocates on the host and on the device for ranges of at most `largest` elements,
 * if all ranks have such a device. */
uint64_t collective_host_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                               bool bf16);
uint64_t collective_device_bytes(const struct compute *compute, uint64_t largest, bool bf16);

/* collective_begin starts a round of items [count], the same on all ranks, in the order in which they become
 * ready. collective_ready tells that the launches so far complete the first `count` items; call it as often as
 * you like. collective_finish tells so for all items, waits until the round is over and the results are in the
 * buffers, and adds its timings to *times, which may be NULL. */
void collective_begin(struct collective *collective, const struct collective_item *items, size_t count);
void collective_ready(struct collective *collective, size_t count);
int collective_finish(struct collective *collective, struct collective_times *times);
