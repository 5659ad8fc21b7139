/* Where ranges of buffers are on the host while ranks add them up, and where the near ranks have theirs: in the buffers themselves,
 * where all ranks' devices work on the host's memory, else in slots that ranges are copied to. */
#pragma once

#include "runtime/device/transfer.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/host_memory.h"

enum { RANGE_SLOTS = 4 }; /* ranges under way at a time: enough that the next one starts while the last waits */

/* Memory of one purpose on all near ranks. */
struct shared_memory {
    const struct buffer *buffer; /* which it is; NULL: a slot's */
    struct host_memory *others;  /* [near.count], see neighbours_map */
};

struct range_slot {
    void *data;                  /* the range */
    struct host_memory memory;   /* which it is where others can read it, too; */
    struct shared_memory shared; /* theirs; */
    struct pinned *pinned;       /* [near.count] all of these for the driver, so that it can copy directly */
    struct pinned bounce;        /* what it copies from and to where it does not take that; nothing where it does */
    struct buffer packed;        /* the range in bfloat16, on the device; nothing where it travels in float */
    float *sums;                 /* this rank's near part, which is added in float */
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

/* What this rank makes by itself, for ranges of these buffers. range_memory_release frees what a failure leaves. */
int range_memory_make(struct range_memory *memory, const struct buffer *const *buffers, size_t count);

/* Collective, when all ranks have: maps what the near ranks have made. */
int range_memory_share(struct range_memory *memory);

/* Whether what the device may still be working with can be released; waits for it. */
bool range_memory_settle(struct range_memory *memory);
void range_memory_release(struct range_memory *memory);

/* Elements of the largest part of a range that a rank adds up for the near ranks. */
uint64_t range_memory_largest_part(const struct ranks *ranks, uint64_t largest);

/* Where the near ranks have this buffer; NULL if it is none of those that there were to be. */
const struct shared_memory *range_memory_find(const struct range_memory *memory, const struct buffer *buffer);
