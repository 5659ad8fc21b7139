/* Collective operations on ranges of buffers over all ranks, while the device still computes the ranges to come.
 *
 * Every range is cut into one part for each rank that is near (shares memory, see ranks.h), and each of these into one for each rank
 * across. A range goes through these steps:
 *
 *   the device's memory is copied to the host, where that is another one;
 *   each rank adds its part of all near ranks' addends, reading them where they lie;
 *   ranks across send each other what is left to add, and the sums (range_messages.h);
 *   each rank gets the sums of all near ranks' parts from where they lie, or has them put into its own memory.
 *
 * So nothing is copied within a host that is not the addend or the sum itself, and over the wire goes what must. Sums are added in an
 * order that depends on the groups alone (pairwise_sum.h). */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/ranks/ranks.h"

enum collective_kind {
    COLLECTIVE_ALL_REDUCE,     /* all ranks get the sums */
    COLLECTIVE_REDUCE_SCATTER, /* owners (ranks_own_part) get the sums; the rest of a range is left undefined */
    COLLECTIVE_ALL_GATHER,     /* all ranks get the owners' parts */
};

/* What is done with one range of floats. */
struct collective_item {
    enum collective_kind kind;
    const struct buffer *buffer;
    struct element_range range;
};

struct collective_settings {
    size_t items;     /* of a round, at most */
    uint64_t largest; /* elements of a range, at most; no more than 2^28 */
    bool
        bf16; /* gradients travel in bfloat16: from devices and back, and between ranks across, each addend and each sum
                              rounded; they are added in float. Where ranks read each other's own memory nothing is rounded */
    size_t buffer_count;
    const struct buffer *const
        *buffers; /* [buffer_count] those that items will be in: shareable where they are on the host */
};

struct collective_times {
    double active;  /* seconds in which some range was under way */
    double exposed; /* of these, those after the device had finished the last range */
    double sent;    /* bytes sent by this rank in messages */
    double moved;   /* bytes that this rank read and wrote in memory to add, and to hand out sums */
};

struct collective;

/* Collective: memory is allocated and mapped here. There are other ranks. A failure of one is all ranks' (ranks->agreed), unless
 * something is wrong between them. */
int collective_create(struct compute *compute, struct ranks *ranks, const struct collective_settings *settings,
                      struct collective **created);
void collective_release(struct collective *collective);

/* Bytes that collective_create allocates for ranges up to this size, where all ranks have such a device. */
uint64_t collective_host_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                               bool bf16);
uint64_t collective_device_bytes(const struct compute *compute, uint64_t largest, bool bf16);

/* Starts a round of items [count], the same on all ranks, in the order in which they will be ready. Then collective_ready says, as
 * often as wanted, that the launches so far complete the first `count` of them; collective_finish says so for all that are left, and
 * waits until the round is over and its results are in the buffers. *times (may be NULL) gets added what this round took. */
void collective_begin(struct collective *collective, const struct collective_item *items, size_t count);
void collective_ready(struct collective *collective, size_t count);
int collective_finish(struct collective *collective, struct collective_times *times);

/* What collective_finish does over and over, for those who have a clock of their own: a look at everything under way, after which
 * *done says whether the round is over. Whether something moved. */
bool collective_look(struct collective *collective, bool *done);

/* After a round: how long before the last item each was found to be ready, in seconds. */
double collective_lead(const struct collective *collective, size_t index);
