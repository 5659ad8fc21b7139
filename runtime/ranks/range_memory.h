/* Host memory of ranges during a collective operation, and the other ranks' of the node. If all ranks' devices
 * compute in host memory it is the buffers' own; else ranges are copied to slots and back. */
#pragma once

#include "runtime/device/transfer.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/host_memory.h"

enum { RANGE_SLOTS = 4 }; /* ranges under way at once: enough that the next one starts while the last waits */

/* Memory of one purpose on all ranks of the node. */
struct shared_memory {
    const struct buffer *buffer; /* that it belongs to; NULL: to a slot */
    struct host_memory *others;  /* [node.count], see neighbours_map */
};

struct range_slot {
    void *data;                  /* the range */
    struct host_memory memory;   /* holds `data` if there are other ranks on the node */
    struct shared_memory shared; /* the other ranks' slots */
    struct pinned *pinned;       /* [node.count] all of these for the driver, so that it can copy directly */
    struct pinned bounce;        /* what it copies from and to where it does not take that; nothing where it does */
    struct buffer packed;        /* the range in bfloat16 on the device; empty if it travels in float */
    float *sums;                 /* sums of this rank's shard of the node, in float */
};

struct range_memory {
    /* set by the caller */
    struct compute *compute;
    struct ranks *ranks;
    uint64_t largest; /* elements of a range */
    bool bf16;        /* ranges may travel in bfloat16 */
    bool staged; /* ranges are copied to slots and back: some rank's device does not work on the host's memory */
    /* owned */
    struct transfer reads, writes;        /* two queues beside the compute's: copies both ways at a time */
    struct range_slot slots[RANGE_SLOTS]; /* if staged */
    struct shared_memory *buffers;        /* [buffer_count] */
    size_t buffer_count;
};

/* Allocates this rank's memory for ranges of these buffers. range_memory_release frees also what a failure
 * leaves. */
int range_memory_make(struct range_memory *memory, const struct buffer *const *buffers, size_t count);

/* Maps the memory of the other ranks of the node, after all have made theirs. Collective. */
int range_memory_share(struct range_memory *memory);

/* Waits for the device. Returns false if it may still use the memory, which must not be released then. */
bool range_memory_settle(struct range_memory *memory);
void range_memory_release(struct range_memory *memory);

/* Returns the elements of the largest shard of a range that a rank sums over its node. */
uint64_t range_memory_largest_shard(const struct ranks *ranks, uint64_t largest);

/* Returns the other ranks' memory of this buffer; NULL if the buffer was not given to range_memory_make. */
const struct shared_memory *range_memory_find(const struct range_memory *memory, const struct buffer *buffer);
