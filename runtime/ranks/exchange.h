/* Sums of a buffer's ranges over all ranks, while the device still computes the ranges to come.
 *
 * Every range is cut into one part for each rank, which owns it. In a sum the ranks send each other the parts of
 * their buffers; each owner adds what it got in the order of the ranks, so that a sum has the same bits from run to
 * run and on all ranks, and sends it to all. That is as many bytes as a ring moves, 2 (R - 1) / R of the range in
 * and out of every rank, in two steps instead of 2 (R - 1). */
#ifndef HC_RUNTIME_EXCHANGE_H
#define HC_RUNTIME_EXCHANGE_H

#include "runtime/device/compute.h"
#include "runtime/ranks/ranks.h"

enum exchange_kind {
    EXCHANGE_SUM,     /* all ranks get the sums */
    EXCHANGE_SCATTER, /* owners get the sums; the rest of a range is left undefined */
    EXCHANGE_GATHER,  /* all ranks get the owners' parts */
};

/* In elements (floats) of the buffer. */
struct exchange_range {
    uint64_t offset, count;
};

struct exchange_times {
    double active;  /* seconds in which some range was under way */
    double exposed; /* of these, those after the device had finished the last range */
    double bytes;   /* sent by this rank */
};

struct exchange;

/* ranges [count] in the order in which they will be ready, the same on all ranks; at most 2^28 elements each. With
 * bf16, sums travel in bfloat16 (each addend and the sum are rounded once; they are added in float). Staging memory
 * is allocated here. Collective. */
int exchange_create(struct compute *compute, const struct ranks *ranks, const struct exchange_range *ranges,
                    size_t count, bool bf16, struct exchange **created);
void exchange_release(struct exchange *exchange);

/* Host bytes that exchange_create allocates, for ranges up to this size. */
uint64_t exchange_staging_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest_range,
                                bool bf16);

/* The part of a range that the rank owns: multiples of 64 elements from its beginning, maybe none. */
struct exchange_range exchange_part(struct exchange_range range, int count, int rank);

/* Starts a round over all ranges of `buffer`. Then exchange_ready says, as often as wanted, that the launches so
 * far complete the first `count` ranges; exchange_finish says so for all that are left, and waits until everything
 * is exchanged and in the buffer. *times (may be NULL) gets added what this round took. */
void exchange_begin(struct exchange *exchange, enum exchange_kind kind, const struct buffer *buffer);
void exchange_ready(struct exchange *exchange, size_t count);
int exchange_finish(struct exchange *exchange, struct exchange_times *times);

#endif
