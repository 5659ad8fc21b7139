/* Collective operations on ranges of a buffer over all ranks, while the device still computes the ranges to come.
 *
 * Every range is cut into one part for each rank, which owns it. An all-reduce is a reduce-scatter, in which owners
 * add up their parts, and an all-gather of the sums: see range_messages.h. That is as many bytes as a ring moves,
 * 2 (R - 1) / R of the range in and out of every rank, in two steps instead of 2 (R - 1). */
#pragma once

#include "runtime/device/compute.h"
#include "runtime/ranks/ranks.h"

enum collective_kind {
    COLLECTIVE_ALL_REDUCE,     /* all ranks get the sums */
    COLLECTIVE_REDUCE_SCATTER, /* owners get the sums; the rest of a range is left undefined */
    COLLECTIVE_ALL_GATHER,     /* all ranks get the owners' parts */
};

struct collective_times {
    double active;  /* seconds in which some range was under way */
    double exposed; /* of these, those after the device had finished the last range */
    double bytes;   /* sent by this rank */
};

struct collective;

/* ranges [count] in the order in which they will be ready, the same on all ranks; at most 2^28 elements each. With
 * bf16, sums travel in bfloat16 (each addend and the sum are rounded once; they are added in float). Staging memory
 * is allocated here. There are other ranks. */
int collective_create(struct compute *compute, const struct ranks *ranks, const struct element_range *ranges,
                      size_t count, bool bf16, struct collective **created);
void collective_release(struct collective *collective);

/* Host bytes that collective_create allocates, for ranges up to this size. */
uint64_t collective_staging_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest_range,
                                  bool bf16);

/* Starts a round over all ranges of `buffer`. Then collective_ready says, as often as wanted, that the launches so
 * far complete the first `count` ranges; collective_finish says so for all that are left, and waits until the round
 * is over and its results are in the buffer. *times (may be NULL) gets added what this round took. */
void collective_begin(struct collective *collective, enum collective_kind kind, const struct buffer *buffer);
void collective_ready(struct collective *collective, size_t count);
int collective_finish(struct collective *collective, struct collective_times *times);
